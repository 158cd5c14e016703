"""One model type tried: on the CPU in float32, eagerly on the card, compiled on the card."""

from __future__ import annotations

import copy
import functools
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import transformers
from torch import nn
from torch.overrides import TorchFunctionMode

from openspyre import _C
from openspyre.errors import SpyreError
from openspyre.hf.outcomes import LANES, Failure, Lane, Outcome, State
from openspyre.hf.recipes import recipes
from openspyre.hf.tiny_inputs import Calls, Inputs, inputs_of
from openspyre.hf.tiny_judge import Allowed, allowed, flipped, judged
from openspyre.hf.tiny_model import Tiny, build, outlined

TOKENS = 5  # the prefill's, and one for each of four decode steps
_MOVED = 3  # runs with other roundings
_PACKAGE = Path(__file__).parents[1]
_OP = re.compile(r"\b(?:aten|prims|transformers|torchvision|spyre)(?:::|\.)\w+(?:\.\w+)?")
_KERNEL = re.compile(r"(?:kernel|program of) [\"']?(\w+)")
Begin = Callable[[str, Outcome], None]
Fault = Callable[[nn.Module], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What one model gave.

    Attributes:
        outputs: floating tensors of the forward pass, float32 on the CPU; empty if not asked for.
        logits: of each generated step [steps, batch, vocabulary]; None where none were.
    """

    outputs: tuple[torch.Tensor, ...]
    logits: torch.Tensor | None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.outputs if self.logits is None else (*self.outputs, self.logits)


@dataclass(frozen=True, slots=True)
class _Expected:
    """The CPU's run, and the dtype and bounds to compare the card's with."""

    dtype: torch.dtype
    run: Run
    own: tuple[Run, ...]
    tokens: torch.Tensor | None
    bounds: Allowed


class CannotCompare(SpyreError):
    """The CPU does not run the model, or no two runs of it agree; the text is the reason."""


def tried(
    model_type: str, begin: Begin, lanes: Sequence[str] = LANES,
    fault: Fault | None = None, dtype: torch.dtype = torch.float16,
) -> Outcome:  # fmt: skip
    """Tries a type in this process; the device must be ready.

    Args:
        begin: told what begins, and what was found so far.
        lanes: with none, the model is built without memory for its weights, and nothing runs.
        fault: changes the card's model, to show that the comparison sees it.
        dtype: to compare in, where the CPU's own rounding leaves anything to compare.
    """
    transformers.utils.logging.set_verbosity_error()
    rules = recipes()
    recipe = rules.of(model_type)
    found = Outcome(model_type)
    try:
        begin("build", found)
        if not lanes:
            outline = outlined(model_type, rules)
            return replace(found, model=outline.name, parameters=outline.parameters)
        tiny = build(model_type, rules)
        found = replace(found, model=tiny.name, kind=tiny.kind, parameters=tiny.parameters)
        # Models keep what they have computed once: none of it may come to the card.
        calls = inputs_of(copy.deepcopy(tiny.model), rules, recipe)
        if not recipe.forward:
            calls = replace(calls, forward={})
        begin("CPU", found)
        expected = _expected(tiny, calls, dtype)
    except Exception as error:  # whatever transformers raises: the type is not ours to try
        return replace(found, reason=_first_line(error))
    found = replace(
        found,
        dtype=str(expected.dtype).removeprefix("torch."),
        generated=expected.tokens is not None,
    )
    for lane in lanes:
        tell = functools.partial(_begin, begin, found)
        result = _lane(tiny, calls, expected, lane, tell, fault)
        eager = lane == "eager"
        found = replace(found, eager=result) if eager else replace(found, compiled=result)
    return found


def _begin(begin: Begin, found: Outcome, stage: str) -> None:
    begin(stage, found)


# --- what to expect -----------------------------------------------------------------------------


def _expected(tiny: Tiny, calls: Calls, dtype: torch.dtype) -> _Expected:
    exact, tokens = _reference(tiny.model, calls)
    again, _ = _reference(tiny.model, calls, seed=1)
    if judged(again.tensors, exact.tensors, allowed(exact.tensors, [], torch.float32)).problem:
        raise CannotCompare("it draws random numbers in its forward pass")
    if not exact.tensors:
        raise CannotCompare("its outputs hold no floating tensors")
    if dtype is not torch.float32:
        own = _rounded_runs(tiny.model, calls, tokens, dtype)
        bounds = allowed(exact.tensors, [run.tensors for run in own], dtype)
        if own and bounds.decides:
            return _Expected(dtype, exact, own, tokens, bounds)
    own = _rounded_runs(tiny.model, calls, tokens, torch.float32)
    bounds = allowed(exact.tensors, [run.tensors for run in own], torch.float32)
    if not bounds.decides:
        raise CannotCompare("the CPU's own rounding in float32 moves its outputs without bound")
    return _Expected(torch.float32, exact, own, tokens, bounds)


class _FirstOfEqual(TorchFunctionMode):
    """Of equal elements, `topk` takes the first, as it does on the card: PyTorch leaves it open.

    Scores behind a relu are equal (zero) by the dozen.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            return _stable_topk(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _stable_topk(
    input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    values, places = input.sort(dim=dim, descending=largest, stable=True)
    first = (part.narrow(dim, 0, k) for part in (values, places))
    chosen, at = (part.contiguous() for part in first)  # models view what `topk` gives
    return torch.return_types.topk((chosen, at))


def _reference(model: Any, calls: Calls, seed: int = 0) -> tuple[Run, torch.Tensor | None]:
    torch.manual_seed(seed)
    run = _run(copy.deepcopy(model), calls, None)
    return run, None if run.logits is None else run.logits.argmax(-1)


def _rounded_runs(
    model: Any, calls: Calls, tokens: torch.Tensor | None, dtype: torch.dtype
) -> tuple[Run, ...]:
    """The CPU's own runs with the dtype's rounding; none where it lacks kernels for it."""
    runs = []
    if dtype is not torch.float32:
        try:
            runs.append(_run(copy.deepcopy(model).to(dtype), calls, tokens))
        except (RuntimeError, NotImplementedError):
            return ()
    generator = torch.Generator().manual_seed(2)
    for _ in range(_MOVED):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in moved.parameters():
                noise = torch.rand(parameter.shape, generator=generator) * 2 - 1
                parameter.mul_(1 + torch.finfo(dtype).eps * noise)
        runs.append(_run(moved, calls, tokens))
    return tuple(runs)


# --- running ------------------------------------------------------------------------------------


def _run(model: Any, calls: Calls, tokens: torch.Tensor | None) -> Run:
    """What the CPU gives: a forward pass, and steps behind the given tokens (its own if None)."""
    outputs: tuple[torch.Tensor, ...] = ()
    with torch.no_grad(), _FirstOfEqual():
        if calls.forward:
            outputs = _floats(model(**_placed(calls.forward, model)))
        logits = None if calls.generate is None else _generated(model, calls.generate, tokens)
    return Run(outputs, logits)


def _generated(model: Any, inputs: Inputs, tokens: torch.Tensor | None) -> torch.Tensor:
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    if model.config.is_encoder_decoder and model.generation_config.decoder_start_token_id is None:
        model.generation_config.decoder_start_token_id = 1
    forced = [] if tokens is None else [_Forced(tokens)]
    made = model.generate(
        **_placed(inputs, model), max_new_tokens=TOKENS, do_sample=False, num_beams=1,
        logits_processor=transformers.LogitsProcessorList(forced),
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return torch.stack([step.float().cpu() for step in made.logits])


class _Forced(transformers.LogitsProcessor):
    """Makes `generate` take given tokens, one row of `tokens` a step."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens, self._step = tokens, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = self._tokens[self._step].to(scores.device)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


def _placed(inputs: Mapping[str, Any], model: Any) -> Inputs:
    """Tensors on the model's device, floating ones in its dtype."""
    weight = next(model.parameters())

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        return value

    return {name: place(value) for name, value in inputs.items()}


def _floats(value: Any) -> tuple[torch.Tensor, ...]:
    """Every floating tensor of an output, caches left out."""
    match value:
        case torch.Tensor() if value.is_floating_point():
            return (value.detach().float().cpu(),)
        case Mapping():
            return tuple(t for part in value.values() for t in _floats(part))
        case tuple() | list():
            return tuple(t for part in value for t in _floats(part))
        case _:
            return ()


# --- the card -----------------------------------------------------------------------------------


def _lane(
    tiny: Tiny,
    calls: Calls,
    expected: _Expected,
    name: str,
    begin: Callable[[str], None],
    fault: Fault | None,
) -> Lane:
    """Runs the model on the card, and judges what it gives."""
    start = time.monotonic()
    stage = f"{name}: move"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counts: Counter[str] = Counter()
    try:
        begin(stage)
        model = copy.deepcopy(tiny.model).to(expected.dtype).to("spyre")
        if fault is not None:
            fault(model)
        if name == "compiled":
            model.forward = torch.compile(model.forward)
            # `generate` has a prefill of its own: one graph less to wait for.
            calls = replace(calls, forward={} if calls.generate is not None else calls.forward)
        runs = []
        for _ in range(2):  # the second compiles nothing: its fallbacks are those of every call
            counts = Counter(_C.fallbacks())
            outputs: tuple[torch.Tensor, ...] = ()
            logits = None
            with torch.no_grad():
                if calls.forward:
                    begin(stage := f"{name}: forward")
                    outputs = _floats(model(**_placed(calls.forward, model)))
                if calls.generate is not None:
                    begin(stage := f"{name}: generate")
                    logits = _generated(model, calls.generate, expected.tokens)
            runs.append(_judge(Run(outputs, logits), expected))
        found = max(runs, key=lambda lane: list(State).index(lane.state))
    except Exception as error:  # of any kind: it is what a trial is for
        found = Lane(State.RAISED, failure=failure(stage, error))
        found = replace(found, reason=_told(found.failure))
        if name == "compiled" and (why := untraceable(tiny, calls)):
            found = Lane(State.SKIPPED, f"torch.compile does not trace it on the CPU either: {why}")
    fallbacks = dict(Counter(_C.fallbacks()) - counts)
    if found.state is State.RIGHT and fallbacks:
        found = replace(found, state=State.FALLBACKS)
    seen = torch._dynamo.utils.counters
    return replace(
        found,
        fallbacks=fallbacks,
        graphs=seen["stats"]["unique_graphs"],
        breaks={str(why).splitlines()[0][:120]: n for why, n in seen["graph_break"].items()},
        seconds=round(time.monotonic() - start, 1),
    )


def untraceable(tiny: Tiny, calls: Calls) -> str:
    """Why Dynamo cannot trace a model, wherever it runs; empty if it can."""
    torch._dynamo.reset()
    model = copy.deepcopy(tiny.model)
    model.forward = torch.compile(model.forward, backend="eager")
    try:
        _run(model, calls, None)
    except Exception as error:  # of any kind: it is what is asked
        return _first_line(error)
    return ""


def _judge(run: Run, expected: _Expected) -> Lane:
    reference, own = expected.run, expected.own
    pairs = [(run.outputs, reference.outputs, expected.bounds.each[: len(reference.outputs)])]
    if not run.outputs:  # of a compiled model that generates
        pairs = []
    if run.logits is not None and reference.logits is not None:
        pairs.append(((run.logits,), (reference.logits,), expected.bounds.each[-1:]))
    worst = 0.0
    for mine, exact, each in pairs:
        verdict = judged(mine, exact, Allowed(each, decides=True))
        worst = max(worst, verdict.worst)
        if verdict.problem:
            part = "generated logits: " if mine is not run.outputs else ""
            return Lane(State.WRONG, f"{part}{verdict.problem}", worst=worst)
    flips: list[bool] = []
    if run.logits is not None and reference.logits is not None:
        logits = [one.logits for one in own if one.logits is not None]
        flips = flipped(run.logits, reference.logits, logits)
    if not all(flips):
        return Lane(State.WRONG, f"{flips.count(False)} tokens differ", worst=worst)
    return Lane(State.RIGHT, worst=round(worst, 3), flips=len(flips))


# --- failures -----------------------------------------------------------------------------------


def failure(stage: str, error: BaseException) -> Failure:
    """Where an exception comes from: the file of ours that raised, the op and kernel it names."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    texts = [str(one) for one in chain]
    whole = "\n".join(texts)
    place = next((found for one in reversed(chain) if (found := _our_file(one))), "")
    op, kernel = _OP.search(whole), _KERNEL.search(whole)
    root = next((one for one in reversed(chain) if _our_file(one)), chain[-1])
    return Failure(
        f"{stage} ({place})" if place else stage,
        op.group() if op else "",
        kernel.group(1) if kernel else "",
        _first_line(root),
    )


def _our_file(error: BaseException) -> str:
    """The innermost file of this package in a traceback, the trial itself left out."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE) and path.parent != _PACKAGE / "hf":
            return str(path.relative_to(_PACKAGE))
    return ""


def _told(found: Failure | None) -> str:
    if found is None:
        return ""
    named = [word for word in (found.op, found.kernel) if word]
    return f"{found.stage}{' ' if named else ''}{' '.join(named)}: {found.text}"


def _first_line(error: BaseException) -> str:
    """The first line of what an error says; the next one with it, where that announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {said[:200]}"
