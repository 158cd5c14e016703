"""`spyre-ci capability`, `run` and `canary`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from openspyre.ci.capability import read_rows
from openspyre.ci.reuse.capability_table import (
    derived,
    measured_with,
    read_capability,
    write_capability,
)
from openspyre.ci.reuse.config_commands import AllowDrift, Files, Grace, Work
from openspyre.ci.reuse.ledger import Outcome, outcome, write_ledger
from openspyre.ci.reuse.loading import Loaded, drift, load
from openspyre.ci.reuse.located import InvalidRules
from openspyre.ci.reuse.outputs import page, summary, terminal, write_junit
from openspyre.ci.reuse.running import (
    Choice,
    Prepared,
    Run,
    place_of,
    prepare,
    run_prepared,
    universe,
)
from openspyre.ci.reuse.schema import RuleSet
from openspyre.ci.telling import AS_JSON, shown_progress, told
from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

NeededTests = Annotated[Path, typer.Option("--tests", help="PyTorch's folder test/.")]
OnlyFiles = Annotated[
    list[str] | None, typer.Option("--file", help="Only this test file; may repeat.")
]
Workers = Annotated[int, typer.Option(min=1, help="Test files at once.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a run was cut short.")]
_REPEATS = ("red", "all", "none")


def capability(
    survey: Annotated[Path, typer.Option(help="What `./dev bench opinfo` wrote.")] = Path(
        "results/capability.json"
    ),
    output: Annotated[Path, typer.Option(help="The table to write.")] = Path("capability.json"),
    only_check: Annotated[
        bool, typer.Option("--check", help="Only say whether the table is that of the survey.")
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Derive the table of what the device can do from what was measured, op by op."""
    with told("capability"):
        from openspyre.ci.op_samples import OP_DB, entries  # needs torch, other commands do not

        torch_version = measured_with(survey)
        table = derived(read_rows(survey), torch_version)
        unknown = sorted(table.ops.keys() - dict(entries(OP_DB)).keys())
        if unknown:
            raise SpyreError(
                f"{survey} has ops that this PyTorch's list has not", why=", ".join(unknown[:9]),
                hint="./dev bench opinfo",
            )  # fmt: skip
        same = output.exists() and read_capability(output).digest == table.digest
        if not only_check:
            write_capability(output, table)
        found = {
            "digest": table.digest, "ops": len(table.ops), "allowed": len(table.op_allowlist()),
            "features": dict(table.features), "same": same,
        }  # fmt: skip
        if as_json:
            print(json.dumps(found))
        else:
            print(f"{len(table.op_allowlist())} of {len(table.ops)} ops, digest {table.digest}")
        raise typer.Exit(1 if only_check and not same else 0)


def run(
    files: Files,
    tests: NeededTests,
    work: Work = Path(".spyre-ci"),
    only: OnlyFiles = None,
    ids: Annotated[
        Path | None, typer.Option(help="A file with the ids to run, one a line.")
    ] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="The I-th of N parts.")] = "1/1",
    budget: Annotated[
        float | None, typer.Option(help="Seconds after which no test begins.")
    ] = None,
    repeat: Annotated[str, typer.Option(help="Failures run once more: red, all, none.")] = "red",
    workers: Workers = 1,
    resume: Resume = False,
    grace: Grace = 0,
    allow_drift: AllowDrift = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Run PyTorch's tests as the rules ask, each in a process that may crash and hang.

    Leaves ledger.jsonl, junit.xml, summary.json and report.html in the work folder. Exit codes:
    0 green, 1 red, 2 rules or options are wrong, 3 the account does not add up, 4 nothing was
    run, 5 tests could not be reached.
    """
    with told("run"):
        choice = Choice(
            ids=_ids(ids), shard=_shard(shard), budget_s=_budget(budget), workers=workers,
            resume=resume, repeat=_repeat(repeat),
        )  # fmt: skip
        loaded = load(files, grace=grace, allow_drift=allow_drift)
        raise typer.Exit(_run(loaded, tests, work, only, choice, as_json).value)


def canary(
    files: Files,
    tests: NeededTests,
    work: Work = Path(".spyre-ci-canary"),
    only: OnlyFiles = None,
    workers: Workers = 1,
    grace: Grace = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Run what is in quarantine, a process a test, and say which rules could be lifted."""
    with told("canary"):
        loaded = load(files, grace=grace)
        choice = Choice(canary=True, workers=workers, repeat="none")
        prepared = _prepared(loaded, tests, work, only, canary=True)
        run = _told_run(prepared, loaded, tests, work, choice)
        rules = {t.id: t.rule.id for f in prepared for t in f.plan.scheduled() if t.rule}
        passed = {e.id for e in run.ledger.entries if e.bucket.value == "passed"}
        whole = [r for r in dict.fromkeys(rules.values()) if _all_pass(r, rules, passed)]
        if as_json:
            found = {"run": len(rules), "passed": sorted(passed & rules.keys()), "lift": whole}
            print(json.dumps(found))
        else:
            print(f"{len(passed & rules.keys())} of {len(rules)} tests in quarantine passed")
            print("".join(f"  {rule} could be a gate\n" for rule in whole), end="")
        raise typer.Exit(Outcome.ACCOUNTING.value if run.problems else 0)


