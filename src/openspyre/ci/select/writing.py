"""What a run gives reason for, written into rules: added, moved, taken out, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import PurePosixPath

from openspyre.ci.native.hooks import Expect
from openspyre.ci.reuse.located import At
from openspyre.ci.reuse.schema import Rule, RuleSet, TestFile, Verdict
from openspyre.ci.select.stages.trial import Proposal, Review

_NOWHERE = At("(proposed)", 1, 1)


def with_review(rules: RuleSet, review: Review) -> RuleSet:
    """The rules with a run's proposals; rules of tests that moved go along, dead ones go."""
    taken = set(rules.rules())
    files: dict[str, TestFile] = {}
    arrivals: dict[str, list[Rule]] = {}
    for file in rules.files:
        kept = []
        for rule in file.rules:
            target = review.gone.get(rule.id)
            if target is None:
                kept.append(rule)
            elif target:
                path, cls, method = target.split("::")
                arrivals.setdefault(path, []).append(replace(rule, cls=cls, method=method))
        files[file.path] = replace(file, rules=tuple(kept))
    for proposal in review.proposals:
        path = proposal.test.partition("::")[0]
        arrivals.setdefault(path, []).append(_rule(proposal, _free_id(path, taken)))
    for path, new in arrivals.items():
        file = files.get(path, TestFile(path, _NOWHERE))
        files[path] = replace(file, rules=(*file.rules, *new))
    return replace(rules, files=tuple(file for _, file in sorted(files.items())))


def with_hits(rules: RuleSet, hits: Mapping[str, int], ids: Iterable[str]) -> RuleSet:
    """The rules with the number of tests that some of them own."""
    named = set(ids)
    files = [
        replace(
            file,
            rules=tuple(
                replace(rule, hits=hits[rule.id]) if rule.id in named & hits.keys() else rule
                for rule in file.rules
            ),
        )
        for file in rules.files
    ]
    return replace(rules, files=tuple(files))


def _free_id(path: str, taken: set[str]) -> str:
    """An id in the manner of the others: `BINARY-UFUNCS-007`."""
    stem = PurePosixPath(path).stem.removeprefix("test_").upper().replace("_", "-")
    id = next(name for name in _numbered(stem) if name not in taken)
    taken.add(id)
    return id


def _numbered(stem: str) -> Iterator[str]:
    return (f"{stem}-{number:03d}" for number in count(1))


def _rule(proposal: Proposal, id: str) -> Rule:
    _, cls, method = proposal.test.split("::")
    kind, match = proposal.raises
    return Rule(
        id, cls, method, Verdict(proposal.verdict), _NOWHERE, proposal.ops, proposal.dtypes,
        proposal.params, cause=proposal.cause, reason=proposal.reason, issue=proposal.issue,
        since=proposal.since, expires=proposal.expires,
        raises=Expect(kind, match) if kind else None, isolate=proposal.isolate,
    )  # fmt: skip
