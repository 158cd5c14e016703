"""Options and the summary by folder."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite expected outputs")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite expected outputs instead of comparing (`./dev golden`)."""
    return bool(request.config.getoption("--golden"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per folder of tests: how many passed and how long they took."""
    counts: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            parts = report.nodeid.split("::")[0].split("/")
            folder = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
            counts.setdefault(folder, Counter())[outcome] += 1
            seconds[folder] += report.duration
    for folder, found in sorted(counts.items()):
        text = ", ".join(f"{number} {outcome}" for outcome, number in found.items())
        terminalreporter.write_line(f"{folder:16} {text} in {seconds[folder]:.1f} s")
