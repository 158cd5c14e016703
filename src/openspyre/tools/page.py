"""A run's report as one HTML page that needs nothing else: no network, no other file.

Every number in a table is a cell whose `data-key` names its place in the report's JSON and whose
`data-value` is the JSON's number; the JSON itself and plotly.js are inside the page. The charts are
drawn from it by `page.js`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from openspyre.tools.run_report import as_json

Format = Callable[[Any], str]
Column = tuple[str, str, Format]  # header, key, format


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} B"


_TOTALS: tuple[Column, ...] = (
    ("card time, us", "microseconds", _decimal),
    ("cycles", "cycles", _count),
    ("x bound P", "times_bound", _decimal),
    ("launches", "launches", _count),
    ("read", "device_read_bytes", _bytes),
    ("written", "device_write_bytes", _bytes),
    ("over the ring", "ring_bytes", _bytes),
    ("PT busy", "shares.pt", _percent),
    ("SFU busy", "shares.sfu", _percent),
    ("LX peak", "lx_peak", _bytes),
    ("calls on the CPU", "fallback_calls", _count),
    ("host, s", "host_seconds", _decimal),
)
_KERNELS: tuple[Column, ...] = (
    ("launches", "launches", _count),
    ("cycles", "cycles", _count),
    ("us", "microseconds", _decimal),
    ("x bound P", "times_bound", _decimal),
    ("read", "device_read_bytes", _bytes),
    ("written", "device_write_bytes", _bytes),
    ("ring", "ring_bytes", _bytes),
    ("LX peak", "lx_peak", _bytes),
    ("PT", "shares.pt", _percent),
    ("SFU", "shares.sfu", _percent),
    ("memory", "shares.device memory", _percent),
    ("limiting", "limiting", str),
)
_LINES: tuple[Column, ...] = (
    ("cycles", "cycles", _count),
    ("share", "share", _percent),
    ("read", "read_bytes", _bytes),
    ("written", "write_bytes", _bytes),
    ("ring", "ring_bytes", _bytes),
    ("limiting", "limiting", str),
)
_WORDS = ("why",)  # columns of prose
_FALLBACKS: tuple[Column, ...] = (("op", "op", str), ("calls", "calls", _count))


def page(report: Mapping[str, Any]) -> str:
    """The page of a report (`run_report.report_of`)."""
    data = as_json(report).replace("<", "\\u003c")  # nothing in it can end the script
    parts = (
        _head(report),
        _totals(report),
        "<section><h2>Timeline</h2><p>What the engines did, in card time.</p>"
        '<div class="chart" id="timeline"></div></section>',
        _kernel_table(report["kernels"]),
        "<section><h2>Roofline</h2><p>Operations are those of PT and SFU; the dashed roof is what "
        "device memory sustains in one direction. Darker: more cycles.</p>"
        '<div class="chart" id="roofline"></div></section>',
        _line_table(report["lines"]),
        _kernel_details(report["kernels"]),
        _fallbacks(report["fallbacks"]),
        _facts(report),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report['command'])} on the card</title>"
        f"<style>{_asset('page.css')}</style></head><body>\n"
        + "\n".join(parts)
        + f'\n<script type="application/json" id="report">{data}</script>'
        f"<script>{get_plotlyjs()}</script><script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (resources.files("openspyre.tools") / name).read_text()


def _head(report: Mapping[str, Any]) -> str:
    error = f'<p class="error">{escape(report["error"])}</p>' if report["error"] else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in report["notes"])
    return (
        f"<header><h1>{escape(report['command'])}</h1>"
        "<p>What this run would take on a Spyre card, by openspyre's software card. "
        f"Not affiliated with IBM.</p>{error}{f'<ul>{notes}</ul>' if notes else ''}</header>"
    )


def _totals(report: Mapping[str, Any]) -> str:
    tiles = "".join(
        f"<div><dt>{escape(header)}</dt><dd {_data(f'totals.{key}', value)}>"
        f"{escape(form(value))}</dd></div>"
        for header, key, form in _TOTALS
        for value in (_at(report["totals"], key),)
    )
    return f'<section><dl class="tiles">{tiles}</dl></section>'


def _kernel_table(kernels: Sequence[Mapping[str, Any]]) -> str:
    rows = (
        f'<tr><th><a href="#kernel{n}">{escape(kernel["name"])}</a></th>'
        + _cells(f"kernels.{n}", kernel, _KERNELS)
        for n, kernel in enumerate(kernels)
    )
    return (
        f"<section><h2>Kernels</h2>{_table(('kernel',), _KERNELS, rows, kind='kernels')}</section>"
    )


def _line_table(lines: Sequence[Mapping[str, Any]]) -> str:
    hottest = max((line["cycles"] for line in lines), default=0) or 1
    rows = (
        f'<tr style="--heat:{line["cycles"] / hottest:.4f}"><td class="code">'
        f"<b>{escape(line['place'])}</b> {escape(line['code'])}</td>"
        + _cells(f"lines.{n}", line, _LINES)
        for n, line in enumerate(lines)
    )
    return (
        "<section><h2>Your lines</h2><p>Cycles of a launch are shared among lines in proportion to "
        "the time of the unit that each keeps busy longest; that is the limiting unit.</p>"
        f"{_table(('line',), _LINES, rows, kind='heat')}</section>"
    )


def _kernel_details(kernels: Sequence[Mapping[str, Any]]) -> str:
    return (
        "<section><h2>Plans</h2>"
        + "".join(map(_details, range(len(kernels)), kernels))
        + ("</section>")
    )


def _details(number: int, kernel: Mapping[str, Any]) -> str:
    sizes = ", ".join(map(str, kernel["shown_sizes"]))
    charts = (
        f"<p>One launch{f' with sizes {sizes}' if sizes else ''}: how busy the units of every core "
        "were, bytes moved, and what lay in the LX of core "
        f"{kernel['over_time']['lx_core']}.</p>"
        f'<div class="chart tall" id="use{number}"></div>'
        f'<div class="chart" id="bytes{number}"></div><div class="chart" id="lx{number}"></div>'
        if "over_time" in kernel
        else ""
    )
    texts = (("plan", "Plan"), ("program", "Program"), ("kernel_text", "Kernel as imported"))
    listings = "".join(
        f"<details><summary>{title}</summary><pre>{escape(kernel[key])}</pre></details>"
        for key, title in texts
    )
    return (
        f'<details class="kernel" id="kernel{number}" data-number="{number}"'
        f"{' open' if number == 0 else ''}><summary>{escape(kernel['name'])}</summary>"
        f"{charts}{listings}</details>"
    )


def _fallbacks(fallbacks: Sequence[Mapping[str, Any]]) -> str:
    if not fallbacks:
        return "<section><h2>On the CPU</h2><p>Every op ran on the card.</p></section>"
    rows = (
        "<tr>"
        + _cells(f"fallbacks.{n}", one, _FALLBACKS)
        + f'<td class="words">{escape(one["reason"])}</td>'
        for n, one in enumerate(fallbacks)
    )
    table = _table((), (*_FALLBACKS, ("why", "reason", str)), rows)
    return f"<section><h2>On the CPU</h2>{table}</section>"


def _facts(report: Mapping[str, Any]) -> str:
    items = (*report["versions"].items(), *report["settings"].items(), *report["card"].items())
    listed = "".join(f"<tr><th>{escape(k)}</th><td>{escape(f'{v}')}</td></tr>" for k, v in items)
    return (
        "<section><details><summary>Versions, settings, card</summary>"
        f'<div class="wide"><table>{listed}</table></div></details></section>'
    )


# --- tables -------------------------------------------------------------------------------------


def _table(
    first: Iterable[str], columns: Iterable[Column], rows: Iterable[str], kind: str = ""
) -> str:
    headers = "".join(
        f"<th{' class=words' if name in _WORDS else ''}>{escape(name)}</th>"
        for name in (*first, *(c[0] for c in columns))
    )
    body = "".join(f"{row}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table class="{kind}"><thead><tr>{headers}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(prefix: str, entry: Mapping[str, Any], columns: Iterable[Column]) -> str:
    return "".join(
        f"<td {_data(f'{prefix}.{key}', value)}>{escape(form(value))}</td>"
        for _, key, form in columns
        for value in (_at(entry, key),)
    )


def _data(key: str, value: Any) -> str:
    return f'data-key="{escape(key)}" data-value="{escape(f"{value}")}"'


def _at(entry: Mapping[str, Any], key: str) -> Any:
    value: Any = entry
    for part in key.split("."):
        value = value[part]
    return value
