"""What became of a model type in a trial: states, reasons, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

LANES = ("eager", "compiled")


class State(Enum):
    """Best first; a type has the worst of its runs."""

    RIGHT = "right"
    FALLBACKS = "right with fallbacks"
    RAISED = "raised"
    WRONG = "wrong"
    SKIPPED = "skipped"  # the CPU does not run it here: says nothing about the card
    BUILT = "only built"  # nothing ran: neither was it asked for


RAN = (State.RIGHT, State.FALLBACKS, State.RAISED, State.WRONG)


@dataclass(frozen=True, slots=True)
class Failure:
    """Where something was raised.

    Attributes:
        stage: of the trial (`forward`, `generate`), and the file of ours that raised, if one did.
        op: the ATen op, "" where the text names none.
        kernel: "" likewise.
        text: first line.
    """

    stage: str
    op: str
    kernel: str
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to run: eager or compiled.

    Attributes:
        reason: why it is not right.
        worst: the largest error as a share of what was allowed.
        flips: tokens other than the CPU's, all excused by its own rounding.
        fallbacks: calls of ops that the CPU ran.
        graphs, breaks: of torch.compile; breaks by reason.
    """

    state: State
    reason: str = ""
    failure: Failure | None = None
    worst: float = 0.0
    flips: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    graphs: int = 0
    breaks: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a type.

    Attributes:
        kind: see `Tiny`; "" where it was not built.
        dtype: in which the card was compared.
        reason: why it was skipped.
        generated: decode steps were compared, too.
        commit: of the code that was tried.
    """

    type: str
    model: str = ""
    kind: str = ""
    parameters: int = 0
    dtype: str = ""
    reason: str = ""
    generated: bool = False
    eager: Lane | None = None
    compiled: Lane | None = None
    commit: str = ""

    @property
    def state(self) -> State:
        lanes = [lane.state for lane in (self.eager, self.compiled) if lane is not None]
        ran = [state for state in lanes if state is not State.SKIPPED]
        if ran:
            return max(ran, key=RAN.index)
        return State.SKIPPED if self.reason or lanes else State.BUILT

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `read` takes it back."""
        found = asdict(self)
        for name in ("eager", "compiled"):
            if found[name] is not None:
                found[name]["state"] = found[name]["state"].value
        return {**found, "state": self.state.value}


def read(found: Mapping[str, Any]) -> Outcome:
    """The outcome that `as_dict` wrote."""
    values = {name: value for name, value in found.items() if name != "state"}
    for name in ("eager", "compiled"):
        if (lane := values[name]) is not None:
            failure = lane["failure"]
            values[name] = Lane(
                **{
                    **lane,
                    "state": State(lane["state"]),
                    "failure": Failure(**failure) if failure else None,
                }
            )
    return Outcome(**values)
