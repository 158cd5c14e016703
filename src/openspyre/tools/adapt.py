"""`spyre adapt`: the adapters that there are, their proofs, and drafts of new ones."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import openspyre
from openspyre.errors import SpyreError
from openspyre.tools.progress import late_bar
from openspyre.tools.scripts import told

if TYPE_CHECKING:  # needs torch
    from openspyre.hf.adapters import Adapter
    from openspyre.hf.draft import Agent, Attempt, ModelCheck
    from openspyre.hf.gaps import FailingOp
    from openspyre.hf.proof import Proof
    from openspyre.tools.accuracy_models import Subject

adapt_commands = typer.Typer(
    help="Small replacements for what the compiler does not lower (docs/adapters.md).",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
Which = Annotated[
    list[str] | None,
    typer.Argument(help="Ids, or files with adapters, which are run. None: all that are shipped."),
]


@adapt_commands.command("list")
def show(
    which: Which = None,
    probe: Annotated[
        bool, typer.Option(help="Compile what each replaces, to see whether it is still needed.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print the adapters, and mark those retired whose gap is closed: it lowers and is right."""
    with told("adapt list"), late_bar(Console(stderr=True)) as tell:
        adapters = _adapters(which)
        found = []
        for number, adapter in enumerate(adapters):
            tell(f"compiling what {adapter.id} replaces", number / len(adapters))
            found.append(_listed(adapter, probe))
    if as_json:
        print(json.dumps({"adapters": found}))
        return
    for row in found:
        print(f"{row['id']}: {row['replaces']}, bridges {row['op']} ({row['rule']})")
        print(f"  {row['state']}{': ' + row['why'] if row['why'] else ''}")
    if not found:
        print("no adapters are shipped: stock models run as they are")


