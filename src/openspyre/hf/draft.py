"""Drafting an adapter: rules and an agent propose replacements, the proof alone accepts.

A proposal runs in processes of its own (`confined`), never in this one: there it answers the calls
of the proof, and what it answers is judged here. Every attempt is a line of a log.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from openspyre.errors import SpyreError
from openspyre.hf.brief import brief_facts, brief_text
from openspyre.hf.confined import Ran, run_confined
from openspyre.hf.drafted import adapter_file, drafted_adapter, facts_of, name_of
from openspyre.hf.formulas import Formula, of_plain
from openspyre.hf.gaps import FailingOp
from openspyre.hf.judging import Result
from openspyre.hf.proof import Check, Claims, Proof, formulas_compared
from openspyre.hf.proof_inputs import formula_call
from openspyre.hf.rewrites import rewrites_for

ModelCheck = Callable[[Path], Check]
Tell = Callable[[str, float | None], None]
_CODE_BYTES = 200_000
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Agent:
    """A command that answers briefs.

    Attributes:
        seconds: that it has for an answer.
        attempts: how often it is asked; from the second time on with what was wrong.
        guarded: folders that must not change while it works.
    """

    command: str
    seconds: float = 600.0
    attempts: int = 3
    guarded: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One proposal: who made it, and what became of it."""

    source: str
    accepted: bool
    refusal: str
    seconds: float
    code: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """`file`: the text of an adapter file, if an attempt was accepted."""

    name: str
    attempts: tuple[Attempt, ...]
    file: str


def drafted(
    failing: FailingOp,
    model: str,
    *,
    rules: bool = True,
    agent: Agent | None = None,
    check: ModelCheck | None = None,
    proof_seconds: float = 300.0,
    log: Path | None = None,
    tell: Tell = lambda _what, _share: None,
) -> Drafted:
    """Looks for a replacement of an op's calls that the proof accepts.

    Args:
        model: what the op was found in, for the brief.
        check: tries an adapter file on the model.
        proof_seconds: that a proposal has to answer all calls.
        log: gets a line of JSON for each attempt.

    Raises:
        SpyreError: the calls cannot be proved, or the agent's command means nothing.
    """
    name = name_of(failing)
    tell(f"{name}: what the original gives", None)
    proposals = Proposals(failing, check=check, seconds=proof_seconds)
    attempts: list[Attempt] = []
    for attempt in _attempts(proposals, failing, model, rules, agent, tell):
        attempts.append(attempt)
        if log is not None:
            with log.open("a") as file:
                line = {"time": time.time(), "model": model, "op": failing.op, **asdict(attempt)}
                file.write(json.dumps(line) + "\n")
        if attempt.accepted:
            return Drafted(name, tuple(attempts), proposals.file(attempt.code))
    return Drafted(name, tuple(attempts), "")


def _attempts(
    proposals: Proposals,
    failing: FailingOp,
    model: str,
    rules: bool,
    agent: Agent | None,
    tell: Tell,
) -> Iterator[Attempt]:
    for rule in rewrites_for(failing.calls) if rules else ():
        tell(f"{proposals.name}: rule, {rule.name}", None)
        yield proposals.attempt(f"rule: {rule.name}", rule.code, 0.0)
    refusal = ""
    for number in range(agent.attempts if agent is not None else 0):
        assert agent is not None
        tell(f"{proposals.name}: agent, attempt {number + 1} of {agent.attempts}", None)
        ran = asked(agent, brief_text(brief_facts(failing, model, refusal)))
        why = why_no_code(ran)
        code = code_of(ran.output)
        if why:
            attempt = Attempt("agent", False, why, ran.seconds, code[:_CODE_BYTES], ())
        else:
            tell(f"{proposals.name}: proof of attempt {number + 1}", None)
            attempt = proposals.attempt("agent", code, ran.seconds)
        refusal = attempt.refusal
        yield attempt


# --- the agent ------------------------------------------------------------------------------------


def asked(agent: Agent, brief: str) -> Ran:
    """An agent's answer to a brief, from a scratch directory that is gone afterwards."""
    try:
        command = shlex.split(agent.command)
    except ValueError as error:
        raise SpyreError(f"{agent.command!r} is no command", why=str(error)) from None
    if not command:
        raise SpyreError("the agent's command is empty")
    with tempfile.TemporaryDirectory(prefix="spyre-agent-") as scratch:
        return run_confined(
            command, Path(scratch), seconds=agent.seconds, given=brief, guarded=agent.guarded
        )


def code_of(output: str) -> str:
    """The file in an answer: the fenced block that defines `replacement`, or all of it."""
    blocks = [block for block in _FENCED.findall(output) if "def replacement" in block]
    return str(blocks[0]) if blocks else output


def why_no_code(ran: Ran) -> str:
    """Why an answer is refused before anything of it runs; empty if it is not."""
    if ran.changed:
        names = ", ".join(ran.changed[:3])
        return f"files outside the scratch directory changed meanwhile: {names}"
    if ran.problem:
        return f"the agent gave no answer: {ran.problem}"
    code = code_of(ran.output)
    if ran.code:
        said = ran.errors.strip().splitlines()
        return f"the agent ended with exit code {ran.code}: {said[-1][:200] if said else ''}"
    if len(code) > _CODE_BYTES:
        return f"the answer has {len(code)} characters"
    try:
        compile(code, "answer", "exec")
    except (SyntaxError, ValueError) as error:
        return f"the answer is no Python: {error}"
    return "" if "replacement" in code else "the answer defines no function `replacement`"


