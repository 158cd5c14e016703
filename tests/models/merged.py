"""Outcomes of several runs of `spyre models`, as the one result that the page is written from.

`python -m tests.models.merged FOLDER=COMMIT ...`: folders of outcomes, one file a type, as a run
keeps them, and the commit that ran. A lane of a later folder takes the place of an earlier one's,
and all of them that of `results/models.json`, which is written anew with `docs/models.md`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from openspyre.hf.outcomes import LANES, RAN, Outcome, State, read
from openspyre.tools.models import report
from openspyre.tools.models_page import page
from tests.results import ROOT, write_result

_SHORT = 7  # digits of a commit
_OF_LANE = re.compile(r"(\S+) \((\w+)\)")


def merged(before: Outcome, found: Outcome) -> Outcome:
    """A type's outcome with the lanes of a later run; what ran is not replaced by what did not."""
    if found.state not in RAN:
        return found if before.state not in RAN and found.state is State.SKIPPED else before
    if before.state not in RAN:
        return found
    lanes = {name: getattr(found, name) or getattr(before, name) for name in LANES}
    return replace(found, **lanes, commit=_told(_commits(before) | _commits(found)))


def _commits(one: Outcome) -> dict[str, str]:
    """The commit of each lane that an outcome has."""
    by_lane = {lane: commit for commit, lane in _OF_LANE.findall(one.commit)}
    ran = [name for name in LANES if getattr(one, name) is not None]
    return {name: by_lane.get(name, one.commit) for name in ran}


def _told(commits: Mapping[str, str]) -> str:
    if len(set(commits.values())) == 1:
        return next(iter(commits.values()))
    return ", ".join(f"{commits[name]} ({name})" for name in LANES)


def outcomes(folder: Path, commit: str) -> list[Outcome]:
    """What a run has kept in its folder."""
    files = sorted(folder.glob("*.json"))
    short = commit[:_SHORT] + "+" * commit.endswith("+")  # "+": of files that differed from it
    return [replace(read(json.loads(file.read_text())), commit=short) for file in files]


def main(sources: list[str]) -> None:
    kept = json.loads((ROOT / "results" / "models.json").read_text())["types"]
    found = {one["type"]: read(one) for one in kept}
    for source in sources:
        folder, _, commit = source.partition("=")
        for one in outcomes(Path(folder), commit):
            found[one.type] = merged(found.get(one.type, Outcome(one.type)), one)
    rows = [found[name] for name in sorted(found)]
    write_result("models", report(rows))
    (ROOT / "docs" / "models.md").write_text(page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
