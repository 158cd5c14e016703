"""`spyre report`: the page, its numbers, the trace, and saved runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import openspyre
from openspyre.card.native import UNITS
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import decode
from openspyre.ir.text import parse_kernel
from openspyre.runtime.profiler import profile
from openspyre.runtime.saved import Run, Span, read_run
from openspyre.runtime.sizes import limits_of
from openspyre.runtime.traced import card_of
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.cli import app
from openspyre.tools.page import page
from openspyre.tools.run_report import derived, line_of, report_of, shown_spans
from openspyre.tools.scripts import run_script

openspyre.require()

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import sys
import torch


def model(x, w):
    y = x @ w
    return torch.softmax(y, -1)


torch.manual_seed(0)
x, w = torch.randn(96, 128).half().to("spyre"), torch.randn(128, 64).half().to("spyre")
compiled = torch.compile(model)
for _ in range(3):
    y = compiled(x, w)
values = torch.lgamma(y)
print("argument", *sys.argv[1:], "<&>")
assert y.cpu().float().sum() > 90
"""


@dataclass(frozen=True)
class Reported:
    json: dict[str, Any]
    page: str
    trace: dict[str, Any]
    run: Run
    saved: Path
    stdout: str
    stderr: str
    code: int


def spyre(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("report")
    script, html = folder / "script.py", folder / "page.html"
    saved, trace = folder / "run.spyre", folder / "trace.json"
    script.write_text(SCRIPT)
    files = ("--output", html, "--save", saved, "--trace", trace)
    code, out, err = spyre("report", "--json", *files, script, "--json", "-o", "x")
    return Reported(
        json.loads(out), html.read_text(), json.loads(trace.read_text()), read_run(saved), saved,
        out, err, code,
    )  # fmt: skip


class Cells(HTMLParser):
    """Every number on a page: its place in the JSON, the JSON's text of it, and what is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        self.links: list[str] = []
        self._key: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [v for k in ("src", "href") if (v := found.get(k))]
        self._key = found.get("data-key")
        if self._key is not None:
            assert self._key not in self.values, "a number has two cells"
            self.values[self._key] = found["data-value"] or ""
            self.shown[self._key] = ""

    def handle_data(self, data: str) -> None:
        if self._key is not None:
            self.shown[self._key] += data

    def handle_endtag(self, tag: str) -> None:
        self._key = None


def at(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def test_the_script_ran_with_its_own_arguments(reported: Reported) -> None:
    assert reported.code == 0
    assert "argument --json -o x" in reported.stderr
    assert reported.run.command.endswith("script.py --json -o x")


def test_every_number_on_the_page_is_that_of_the_json(reported: Reported) -> None:
    cells = Cells(reported.page)
    assert len(cells.values) > 30
    for key, text in cells.values.items():
        assert text == f"{at(reported.json, key)}", key
    assert cells.shown["totals.cycles"] == f"{reported.json['totals']['cycles']:,}"
    assert cells.shown["fallbacks.0.op"] == "aten::lgamma.out"


def test_all_kernels_lines_and_fallbacks_are_on_the_page(reported: Reported) -> None:
    keys = Cells(reported.page).values
    for table in ("kernels", "lines", "fallbacks"):
        assert reported.json[table]
        for number in range(len(reported.json[table])):
            assert any(key.startswith(f"{table}.{number}.") for key in keys)


def test_the_page_holds_the_json_and_needs_nothing_else(reported: Reported) -> None:
    start = reported.page.index('id="report">') + len('id="report">')
    inside = reported.page[start : reported.page.index("</script>", start)]
    assert json.loads(inside) == reported.json
    assert all(link.startswith("#") for link in Cells(reported.page).links)


def test_sums_are_those_of_the_profiler(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(SCRIPT)
    with profile() as measured:
        assert run_script(str(script), (), module=False).code == 0
    _, out, _ = spyre("report", "--json", "-o", tmp_path / "p.html", script)
    kernels = {k["name"]: k for k in json.loads(out)["kernels"]}
    assert set(kernels) == {use.name for use in measured.kernels}
    for use in measured.kernels:
        for name in ("launches", "cycles", "bound_p_cycles", "pt_busy", "ring_bytes", "lx_peak"):
            assert kernels[use.name][name] == getattr(use, name)


def test_totals_and_lines_add_up(reported: Reported) -> None:
    found = reported.json
    for name in ("launches", "cycles", "device_read_bytes", "ring_bytes", "flop"):
        assert found["totals"][name] == sum(k[name] for k in found["kernels"])
    assert sum(line["cycles"] for line in found["lines"]) == pytest.approx(
        found["totals"]["cycles"]
    )
    for kind in ("read", "write"):
        assert (
            sum(line[f"{kind}_bytes"] for line in found["lines"])
            == (found["totals"][f"device_{kind}_bytes"])
        )
    assert sum(line["share"] for line in found["lines"]) == pytest.approx(1)


def test_the_documentation_names_every_key(reported: Reported) -> None:
    text = (ROOT / "docs" / "json.md").read_text()
    (table,) = re.findall(r"^## `spyre report`\n(.*?)^\*\*Lines", text, re.MULTILINE | re.DOTALL)
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    first = {key for row in rows for key in re.findall(r"`(\w+)", row[1])}
    assert first == set(reported.json)
    known = set(re.findall(r"`(\w+)", table)) | {f"{unit}_busy" for unit in UNITS}
    kernel = reported.json["kernels"][0]
    over_time = kernel["over_time"]
    for found in (
        *(reported.json["totals"], reported.json["lines"][0], reported.json["spans"][0]),
        *(kernel, kernel["sizes"][0], over_time, over_time["lx"][0]),
    ):
        assert set(found) <= known


def test_the_heat_map_names_the_users_lines(reported: Reported) -> None:
    script = f"{reported.saved.parent / 'script.py'}"
    lines = {line["place"]: line for line in reported.json["lines"]}
    assert lines[f"{script}:6"]["code"] == "y = x @ w"
    assert lines[f"{script}:6"]["busy"]["pt"] > 0
    assert lines[f"{script}:7"]["busy"]["pt"] == 0
    assert lines[f"{script}:7"]["write_bytes"] == 3 * 96 * 64 * 2


EQUAL = """\
import torch


def first(x):
    return (torch.softmax(x, -1) * 2).sum()


def second(x):
    y = torch.softmax(x, -1)
    return (y * 2).sum()


for function in (first, second):
    x = torch.ones(64, 64).half().to("spyre").requires_grad_()
    torch.compile(function)(x).backward()
    for _ in range(3):
        x = x.detach() + 1
        y = x.relu()
"""


@pytest.mark.parametrize("again", ["in this process", "from Inductor's cache"])
def test_equal_graphs_have_their_own_lines(tmp_path: Path, again: str) -> None:
    del again  # the second run finds the graphs of the first
    script = tmp_path / "equal.py"
    script.write_text(EQUAL)
    torch._dynamo.reset()
    code, out, _ = spyre("report", "--json", "-o", tmp_path / "p.html", script)
    assert code == 0
    lines = {line["place"].removeprefix(f"{script}:"): line for line in json.loads(out)["lines"]}
    assert set(lines) == {"5", "9", "10", "17", "18"}
    forward_and_backward = {"softmax_mul_sum", "softmax__softmax_backward_data_expand_mul"}
    assert set(lines["5"]["kernels"]) == forward_and_backward
    assert set(lines["9"]["kernels"]) == forward_and_backward
    assert (lines["17"]["code"], lines["17"]["kernels"]) == ("x = x.detach() + 1", ["add"])
    assert lines["17"]["write_bytes"] == 6 * 64 * 64 * 2
    assert (lines["18"]["code"], lines["18"]["kernels"]) == ("y = x.relu()", ["relu"])


def test_files_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "model.py").write_text("def f(x):\n    return x * 3\n")
    script = tmp_path / "the script.py"
    script.write_text(
        "import torch\nfrom a.model import f\nfrom b.model import f as g\n"
        'x = torch.ones(8, device="spyre")\nf(x), torch.compile(f)(x), torch.compile(g)(x)\n'
    )
    monkeypatch.chdir(tmp_path)
    _, out, _ = spyre("report", "--json", script.name)
    places = {line["place"] for line in json.loads(out)["lines"]}
    assert places == {"a/model.py:2", "b/model.py:2"}


def test_work_of_autograd_belongs_to_the_line_that_asked_for_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        'import torch\nw = torch.ones(8, 8, device="spyre", requires_grad=True)\n'
        "loss = (w @ w).sum()\nloss.backward()\nw.grad.cpu()\n"
    )
    _, out, _ = spyre("report", "--json", "-o", tmp_path / "p.html", script)
    lines = {line["place"].removeprefix(f"{script}:"): line for line in json.loads(out)["lines"]}
    assert set(lines) == {"3", "4"}
    assert "mm" in lines["4"]["kernels"]


def test_the_timeline_adds_up(reported: Reported) -> None:
    (kernel, *_) = reported.json["kernels"]
    over = kernel["over_time"]
    assert sum(over["bytes"]["read_bytes"]) * kernel["launches"] == pytest.approx(
        kernel["device_read_bytes"], rel=0.01
    )
    assert all(0 <= cell <= 100 for rows in over["use"].values() for row in rows for cell in row)
    assert max(life["offset"] + life["bytes"] for life in over["lx"]) == kernel["lx_peak"]
    launches = [span for span in reported.json["spans"] if span["use"]]
    assert len(launches) == reported.json["totals"]["launches"]
    spent = sum(span["end"] - span["start"] for span in launches) / 1e6
    assert spent == pytest.approx(reported.json["totals"]["microseconds"])


def test_the_plan_shown_is_the_plan_that_ran(reported: Reported) -> None:
    for kernel in reported.run.kernels:
        for use in kernel.uses:
            region = parse_kernel(kernel.text)
            card = card_of(reported.run.card)
            again = compile_kernel(replace(region, limits=limits_of(region, use.sizes)), card)
            assert again == decode(kernel.variants[use.variant].program)


def test_fallbacks_have_counts_and_reasons(reported: Reported) -> None:
    (fallback,) = reported.json["fallbacks"]
    assert (fallback["op"], fallback["calls"]) == ("aten::lgamma.out", 1)
    assert "lgamma" in fallback["reason"]


def test_a_saved_run_gives_the_same_report(reported: Reported, tmp_path: Path) -> None:
    code, out, _ = spyre("report", "--json", "-o", tmp_path / "page.html", reported.saved)
    assert code == 0
    assert json.loads(out) == reported.json
    assert (tmp_path / "page.html").read_text() == reported.page


def test_the_trace_has_the_launches_and_the_units(reported: Reported) -> None:
    events = reported.trace["traceEvents"]
    engines = [e for e in events if e["ph"] == "X" and e["cat"] == "kernel"]
    assert len(engines) == reported.json["totals"]["launches"]
    total = sum(e["dur"] for e in engines)
    assert total == pytest.approx(reported.json["totals"]["microseconds"])
    units = [e for e in events if e["ph"] == "X" and e["cat"] == "pt"]
    assert units
    assert {e["args"]["source"].split()[0] for e in units} == {
        f"{reported.saved.parent / 'script.py'}:6"
    }
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named


def test_another_clock_of_the_card_is_told(reported: Reported) -> None:
    kernel = reported.run.kernels[0]
    use = replace(kernel.uses[0], report={**kernel.uses[0].report, "cycles": 1})
    changed = replace(kernel, uses=(use, *kernel.uses[1:]))
    found = report_of(replace(reported.run, kernels=(changed, *reported.run.kernels[1:])))
    assert any("took 1 cycles when it was recorded" in note for note in found["notes"])


def test_nothing_on_the_page_is_markup_of_the_users(reported: Reported) -> None:
    evil = '<script>alert("x")</script><!--'
    run = replace(reported.run, command=evil, error=evil)
    text = page(report_of(run))
    assert "<script>alert" not in text
    assert text.count("<!--") == page(report_of(reported.run)).count("<!--")


def test_a_run_without_launches(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("print(1)")
    code, out, _ = spyre("report", "--json", "-o", tmp_path / "page.html", script)
    assert code == 0
    found = json.loads(out)
    assert (found["totals"]["launches"], found["kernels"], found["lines"]) == (0, [], [])
    assert found["totals"]["times_bound"] == 0


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("raise ValueError('no such thing')", 1, "ValueError: no such thing"),
        ("import sys; sys.exit(3)", 3, "exit code 3"),
        ("import sys; sys.exit('words')", 1, "words"),
        ("import sys; sys.exit()", 0, ""),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_a_script_that_fails_is_reported_on(
    tmp_path: Path, body: str, code: int, error: str
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(f"import torch\ntorch.ones(3, device='spyre').add(1).cpu()\n{body}\n")
    found, out, _ = spyre("report", "--json", "-o", tmp_path / "page.html", script)
    assert found == code
    assert json.loads(out)["error"] == error
    assert json.loads(out)["totals"]["launches"] >= 1


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spyre_test_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    code, out, _ = spyre("report", "-o", tmp_path / "p.html", "-m", "spyre_test_module", "a", "-b")
    assert code == 0
    assert "__main__ ['a', '-b']" in out


def test_what_cannot_be_run_is_told(tmp_path: Path) -> None:
    code, _, err = spyre("report", tmp_path / "missing.py")
    assert code == 2
    assert "there is no file" in err
    code, _, err = spyre("report", "-o", tmp_path / "no" / "folder.html", __file__)
    assert code == 2


def test_outputs_are_looked_at_before_the_run(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text("open(__file__ + '.ran', 'w').close()")
    for option in ("-o", "--save", "--trace"):
        for target in (tmp_path / "no" / "file", tmp_path):
            code, _, err = spyre("report", option, target, script)
            assert (code, f"cannot write {target}" in err) == (2, True)
    assert spyre("capture", "-o", tmp_path, script)[0] == 2
    assert not Path(f"{script}.ran").exists()


def test_a_missing_module_or_folder_is_told() -> None:
    for words, said in (
        (("-m", "no_such_module"), "there is no module no_such_module"),
        (("-m", "no.such.module"), "there is no module no.such.module"),
        ((str(Path(__file__).parent),), "is a folder"),
    ):
        code, _, err = spyre("report", *words)
        assert (code, said in err) == (2, True)


def test_a_traceback_begins_at_the_script(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("def f():\n    raise ValueError('here')\nf()\n")
    _, _, err = spyre("report", "-o", tmp_path / "p.html", script)
    files = [line.split('"')[1] for line in err.splitlines() if line.startswith('  File "')]
    assert files == [str(script)] * 2


PIPED = """\
import os, threading, torch
os.system("echo from a process")
def work(): global y; y = torch.ones(3, device="spyre") + 1
threading.Thread(target=work).start()
"""


def test_a_script_from_stdin_whose_thread_works_and_whose_process_prints(tmp_path: Path) -> None:
    words = ["report", "--json", "-o", str(tmp_path / "p.html"), "-"]
    command = [sys.executable, "-m", "openspyre.tools.cli", *words]
    found = subprocess.run(command, input=PIPED, capture_output=True, text=True, check=True)
    assert "from a process" in found.stderr
    lines = json.loads(found.stdout)["lines"]
    assert [line["place"] for line in lines] == ["<stdin>:3"]


POOLED = """\
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import sys
pool = ThreadPoolExecutor(2)  # never shut down
pool.submit(lambda: (time.sleep(0.2), Path(sys.argv[1]).write_text("done")))
sys.kept = pool
"""


def test_a_pool_that_nobody_closed_is_waited_for_until_it_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "kept", None, raising=False)
    script, said = tmp_path / "pooled.py", tmp_path / "said"
    script.write_text(POOLED)
    with ThreadPoolExecutor(1) as earlier:  # not the script's, and at work
        end = threading.Event()
        earlier.submit(end.wait)
        ended = run_script(str(script), [str(said)], module=False)
        assert (ended.code, ended.error, said.read_text()) == (0, "", "done")
        end.set()
    sys.kept.shutdown()


def test_a_long_timeline_is_joined() -> None:
    spans = [
        Span("a" if n % 10 else "b", 0, "compute", 0, 1 + n % 2, 10 * n, 10 * n + 8, n, n + 1)
        for n in range(1000)
    ]
    spans += [Span("copy", 1, "to host", 0, 0, 5, 10_000, 0, 9)]
    found = shown_spans(spans, 20)
    assert 11 <= len(found) <= 20
    assert {(s.device, s.engine) for s in found} == {(0, "compute"), (1, "to host")}
    assert min(s.start for s in found) == 0
    assert max(s.end for s in found) == 10_000
    compute = [s for s in found if s.engine == "compute"]
    assert all(a.end <= b.start for a, b in pairwise(compute))
    assert shown_spans(spans, 2000) == spans
    assert shown_spans([], 2000) == []


def test_explain_lists_what_ran_on_the_cpu(reported: Reported, tmp_path: Path) -> None:
    code, out, _ = spyre("explain", "--json", reported.saved)
    assert code == 1
    assert json.loads(out)["fallbacks"] == reported.json["fallbacks"]
    code, out, _ = spyre("explain", reported.saved)
    assert "aten::lgamma.out" in out
    script = tmp_path / "good.py"
    script.write_text("import torch\ntorch.ones(3, device='spyre').add(1).cpu()\n")
    code, out, _ = spyre("explain", script)
    assert code == 0
    assert out.endswith("every op ran on the card\n")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("m.py:5 return x [add]", ("m.py:5", "return x")),
        ("m.py:5 y = x[0] [select]", ("m.py:5", "y = x[0]")),
        ("m.py:5 y = x[0]", ("m.py:5", "y = x[0]")),
        ("add, mul", ("", "add, mul")),
        ("", ("", "")),
    ],
)
def test_lines_of_sources(source: str, line: tuple[str, str]) -> None:
    assert line_of(source) == line


def test_ratios_of_nothing_are_zero() -> None:
    names = "cycles bound_p_cycles pt_busy sfu_busy load_busy store_busy ring_busy"
    sums: Mapping[str, int] = dict.fromkeys(
        [*names.split(), "device_read_bytes", "device_write_bytes", "flop", "sfu_ops"], 0
    )
    found = derived(sums, SPYRE_CARD_V1)
    assert found["limiting_share"] == found["teraops"] == found["gigabytes_per_second"] == 0
