"""The proof of an adapter: its replacement against the original, and wrong ones that must fail.

    prove(adapter) -> Proof

Stages: in float64 on random and adversarial calls; as formulas, where the ops allow; in float32,
float16 and bfloat16 within an error bound (`judging`); negative controls, each of which the first
and third stages must refuse; whole models (`trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from openspyre.hf.adapters import (
    Adapter,
    Replacement,
    module_of,
    original_of,
    replaced_by,
)
from openspyre.hf.formulas import Formula, formula_of
from openspyre.hf.judging import Moves, Result, called, condition, problem, same_values
from openspyre.hf.proof_inputs import FLOATS, Instance, formula_call, has_floats, instances
from openspyre.hf.symbolic import compared
from openspyre.hf.trials import tried

Outcomes = Sequence[Result | str]
Runner = Callable[[Sequence[Instance]], Outcomes]
Tell = Callable[[str, float | None], None]
DTYPES = (torch.float64, *FLOATS)
_SEED = 7


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at; `detail` says what was found, or what was wrong.

    Attributes:
        done: it could be looked at; if not, it counts as passed and proves nothing.
    """

    stage: str
    name: str
    passed: bool
    detail: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Proof:
    adapter: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def refusal(self) -> str:
        """The first thing that was wrong; empty if nothing was."""
        wrong = [f"{c.stage}, {c.name}: {c.detail}" for c in self.checks if not c.passed]
        return wrong[0] if wrong else ""


def _untold(_what: str, _share: float | None) -> None:
    """Nobody watches."""


def prove(adapter: Adapter, *, models: bool = True, tell: Tell = _untold) -> Proof:
    """Proves an adapter in this process.

    Args:
        models: also on whole models, on the card.
        tell: is called with what is being done.
    """
    tell(f"{adapter.id}: arithmetic", None)
    claims = Claims(adapter)
    checks = list(claims.judged(claims.run(adapter.replacement)))
    if all(check.passed for check in checks):
        checks += claims.controls()
        tell(f"{adapter.id}: formulas", None)
        checks.append(formula_check(adapter))
    if models and all(check.passed for check in checks):
        for trial in adapter.trials:
            tell(f"{adapter.id}: {trial.name}", None)
            found = tried(adapter, trial)
            checks.append(Check("model", trial.name, found.passed, found.detail, found.done))
    return Proof(adapter.id, tuple(checks))


@dataclass(frozen=True, slots=True)
class _Claim:
    """A call and what the original makes of it."""

    call: Instance
    module: nn.Module | None
    original: Result
    exact: Result
    moves: Moves


class Claims:
    """What a replacement has to reproduce: the original's results on all calls of the cases."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.claims: list[_Claim] = []
        self.refused: dict[torch.dtype, str] = {}  # what the original says of a dtype
        for dtype in DTYPES:
            module = module_of(adapter, _SEED, dtype)
            wide = module_of(adapter, _SEED, dtype)
            wide = None if wide is None else wide.double()
            for number, case in enumerate(adapter.cases):
                if dtype != torch.float64 and not has_floats(case):
                    continue
                for call in instances(case, dtype, _SEED + 1000 * number):
                    self._claim(call, module, wide)

    def _claim(self, call: Instance, module: nn.Module | None, wide: nn.Module | None) -> None:
        original = called(original_of(self.adapter, module), call.args, call.kwargs, call.dtype)
        if isinstance(original, str):
            self.refused[call.dtype] = original
            return
        args, kwargs = tree_map_only(Tensor, _widened, (call.args, call.kwargs))
        function = original_of(self.adapter, wide)
        exact = called(function, args, kwargs, torch.float64)
        if not isinstance(exact, str):
            moves = cache(partial(condition, function, args, kwargs, call.dtype, wide))
            self.claims.append(_Claim(call, module, original, exact, moves))

    @property
    def calls(self) -> list[Instance]:
        """Those that the original answers."""
        return [claim.call for claim in self.claims]

    def run(self, replacement: Replacement) -> list[Result | str]:
        """A replacement's answers, in this process."""
        return [
            called(
                replaced_by(replacement, claim.module),
                claim.call.args,
                claim.call.kwargs,
                claim.call.dtype,
            )
            for claim in self.claims
        ]

    def judged(self, outcomes: Outcomes) -> Iterator[Check]:
        """One check for each dtype."""
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            pairs = [
                (claim, outcome)
                for claim, outcome in zip(self.claims, outcomes, strict=True)
                if claim.call.dtype == dtype
            ]
            stage = "float64" if dtype == torch.float64 else "dtypes"
            if not pairs:
                why = self.refused.get(dtype)
                detail = f"the original does not compute in it: {why}" if why else "no floats"
                yield Check(stage, name, dtype != torch.float64, detail, done=False)
                continue
            wrong = next(filter(None, (_wrong(claim, got) for claim, got in pairs)), "")
            yield Check(stage, name, not wrong, wrong or f"{len(pairs)} calls")

    def refusal(self, outcomes: Outcomes) -> str:
        """What is wrong with some answer; empty if all are right."""
        for claim, outcome in zip(self.claims, outcomes, strict=True):
            if wrong := _wrong(claim, outcome):
                return wrong
        return ""

    def controls(self, outcomes: Outcomes | None = None) -> Iterator[Check]:
        """Wrong replacements, the adapter's and those made of right answers: all must be refused.

        Args:
            outcomes: right answers; None: the original's.
        """
        for name, control in self.adapter.controls.items():
            refusal = self.refusal(self.run(control))
            yield Check("control", name, bool(refusal), refusal or "it was not refused")
        right = [claim.original for claim in self.claims] if outcomes is None else list(outcomes)
        effective = 0
        for name, spoil in SPOILS.items():
            spoilt = [got if isinstance(got, str) else _spoilt(got, spoil) for got in right]
            if all(map(_alike, spoilt, right)):
                continue  # here it changes nothing: of an op without negative results, say
            effective += 1
            refusal = self.refusal(spoilt)
            yield Check("control", name, bool(refusal), refusal or "it was not refused")
        if not effective:
            yield Check("control", "derived", False, "nothing can be spoilt in its results")


