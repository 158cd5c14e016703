"""What the importer makes of real loop nests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel

from openspyre.ir.kernel import Call, Const, Kernel, Kind, Load, Role, walk
from tests.compile.comparing import compare, generated, kernels_in, tensor

DUMP = Path(__file__).parent.parent / "data" / "regions" / "minilm_captured.txt"
KIND = {"dot": "contract"}


def kinds(kernel: Kernel) -> list[str]:
    return [f"{op.kind.value} {op.reduce or ''}".strip() for op in kernel.ops]


def dumped_kinds() -> list[str]:
    """The kinds of nests n0 to n26 of the dump: the embedding and one layer."""
    found: dict[str, str] = {}
    for line in DUMP.read_text().splitlines():
        if new := re.match(r"  (n\d+) op\d+ (gather|map|dot|reduce \w+)  ", line):
            found[new[1]] = KIND.get(new[2], new[2])
        elif twin := re.match(r"  (n\d+) op\d+ as (n\d+) on", line):
            found[twin[1]] = found[twin[2]]
    return [found[f"n{k}"] for k in range(27)]


def normalized_last(layer: list[str]) -> list[str]:
    """A layer of the dump as attention is lowered now: the sum of what is stored; the quotient is
    taken where the product with V is put into rows."""
    scores = layer.index("reduce max")
    old = ["reduce max", "reduce sum", "map", "contract"]
    assert layer[scores : scores + 4] == old
    new = ["reduce max", "map", "reduce sum", "contract"]
    return [*layer[:scores], *new, *layer[scores + 4 :]]


@pytest.fixture(scope="module")
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        vocab_size=90, max_position_embeddings=64,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_bert_is_one_region_of_the_known_structure(bert: BertModel, dynamic: bool) -> None:
    ids, mask = torch.randint(0, 90, (3, 11)), torch.ones(3, 11, dtype=torch.long)
    model = bert.half().to("spyre")
    with torch.no_grad():
        code = generated(lambda i, m: model(i, m).last_hidden_state, ids, mask, dynamic=dynamic)
    (kernel,) = kernels_in(code)
    embedding, *dumped = dumped_kinds()
    tail, layer = dumped[:4], normalized_last(dumped)
    # The lookup of a looked-up token type is an op of its own.
    assert kinds(kernel) == ["gather", embedding, *layer, *layer, *tail]
    (output,) = [t for t in kernel.tensors.values() if t.role is Role.OUTPUT]
    assert output.shape[-1].constant == 64
    assert len(kernel.symbols) == (2 if dynamic else 0)


def test_masks_lose_what_is_always_true(bert: BertModel) -> None:
    ids, mask = torch.randint(0, 90, (3, 11)), torch.ones(3, 11, dtype=torch.long)
    model = bert.half().to("spyre")
    with torch.no_grad():
        (kernel,) = kernels_in(generated(lambda i, m: model(i, m).last_hidden_state, ids, mask))
    calls = [n.op for op in kernel.ops for n in walk(op.body) if isinstance(n, Call)]
    assert "and" not in calls
    assert "ge" not in calls


def test_equal_statistics_are_computed_once() -> None:
    (kernel,) = kernels_in(generated(lambda x: torch.var_mean(x, 1), tensor(5, 70)))
    assert kinds(kernel).count("reduce sum") == 2  # the sum, and the squared differences


def test_a_sum_of_residuals_is_made_once() -> None:
    def block(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = x + y
        return F.rms_norm(s, (96,)) @ w, s * 2

    (kernel,) = kernels_in(compare(block, tensor(6, 96), tensor(6, 96), tensor(96, 32)))
    made = [op for op in kernel.ops if {n.tensor for n in walk(op.body) if isinstance(n, Load)} == {
        "arg0_1", "arg1_1"
    }]  # fmt: skip
    assert len(made) == 1


def test_concatenation_writes_pieces_of_one_tensor() -> None:
    def joined(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.cat([x.sum(1), y.sum(1)], 0)
        return new, new * 2

    code = generated(joined, tensor(6, 30), tensor(5, 30))
    (kernel,) = kernels_in(code)
    targets = [op.out.tensor for op in kernel.ops]
    assert len(set(targets)) == 2
    assert kernel.tensors[targets[0]].shape[0].constant == 11
    assert kernel.tensors[targets[0]].role is Role.OUTPUT


def test_masked_loads_are_guarded() -> None:
    (kernel,) = kernels_in(generated(lambda x: F.pad(x, (2, 1)), tensor(3, 5)))
    (load,) = {n for op in kernel.ops for n in walk(op.body) if isinstance(n, Load)}
    assert load.guarded


def test_matmul_is_a_contraction_of_any_operand_order() -> None:
    (kernel,) = kernels_in(generated(lambda x, y: x.t() @ y, tensor(9, 4), tensor(9, 5)))
    assert [op.kind for op in kernel.ops] == [Kind.CONTRACT]


def test_integers_keep_their_class() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    (kernel,) = kernels_in(generated(f, tensor(4, 6, dtype=torch.int32)))
    constants = {n.dtype.value for n in walk(kernel.ops[0].body) if isinstance(n, Const)}
    assert constants == {"i32"}


def test_sources_name_the_users_line() -> None:
    (kernel,) = kernels_in(generated(lambda x: torch.softmax(x, -1), tensor(4, 6)))
    assert all("test_importer.py" in op.source and "softmax" in op.source for op in kernel.ops)


def test_long_chains_are_cut_by_locals() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = x * x * 0.5 + 0.1 * x
        return x

    compare(chain, tensor(4, 6) / 2, launches=1)