# --- the proof of code that nobody has accepted ---------------------------------------------------


class Proposals:
    """Proves texts of replacements of one op's calls.

    Raises:
        SpyreError: the original answers none of the calls.
    """

    def __init__(
        self, failing: FailingOp, *, check: ModelCheck | None = None, seconds: float = 300.0
    ) -> None:
        self.name, self.facts = name_of(failing), facts_of(failing)
        self.adapter = drafted_adapter(self.name, _not_here, self.facts)
        self.claims = Claims(self.adapter)
        self.check, self.seconds = check, seconds
        if not self.claims.calls:
            raise SpyreError(f"{failing.op} cannot be proved", why="the CPU answers no call")

    def file(self, code: str) -> str:
        """The text of an adapter file with this replacement."""
        return adapter_file(self.name, code, self.facts)

    def attempt(self, source: str, code: str, seconds: float) -> Attempt:
        """What becomes of a proposal that took so long to make."""
        begun = time.monotonic()
        proof = self.proof(code)
        took = seconds + time.monotonic() - begun
        return Attempt(source, proof.passed, proof.refusal(), took, code, proof.checks)

    def proof(self, code: str) -> Proof:
        with tempfile.TemporaryDirectory(prefix="spyre-proof-") as scratch:
            return Proof(self.name, tuple(self._checks(code, Path(scratch))))

    def _checks(self, code: str, scratch: Path) -> Iterator[Check]:
        answers, formulas, problem = self._answers(code, scratch)
        if problem:
            yield Check("run", self.name, False, problem)
            return
        checks = list(self.claims.judged(answers))
        yield from checks
        if not all(check.passed for check in checks):
            return
        checks = [*self.claims.controls(answers), *self.formula_checks(formulas)]
        yield from checks
        if self.check is not None and all(check.passed for check in checks):
            with tempfile.TemporaryDirectory(prefix="spyre-trial-") as other:
                path = Path(other) / "adapter.py"
                path.write_text(self.file(code))
                yield self.check(path)

    def _answers(self, code: str, scratch: Path) -> tuple[list[Result | str], list[Formula], str]:
        (scratch / "candidate.py").write_text(code)
        calls = [(str(c.dtype).removeprefix("torch."), c.args, c.kwargs) for c in self.claims.calls]
        symbols = [formula_call(case) for case in self.adapter.cases]
        asked_for = {"calls": calls, "formulas": [(c.args, c.kwargs) for c in symbols]}
        torch.save(asked_for, scratch / "calls.pt")
        ran = worker("openspyre.hf.candidate", (), scratch, self.seconds)
        if ran.problem:
            return [], [], f"the replacement was ended: {ran.problem}"
        try:
            found = torch.load(scratch / "answers.pt", weights_only=True)
            refused = str(found["refused"])
            answers = [_result(one) for one in found["answers"]]
            formulas = [of_plain(one) for one in found["formulas"]]
        except Exception as error:  # whatever such a process has written
            said = ran.errors.strip().splitlines() or [str(error)]
            return [], [], f"the replacement gave no answers: {said[-1][:200]}"
        if not refused and (len(answers), len(formulas)) != (len(calls), len(symbols)):
            refused = "the replacement did not answer all calls"
        return answers, formulas, refused

    def formula_checks(self, formulas: Sequence[Formula]) -> Iterator[Check]:
        """One check for each case: the formula is the original's, and does not call it."""
        packet = self.adapter.gap.op.rpartition("::")[2].split(".")[0].lstrip("_")
        for case, formula in zip(self.adapter.cases, formulas, strict=True):
            used = {str(call[1]).removeprefix("aten.").split(".")[0] for call in formula.calls}
            if packet in {name.lstrip("_") for name in used}:
                yield Check("formulas", packet, False, "it calls what it replaces")
            else:
                yield formulas_compared(self.adapter, formula_call(case), formula)


def worker(module: str, args: Sequence[str], scratch: Path, seconds: float) -> Ran:
    """Runs a module of ours with code that is not trusted, which can write to `scratch` alone."""
    return run_confined(
        [sys.executable, "-P", "-m", module, *args],
        scratch,
        seconds=seconds,
        environment={
            "OPENSPYRE_CACHE_PROGRAMS": "off",
            "OPENSPYRE_RUN": str(scratch / "run"),
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )


def _result(found: dict[str, Any]) -> Result | str:
    if "raised" in found:
        return str(found["raised"])
    leaves = tuple(found["leaves"])
    return Result(leaves, str(found["form"]), bool(found["changed"]), bool(found["shares"]))


def _not_here(*_args: Any, **_kwargs: Any) -> Any:
    raise SpyreError("a proposal does not run in this process")


def best(failing: Sequence[FailingOp], wanted: str) -> FailingOp:
    """The op to draft for: the one that is named, or the first whose calls can be proved.

    Raises:
        SpyreError: there is none.
    """
    known = ", ".join(one.op for one in failing)
    for one in failing:
        if wanted and wanted not in (one.op, name_of(one)):
            continue
        try:
            facts_of(one)
        except SpyreError:
            if wanted:
                raise
            continue
        return replace(one)
    why = f"those that do not run on the card: {known}"
    raise SpyreError(
        f"there is no op {wanted} to draft for" if wanted else "no op can be drafted for", why=why
    )
