"""The pytest plugin: tests that run on the CPU and on the card, with limits.

It costs a run that has no such test nothing: torch and openspyre's device are loaded when the first
test with the mark, or with the fixture, begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # loads torch
    from openspyre.testing.both import Card

DEVICE = "spyre_device"
_HELP = (
    "spyre(max_fallbacks=None, max_compiles=None, max_card_us=None, atol=None, rtol=None): run the"
    " test on the CPU and on the Spyre card, compare what it returns, and keep to the limits"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the mark of a test allows; None: nothing is asked."""

    max_fallbacks: int | None = None
    max_compiles: int | None = None
    max_card_us: float | None = None
    atol: float | None = None
    rtol: float | None = None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A mark that means nothing is an error before anything runs."""
    for item in items:
        if (mark := item.get_closest_marker("spyre")) is not None:
            _limits(mark, item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a marked test that takes the device on both; others run as always."""
    mark = pyfuncitem.get_closest_marker("spyre")
    names = pyfuncitem._fixtureinfo.argnames
    if mark is None or DEVICE not in names:
        return None
    card = _card(pyfuncitem)
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    def test(device: str) -> Any:
        return pyfuncitem.obj(**{**arguments, DEVICE: device})

    card.compared(test)
    return True


@pytest.fixture
def spyre_device(request: pytest.FixtureRequest) -> str:
    """The device of this run of the test: "cpu" first, then "spyre".

    A test without the mark runs once, on the card.
    """
    del request
    return "spyre"


@pytest.fixture
def on_spyre(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`on_spyre(function, *args, **kwargs)` calls a function (or a module) on the CPU and on the
    card, compares, keeps to the limits of the test's mark, and gives the card's results on the CPU.

    Tensors and modules, the function itself included, are copied and moved to the card.
    """
    return _card(request.node).called


def _card(item: Any) -> Card:
    from openspyre.testing.both import Card  # loads torch

    mark = item.get_closest_marker("spyre")
    return Card(_limits(mark, item) if mark is not None else Limits())


def _limits(mark: pytest.Mark, item: pytest.Item) -> Limits:
    known = [f.name for f in fields(Limits)]
    wrong = [name for name in mark.kwargs if name not in known]
    if mark.args or wrong:
        what = f"knows no {', '.join(wrong)}" if wrong else "takes options by name only"
        raise pytest.UsageError(f"{item.nodeid}: mark spyre {what}; it has {', '.join(known)}")
    _check_numbers(mark.kwargs, item)
    return Limits(**mark.kwargs)


def _check_numbers(options: Mapping[str, Any], item: pytest.Item) -> None:
    for name, value in options.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and value >= 0 and not math.isnan(value)):
            raise pytest.UsageError(f"{item.nodeid}: mark spyre: {name}={value!r} is no limit")
