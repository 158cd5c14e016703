"""Attention computes no keys that a mask hides from all rows of a block, whatever its form."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard
from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.kernel import Kernel, Kind
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.unit.test_canonical import inputs, same_values

ATTENTION = """
kernel attention
arguments q k v y
input q: f16[2, ROWS, 32]
input k: f16[2, KEYS, 32]
input v: f16[2, KEYS, 64]
output y: f16[2, ROWS, 64]
local s: f32[2, ROWS, KEYS]
local m: f32[2, ROWS]
local p: f16[2, ROWS, KEYS]
local l: f32[2, ROWS]
local o: f32[2, ROWS, 64]
op s contract i0:2 i1:ROWS i2:KEYS | r0:32
  s[i0, i1, i2] <- (q[i0, i1, r0] * k[i0, i2, r0])
op m reduce i0:2 i1:ROWS | r0:KEYS
  m[i0, i1] <- max: SCORE_R
op p map i0:2 i1:ROWS i2:KEYS
  p[i0, i1, i2] <- f16(exp(SCORE_I - m[i0, i1]))
op l reduce i0:2 i1:ROWS | r0:KEYS
  l[i0, i1] <- sum: p[i0, i1, r0]
op o contract i0:2 i1:ROWS i2:64 | r0:KEYS
  o[i0, i1, i2] <- (p[i0, i1, r0] * v[i0, r0, i2])
op y map i0:2 i1:ROWS i2:64
  y[i0, i1, i2] <- f16(o[i0, i1, i2] / l[i0, i1])
