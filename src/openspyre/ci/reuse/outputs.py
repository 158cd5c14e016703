"""A ledger for machines and people: JUnit, a summary, a page, and lines on a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openspyre.ci.native.identity import plain_text
from openspyre.ci.reuse.ledger import BAD, Bucket, Entry, Ledger, Outcome
from openspyre.runtime.whole_file import write_whole

_ROWS = 500  # of a table of the page


def summary(ledger: Ledger, outcome: Outcome, problems: Collection[str]) -> dict[str, Any]:
    """What a run came to, as JSON."""
    return {
        "outcome": outcome.name.lower().replace("_", "-"),
        "total": len(ledger.entries),
        "executed": ledger.executed(),
        "red": len(ledger.red()),
        "unbucketed": len(problems),
        "buckets": ledger.counts(),
        "files": {file: dict(counts) for file, counts in by_file(ledger).items()},
        "seconds": round(sum(entry.seconds for entry in ledger.entries), 1),
    }


def by_file(ledger: Ledger) -> dict[str, Counter[str]]:
    """Tests by file and bucket."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in ledger.entries:
        found[entry.file][entry.bucket.value] += 1
    return dict(found)


def reasons(entries: Iterable[Entry]) -> list[tuple[str, str, str, int]]:
    """How many tests share a bucket, a source and a reason; the most first."""
    counts = Counter((e.bucket.value, e.rule, e.reason) for e in entries)
    return [(*key, n) for key, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def write_junit(path: Path, ledger: Ledger) -> None:
    """JUnit's XML: a suite a file; what is red is a failure, what did not run is skipped."""
    root = ElementTree.Element("testsuites", name="spyre-ci")
    for file, counts in by_file(ledger).items():
        entries = [entry for entry in ledger.entries if entry.file == file]
        suite = ElementTree.SubElement(
            root, "testsuite", name=_printable(file), tests=str(counts.total()),
            failures=str(sum(e.red for e in entries)), errors="0",
            skipped=str(sum(not e.red and e.bucket is not Bucket.PASSED for e in entries)),
            time=f"{sum(e.seconds for e in entries):.3f}",
        )  # fmt: skip
        for entry in entries:
            _junit_case(suite, entry)
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _junit_case(suite: ElementTree.Element, entry: Entry) -> None:
    _, _, rest = entry.id.partition("::")
    cls, _, name = rest.partition("::")
    case = ElementTree.SubElement(
        suite, "testcase", name=_printable(name or cls), time=f"{entry.seconds:.3f}",
        classname=_printable(f"{entry.file.removesuffix('.py').replace('/', '.')}.{cls}"),
    )  # fmt: skip
    said = _printable(f"{entry.bucket.value}: {entry.reason}")
    if entry.red:
        ElementTree.SubElement(case, "failure", message=said).text = _printable(entry.trace)
    elif entry.bucket is not Bucket.PASSED:
        ElementTree.SubElement(case, "skipped", message=said)


def _printable(text: str) -> str:
    """Without what XML 1.0 cannot hold, and a terminal obeys."""
    return "".join(c if c in "\t\n" or c.isprintable() else "\ufffd" for c in text)


def terminal(ledger: Ledger, outcome: Outcome, problems: Collection[str]) -> str:
    """The counts, what is red, and where the account does not add up."""
    counts = ", ".join(f"{n} {bucket}" for bucket, n in ledger.counts().items() if n)
    lines = [f"{outcome.name.lower().replace('_', ' ')}: {len(ledger.entries)} tests: {counts}"]
    lines += [f"  {e.bucket.value:14} {e.id}: {e.reason}" for e in ledger.red()]
    lines += [f"  account        {problem}" for problem in problems]
    return _printable("\n".join(lines))


def page(ledger: Ledger, outcome: Outcome, problems: Collection[str], title: str) -> str:
    """One self-contained HTML page, of what every encoding of Unicode can hold."""
    buckets = [bucket.value for bucket in Bucket if ledger.counts()[bucket.value]]
    files = by_file(ledger)
    rows = [[file, *[str(counts[b] or "") for b in buckets]] for file, counts in files.items()]
    total = ["all", *[str(ledger.counts()[bucket]) for bucket in buckets]]
    bad = [e for e in ledger.entries if e.red or e.bucket in BAD]
    idle = [e for e in ledger.entries if e.bucket not in (*BAD, Bucket.PASSED)]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{outcome.name.lower().replace('_', ' ')}: {len(ledger.entries)} tests,"
        f" {ledger.executed()} run, {len(ledger.red())} red.</p>",
        _table(["file", *buckets], [*rows, total]),
        _section("Not accounted for", ["problem"], [[problem] for problem in problems]),
        _section(
            "Failed", ["bucket", "asked", "test", "reason"],
            [[e.bucket.value, e.verdict.value, e.id, e.reason] for e in bad],
        ),
        _section(
            "Not run, or expected", ["bucket", "because of", "reason", "tests"],
            [[b, rule, why, str(n)] for b, rule, why, n in reasons(idle)],
        ),
    ]  # fmt: skip
    style = (
        "body{font:14px system-ui;margin:2em;max-width:110em}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:2px 8px;text-align:left;vertical-align:top}"
    )
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{style}</style>"
    inside = f"<head>{head}</head><body>{''.join(parts)}</body>"
    return plain_text(f"<!doctype html><html lang=en>{inside}</html>\n")


def _section(title: str, head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    more = f"<p>... {len(rows) - _ROWS} more in the ledger</p>" if len(rows) > _ROWS else ""
    return f"<h2>{escape(title)}: {len(rows)}</h2>{_table(head, rows[:_ROWS])}{more}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table>{line(head, 'th')}{body}</table>"