def _all_pass(rule: str, rules: dict[str, str], passed: set[str]) -> bool:
    return all(id_ in passed for id_, owner in rules.items() if owner == rule)


def _run(
    loaded: Loaded, tests: Path, work: Path, only: Sequence[str] | None, choice: Choice,
    as_json: bool,
) -> Outcome:  # fmt: skip
    prepared = _prepared(loaded, tests, work, only)
    check_ids(choice.ids, prepared, loaded.rules)
    run = _told_run(prepared, loaded, tests, work, choice)
    found = outcome(run.ledger, run.problems)
    title = f"PyTorch's tests on {loaded.rules.device}"
    write_ledger(work / "ledger.jsonl", run.ledger)
    write_junit(work / "junit.xml", run.ledger)
    said = summary(run.ledger, found, run.problems)
    warnings = [*loaded.warnings, *[w for f in loaded.rules.files for w in drift(tests, f)]]
    said["warnings"] = warnings
    write_whole(work / "summary.json", (json.dumps(said, indent=1) + "\n").encode())
    text = page(run.ledger, found, run.problems, title)
    write_whole(work / "report.html", text.encode())
    if as_json:
        print(json.dumps(said))
    else:
        print("".join(f"warning: {warning}\n" for warning in warnings), end="")
        print(terminal(run.ledger, found, run.problems))
    return found


def _prepared(
    loaded: Loaded, tests: Path, work: Path, only: Sequence[str] | None, *, canary: bool = False
) -> list[Prepared]:
    """The files, ready.

    Raises:
        InvalidRules: rules do not fit the tests that exist.
    """
    files = [f for f in loaded.rules.files if not only or f.path in only]
    if unknown := set(only or ()) - {file.path for file in files}:
        raise SpyreError(f"the rules know no file {', '.join(sorted(unknown))}")
    place = place_of(loaded.rules, tests, work)
    found = []
    with shown_progress() as tell:
        for number, file in enumerate(files):
            tell(f"collecting {file.path}", number / len(files))
            found.append(prepare(loaded.rules, file, loaded.capability, place, canary=canary))
    if problems := [problem for file in found for problem in file.plan.problems]:
        raise InvalidRules(problems)
    return found


def _told_run(
    prepared: Sequence[Prepared], loaded: Loaded, tests: Path, work: Path, choice: Choice
) -> Run:
    with shown_progress() as tell:
        return run_prepared(prepared, place_of(loaded.rules, tests, work), choice, tell)


def _ids(path: Path | None) -> frozenset[str] | None:
    """The ids in a file, one a line; empty lines are none."""
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SpyreError(
            f"--ids {path} cannot be read", why=str(error), hint="UTF-8, an id a line"
        ) from None
    return frozenset(line.strip() for line in lines) - {""}


def check_ids(ids: frozenset[str] | None, prepared: Sequence[Prepared], rules: RuleSet) -> None:
    """Whether there is a test for every id that is asked for.

    Those of files that are left out, or cannot be imported, may be there: nobody can say.

    Raises:
        SpyreError: there is not.
    """
    files = {file.file.path: file for file in prepared}
    skipped = {file.path for file in rules.files} - {p for p, f in files.items() if not f.broken}
    known = universe(prepared)
    unknown = [
        i for i in sorted(ids or ()) if i not in known and i.partition("::")[0] not in skipped
    ]
    if not unknown:
        return
    near = get_close_matches(unknown[0], known, 3, 0.5)
    raise SpyreError(
        f"--ids names {len(unknown)} tests that there are not",
        why="\n       ".join(unknown[:9]),
        hint=f"near the first: {', '.join(near)}" if near else "ids are those of ledger.jsonl",
    )


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= parts:
        raise SpyreError(f"--shard {text} is no part", hint="for example 1/4 to 4/4")
    return part, parts


def _budget(seconds: float | None) -> float | None:
    if seconds is not None and not seconds >= 0:
        raise SpyreError(f"--budget {seconds} is no time", hint="0 or more seconds")
    return seconds


def _repeat(text: str) -> str:
    if text not in _REPEATS:
        raise SpyreError(f"--repeat {text} means nothing", hint=", ".join(_REPEATS))
    return text
