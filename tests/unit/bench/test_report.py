"""The tables of `unified-clip bench`, and the committed results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bench import DATA, check_schema

from unified_clip.bench import lists, report
from unified_clip.bench.options import DTYPES_OF, Options

ROOT = Path(__file__).parents[3]


def test_the_tables_say_what_was_measured() -> None:
    check_schema(DATA)
    _, rows = report.pairs_table(DATA, "paddle")
    assert rows[0] == ["GPT-2", "float32", "clipped", "paddle.a", "2.00", "4.00", "2.00 (1.50 to 2.50)"]
    assert rows[3] == ["GPT-2", "float32", "norm alone", "-", "1,234", "-", "-"]
    _, rows = report.limits_table(DATA)
    assert rows == [["paddle", "GPT-2", "float32", "1,000", "1.00", "2.00", "1,234", "0.500"]]
    _, rows = report.memory_table(DATA)
    assert rows == [["paddle", "GPT-2", "float32", "paddle.a", "1.0", "-"]]


@pytest.mark.parametrize(("load", "is_busy"), [(0.4, False), (2.4, False), (2.6, True)])
def test_a_busy_machine_is_reported(load: float, is_busy: bool) -> None:
    data = DATA | {"machine": DATA["machine"] | {"cpus": 4, "other_load": load}, "threads": 2}
    problems = report.problems(data)
    assert len(problems) == is_busy
    assert all(each.startswith("The machine was busy, so the times and ratios are unreliable") for each in problems)
    assert all(f"2 of 4 processors, and other processes had a load average of {load}" in each for each in problems)


def test_the_file_has_the_data(tmp_path: Path) -> None:
    report.write(DATA, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8")) == DATA


def test_the_committed_results_are_whole_and_small() -> None:
    where = ROOT / "benchmarks/results"
    data = json.loads((where / "bench.json").read_text(encoding="utf-8"))
    check_schema(data)
    assert data["seconds"] == Options().seconds
    measured = {(each["framework"], each["list"], each["dtype"]) for each in data["results"]}
    assert measured == {
        (name, each, dtype) for name, dtypes in DTYPES_OF.items() for each in lists.LISTS for dtype in dtypes
    }
