"""The device that the survey measures."""

from __future__ import annotations

import openspyre

openspyre.require()
