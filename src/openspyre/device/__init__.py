"""The torch device "spyre".

Whoever comes here first loads all of torch first: torch's autoload imports `device.register`, and
must find it whole and not half imported by the one who asked for it.
"""

import torch  # noqa: F401
