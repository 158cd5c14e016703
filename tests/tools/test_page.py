"""The page of a report in headless Chromium."""

from __future__ import annotations

import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import encode
from openspyre.ir.text import parse_kernel
from openspyre.runtime.saved import Fallback, Run, SavedKernel, Span, Use, Variant
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.page import page
from openspyre.tools.run_report import report_of
from tests.card.test_activity import SOFTMAX
from tests.tools.conftest import browser

pytestmark = pytest.mark.browser

PROBE = """
<script>
addEventListener("error", (event) => { document.body.dataset.error = event.message; });
addEventListener("load", () => setTimeout(() => {
  const shown = (element) => element.getBoundingClientRect();
  const charts = [...document.querySelectorAll(".chart")]
    .filter((one) => !one.closest("details:not([open])"));
  const found = {
    ready: document.body.dataset.ready,
    error: document.body.dataset.error || "",
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    charts: Object.fromEntries(charts.map((one) => [one.id, {
      width: shown(one).width, drawn: one.querySelectorAll(".main-svg").length,
      marks: one.querySelectorAll(".trace, .point, .hm image, .heatmaplayer image").length,
    }])),
    cut: [...document.querySelectorAll("h1, h2, p, summary, dd")]
      .filter((one) => shown(one).right > innerWidth + 1).map((one) => one.textContent),
    hidden: [...document.querySelectorAll(".wide")]
      .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent),
    texts: Object.fromEntries([...document.querySelectorAll("[data-key]")]
      .map((one) => [one.dataset.key, one.textContent])),
  };
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
}, 500));
</script>
"""


def run() -> Run:
    name = "softmax_of_something_with_a_name_as_long_as_inductor_likes_them_to_be"
    text = SOFTMAX.replace("kernel softmax", f"kernel {name}")
    program = encode(compile_kernel(parse_kernel(text), SPYRE_CARD_V1))
    uses = (Use(0, (), 3, 0.1, 1, {"cycles": 3035}),)
    kernel = SavedKernel(name, text, (Variant(program, (), ()),), uses)
    second = SavedKernel(f"{name}_2", text, (Variant(program, (), ()),), uses)
    spans = (
        Span("copy", 0, "to card", 0, 0, 0, 3_000_000, 0, 100),
        Span(name, 0, "compute", 0, 1, 3_000_000, 5_000_000, 100, 200),
    )
    fallbacks = (Fallback("aten::topk.values", 12345, "Inductor has no lowering for it " * 4),)
    versions = {"openspyre": "0.1.0"}
    return Run(
        "python a/long/path/to/a/script.py --with arguments", versions, {"check": True},
        SPYRE_CARD_V1.numbers(), 1.0, (kernel, second), spans, fallbacks,
    )  # fmt: skip


class Probe(HTMLParser):
    """The text of the element that PROBE adds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self._inside = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = dict(attrs).get("id") == "probe"

    def handle_data(self, data: str) -> None:
        self.text += data if self._inside else ""


def seen(folder: Path, width: int, report: dict[str, Any]) -> dict[str, Any]:
    """What the page of a report is in a window of a width."""
    program = browser()
    assert program is not None, "there is no Chromium: apt-get install chromium"
    file = folder / "page.html"
    text = page(report)
    file.write_text(text.replace("</head>", f"{PROBE}</head>", 1))
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1000",
        "--virtual-time-budget=20000", "--host-resolver-rules=MAP * ~NOTFOUND",
        "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return dict(json.loads(Probe(result.stdout).text))


@pytest.mark.parametrize("width", [1280, 800])
def test_the_page_renders(tmp_path: Path, width: int) -> None:
    report = report_of(run())
    found = seen(tmp_path, width, report)
    assert (found["ready"], found["error"]) == ("yes", "")
    assert found["width"] == width
    assert found["page"] <= width, "the page scrolls sideways"
    assert found["cut"] == []
    assert found["hidden"] == [], "a table has columns out of sight"
    assert set(found["charts"]) == {"timeline", "roofline", "use0", "bytes0", "lx0"}
    for name, chart in found["charts"].items():
        assert chart["drawn"] >= 1, name
        assert chart["marks"] >= 1, name
        assert chart["width"] > 0.8 * width, name
    assert report["totals"]["cycles"] > 3000
    assert found["texts"]["totals.cycles"] == f"{report['totals']['cycles']:,}"
    assert found["texts"]["fallbacks.0.calls"] == "12,345"
