"""The tables and the plots of `unified-clip bench`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

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


@pytest.mark.nightly
def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        report.write(DATA, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert json.loads(written[0].pop("bench.json")) == DATA
    assert sorted(written[0]) == ["growth.svg", "ratios.svg"]
    for content in written[0].values():
        assert b"date" not in content
        assert ElementTree.fromstring(content).tag.endswith("svg")


@pytest.mark.nightly
def test_the_committed_results_can_be_plotted(tmp_path: Path) -> None:
    data = json.loads((ROOT / "benchmarks/results/bench.json").read_text(encoding="utf-8"))
    assert any(each["what"] == "clipped, in a graph" for each in data["results"])
    report.write(data, tmp_path)
    drawn = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    compared = {each["native"] for each in data["results"] if each["ratio"] and each["what"] != "norm alone"}
    assert not {native for native in compared if f"<!-- {native} -->" not in drawn}


def test_the_committed_results_are_whole_and_small() -> None:
    where = ROOT / "benchmarks/results"
    data = json.loads((where / "bench.json").read_text(encoding="utf-8"))
    check_schema(data)
    assert data["seconds"] == Options().seconds
    measured = {(each["framework"], each["list"], each["dtype"]) for each in data["results"]}
    assert measured == {
        (name, each, dtype) for name, dtypes in DTYPES_OF.items() for each in lists.LISTS for dtype in dtypes
    }
    for name in ("ratios.svg", "growth.svg"):
        assert (where / name).stat().st_size < 300_000