"""
CAUSAL = "idx[KEY]:i32 <= idx[ROW]:i32"
SEEN = {
    "causal": CAUSAL,
    "window": f"({CAUSAL}) & (idx[KEY]:i32 > idx[ROW - 100]:i32)",
    "either side": "max(idx[ROW - KEY]:i32, idx[KEY - ROW]:i32) <= 70:i32",
    "nobody": "idx[KEY]:i32 > idx[ROW + 5000]:i32",
    "first keys": "idx[KEY]:i32 < 64:i32",
    "all": "idx[KEY]:i32 < idx[ROW + 5000]:i32",
}


def attention(
    rows: int, keys: int, seen: str, hidden: str = "-inf", text: str = ATTENTION
) -> Kernel:
    """`seen`: the condition under which a ROW sees a KEY."""
    for key, score in (("r0", "SCORE_R"), ("i2", "SCORE_I")):
        masked = f"where({seen}, s[i0, i1, {key}] * 0.125, {hidden})"
        text = text.replace(score, masked.replace("KEY", key).replace("ROW", "i1"))
    return parse_kernel(text.replace("ROWS", str(rows)).replace("KEYS", str(keys)))


def products(kernel: Kernel) -> list[tuple[int, int]]:
    """(rows, keys) of the scores that are made, by rows."""
    made = [op for op in canonicalize(kernel, SPYRE_CARD_V1).ops if op.kind is Kind.CONTRACT]
    sizes = [
        tuple(d.extent.constant or 0 for d in op.dims)
        for op in made
        if op.rdims[0].extent.constant == 32
    ]
    return sorted((rows, keys) for _, rows, keys in sizes)


@pytest.mark.parametrize(
    ("seen", "rows", "keys", "expected"),
    [
        ("causal", 256, 256, [(128, 128), (128, 256)]),
        ("causal", 100, 100, [(100, 100)]),
        ("causal", 1024, 1024, [(128, 128 * n) for n in range(1, 9)]),
        ("causal", 100, 900, [(100, 128)]),
        ("window", 389, 389, [(5, 133), (192, 192), (192, 320)]),
        ("window", 256, 700, [(128, 128), (128, 256)]),
        ("either side", 389, 389, [(5, 133), (192, 320), (192, 325)]),
        ("first keys", 389, 389, [(389, 64)]),
        ("first keys", 1, 4096, [(1, 64)]),
        ("nobody", 300, 389, []),
        ("all", 300, 300, [(300, 300)]),
    ],
)
def test_keys_that_no_row_sees_are_not_computed(
    seen: str, rows: int, keys: int, expected: list[tuple[int, int]]
) -> None:
    assert products(attention(rows, keys, SEEN[seen])) == expected


@pytest.mark.parametrize("seen", ["causal", "window", "either side", "first keys"])
@pytest.mark.parametrize(("rows", "keys"), [(389, 389), (130, 300), (1, 200)])
def test_values(seen: str, rows: int, keys: int) -> None:
    same_values(attention(rows, keys, SEEN[seen]))


def test_what_is_no_number_reaches_the_rows_that_it_did() -> None:
    kernel = attention(389, 389, SEEN["window"].replace("ROW - 100", "ROW - 90"))
    given = inputs(kernel, {})
    given["k"][0, 200] = np.nan  # hidden from most rows of its block
    given["q"][1, 7] = np.nan
    given["k"][0, 300] = np.inf
    changed = canonicalize(kernel, SPYRE_CARD_V1)
    with np.errstate(invalid="ignore"):
        expected, found = evaluate(kernel, given, {})["y"], evaluate(changed, given, {})["y"]
    assert np.isnan(expected).any()
    assert not np.isnan(expected).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_rows_that_see_nothing_stay_no_number() -> None:
    kernel = attention(389, 389, "idx[KEY]:i32 < idx[ROW - 200]:i32")
    assert len(products(kernel)) > 1
    given = inputs(kernel, {})
    changed = canonicalize(kernel, SPYRE_CARD_V1)
    with np.errstate(invalid="ignore"):
        expected, found = evaluate(kernel, given, {})["y"], evaluate(changed, given, {})["y"]
    assert np.isnan(expected[:, :201]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize(
    "kernel",
    [
        attention(389, 389, CAUSAL, hidden="-65504.0"),  # a row may see nothing larger
        attention(389, 389, "ok[KEY] > 0.0", text=ATTENTION.replace(
            "arguments q", "arguments ok q").replace("input q", "input ok: f32[KEYS]\ninput q")),
        attention(389, 389, CAUSAL, text=ATTENTION.replace(
            "v y", "v y p").replace("local p", "output p")),
        attention(389, 389, CAUSAL, text=ATTENTION.replace("SCORE_R", "s[i0, i1, r0]")),
        attention(389, 389, CAUSAL, text=ATTENTION.replace("exp(", "(")),
    ],
    ids=["a finite number", "a mask from memory", "returned weights", "another maximum", "no exp"],
)  # fmt: skip
def test_all_keys_stay_where_nothing_proves_them_hidden(kernel: Kernel) -> None:
    assert products(kernel) == [(389, 389)]


def test_a_mask_that_is_made_once_is_seen_through() -> None:
    text = ATTENTION.replace("local s:", "local c: b1[ROWS, KEYS]\nlocal s:").replace(
        "op s contract",
        "op c map i0:ROWS i1:KEYS\n  c[i0, i1] <- idx[i1]:i32 <= idx[i0]:i32\nop s contract",
    )
    kernel = attention(256, 256, "c[ROW, KEY]", text=text)
    assert products(kernel) == [(128, 128), (128, 256)]
    same_values(kernel)


def test_ops_between_that_change_what_is_read_keep_it_whole() -> None:
    text = ATTENTION.replace("input v", "mutated v").replace(
        "op y map", "op v map i0:2 i1:KEYS i2:64\n  v[i0, i1, i2] <- 0.0\nop y map"
    )
    assert products(attention(256, 256, CAUSAL, text=text)) == [(256, 256)]


def test_card_time_and_bytes_fall_with_the_window() -> None:
    cycles, read = [], []
    with SoftwareCard(memory=1 << 26, threads=1) as card:
        for width in (64, 200, 1000):
            seen = SEEN["window"].replace("100", str(width))
            program = compile_kernel(attention(700, 700, seen), SPYRE_CARD_V1)
            loaded = card.load_program(program)
            found = card.time(loaded, card.fill(loaded, [0] * program.arguments[0], (), []))
            cycles.append(found.cycles)
            read.append(found.device_read_bytes)
    assert cycles[0] < cycles[1] < cycles[2]
    assert read == sorted(read)
