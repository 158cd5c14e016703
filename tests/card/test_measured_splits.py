"""Files of measurements that others wrote: what is read of them and said about the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

import calibration
import pytest
from measured_splits import COLUMNS, Measured, read
from split_matmul import Split
from split_scores import clock, predictions

HEAD = "\t".join(COLUMNS)
ROW = "1\t512\t1024\t4096\t1\t4\t8\t1\t89.4"


def file(folder: Path, *lines: str) -> Path:
    path = folder / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def said(folder: Path, *lines: str) -> str:
    with pytest.raises(SystemExit) as problem:
        read(file(folder, *lines))
    return str(problem.value)


def test_columns_in_any_order_others_ignored(tmp_path: Path) -> None:
    order = [*reversed(COLUMNS)]
    path = tmp_path / "rows.tsv"
    path.write_bytes(
        b"\xef\xbb\xbf# from somewhere\r\n\r\nname\t"
        + "\t".join(order).encode()
        + b"\tnote\r\nx\t 89.4 \t1\t8\t4\t1\t4096.0\t1024\t512\t1\tgood\r\n  # more\r\n"
    )
    assert read(path) == [Measured(Split(1, 512, 1024, 4096, 1, 4, 8, 1), 89.4)]


def test_rows_of_a_hung_card_are_left_out_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ROW.rpartition("\t")[0]
    path = file(tmp_path, HEAD, ROW, start + "\t", start + "\thung", start + "\tNaN", start + "\t-")
    assert len(read(path)) == 1
    notes = capsys.readouterr().err.splitlines()
    assert notes == [f"{path}:{line}: left out, it has no time" for line in (3, 4, 5, 6)]


def test_what_is_no_measurement_is_named_by_line(tmp_path: Path) -> None:
    wrong = {
        "1\t512\t1024\t4096\t1\t8\t8\t1\t89.4": "the split takes 64 cores, the card has 32",
        "1\t512\t1024\t4096\t1\t4\t8\t1\tfast": "measured_us is fast, not a number",
        "1\t512\t1024\t4096\t1\t4\t8\t1\t-3": "measured_us is -3",
        "1\t512\t1024\t4096\t1\t4\t8\t1\t0": "measured_us is 0",
        "1\t512.5\t1024\t4096\t1\t4\t8\t1\t1": "M is 512.5, not a whole number from 1",
        "0\t512\t1024\t4096\t1\t4\t8\t1\t1": "B is 0, not a whole number from 1",
        "1\t512\t1024\t4096\tx\t4\t8\t1\t1": "split_b is x, not a whole number from 1",
        "1\t512\t1024": "K, split_b, split_m, split_n, split_k is missing",
        "1\t512\t1024\t4096\t1\t4\t8\t1": "measured_us is missing",
        "1\t512\t1024\t\t1\t4\t8\t1\t1": "K is missing",
    }
    lines = said(tmp_path, HEAD, ROW, "# a comment", *wrong).splitlines()
    path = tmp_path / "rows.tsv"
    assert lines == [f"{path}:{n}: {why}" for n, why in enumerate(wrong.values(), 4)]
    assert said(tmp_path, HEAD, *["1"] * 12).splitlines()[-1] == "and 2 more"


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    assert said(tmp_path, HEAD) == f"{path} has no measurements"
    assert f"{path} has no header" in said(tmp_path, "# nothing")
    fewer = said(tmp_path, "\t".join(COLUMNS[1:]), ROW)
    assert fewer == f"{path}:1: there is no column B"
    assert "separated by tabs" in said(tmp_path, ",".join(COLUMNS), ROW)
    assert "stands there twice" in said(tmp_path, HEAD + "\tM", ROW)
    with pytest.raises(SystemExit, match=r"cannot read .*missing\.tsv"):
        read(tmp_path / "missing.tsv")
    with pytest.raises(SystemExit, match="cannot read"):
        read(tmp_path)


def test_batches_and_parts_that_do_not_divide_are_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (
        "3\t100\t1000\t520\t2\t3\t5\t1\t50",
        "4\t1\t1024\t4096\t4\t1\t8\t1\t80",
        "1\t5\t130\t70\t1\t8\t2\t2\t9",  # cores without work
    )
    path = file(tmp_path, HEAD, *rows)
    with patch.object(sys, "argv", ["calibration", "--json", "--data", str(path)]):
        calibration.main()
    found = {row["case"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["mape"]["target"] == 20
    assert "3 splits of 3 shapes, not fitted" in found["mape"]["detail"]
    assert found["mape"]["value"] > 0
    with clock() as timer:
        measured = read(path)
        predicted = predictions(measured, timer)
        exact = [f"{r}\t{predicted[m.split]}" for r, m in zip(rows, measured, strict=True)]
    lines = [row.rpartition("\t")[0].rpartition("\t")[0] + "\t" + row.rpartition("\t")[2]
             for row in exact]  # fmt: skip
    with patch.object(sys, "argv", ["calibration", "--json", "--data",
                                    str(file(tmp_path, HEAD, *lines))]):  # fmt: skip
        calibration.main()
    found = {row["case"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["mape"]["value"] == pytest.approx(0, abs=1e-9)
