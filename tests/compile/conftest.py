"""Tests of torch.compile on the card."""

import openspyre

openspyre.require()
