"""Adapters: small replacements for what the compiler does not lower, on one model, removable.

An adapter replaces the forward of modules of a class, or calls of functions of torch inside a
model's forward. It is put in force on the instances of one model (`adapt`) by an entry `forward`
in their `__dict__`, which is all that it changes: classes, other models, weights and hooks stay.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from openspyre.errors import SpyreError
from openspyre.hf.graph_ops import NotTraced, ops_of
from openspyre.hf.proof_inputs import Case

Replacement = Callable[..., Any]
Inputs = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """What the compiler does not lower.

    Attributes:
        op: of ATen, such as `aten.logcumsumexp.default`.
        rule: why it does not, in the compiler's words.
        issue: where that is discussed.
    """

    op: str
    rule: str
    issue: str = ""


@dataclass(frozen=True, slots=True)
class Versions:
    """Releases of a package from `since` on and before `before`; an empty one sets no limit."""

    package: str
    since: str = ""
    before: str = ""

    def problem(self) -> str:
        """Why the installed release is none of them; empty if it is."""
        try:
            installed = version(self.package)
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        here = _release(installed)
        early = self.since and here < _release(self.since)
        late = self.before and here >= _release(self.before)
        return f"{self.package} {installed} is none of its releases" if early or late else ""


def _release(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    numbers = tuple(int(n) for n in found[0].split(".")) if found else ()
    return numbers + (0,) * (4 - len(numbers))


@dataclass(frozen=True, slots=True)
class Applies:
    """When an adapter may be put in force.

    Attributes:
        model_types: of `model.config.model_type`; none: any, and models without a config.
        versions: of packages, all of which must fit.
        op: of ATen, that the graph of the model's forward must have; empty: any.
    """

    model_types: frozenset[str] = frozenset()
    versions: tuple[Versions, ...] = ()
    op: str = ""


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """The forward of modules of a class; the replacement gets the module first.

    Attributes:
        name: `package.module:Class`. A subclass is one of them while it inherits the forward.
        example: makes a small module of the class, for the proof.
    """

    name: str
    example: Callable[[], nn.Module]

    def resolved(self) -> type[nn.Module]:
        return cast(type[nn.Module], _resolved(self.name))


def always(*_args: Any, **_kwargs: Any) -> bool:
    """Every call."""
    return True


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of functions of torch.

    Attributes:
        names: as Python reaches them, such as `torch:pow` and `torch:Tensor.pow`; the first one
            is what the proof calls.
        when: tells from the arguments which calls; all others go on as they are.
    """

    names: tuple[str, ...]
    when: Callable[..., bool] = always

    def resolved(self) -> tuple[Callable[..., Any], ...]:
        return tuple(_resolved(name) for name in self.names)