@adapt_commands.command()
def check(
    which: Which = None,
    models: Annotated[
        bool, typer.Option(help="Also run whole models with them, on the card.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Prove adapters: against the originals, with wrong ones that must fail, and on models.

    The exit code is 1 if a proof fails.
    """
    with told("adapt check"), late_bar(Console(stderr=True)) as tell:
        adapters = _adapters(which)
        from openspyre.hf.proof import prove

        proofs = [prove(adapter, models=models, tell=tell) for adapter in adapters]
    if as_json:
        plain = [{"id": p.adapter, "passed": p.passed, **_checks(p)} for p in proofs]
        print(json.dumps({"adapters": plain}))
    else:
        for proof in proofs:
            print("\n".join(_proof_lines(proof)))
        if not proofs:
            print("no adapters are shipped: there is nothing to prove")
    raise typer.Exit(0 if all(proof.passed for proof in proofs) else 1)


@adapt_commands.command()
def draft(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a model, a type as in `spyre models`, script, or minilm."),
    ],
    op: Annotated[str, typer.Option(help="The op to draft for; default: the first found.")] = "",
    agent: Annotated[
        str, typer.Option(help="Command that reads a brief and writes a Python file.")
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0.1, help="The agent has for an answer; then all of it is killed.")
    ] = 600.0,
    attempts: Annotated[int, typer.Option(min=1, help="How often the agent is asked.")] = 3,
    rules: Annotated[bool, typer.Option(help="Try rewrites that are known by rule first.")] = True,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for brief, log and adapter.")
    ] = Path("spyre-adapters"),
    batch: Annotated[int, typer.Option(min=1, help="Rows of the random inputs.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 16,
    seed: Annotated[int, typer.Option(help="Of inputs, and of weights that are missing.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find an op of a model that does not run on the card, and an adapter for it that is proved.

    Rules come first, then the agent, which gets the brief on its standard input and answers with
    a Python file on its standard output. A script defines `model` and `inputs`.

    What is enforced: the agent, and all code that it answers, run in processes of their own, in
    a scratch directory that is HOME and TMPDIR too, within the time limit, behind which every
    process that they have started is killed. On Linux with Landlock they cannot write, make or
    remove files elsewhere; everywhere the files of the working directory's checkout and of
    openspyre are compared before and after the agent ran, and an attempt that changed any is
    refused. Not enforced: they may read files and use the network, and code that sets out to
    deceive the proof is not held back by it. Read an adapter before you use it. For an agent that
    needs its settings: --agent "env HOME=/home/me COMMAND".

    The exit code is 0 if an adapter was accepted or none is needed, 1 if none was accepted.
    """
    facts = {"batch": batch, "length": length, "seed": seed}
    with told("adapt draft"), late_bar(Console(stderr=True)) as tell:
        openspyre.require()
        from openspyre.hf.confined import enforced
        from openspyre.hf.draft import Agent, best, drafted
        from openspyre.hf.gaps import failing_ops
        from openspyre.tools.accuracy_models import load_subject

        tell(f"loading {model}", None)
        name = str(Path(model).resolve()) if Path(model).exists() else model
        subject = load_subject(name, **facts)
        tell("running it on the card", None)
        failing = failing_ops(copy.deepcopy(subject.model), subject.inputs)
        if not failing:
            _print_nothing(model, as_json)
            raise typer.Exit(0)
        chosen = best(failing, op)
        output.mkdir(parents=True, exist_ok=True)
        brief = _write_brief(chosen, model, output)
        asked = Agent(agent, seconds, attempts, _guarded(output)) if agent else None
        trial = _trial(subject, {"name": name, **facts}, chosen.op)
        log = output / "attempts.jsonl"
        found = drafted(chosen, model, rules=rules, agent=asked, check=trial, log=log, tell=tell)
        target = output / f"{found.name}.py"
        if found.file:
            target.write_text(found.file)
    result = {
        "op": chosen.op,
        "others": [one.op for one in failing if one.op != chosen.op],
        "brief": str(brief),
        "log": str(log),
        "enforced": enforced(),
        "attempts": [_attempt(one) for one in found.attempts],
        "adapter": str(target) if found.file else None,
    }
    if as_json:
        print(json.dumps(result))
    else:
        print("\n".join(_draft_lines(result, asked)))
    raise typer.Exit(0 if found.file else 1)


# --- which ----------------------------------------------------------------------------------------


def _adapters(which: Sequence[str] | None) -> list[Adapter]:
    openspyre.require()
    from openspyre.hf.drafted import read_adapters
    from openspyre.hf.shipped import ADAPTERS

    if not which:
        return list(ADAPTERS)
    shipped = {adapter.id: adapter for adapter in ADAPTERS}
    found: list[Adapter] = []
    for name in which:
        if name in shipped:
            found.append(shipped[name])
        elif Path(name).suffix == ".py":
            found += read_adapters(Path(name))
        else:
            raise SpyreError(
                f"there is no adapter {name}",
                hint=f"shipped: {', '.join(shipped) or 'none'}; or name a file",
            )
    return found


def _listed(adapter: Adapter, asked: bool) -> dict[str, Any]:
    from openspyre.hf.adapters import ModuleClass
    from openspyre.hf.probe import probe

    replaces = adapter.replaces
    what = replaces.name if isinstance(replaces, ModuleClass) else ", ".join(replaces.names)
    row = {
        "id": adapter.id,
        "replaces": what.replace(":", "."),
        "model_types": sorted(adapter.applies.model_types),
        "op": adapter.gap.op,
        "rule": adapter.gap.rule,
        "issue": adapter.gap.issue,
        "state": "not asked",
        "why": "",
    }
    if asked:
        found = probe(adapter)
        row["state"] = "needed" if found.needed else "retired"
        since = "" if found.needed else f", with openspyre {openspyre.__version__}"
        row["why"] = found.why + since
    return row


# --- drafts ---------------------------------------------------------------------------------------


def _write_brief(failing: FailingOp, model: str, folder: Path) -> Path:
    from openspyre.hf.brief import brief_facts, brief_text
    from openspyre.hf.drafted import name_of

    facts = brief_facts(failing, model)
    path = folder / f"{name_of(failing)}.md"
    path.write_text(brief_text(facts))
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    return path


def _guarded(output: Path) -> tuple[Path, ...]:
    """The checkout of the working directory, and this package."""
    here = Path.cwd()
    if git := shutil.which("git"):
        asked = subprocess.run(
            [git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False
        )
        here = Path(asked.stdout.strip()) if asked.returncode == 0 else here
    return (here, Path(openspyre.__file__).parent)


def _trial(subject: Subject, named: dict[str, Any], op: str) -> ModelCheck:
    """Tries an adapter file on the model, in a process of its own."""
    import torch

    from openspyre.hf.draft import worker
    from openspyre.hf.proof import Check
    from openspyre.hf.trials import Outputs, Reference, judged

    reference: list[Reference] = []  # made when first asked for

    def check(path: Path) -> Check:
        scratch = path.parent
        (scratch / "subject.json").write_text(json.dumps(named))
        state = {"weights": subject.model.state_dict(), "inputs": subject.inputs}
        torch.save(state, scratch / "state.pt")
        ran = worker("openspyre.tools.adapt_trial", (), scratch, 600.0)
        try:
            found = Outputs(**torch.load(scratch / "outputs.pt", weights_only=True))
        except Exception as error:  # whatever such a process has written
            said = ran.errors.strip().splitlines() or [str(error)]
            why = ran.problem or said[-1][:300]
            return Check("model", subject.name, False, f"it does not run with it: {why}")
        if not reference:
            reference.append(Reference.of(subject.model, subject.inputs))
        verdict = judged(found, reference[0], op)
        return Check("model", subject.name, verdict.passed, verdict.detail)

    return check


# --- as text and JSON -----------------------------------------------------------------------------


def _checks(proof: Proof) -> dict[str, Any]:
    return {"checks": [asdict(one) for one in proof.checks]}


def _proof_lines(proof: Proof) -> Iterator[str]:
    yield f"{proof.adapter}: {'proved' if proof.passed else 'REFUSED'}"
    for one in proof.checks:
        refused = "refused as it must be" if one.passed else "NOT REFUSED"
        how = refused if one.stage == "control" else "right" if one.passed else "WRONG"
        how = how if one.done else "not looked at"
        yield f"  {one.stage:8} {one.name}: {how}; {one.detail}"


def _attempt(one: Attempt) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("source", "accepted", "refusal", "seconds")}


def _print_nothing(model: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"op": None, "others": [], "attempts": [], "adapter": None}))
    else:
        print(f"every op of {model} runs on the card: there is nothing to bridge")


def _draft_lines(result: dict[str, Any], agent: Agent | None) -> Iterator[str]:
    yield f"{result['op']} does not run on the card; brief: {result['brief']}"
    if result["others"]:
        yield f"others that do not: {', '.join(result['others'])} (--op names one)"
    if agent is not None:
        yield f"agent: {result['enforced']}"
    for one in result["attempts"]:
        state = "accepted" if one["accepted"] else f"refused: {one['refusal']}"
        yield f"{one['source']}, {one['seconds']:.1f} s: {state}"
    if result["adapter"]:
        yield f"{result['adapter']}: proved. Read it, then adapt(model, adapters=...)"
    elif agent is None:
        yield "no rule serves; --agent names a command that gets the brief"
