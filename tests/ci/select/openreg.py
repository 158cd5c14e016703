"""A device for selections: what it can do, and short ways to enumerate texts."""

from __future__ import annotations

from openspyre.ci.select.stages.enumeration import enumerate_shapes
from openspyre.ci.select.stages.knowledge import Capability, capability_of
from openspyre.ci.select.stages.layout import Layout
from openspyre.ci.select.stages.reading import shape_of
from openspyre.ci.select.stages.records import Enumeration
from tests.ci.select.planted_changes import INFRA

LAYOUT = Layout()
Files = dict[str, str | bytes]
TABLE = {
    "torch": "2.13.0",
    "digest": "sha256:0",
    "features": {"autograd": True, "complex": False, "devices": 1},
    "ops": {
        "add": {"fwd": ["float16", "float32"], "bwd": ["float32"], "state": "card"},
        "sin": {"fwd": ["float32"], "bwd": [], "state": "card"},
        "div.floor": {"fwd": [], "bwd": [], "state": "raised"},
    },
}


def openreg() -> Capability:
    """Adds in two dtypes, takes sines without gradients, does not divide."""
    return capability_of(TABLE, "openreg")


def enumerated(files: Files) -> Enumeration:
    """An enumeration of texts, without git, the test machinery included."""
    sources = {
        path: text.encode() if isinstance(text, str) else text
        for path, text in sorted({**INFRA, **files}.items())
    }
    shapes = {path: shape_of(data) for path, data in sources.items() if path.endswith(".py")}
    hashes = {path: str(data) for path, data in sources.items()}
    other = {path: text for path, text in hashes.items() if path not in shapes}
    return enumerate_shapes(shapes, LAYOUT, hashes, other)
