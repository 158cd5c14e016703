"""The dashboard's pages: what was received, per repository, and how long it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median

from openspyre.ci.relay.stub.hud import Row

GREEN, YELLOW = 0.95, 0.80  # share of successes from which a chip has the colour
_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #bbb;padding:.3em .6em;text-align:left;vertical-align:top}"
    # Job, tests and delivery take the room that short words leave, and are broken anywhere.
    "td{overflow-wrap:anywhere}td:nth-child(2),td:nth-child(n+5){white-space:nowrap}"
    ".green{background:#bfe8c2}.yellow{background:#f7e7a6}.red{background:#f3b8b3}"
)


def page(path: str, rows: Sequence[Row]) -> str | None:
    """The page at a path; None where there is none."""
    match path.strip("/").split("/"):
        case ["crcr"]:
            return _page("Downstream CI", _repositories(rows))
        case ["crcr", "metrics"]:
            return _page("Metrics", _metrics(rows))
        case ["crcr", owner, name]:
            chosen = [row for row in rows if row.repository == f"{owner}/{name}"]
            return _page(f"{owner}/{name}", _jobs(chosen)) if chosen else None
        case _:
            return None


def colour(share: float) -> str:
    """The colour of a chip for a share of successes."""
    return "green" if share >= GREEN else "yellow" if share >= YELLOW else "red"


def _repositories(rows: Sequence[Row]) -> str:
    lines = []
    for repository, own in _by_repository(rows).items():
        done = [row for row in own if row.status == "completed"]
        good = sum(row.conclusion == "success" for row in done)
        link = f'<a href="/crcr/{escape(repository)}">{escape(repository)}</a>'
        lines.append((link, f"L{own[-1].level}", str(len(own)), _chip(good, len(done))))
    return _table(("repository", "level", "jobs", "success"), lines)


def _jobs(rows: Sequence[Row]) -> str:
    lines = []
    for row in reversed(rows):
        run = escape(f"{row.workflow} / {row.job}")
        if row.url.startswith(("https://", "http://")):
            run = f'<a href="{escape(row.url)}">{run}</a>'
        counts = ", ".join(f"{name} {n}" for name, n in row.counts.items())
        words = (row.conclusion or row.status, counts, row.delivery_id, row.run_attempt)
        times = (_seconds(row.queue_time), _seconds(row.execution_time))
        lines.append((run, *map(escape, (*words, *times))))
    names = ("job", "result", "tests", "delivery", "attempt", "queue", "execution")
    return _table(names, lines)


def _metrics(rows: Sequence[Row]) -> str:
    lines = []
    for repository, own in _by_repository(rows).items():
        queue = [row.queue_time for row in own if row.queue_time is not None]
        took = [row.execution_time for row in own if row.execution_time is not None]
        stuck = sum(row.conclusion == "timed_out" for row in own)
        share = f"{stuck / len(own):.1%}"
        middles = (_seconds(median(times)) if times else "" for times in (queue, took))
        lines.append((escape(repository), *middles, share))
    return _table(("repository", "median queue", "median execution", "timed out"), lines)


def _by_repository(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.repository].append(row)
    return dict(sorted(grouped.items()))


def _chip(good: int, of: int) -> str:
    if not of:
        return "none yet"
    return f'<span class="{colour(good / of)}">{good} of {of}</span>'


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _table(names: Iterable[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return "<p>Nothing was reported yet.</p>"
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _page(title: str, body: str) -> str:
    links = '<p><a href="/crcr">all</a> <a href="/crcr/metrics">metrics</a></p>'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en>{head}<h1>{escape(title)}</h1>{links}{body}</html>"
