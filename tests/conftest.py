"""Options and the summary by folder."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and slow at times: time must decide nothing, and a run must be repeatable.
settings.register_profile(
    "openspyre", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("openspyre")
# Nothing that an earlier run has compiled, and nothing left behind.
os.environ["OPENSPYRE_CACHE_PROGRAMS"] = "off"
os.environ["HF_HUB_OFFLINE"] = "1"  # models come out of packages


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite expected outputs")
    parser.addoption("--long", action="store_true", help="the long form of tests that have one")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite expected outputs instead of comparing (`./dev golden`)."""
    return bool(request.config.getoption("--golden"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per folder of tests: how many passed and how long they took, set-up included."""
    counts: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error", ""):  # what was set up well has no name
        for report in terminalreporter.stats.get(outcome, []):
            parts = report.nodeid.split("::")[0].split("/")
            folder = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
            if outcome:
                counts.setdefault(folder, Counter())[outcome] += 1
            if isinstance(report, pytest.TestReport):  # a file that cannot be read took no time
                seconds[folder] += report.duration
    for folder, found in sorted(counts.items()):
        text = ", ".join(f"{number} {outcome}" for outcome, number in found.items())
        terminalreporter.write_line(f"{folder:16} {text} in {seconds[folder]:.1f} s")
