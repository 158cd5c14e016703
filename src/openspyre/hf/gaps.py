"""What of a model does not run on the card: the calls, their places, their arguments, the rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from openspyre import _C
from openspyre.hf.proof_inputs import Case, Floats, Integers, Size
from openspyre.runtime.places import calling_place

_PLAIN = (bool, int, float, str, type(None))
_OP = re.compile(r"aten[.:]+(\w+)")


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that a call got: of whole numbers, also their range."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of torch by a model.

    Attributes:
        name: as `Calls.names` has it.
        place: `FILE:LINE code` of the model's.
        module: the name of the innermost module that was at work, and its class.
        args, kwargs: Arguments and plain values; what is neither is its `repr` in a `Repr`.
        ops: of ATen, that it came to.
        fallbacks: those that ran on the CPU, with the reason.
        raised: what it raised.
    """

    name: str
    place: str
    module: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    ops: tuple[str, ...]
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    raised: str = ""


class Repr(str):
    """The text of a value that is neither a tensor nor plain."""


@dataclass(frozen=True, slots=True)
class FailingOp:
    """An op that does not run on the card in a model.

    Attributes:
        op: of ATen, as the fallbacks are counted.
        stage: `compiled`, `eager` (compiled it is fine), `raised when compiled` or `raised`.
        rule: why, in the compiler's words.
        calls: where it comes from, one for every form of arguments; none where a decomposition
            made it.
        count: of all calls.
    """

    op: str
    stage: str
    rule: str
    calls: tuple[Call, ...]
    count: int


def failing_ops(model: nn.Module, inputs: Any) -> list[FailingOp]:
    """Runs a model on the card, eagerly and compiled, and tells which ops do not; worst first.

    Args:
        model: is moved to the card.
    """
    on_card = model.to("spyre")
    given = tree_map_only(Tensor, lambda t: t.to("spyre"), _plain_container(inputs))
    calls, _ = _eager(on_card, given)
    fell, reasons, raised = _compiled(on_card, given)
    found = {}
    for op, count in fell.items():
        found[op] = _failing(op, "compiled", reasons.get(op, ""), calls, count)
    if raised:
        match = _OP.search(raised)
        op = f"aten::{match[1]}" if match else "unknown"
        found[op] = _failing(op, "raised when compiled", raised, calls, 1)
    for call in calls:
        if call.raised:
            op = _last_op(call)
            found.setdefault(op, FailingOp(op, "raised", call.raised, (call,), 1))
        for op, rule in call.fallbacks.items():
            if op not in found:
                same = [c for c in calls if op in c.fallbacks]
                found[op] = FailingOp(op, "eager", rule, _forms(same), len(same))
    order = ("raised", "raised when compiled", "compiled", "eager")
    return sorted(found.values(), key=lambda one: (order.index(one.stage), -one.count, one.op))


def _plain_container(inputs: Any) -> Any:
    return dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)


def _last_op(call: Call) -> str:
    return call.ops[-1] if call.ops else call.name


def _failing(op: str, stage: str, rule: str, calls: Sequence[Call], count: int) -> FailingOp:
    same = [c for c in calls if op in c.fallbacks]
    same = same or [c for c in calls if any(_packet(o) == _packet(op) for o in c.ops)]
    return FailingOp(op, stage, rule, _forms(same), count)


def _packet(op: str) -> str:
    """`logcumsumexp` of `aten::_logcumsumexp` and `aten.logcumsumexp.default`."""
    return re.split(r"[.:]+", op)[1].lstrip("_") if re.search(r"[.:]", op) else op


def _forms(calls: Sequence[Call]) -> tuple[Call, ...]:
    """One call for every form of arguments: names, plain values, ranks and dtypes."""
    forms: dict[str, Call] = {}
    for call in calls:
        key = repr((call.name, _form(call.args), _form(tuple(sorted(call.kwargs.items())))))
        forms.setdefault(key, call)
    return tuple(forms.values())


def _form(value: Any) -> Any:
    match value:
        case Argument():
            return len(value.shape), value.dtype
        case tuple():
            return tuple(map(_form, value))
        case _:
            return value


# --- the two runs ---------------------------------------------------------------------------------


