"""Derived numbers and the table of kernels."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from openspyre.card.report import kernel_table, pt_use, summary, times_bound
from tests.card.hand_programs import copies, matmul, multiplications
from tests.card.time_engine import timed


@dataclass(frozen=True)
class Kernel:
    name: str
    launches: int
    cycles: int
    bound_p_cycles: int
    pt_busy: int
    sfu_busy: int
    device_read_bytes: int
    device_write_bytes: int
    lx_peak: int


FIRST = Kernel("attention", 6, 300_000, 150_000, 4_800_000, 960_000, 3_000_000, 500_000, 1 << 20)
SECOND = Kernel("embedding", 1, 1500, 0, 0, 0, 0, 0, 0)


def printed(*kernels: Kernel) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(kernel_table(kernels))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if name in line]
    return line.replace("│", " ").split()[1:]


def test_a_row_says_what_a_kernel_cost() -> None:
    cells = row(printed(FIRST), "attention")
    assert cells == ["6", "300,000", "200.0", "3.50", "1,024", "KiB", "50.0%", "10.0%", "2.00"]


def test_a_kernel_without_work_has_no_bound() -> None:
    assert row(printed(SECOND), "embedding")[-3:] == ["0.0%", "0.0%", "-"]


def test_the_total_adds_up_and_keeps_the_peak() -> None:
    cells = row(printed(FIRST, SECOND), "total")
    assert cells[:3] == ["7", "301,500", "201.0"]
    assert cells[4:6] == ["1,024", "KiB"]
    assert "total" not in printed(FIRST)


def test_no_kernels_make_an_empty_table() -> None:
    assert "x bound P" in printed()


def test_the_summary_derives_from_the_fields() -> None:
    report = timed(matmul(512, 1024, 512, (4, 8), (128, 128, 128)))
    numbers = summary(report)
    assert numbers["cycles"] == report.cycles
    assert numbers["pt_use"] == pytest.approx(report.pt_busy / (report.cycles * 32))
    assert 0 < numbers["sfu_use"] < numbers["pt_use"] < 1
    assert numbers["times_bound"] == times_bound(report) >= 1
    assert numbers["microseconds"] == pytest.approx(report.cycles / 1500)


def test_use_is_of_all_cores() -> None:
    report = timed(multiplications(256, 128, 128, cores=8))
    assert pt_use(report) == pytest.approx(8 / 32, rel=0.02)
    assert pt_use(replace(report, cycles=0)) == 0


def test_a_launch_without_work_has_no_ratios() -> None:
    numbers = summary(timed(copies(0, 64, 4)))
    assert numbers["times_bound"] == numbers["pt_use"] == numbers["sfu_use"] == 0