@cache
def _resolved(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """A whole model on which an adapter is proved.

    Attributes:
        build: gives the model in float32 on the CPU and what to call it with.
        weights: the name in `openspyre.hf.weights` of what `build` loads; empty: nothing.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Inputs]]
    weights: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A replacement, when it applies, why there is one, and how it is proved.

    Attributes:
        cases: the calls that the proof makes; sizes, strides and values are the proof's.
        controls: replacements that are wrong, by name: the proof must refuse each.
        trials: models that it is proved on end to end.
        probe: the call that shows whether the gap is still there; None: the first case.
    """

    id: str
    replaces: ModuleClass | Calls
    replacement: Replacement
    gap: Gap
    cases: tuple[Case, ...]
    applies: Applies = Applies()
    controls: Mapping[str, Replacement] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    probe: Case | None = None


# --- which apply ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """An adapter in force, and the names of the modules that it is on (the model itself: "")."""

    adapter: Adapter
    places: tuple[str, ...]


class Adapted:
    """Adapters in force on a model until `remove`, or the end of a `with`.

    Several may be nested on one model and removed in any order. `str` says what applied.

    Attributes:
        applied: what is in force.
        passed_over: the others by id, with the reason.
    """

    def __init__(
        self, model: nn.Module, applied: Sequence[Applied], passed_over: Mapping[str, str]
    ) -> None:
        self.applied, self.passed_over = tuple(applied), dict(passed_over)
        self._placed: list[tuple[AdaptedForward, _Entry]] = []
        for one in self.applied:
            for place in one.places:
                entry = _Entry(one.adapter)
                self._placed.append((_put(model.get_submodule(place), entry), entry))

    def remove(self) -> None:
        """Takes the adapters off; everything is as it was. Twice does no harm."""
        while self._placed:
            _take(*self._placed.pop())

    def __enter__(self) -> Adapted:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "there are no adapters to apply"

    def _lines(self) -> Iterator[str]:
        for one in self.applied:
            where = "calls in the model's forward"
            if isinstance(one.adapter.replaces, ModuleClass):
                count = len(one.places)
                where = f"{count} module{'s' * (count > 1)}: {', '.join(one.places[:3])}"
                where += ", ..." if count > 3 else ""
            yield f"{one.adapter.id}: bridges {one.adapter.gap.op} in {where}"
        for name, why in self.passed_over.items():
            yield f"{name}: does not apply, {why}"


def adapted(model: nn.Module, inputs: Inputs | None, adapters: Sequence[Adapter]) -> Adapted:
    """Puts those of the adapters that apply in force on a model."""
    names = [adapter.id for adapter in adapters]
    if len(set(names)) < len(names):
        raise SpyreError("two adapters have one id", why=", ".join(names))
    graph: list[frozenset[str]] = []  # made when first asked for
    applied, passed_over = [], {}
    for adapter in adapters:
        why = _why_not(adapter, model, inputs, graph)
        places = () if why else tuple(_places(adapter.replaces, model))
        if places:
            applied.append(Applied(adapter, places))
        else:
            passed_over[adapter.id] = why or "the model has no such module"
    return Adapted(model, applied, passed_over)


def _why_not(
    adapter: Adapter, model: nn.Module, inputs: Inputs | None, graph: list[frozenset[str]]
) -> str:
    rule = adapter.applies
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if rule.model_types and kind not in rule.model_types:
        return f"a model of type {kind or 'unknown'} is none of {', '.join(rule.model_types)}"
    for versions in rule.versions:
        if problem := versions.problem():
            return problem
    if not rule.op:
        return ""
    try:
        if not graph:
            graph.append(ops_of(model, inputs))
    except NotTraced as error:
        return f"its op cannot be looked for: {error}"
    return "" if rule.op in graph[0] else f"the graph has no {rule.op}"


def _places(replaces: ModuleClass | Calls, model: nn.Module) -> Iterator[str]:
    if isinstance(replaces, Calls):
        yield ""
        return
    try:
        kind = replaces.resolved()
    except (ImportError, AttributeError):
        return  # what is not there has no modules
    for name, module in model.named_modules():
        own = vars(module).get("forward")
        inherits = isinstance(module, kind) and type(module).forward is kind.forward
        if inherits and (own is None or isinstance(own, AdaptedForward)):
            yield name


# --- in force -------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """Calls of any of these functions for which `when` says so go to the replacement."""

    functions: tuple[Callable[..., Any], ...]
    when: Callable[..., bool]
    replacement: Replacement


class _Entry:
    """One adapter put on one module once: equal to itself alone."""

    def __init__(self, adapter: Adapter) -> None:
        self.forward: Replacement | None = None
        self.call: _Call | None = None
        match adapter.replaces:  # resolved here: the forward below is traced by Dynamo
            case Calls() as calls:
                self.call = _Call(calls.resolved(), calls.when, adapter.replacement)
            case ModuleClass():
                self.forward = adapter.replacement


class AdaptedForward:
    """What stands as `forward` in the `__dict__` of a module that adapters are on."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = vars(module).get("forward")  # the instance's, which some wrappers set
        self.entries: list[_Entry] = []
        self.__signature__ = inspect.signature(module.forward)  # generate looks at it
        self.__doc__ = module.forward.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = tuple(entry.call for entry in self.entries if entry.call is not None)
        if not calls:
            return self._forward(*args, **kwargs)
        with _ReplacedCalls(calls):
            return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        for entry in reversed(self.entries):
            if entry.forward is not None:
                return entry.forward(self.module, *args, **kwargs)
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


class _ReplacedCalls(TorchFunctionMode):
    """Inside, calls that adapters are for go to their replacements, the last adapter first."""

    def __init__(self, calls: tuple[_Call, ...]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for number in range(len(self.calls) - 1, -1, -1):
            call = self.calls[number]
            if func not in call.functions or not call.when(*args, **kwargs):
                continue
            others = self.calls[:number] + self.calls[number + 1 :]
            with _ReplacedCalls(others):  # what the replacement calls may be another's
                return call.replacement(*args, **kwargs)
        return func(*args, **kwargs)


def _put(module: nn.Module, entry: _Entry) -> AdaptedForward:
    forward = vars(module).get("forward")
    if not isinstance(forward, AdaptedForward):
        forward = AdaptedForward(module)
        vars(module)["forward"] = forward
    forward.entries.append(entry)
    return forward


def _take(forward: AdaptedForward, entry: _Entry) -> None:
    """Takes an entry off; what somebody has put over our forward meanwhile stays theirs."""
    forward.entries.remove(entry)
    own = vars(forward.module)
    if forward.entries or own.get("forward") is not forward:
        return
    if forward.own is None:
        del own["forward"]
    else:
        own["forward"] = forward.own


def original_of(adapter: Adapter, module: nn.Module | None) -> Callable[..., Any]:
    """What an adapter replaces, as a function of the arguments alone."""
    match adapter.replaces:
        case Calls() as calls:
            return calls.resolved()[0]
        case ModuleClass() as kind:
            forward = kind.resolved().forward
            return lambda *args, **kwargs: forward(module, *args, **kwargs)


def replaced_by(replacement: Replacement, module: nn.Module | None) -> Callable[..., Any]:
    """A replacement as a function of the arguments alone."""
    if module is None:
        return replacement
    return lambda *args, **kwargs: replacement(module, *args, **kwargs)


def module_of(adapter: Adapter, seed: int, dtype: torch.dtype) -> nn.Module | None:
    """A module for the proof, its parameters random; None for an adapter of calls."""
    if isinstance(adapter.replaces, Calls):
        return None
    module = adapter.replaces.example().eval().double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module.to(dtype)
