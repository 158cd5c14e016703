"""The performance review of the compiler: card cycles of real regions, exact.

A difference is a decision: look at it, then `./dev golden` writes `cycles.toml` anew.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from openspyre.card.native import Report, SoftwareCard
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.runtime.clock import card_timer
from openspyre.spec import SPYRE_CARD_V1
from tests.regions import NAMES, load_region

GOLDEN = Path(__file__).parent / "cycles.toml"
SYMBOLS = (4, 128, 64, 32)
AT_OTHER_SIZES = {"minilm_dyn_8x128": ("minilm_dyn_captured", (8, 128))}
FIXED = {f"minilm_{n}x128": ("minilm_dyn_captured", (n, 128)) for n in (8, 32)}
SOFTMAX = """
kernel softmax
arguments x y
input x: f16[512, 1024]
output y: f16[512, 1024]
local m: f32[512, 1]
local l: f32[512, 1]
op m reduce i0:512 | r0:1024
  m[i0, 0] <- max: x[i0, r0]
op l reduce i0:512 | r0:1024
  l[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op y map i0:512 i1:1024
  y[i0, i1] <- f16(exp(x[i0, i1] - m[i0, 0]) / l[i0, 0])
"""
LINEAR = """
kernel linear
arguments x w y
input x: f16[M, 4096]
input w: f16[N, 4096]
output y: f16[M, N]
op y contract i0:M i1:N | r0:4096
  y[i0, i1] <- x[i0, r0] * w[i1, r0]
"""
GATED = """
kernel gated
arguments x g u y
input x: f16[M, 4096]
input g: f16[12800, 4096]
input u: f16[12800, 4096]
output y: f16[M, 12800]
local a: f16[M, 12800]
local b: f16[M, 12800]
op a contract i0:M i1:12800 | r0:4096
  a[i0, i1] <- x[i0, r0] * g[i1, r0]
op b contract i0:M i1:12800 | r0:4096
  b[i0, i1] <- x[i0, r0] * u[i1, r0]
op y map i0:M i1:12800
  y[i0, i1] <- (a[i0, i1] * b[i0, i1])
"""
WINDOW = """
kernel window
arguments q k v y
input q: f16[32, 4096, 128]
input k: f16[32, 4096, 128]
input v: f16[32, 4096, 128]
output y: f16[32, 4096, 128]
local s: f32[32, 4096, 4096]
local m: f32[32, 4096, 1]
local e: f16[32, 4096, 4096]
local l: f32[32, 4096, 1]
local a: f32[32, 4096, 128]
op s contract i0:32 i1:4096 i2:4096 | r0:128
  s[i0, i1, i2] <- q[i0, i1, r0] * k[i0, i2, r0]
op m reduce i0:32 i1:4096 | r0:4096
  m[i0, i1, 0] <- max: where(SEEN(r0), s[i0, i1, r0], -inf)
op e map i0:32 i1:4096 i2:4096
  e[i0, i1, i2] <- exp(where(SEEN(i2), s[i0, i1, i2], -inf) - m[i0, i1, 0])
op l reduce i0:32 i1:4096 | r0:4096
  l[i0, i1, 0] <- sum: e[i0, i1, r0]
op a contract i0:32 i1:4096 i2:128 | r0:4096
  a[i0, i1, i2] <- e[i0, i1, r0] * v[i0, r0, i2]
op y map i0:32 i1:4096 i2:128
  y[i0, i1, i2] <- (a[i0, i1, i2] / l[i0, i1, 0])
"""
SEEN = r"(idx[\1] <= idx[i1]) & (idx[\1] > idx[i1 - 1024])"
SWIGLU = """
kernel swiglu
arguments x g u d z
input x: f16[512, 4096]
input g: f16[12800, 4096]
input u: f16[12800, 4096]
input d: f16[4096, 12800]
output z: f16[512, 4096]
local a: f16[512, 12800]
local b: f16[512, 12800]
local y: f16[512, 12800]
op a contract i0:512 i1:12800 | r0:4096
  a[i0, i1] <- x[i0, r0] * g[i1, r0]
op b contract i0:512 i1:12800 | r0:4096
  b[i0, i1] <- x[i0, r0] * u[i1, r0]
op y map i0:512 i1:12800
  y[i0, i1] <- ((a[i0, i1] * sigmoid(a[i0, i1])) * b[i0, i1])
op z contract i0:512 i1:4096 | r0:12800
  z[i0, i1] <- y[i0, r0] * d[i1, r0]
"""
SUM = """
kernel sum
arguments x y
input x: f32[1048576]
output y: f32[]
op y reduce | r0:1048576
  y[] <- sum: x[r0]
"""


def with_sizes(kernel: Kernel, sizes: tuple[int, ...]) -> Kernel:
    """The kernel with numbers in place of its symbols."""
    text = print_kernel(kernel)
    for name, size in zip(kernel.symbols, sizes, strict=True):
        text = re.sub(rf"\b{name}\b", str(size), text)
    lines = text.splitlines()
    return parse_kernel("\n".join(x for x in lines if not x.startswith(("symbols", "limits"))))


def cases() -> dict[str, Kernel]:
    """What is measured, by name."""
    found = {name: load_region(name) for name in NAMES}
    found |= {name: load_region(region) for name, (region, _) in AT_OTHER_SIZES.items()}
    found |= {name: with_sizes(load_region(region), n) for name, (region, n) in FIXED.items()}
    found["softmax_512x1024"] = parse_kernel(SOFTMAX)
    for m, n in ((512, 4096), (64, 4096), (1, 4096)):
        found[f"linear_{m}x{n}x4096"] = parse_kernel(
            LINEAR.replace("M", str(m)).replace("N", str(n))
        )
    for m in (512, 1024):  # one core's panels of both weights fit LX once, not twice
        found[f"gated_{m}x12800x4096"] = parse_kernel(GATED.replace("M", str(m)))
    found["window_1024_of_4096"] = parse_kernel(re.sub(r"SEEN\((\w+)\)", SEEN, WINDOW))
    found["swiglu_512x4096x12800"] = parse_kernel(SWIGLU)
    found["sum_1048576"] = parse_kernel(SUM)
    return found


CASES = cases()


@pytest.fixture(scope="module")
def card() -> SoftwareCard:
    return SoftwareCard(memory=1 << 30, threads=1)


def measured(card: SoftwareCard, kernel: Kernel, sizes: tuple[int, ...] = SYMBOLS) -> Report:
    """One launch with symbols at `sizes`, every argument at a stick border."""
    sizes = sizes[: len(kernel.symbols)]
    limits = dict(zip(kernel.symbols, ((n, n) for n in sizes), strict=True))
    timer = card_timer(SPYRE_CARD_V1)
    program = compile_kernel(replace(kernel, limits=limits), SPYRE_CARD_V1, timer=timer)
    loaded = card.load_program(program)
    addresses, _, scalars = program.arguments
    block = card.fill(loaded, [0] * addresses, sizes, [0.0] * scalars, 0)
    try:
        return card.time(loaded, block)
    finally:
        card.unload(loaded)


def row(report: Report) -> dict[str, float]:
    return {
        "cycles": report.cycles,
        "bound_p_cycles": report.bound_p_cycles,
        "read_bytes": report.device_read_bytes,
        "write_bytes": report.device_write_bytes,
        "lx_peak": report.lx_peak,
        "cores": report.cores,
    }


@pytest.mark.parametrize("name", CASES)
def test_cycles(name: str, card: SoftwareCard, update_golden: bool) -> None:
    _, sizes = AT_OTHER_SIZES.get(name, ("", SYMBOLS))
    found = row(measured(card, CASES[name], sizes))
    golden = tomllib.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if update_golden:
        golden[name] = found
        GOLDEN.write_text(
            "".join(
                f"[{case}]\n" + "".join(f"{k} = {v}\n" for k, v in numbers.items()) + "\n"
                for case, numbers in sorted(golden.items())
            )
        )
    assert golden[name] == found


def test_no_golden_row_is_stale() -> None:
    assert sorted(tomllib.loads(GOLDEN.read_text())) == sorted(CASES)


@pytest.mark.parametrize("rows", [512, 1024])
def test_weights_of_two_products_are_read_a_few_times(rows: int, card: SoftwareCard) -> None:
    """Not once per row: what does not fit LX double buffered may fit in single slots."""
    report = measured(card, CASES[f"gated_{rows}x12800x4096"])
    assert report.device_read_bytes <= 2 * 2 * 4096 * (rows + 2 * 12800)
