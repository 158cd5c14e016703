"""One function on the CPU and on the card, compared and held to limits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import openspyre

openspyre.require()
from openspyre import _C  # noqa: E402
from openspyre.runtime.places import calling_place  # noqa: E402
from openspyre.runtime.profiler import Profile, profile  # noqa: E402
from openspyre.testing.plugin import Limits  # noqa: E402

_SHOWN = 10  # kernels, lines
Test = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Card:
    """Runs a test's code on both devices.

    Attributes:
        limits: what the test's mark allows.
    """

    limits: Limits

    def called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What fixture `on_spyre` does."""

        def test(device: str) -> Any:
            own, given, named = _moved((function, args, kwargs), device)
            return own(*given, **named)

        return self.compared(test)

    def compared(self, test: Test) -> Any:
        """Runs a test on the CPU, then on the card; fails where they differ or a limit is broken.

        Returns what it returned on the card, on the CPU.
        """
        __tracebackhide__ = True
        torch.manual_seed(0)
        expected = test("cpu")
        torch._dynamo.reset()
        graphs = _graphs()
        torch.manual_seed(0)
        with profile() as measured:
            actual = test("spyre")
            torch.spyre.synchronize()  # type: ignore[attr-defined]
        problems = [
            *self._fallbacks(measured, test),
            *self._compiles(_graphs() - graphs),
            *self._card_time(measured),
        ]
        found = _on_cpu(actual)
        problems += self._values(found, _on_cpu(expected))
        if problems:
            pytest.fail("\n".join(problems), pytrace=False)
        return found

    def _values(self, actual: Any, expected: Any) -> Iterator[str]:
        ours, form = torch.utils._pytree.tree_flatten(actual)
        theirs, expected_form = torch.utils._pytree.tree_flatten(expected)
        if form != expected_form:
            yield f"spyre gives another structure than cpu: {form}, {expected_form}"
            return
        for number, (got, wanted) in enumerate(zip(ours, theirs, strict=True)):
            if why := self._apart(got, wanted):
                which = f" in result {number + 1} of {len(ours)}" if len(ours) > 1 else ""
                yield f"spyre and cpu differ{which}:\n{_indented(why)}"

    def _apart(self, got: Any, wanted: Any) -> str:
        """How one result differs; empty if it does not."""
        numbers = (torch.Tensor, int, float, complex)
        if not isinstance(got, numbers) or not isinstance(wanted, numbers):
            return "" if got == wanted else f"{got!r} instead of {wanted!r}"
        atol, rtol = self.limits.atol, self.limits.rtol
        if (atol is None) != (rtol is None):
            atol, rtol = atol or 0.0, rtol or 0.0
        try:
            torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol, equal_nan=True)
        except (AssertionError, TypeError) as error:  # values; a tensor beside a number
            return str(error)
        return ""

    def _fallbacks(self, measured: Profile, test: Test) -> Iterator[str]:
        most, count = self.limits.max_fallbacks, sum(measured.fallbacks.values())
        if most is None or count <= most:
            return
        reasons, places = _C.fallback_reasons(), _places(test)
        lines = [f"{_times(count, 'call')} ran on the CPU (max_fallbacks={most}):"]
        for op, calls in sorted(measured.fallbacks.items(), key=lambda item: -item[1]):
            lines.append(f"  {op}, {_times(calls, 'call')}: {reasons.get(op, 'no reason known')}")
            lines += [f"    at {place}" for place in places.get(op, [])[:_SHOWN]]
        yield "\n".join(lines)

    def _compiles(self, count: int) -> Iterator[str]:
        most = self.limits.max_compiles
        if most is None or count <= most:
            return
        breaks = torch._dynamo.utils.counters["graph_break"].most_common(_SHOWN)
        lines = [f"{_times(count, 'graph')} compiled (max_compiles={most})"]
        lines += [f"  graph break: {next(iter(str(why).splitlines()), '')}" for why, _ in breaks]
        yield "\n".join(lines)

    def _card_time(self, measured: Profile) -> Iterator[str]:
        most = self.limits.max_card_us
        if most is None:
            return
        kernels = measured.kernels
        total = sum(kernel.microseconds for kernel in kernels)
        if total <= most:
            return
        lines = [f"{total:,.2f} us of card time (max_card_us={most:g}):"]
        lines += [
            f"  {kernel.name}: {kernel.microseconds:,.2f} us in {_times(kernel.launches, 'launch')}"
            for kernel in kernels[:_SHOWN]
        ]
        if len(kernels) > _SHOWN:
            lines.append(f"  and {len(kernels) - _SHOWN} more kernels")
        yield "\n".join(lines)


def _times(count: int, what: str) -> str:
    plural = what + ("es" if what.endswith("ch") else "s")
    return f"{count} {what if count == 1 else plural}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


def _graphs() -> int:
    """Graphs that Dynamo has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _moved(value: Any, device: str) -> Any:
    """Copies of tensors and modules, inside of anything, on a device."""
    memo: dict[int, Any] = {}

    def moved(leaf: Any) -> Any:
        match leaf:
            case torch.Tensor():
                return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
            case torch.nn.Module():
                return copy.deepcopy(leaf, memo).to(device)
        return leaf

    return torch.utils._pytree.tree_map(moved, value)


def _on_cpu(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), value)


class _Watched(TorchDispatchMode):
    """Notes the user's line of every op that runs on the CPU instead of the card."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, list[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        before = Counter(_C.fallbacks())
        result = func(*args, **(kwargs or {}))
        for op in Counter(_C.fallbacks()) - before:
            seen = self.places.setdefault(op, [])
            if (place := calling_place()) not in seen:
                seen.append(place)
        return result


def _places(test: Test) -> dict[str, list[str]]:
    """The lines at which ops of a test leave the card: it runs once more, watched.

    Nothing for those inside of compiled code, and where the test does not run so.
    """
    watched = _Watched()
    with suppress(Exception), watched:  # the code of any test, which has run already
        test("spyre")
    return watched.places
