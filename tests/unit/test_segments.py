"""Equal segments: a deep model costs no more planning than a shallow one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from openspyre.compiler import tiles
from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.cost import Timeline
from openspyre.compiler.layout import choose_layouts
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.compiler.segments import classes, step_keys
from openspyre.compiler.tiling import Runs
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.regions import load_region


def layers(count: int, *, early: bool = False) -> Kernel:
    """`count` layers: mix rows (all of them are needed), take the row maximum, subtract it.

    Args:
        early: a small tensor of every layer is made before the first.
    """
    tensors = [f"input w{n}: f16[512, 512]" for n in range(count)]
    tensors += [f"local {t}{n}: f16[512, 64]" for n in range(count) for t in ("p", "o")]
    tensors += [f"local m{n}: f32[512, 1]" for n in range(count)]
    ops = []
    if early:
        tensors += [f"input b{n}: f16[64]" for n in range(count)]
        tensors += [f"local q{n}: f32[64]" for n in range(count)]
        ops += [f"op q{n} map i0:64\n  q{n}[i0] <- exp(b{n}[i0])" for n in range(count)]
    for n in range(count):
        given = f"o{n - 1}" if n else "x"
        ops.append(f"""
op dot{n} contract i0:512 i1:64 | r0:512
  p{n}[i0, i1] <- sum: w{n}[i0, r0] * {given}[r0, i1]
op max{n} reduce i0:512 | r0:64
  m{n}[i0, 0] <- max: p{n}[i0, r0]
op sub{n} map i0:512 i1:64
  o{n}[i0, i1] <- f16(p{n}[i0, i1] - {f"(m{n}[i0, 0] + q{n}[i1])" if early else f"m{n}[i0, 0]"})""")
    ops.append(f"""
op last map i0:512 i1:64
  y[i0, i1] <- f16(o{count - 1}[i0, i1] * 0.5)""")
    weights = " ".join(f"w{n}" for n in range(count))
    biases = " ".join(f"b{n}" for n in range(count)) if early else ""
    head = ["kernel layers", f"arguments x {weights} {biases} y"]
    head += ["input x: f16[512, 64]", "output y: f16[512, 64]"]
    return parse_kernel("\n".join([*head, *tensors, *ops]))


def prepared(kernel: Kernel) -> Kernel:
    return choose_layouts(canonicalize(kernel, SPYRE_CARD_V1), SPYRE_CARD_V1)


def test_layers_have_the_same_classes() -> None:
    found = classes(prepared(layers(5)))
    assert found[3:6] == found[6:9] == found[9:12]
    assert len(set(found)) < 10


def test_a_model_of_many_layers_plans_each_kind_of_op_once() -> None:
    kernel = prepared(load_region("minilm_captured"))
    found = classes(kernel)
    assert len(found) > 150
    assert len(set(found)) < 75


def test_planning_does_not_grow_with_depth() -> None:
    counts = []
    for depth in (30, 60):
        runs = Runs(prepared(layers(depth)), SPYRE_CARD_V1)
        assert sum(last - first + 1 for first, last in runs.best()) == 3 * depth + 1
        counts.append(runs.planned)
    assert counts[1] <= counts[0] * 1.25


@pytest.mark.parametrize("early", [False, True])
def test_all_stages_together_look_at_no_more_for_more_layers(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """What takes time: ops put on a timeline, and the LX buffers of a step planned."""
    counts: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def counted(*given: Any) -> Any:
            counts[name] += 1
            return plain(*given)

        monkeypatch.setattr(owner, name, counted)

    count(Timeline, "add")
    count(tiles._Builder, "plan")
    found = []
    for depth in (70, 140):  # deeper than segments.REACH
        counts.clear()
        planned = plan_kernel(layers(depth, early=early), SPYRE_CARD_V1)
        assert len(planned.steps) >= depth
        found.append(dict(counts))
    few, many = found
    assert all(few.values())
    assert many["add"] <= 1.25 * few["add"]
    if not early:  # else more stays in LX during every layer, and tiles are planned beside that
        assert many["plan"] <= 1.25 * few["plan"]


def pieces(count: int) -> Kernel:
    """`count` pieces of all kinds of widths, copied into one tensor side by side."""
    widths = [8 + n % 13 + n // 7 for n in range(count)]
    inputs = [f"input x{n}: f16[64, {width}]" for n, width in enumerate(widths)]
    ops = [
        f"op copy{n} map i0:64 i1:{width}\n  y[i0, i1 + {sum(widths[:n])}] <- x{n}[i0, i1]"
        for n, width in enumerate(widths)
    ]
    names = " ".join(f"x{n}" for n in range(count))
    head = ["kernel pieces", f"arguments {names} y", f"output y: f16[64, {sum(widths)}]"]
    return parse_kernel("\n".join([*head, *inputs, *ops]))


def test_planning_ops_that_do_not_repeat_takes_so_much_for_each() -> None:
    points = []
    for count in (100, 200):
        kernel = prepared(pieces(count))
        assert len(set(classes(kernel))) > 0.9 * count
        runs = Runs(kernel, SPYRE_CARD_V1)
        list(runs.best())
        # a run of n ops is looked at for the work of its last op
        assert runs.points <= 10 * runs.planned
        points.append(runs.points)
    # runs that the end of the kernel cuts off weigh more in the smaller one
    assert points[1] <= points[0] * 2.75


def test_equal_steps_get_equal_divisions_and_tiles() -> None:
    """But for what earlier steps load for them, which depends on these."""
    stages = tuple(stage for stage in STAGES if stage[0] != "load_early")
    kernel = plan_kernel(load_region("minilm_captured"), SPYRE_CARD_V1, stages=stages)
    models: dict[object, tuple[object, object]] = {}
    for step, key in step_keys(kernel):
        plan = (kernel.divisions[step.name], step.loops)
        assert models.setdefault(key, plan) == plan
    assert len(models) < len(kernel.steps)


def test_a_difference_in_form_is_another_class() -> None:
    text = """
kernel two
arguments x a b
input x: f16[4]
output a: f16[4]
output b: f16[4]
op one map i0:4
  a[i0] <- f16(x[i0] + 1.0)
op two map i0:4
  b[i0] <- f16(x[i0] + {0})
"""
    same, other = (classes(parse_kernel(text.format(c))) for c in ("1.0", "2.0"))
    assert same[0] == same[1]
    assert other[0] != other[1]