def _eager(model: nn.Module, inputs: Any) -> tuple[list[Call], str]:
    with _Recorder() as recorder, _named_modules(model, recorder), torch.no_grad():
        try:
            _run(model, inputs)
        except Exception as error:  # what a model's ops raise is what is looked for
            return recorder.calls, _line(error)
    return recorder.calls, ""


def _compiled(model: nn.Module, inputs: Any) -> tuple[Counter[str], dict[str, str], str]:
    torch._dynamo.reset()
    before, raised = Counter(_C.fallbacks()), ""
    try:
        with torch.no_grad():
            _run(torch.compile(model), inputs)
    except Exception as error:  # what the compiler raises is what is looked for
        raised = _line(error)
    return Counter(_C.fallbacks()) - before, dict(_C.fallback_reasons()), raised


def _run(model: Any, inputs: Any) -> None:
    model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"


@contextmanager
def _named_modules(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Inside, the recorder knows which module is at work."""
    names = {id(module): name for name, module in model.named_modules()}

    def enter(module: nn.Module, _args: Any) -> None:
        recorder.modules.append(f"{names[id(module)]} ({type(module).__name__})".strip())

    def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
        recorder.modules.pop()

    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class _Recorder(TorchFunctionMode):
    """Notes the calls of functions of torch, and which of their ops ran on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.modules: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = Call(
            name=_name_of(func),
            place=calling_place(),
            module=self.modules[-1] if self.modules else "",
            args=tuple(map(_described, args)),
            kwargs={name: _described(value) for name, value in kwargs.items()},
            ops=(),
        )
        before, raised = Counter(_C.fallbacks()), ""
        ops = _Ops()
        try:
            with ops:
                return func(*args, **kwargs)
        except Exception as error:
            raised = _line(error)
            raise
        finally:
            fell = Counter(_C.fallbacks()) - before
            reasons = _C.fallback_reasons()
            fallbacks = {op: reasons.get(op, "") for op in fell}
            self.calls.append(
                replace(call, ops=tuple(ops.names), fallbacks=fallbacks, raised=raised)
            )


def _name_of(func: Any) -> str:
    """`torch:special.erfcx` of `torch.special.erfcx`; operators by the method that they are."""
    name = resolve_name(func) or getattr(func, "__qualname__", repr(func))
    root, _, path = name.partition(".")
    return f"{root}:{path}" if root == "torch" else name


def _described(value: Any) -> Any:
    match value:
        case Tensor():
            low = high = 0
            if value.numel() and not value.is_floating_point() and not value.is_complex():
                low, high = int(value.min().item()), int(value.max().item()) + 1
            dtype = str(value.dtype).removeprefix("torch.")
            return Argument(tuple(value.shape), dtype, value.stride(), low, high)
        case bool() | int() | float() | str() | None:
            return value
        case list() | tuple() if all(isinstance(item, _PLAIN) for item in value):
            return tuple(value)
        case _:
            return Repr(repr(value)[:200])


# --- as inputs of a proof -------------------------------------------------------------------------


def case_of(call: Call) -> Case | None:
    """The call with sizes that vary: extents that are equal here stay equal, those of 1 stay.

    None if an argument is neither a tensor nor a plain value, or there is no tensor.
    """
    leaves = tree_leaves((call.args, dict(call.kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Argument)]
    if any(isinstance(leaf, Repr) for leaf in leaves) or not tensors:
        return None
    names: dict[int, str] = {}

    def size(extent: int) -> Size:
        return extent if extent == 1 else names.setdefault(extent, f"n{len(names)}")

    def spec(value: Any) -> Any:
        if not isinstance(value, Argument):
            return value
        shape = tuple(map(size, value.shape))
        if value.dtype.startswith(("float", "bfloat")):
            return Floats(shape)
        low, high = (0, 2) if value.dtype == "bool" else (value.low, value.high)
        return Integers(shape, low, high, getattr(torch, value.dtype))

    args = tuple(map(spec, call.args))
    return Case(args, {name: spec(value) for name, value in call.kwargs.items()})


def plain_arguments(call: Call) -> tuple[dict[int, Any], dict[str, Any]]:
    """The arguments that are no tensors, by place and by name."""
    by_place = {n: v for n, v in enumerate(call.args) if not isinstance(v, Argument)}
    by_name = {n: v for n, v in call.kwargs.items() if not isinstance(v, Argument)}
    return by_place, by_name
