"""`spyre estimate`: the card time of a model that is too large to run here, from its config."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import openspyre
from openspyre.errors import SpyreError
from openspyre.spec import BOARD_POWER_W, CALIBRATED, CardSpec
from openspyre.tools.progress import Step, progress
from openspyre.tools.scripts import told
from openspyre.tools.what_if import changed_card, notes

if TYPE_CHECKING:
    from openspyre.tools.card_time import Estimated, Memory, Part, Phase
    from openspyre.tools.layered import Layered

DTYPES = ("float16", "bfloat16", "float32")
_DEFAULT = 1024  # tokens


def estimate(
    config: Annotated[
        str, typer.Argument(help="A config.json, a folder with one, or a model type.")
    ],
    prefill: Annotated[int | None, typer.Option(min=1, help="A prompt of so many tokens.")] = None,
    decode: Annotated[
        int | None, typer.Option(min=1, help="One token, the last of a context of so many.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"Of the weights: {', '.join(DTYPES)}.")] = "float16",
    override: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE in the config; may repeat.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of the card, as in lx_bytes=4MiB; may repeat."),
    ] = None,
    as_object: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Estimate card times of a model from its config alone: no weights, little memory.

    Without --prefill and --decode both, at 1024 tokens. Exit code 2 if the model or an option
    means nothing.
    """
    with told("estimate"):
        asked = _Asked(config, overrides(override or ()), prefill, decode, batch, dtype)
        card = changed_card(changes or ())
        openspyre.require()
        with progress() as step:
            model, found = _estimates(asked, card, step)
    about = _about(model, asked, changes or ())
    if as_object:
        print(json.dumps(about | {"phases": [_as_dict(e) for e in found]}, indent=1))
    else:
        _show(about, found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that say what to estimate."""

    config: str
    overrides: Mapping[str, Any]
    prefill: int | None
    decode: int | None
    batch: int
    dtype: str

    def phases(self, *, decodes: bool) -> Iterator[Phase]:
        from openspyre.tools.card_time import Phase

        if not decodes:
            if self.decode is not None:
                raise SpyreError("an encoder does not decode", hint="use --prefill alone")
            yield Phase("forward", self.prefill or _DEFAULT, self.prefill or _DEFAULT)
            return
        both = self.prefill is None and self.decode is None
        if tokens := self.prefill or (_DEFAULT if both else 0):
            yield Phase("prefill", tokens, tokens)
        if context := self.decode or (_DEFAULT if both else 0):
            yield Phase("decode", 1, context)


def overrides(texts: Sequence[str]) -> dict[str, Any]:
    """What `--override KEY=VALUE` says, values as JSON where they are."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SpyreError(f"--override {text} is no KEY=VALUE", hint="num_hidden_layers=40")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _estimates(asked: _Asked, card: CardSpec, step: Step) -> tuple[Layered, list[Estimated]]:
    from openspyre.tools.card_time import estimated  # loads transformers and torch's compiler
    from openspyre.tools.layered import configured, layered

    if asked.dtype not in DTYPES:
        raise SpyreError(f"--dtype {asked.dtype} is none of {', '.join(DTYPES)}")
    step("reading the config")
    model = layered(configured(asked.config, asked.overrides))
    phases = tuple(asked.phases(decodes=model.decodes))
    return model, [
        estimated(model, phase, card, step, batch=asked.batch, dtype=asked.dtype)
        for phase in phases
    ]


# --- what is printed ------------------------------------------------------------------------------


def _about(model: Layered, asked: _Asked, changes: Sequence[str]) -> dict[str, Any]:
    """What all times of the output have in common."""
    from openspyre.tools.experts import ASSUMED

    return {
        "model": {
            "type": model.config.model_type,
            "parameters": model.parameters,
            "layers": {name: model.kinds.count(n) for n, name in enumerate(model.kind_names)},
        },
        "batch": asked.batch,
        "dtype": asked.dtype,
        "card": CALIBRATED.version,
        "changes": list(changes),
        "held_out_error": CALIBRATED.held_out,
        "held_out_source": CALIBRATED.source,
        "notes": [*notes(changes), *([ASSUMED] if model.has_experts else [])],
    }


def _as_dict(found: Estimated) -> dict[str, Any]:
    plain = asdict(found)
    for part, row in zip(found.parts, plain["parts"], strict=True):
        row["each_us"] = part.each_us
    held_out = CALIBRATED.held_out
    return plain | {
        "memory": plain["memory"] | {"fits": found.memory.fits},
        "moved": found.moved,
        "held_out_error": held_out,
        "us_held_out": [found.us * (1 - held_out), found.us * (1 + held_out)],
        "energy_upper_bound_joule": _joule(found),
    }


def _joule(found: Estimated) -> float:
    """The card at its limit of power for all of the time: no estimate."""
    return BOARD_POWER_W * found.us / 1e6


def _show(about: Mapping[str, Any], found: Sequence[Estimated]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    model, held_out = about["model"], 100 * about["held_out_error"]
    layers = " + ".join(f"{count} x {name}" for name, count in model["layers"].items())
    console.print(
        f"{model['type']}, {model['parameters'] / 1e9:,.2f} billion parameters, {layers};"
        f" batch {about['batch']}, {about['dtype']}, {about['card']}"
        + (f" with {', '.join(about['changes'])}" if about["changes"] else "")
    )
    for one in found:
        console.print(_table(one, held_out))
        console.print(_sentences(one, held_out))
    console.print(
        f"+-{held_out:.1f} % is the mean error on measured matmuls of shapes left out of the fit"
        f" ({about['held_out_source']}); for other kernels no measurement says how far off the"
        " clock is. 'guesses' is how far half and twice of one guessed constant move the time."
    )
    for note in about["notes"]:
        console.print(f"Note: {note}.")


def _table(one: Estimated, held_out: float) -> Table:
    phase = one.phase
    scale, unit = (1e3, "ms") if one.us >= 1e4 else (1.0, "us")
    table = Table(
        title=f"\n{phase.name}: {phase.tokens} token(s), context {phase.context}; times in {unit}",
        title_justify="left",
        box=None,
    )
    table.add_column("part")
    for name in ("count", "each", "all", "held out", "guesses", "P", "S", "S2"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in one.parts:
        table.add_row(*_cells(part, held_out, scale), style="dim" if part.detail else None)
    total = (one.bounds.p, one.bounds.s, one.bounds.s2)
    table.add_row(
        "total", "", "", f"{one.us / scale:,.3f}", f"+-{held_out:.1f} %", _moved(one.moved),
        *(f"{us / scale:,.3f}" for us in total), style="bold",
    )  # fmt: skip
    return table


def _cells(part: Part, held_out: float, scale: float) -> Iterator[str]:
    """A row; bounds are those of one."""
    yield ("  " if part.detail else "") + part.name
    yield f"{part.count}"
    yield f"{part.each_us / scale:,.3f}"
    yield f"{part.us / scale:,.3f}"
    yield f"+-{held_out:.1f} %"
    yield _moved(part.moved)
    yield from (f"{getattr(part.bounds, f.name) / scale:,.3f}" for f in fields(part.bounds))


def _moved(shares: tuple[float, float]) -> str:
    low, high = shares
    return f"{100 * low:+.1f}/{100 * high:+.1f} %"


def memory_sentence(memory: Memory) -> str:
    """What has to lie in device memory, and whether it does."""
    gib = {f.name: getattr(memory, f.name) / 2**30 for f in fields(memory)}
    needed = (
        f"Device memory: {gib['weights']:,.2f} GiB of weights, {gib['cache']:,.2f} GiB of cache:"
    )
    if memory.fits:
        return f"{needed} they fit in the card's {gib['card']:,.0f} GiB."
    return (
        f"{needed} MORE than the card's {gib['card']:,.0f} GiB. The time is that of a card with"
        " room for them."
    )


def _sentences(one: Estimated, held_out: float) -> str:
    """What follows from the total, with its error."""
    kept = ", ".join(map(str, one.compiled_layers))
    said = [
        f"{one.us / 1e3:,.3f} ms (+-{held_out:.1f} %), {one.us / one.bounds.p:.2f} x bound P,"
        f" {one.us / one.bounds.s2:.2f} x bound S2."
        f" Energy at most {_joule(one):,.2f} J ({BOARD_POWER_W:g} W for all of the time:"
        " an upper bound, no estimate).",
        memory_sentence(one.memory),
        f"Layers {kept} were compiled in one model; the others take the time of their like.",
    ]
    moving = {n: s for n, s in one.sensitivity.items() if max(map(abs, s)) >= 5e-4}
    if moving:
        listed = ", ".join(f"{name} {_moved(pair)}" for name, pair in moving.items())
        said.append(f"Half and twice of a guessed constant: {listed}; the others below 0.05 %.")
    else:
        said.append("Half and twice of any guessed constant move the total by less than 0.05 %.")
    if one.fallbacks:
        calls = Counter(one.fallbacks).items()
        listed = ", ".join(f"{op} x {count}" for op, count in calls)
        said.append(f"Not in the time, for they run on the CPU (calls of few layers): {listed}.")
    return "\n".join(said)
