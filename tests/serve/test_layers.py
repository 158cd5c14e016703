"""The hardware-agnostic layers: isolated, portable, extensible."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from torch import nn

from openspyre.errors import Unsupported
from tests.serve.running import ROOT, output_of

FOLDER = ROOT / "src" / "openspyre" / "vllm" / "layers"
FILES = sorted(FOLDER.glob("*.py"))
PLAIN = {"__future__", "typing", "torch", "vllm"}
OF_VLLM = ("vllm.model_executor.layers", "vllm.model_executor.hw_agnostic")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_layers_know_those_of_vllm_by_the_table_alone(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [str(node.module)] if isinstance(node, ast.ImportFrom)
            else []
        )
    }  # fmt: skip
    assert {name for name in imported if name.split(".")[0] == "vllm"} <= {"vllm.distributed"}
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(OF_VLLM)
    ]
    assert not named or file.stem in ("table", "census")
    if file.stem not in ("table", "census", "__init__"):
        assert {name.split(".")[0] for name in imported} <= PLAIN
        assert "spyre" not in file.read_text()


@pytest.mark.parametrize("device", ["cpu", "other"])
def test_layers_are_right_on_another_device(device: str) -> None:
    said = output_of("-m", "tests.serve.portable_run", device, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    found = json.loads(said.splitlines()[-1])
    assert found.pop("modules") == ["vllm", "vllm.distributed"]
    assert {name: error for name, error in found.items() if not error < 2e-6} == {}
    assert len(found) >= 25


_EXTENDED = """
import json
import torch
from torch import nn
import openspyre.vllm
from openspyre.errors import Unsupported
from openspyre.vllm.layers import LAYERS, census, install, override
from openspyre.vllm.layers.table import Registry

class Toy(nn.Module):
    pass

rows = {layer.name: layer for layer in LAYERS}
before = {layer.name: layer.target().__new__(layer.target()) for layer in LAYERS}
theirs = type("QuickGELU", (before["QuickGELU"].__class__,), {})
Registry.IN_TREE.classes()["QuickGELU"] = theirs  # another plugin was first
openspyre.vllm.register()
openspyre.vllm.register()
ours = {layer.name: type(layer.target().__new__(layer.target())) for layer in LAYERS}
for layer in LAYERS:
    override(layer.name, Toy)
toys = {layer.name: type(layer.target().__new__(layer.target())) for layer in LAYERS}
try:
    override("Attention", Toy)
except Unsupported as error:
    refused = str(error)
print(json.dumps({
    "untouched": [n for n, made in before.items() if type(made).__module__.startswith("openspyre")],
    "theirs": ours.pop("QuickGELU") is theirs,
    "ours": [n for n, made in ours.items() if made.__module__.startswith("openspyre")],
    "portable upstream": [layer.name for layer in LAYERS if layer.forward is None],
    "not derived": [n for n, made in ours.items() if not issubclass(made, rows[n].target())],
    "without toy": [n for n, made in toys.items() if not issubclass(made, Toy)],
    "on top": [n for n, made in ours.items() if not issubclass(toys[n], made)],
    "refused": refused,
}))
"""


def test_every_layer_is_replaced_and_can_be_again() -> None:
    said = output_of("-c", _EXTENDED, VLLM_USE_HW_AGNOSTIC="1")
    found = json.loads(said.splitlines()[-1])
    assert found["theirs"]
    assert len(found["ours"]) >= 30
    assert found["portable upstream"] == ["TPAwareRMSNorm", "RMSNorm", "SiluAndMul"]
    for nothing in ("not derived", "without toy", "on top"):
        assert found[nothing] == []
    assert found["refused"].startswith("an override of Attention\n  why: ")


def test_the_switch_is_vllms() -> None:
    said = output_of(
        "-c",
        "import openspyre.vllm; openspyre.vllm.register()\n"
        "from openspyre.vllm.layers.table import Registry\n"
        "print([dict(r.classes()) for r in Registry])",
    )
    assert said.splitlines()[-1] == "[{}, {}]"


def test_a_module_of_nobody_known_is_refused() -> None:
    from openspyre.vllm.layers.census import census

    class Stranger(nn.Module):
        pass

    assert [one.name for one in census(nn.Sequential(nn.GELU()))] == ["GELU", "Sequential"]
    with pytest.raises(Unsupported, match="Stranger in the census"):
        census(nn.Sequential(Stranger()))