def _wrong(claim: _Claim, outcome: Result | str) -> str:
    found = problem(outcome, claim.original, claim.exact, claim.moves)
    return f"{claim.call.about}: {found}" if found else ""


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


# --- derived controls -----------------------------------------------------------------------------


def _without_first(x: Tensor) -> Tensor:
    made = x.clone()
    made.view(-1)[:1] = 0
    return made


def _of_floats(spoil: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: spoil(x) if x.is_floating_point() else x


def _one_more(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x
    return ~x if x.dtype == torch.bool else x + 1


_INF = float("inf")
SPOILS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "one part in 1000 too large": _of_floats(lambda x: x * 1.001),
    "through half precision": _of_floats(lambda x: x.half().to(x.dtype)),
    "a small number added": _of_floats(lambda x: x + 1e-4),
    "without signs": _of_floats(torch.abs),
    "zero in place of NaN": _of_floats(lambda x: x.nan_to_num(0.0, _INF, -_INF)),
    "finite in place of infinite": _of_floats(lambda x: x.nan_to_num(float("nan"))),
    "the first element lost": _without_first,
    "moved by one place": lambda x: x.roll(1, -1) if x.dim() else x,
    "one more, or the opposite": _one_more,
}


def _spoilt(result: Result, spoil: Callable[[Tensor], Tensor]) -> Result:
    leaves = (spoil(x.contiguous()) if isinstance(x, Tensor) else x for x in result.leaves)
    return Result(tuple(leaves), result.form, result.changed, result.shares)


def _alike(a: Result | str, b: Result | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    pairs = zip(a.leaves, b.leaves, strict=True)
    return all(not isinstance(x, Tensor) or same_values(x, y) for x, y in pairs)


# --- formulas -------------------------------------------------------------------------------------


def formula_check(adapter: Adapter) -> Check:
    """Original and replacement as formulas, in all cases."""
    found = Check("formulas", adapter.gap.op, True, "there are no cases")
    for case in adapter.cases:
        call, module = formula_call(case), _formula_module(adapter)
        replaced = replaced_by(adapter.replacement, module)
        found = formulas_compared(adapter, call, formula_of(replaced, call.args, call.kwargs))
        if not found.passed:
            return found
    return found


def formulas_compared(adapter: Adapter, call: Instance, replacement: Formula) -> Check:
    """A replacement's formula against the original's."""
    function = original_of(adapter, _formula_module(adapter))
    original = formula_of(function, call.args, call.kwargs)
    tensors = [x for x in tree_flatten((call.args, call.kwargs))[0] if isinstance(x, Tensor)]
    shapes = [tuple(x.shape) if x.is_floating_point() else x.tolist() for x in tensors]
    verdict = compared(original, replacement, shapes)
    return Check("formulas", adapter.gap.op, not verdict.differs, verdict.detail, verdict.done)


def _formula_module(adapter: Adapter) -> nn.Module | None:
    """With parameters that are short fractions."""
    module = module_of(adapter, _SEED, torch.float64)
    if module is not None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_((parameter * 4).round() / 4)
    return module
