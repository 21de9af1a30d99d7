"""`unified-clip parity --baseline`: what changed since an earlier report, what is worse, and the exit status."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.cases import ONE_CASE, WORKED, case, suite

from unified_clip import cli
from unified_clip.parity import results
from unified_clip.parity.judge.verdict import Verdict
from unified_clip.parity.modes import HOST
from unified_clip.parity.report import baseline
from unified_clip.parity.report.baseline import Change
from unified_clip.parity.suite.schema import SuiteError
from unified_clip.parity.workers import pool

Report = dict[str, Any]


def ours(verdict: str = "equal", ulps: float | str = 0.0, sha256: str = "a", detail: str = "") -> Report:
    return {"verdict": verdict, "ulps": ulps, "detail": detail, "sha256": {"norm": sha256}}


def native(verdict: str = "known", norm: float | None = 0.01, kind: str = "value", problem: str = "") -> Report:
    return {"function": "clip", "verdict": verdict, "kind": kind, "norm": norm, "gradients": None, "problem": problem}


def known(problem: str = "", size: float | None = 0.01) -> Report:
    return {"framework": "torch", "function": "clip", "reason": "so", "problem": problem, "size": size}


def report(**of_torch: Report) -> Report:
    """Of one case on NumPy and PyTorch; what is given is PyTorch's, by mode."""
    cells = {"numpy": {"host": ours()}, "torch": of_torch or {"host": ours()}}
    one = {"name": "one", "sha256": {"norm": "a"}, "stages_apart": [], "frameworks": cells}
    versions = {"numpy": "2.4", "torch": "2.13"}
    return {"schema": 2, "versions": versions, "frameworks": ["numpy", "torch"], "known": [], "cases": [one]}


def torch(old: Report, new: Report, mode: str = "host") -> list[Change]:
    return baseline.changes(report(**{mode: old}), report(**{mode: new}))


# -- what changed


def test_the_same_report_has_not_changed() -> None:
    one = report(host=ours("different", "inf", detail="raised"), native=native())
    one["known"] = [known(), known("it shows nowhere")]
    assert baseline.changes(one, copy.deepcopy(one)) == []


def test_another_verdict_is_told_with_both() -> None:
    (change,) = torch(ours("close", 1.0), ours("different", 3.0))
    assert change == Change("verdict", "torch", "host path", "one", "close, 1 ulp", "different, 3 ulp", worse=True)
    (change,) = torch(ours("different", 3.0), ours())
    assert (change.before, change.after, change.worse) == ("different, 3 ulp", "equal", False)


def test_a_native_without_a_result_has_no_function_to_name() -> None:
    (change,) = torch({**native("crashed", None, ""), "function": None}, native(), "native")
    assert (change.before, change.after) == ("crashed", "clip known, 0.01")


def test_another_size_is_one_that_is_more_than_a_tenth_larger_or_smaller() -> None:
    kinds = [
        [change.kind for change in torch(native(norm=0.01), native(norm=size), "native")]
        for size in (0.01, 0.0105, 0.012, 0.005)
    ]
    assert kinds == [[], ["numbers"], ["size"], ["size"]]
    (change,) = torch(native(norm=0.01), native(norm=0.02), "native")
    assert change == Change("size", "torch", "its own function", "one", "clip known, 0.01", "clip known, 0.02")


def test_numbers_that_moved_within_their_verdict_are_told() -> None:
    assert [each.kind for each in torch(ours("close", 1.0, "b"), ours("close", 1.0, "c"), "device")] == ["numbers"]


def test_a_case_that_is_another_one_is_told_once() -> None:
    new = report(host=ours(sha256="b"))
    new["cases"][0]["sha256"] = {"norm": "b"}
    (change,) = baseline.changes(report(), new)
    assert change == Change("numbers", "", "what is right", "one", "norm a", "norm b")


def test_versions_are_told() -> None:
    new = report()
    new["versions"]["torch"] = "2.14"
    assert baseline.changes(report(), new) == [Change("version", "torch", "", "", "2.13", "2.14")]


def test_what_is_new_or_gone_is_told() -> None:
    old, new = report(host=ours(), device=ours()), report(host=ours(), native=native("equal", 0.0, ""))
    assert {(each.kind, each.what, each.before, each.after) for each in baseline.changes(old, new)} == {
        ("gone", "device path", "equal", ""),
        ("new", "its own function", "", "clip equal"),
    }


def test_a_whole_framework_or_case_is_told_once() -> None:
    small = report()
    large = copy.deepcopy(small)
    large["frameworks"].append("jax")
    large["cases"][0]["frameworks"]["jax"] = {"host": ours(), "device": ours()}
    large["cases"].append({**copy.deepcopy(large["cases"][0]), "name": "two"})
    new, gone = baseline.changes(small, large), baseline.changes(large, small)
    assert new == [Change("new", "jax", "", "", "", ""), Change("new", "", "", "two", "", "")]
    assert gone == [Change("gone", "jax", "", "", "", ""), Change("gone", "", "", "two", "", "")]
    large["cases"][1]["frameworks"]["jax"]["host"] = ours("different", 3.0)
    worse = Change("new", "jax", "host path", "two", "", "different, 3 ulp", worse=True)
    assert baseline.changes(small, large) == [worse, *new]


# -- what is worse


def with_apart(*stages: str) -> Report:
    new = report()
    new["cases"][0]["stages_apart"] = list(stages)
    return new


def with_known(*entries: Report) -> Report:
    return {**report(), "known": list(entries)}


NOTHING_WRONG = [report(), report(host=ours("crashed", "inf")), {**report(), "cases": [], "frameworks": []}]


@pytest.mark.parametrize(
    "wrong",
    [
        report(host=ours("different", 3.0)),
        report(host=ours("different", "inf", detail="raised ValueError")),
        report(native=native("different", problem="no known difference says so")),
        with_apart("norm"),
        with_known(known("it shows nowhere", None)),
        with_known(known(), known("it shows nowhere", None)),
        with_known(known("it shows nowhere", None), known()),
    ],
    ids=["ours", "ours raises", "native", "between frameworks", "known", "one of two alike", "the first of them"],
)
def test_whatever_is_wrong_is_worse_where_the_baseline_has_it_not_and_excused_where_it_has(wrong: Report) -> None:
    for old in NOTHING_WRONG:
        assert [change.worse for change in baseline.changes(old, wrong)].count(True) == 1
        assert not any(change.worse for change in baseline.changes(wrong, old))
    assert not any(change.worse for change in baseline.changes(wrong, wrong))


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (report(host=ours("different", 10.0)), report(host=ours("different", 11.0)), False),
        (report(host=ours("different", 10.0)), report(host=ours("different", 12.0)), True),
        (report(host=ours("different", 10.0)), report(host=ours("different", 5.0)), False),
        (report(host=ours("different", "inf", detail="a")), report(host=ours("different", "inf", detail="b")), True),
        (report(host=ours("close", 1.0)), report(host=ours("close", 2.0)), False),
        (report(host=ours()), report(host=ours("crashed", "inf")), False),
        (with_apart("norm"), with_apart("norm", "tensors"), True),
        (with_apart("norm", "tensors"), with_apart("norm"), False),
        (report(native=native()), report(native=native(norm=0.5)), False),
        (report(native=native("different", problem="a")), report(native=native("different", 0.5, problem="b")), True),
        (
            report(native=native("different", problem="a")),
            report(native=native("different", kind="raises", problem="b")),
            True,
        ),
    ],
)
def test_what_was_wrong_is_worse_where_it_is_larger_or_another(old: Report, new: Report, worse: bool) -> None:
    assert any(change.worse for change in baseline.changes(old, new)) == worse


def test_the_exit_status_is_for_what_is_worse_and_for_frameworks_without_results() -> None:
    def status(kind: str, *changes: Change) -> list[int]:
        first = case(WORKED, "clip_by_global_norm", clip_norm=5.0)
        cells = {
            "numpy": results.FrameworkResult({HOST: Verdict("equal")}, {}),
            "torch": results.FrameworkResult({HOST: Verdict(kind)}, {}),  # type: ignore[arg-type]
        }
        run = results.ParityRun(["numpy", "torch"], {}, [results.CaseResult(first, {}, cells)])
        return [run.exit_code, dataclasses.replace(run, changes=changes).exit_code]

    moved = Change("size", "torch", "host path", "one", "", "")
    worse = dataclasses.replace(moved, worse=True)
    assert status("equal") == [0, 0]
    assert status("equal", moved) == [0, 0]
    assert status("different", moved) == [1, 0]
    assert status("different", moved, worse) == [1, 1]
    assert status("crashed", moved) == [3, 3]
    assert status("missing") == [3, 3]


def rows(*found: Change) -> list[list[str]]:
    return baseline.rows(list(map(dataclasses.asdict, found)))


def test_what_is_worse_comes_first_and_what_is_alike_is_one_line() -> None:
    found = [Change("size", "torch", "host path", name, f"close, {name}", "close, 9") for name in ("1", "2")]
    found += [Change("verdict", "torch", "host path", "3", before, "equal") for before in ("close, 1", "flushed")]
    assert rows(*found) == [
        ["", "torch, host path", "another size", "close, 1", "close, 9", "2, first 1"],
        ["", "torch, host path", "another verdict", "close, 1", "equal", "3"],
        ["", "torch, host path", "another verdict", "flushed", "equal", "3"],
    ]
    old, new = report(host=ours("close", 1.0), native=native()), report(host=ours("different", 2.0), native=native())
    new["versions"]["torch"] = "2.14"
    assert [row[:3] for row in rows(*baseline.changes(old, new))] == [
        ["worse", "torch, host path", "another verdict"],
        ["", "torch", "another version"],
    ]


# -- the file


def put(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "old.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def without(key: str) -> Report:
    return {name: value for name, value in report().items() if name != key}


def test_a_baseline_is_read_as_it_is(tmp_path: Path) -> None:
    assert baseline.read(put(tmp_path, report()), ["one", "two"], ["torch"]) == report()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no parity.json of unified-clip parity .JSONDecodeError"),
        ("[]", "no parity.json"),
        ("3", "no parity.json"),
        ({}, "has the schema None, and this version reads 2; make one with this version"),
        (without("schema"), "has the schema None"),
        ({**report(), "schema": 1}, "has the schema 1"),
        (without("cases"), "no parity.json .* .KeyError: 'cases'"),
        ({**report(), "cases": [{}]}, "no parity.json"),
        ({**report(), "versions": []}, "no parity.json"),
        ({**report(), "frameworks": 3}, "no parity.json"),
        ({**report(), "known": [known(size="large")]}, "no parity.json"),  # type: ignore[arg-type]
        (report(host=ours(ulps="far")), "no parity.json"),
        (report(native={"function": "clip"}), "no parity.json"),
    ],
)
def test_what_is_no_baseline_is_refused_with_the_reason(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        baseline.read(put(tmp_path, content), ["one"], ["torch"])


def test_a_baseline_of_something_else_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, report())
    with pytest.raises(SuiteError, match="has none of the cases of this suite"):
        baseline.read(path, ["another"], ["torch"])
    with pytest.raises(SuiteError, match="has no results of jax, paddle"):
        baseline.read(path, ["one"], ["jax", "paddle"])
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        baseline.read(tmp_path / "absent", ["one"], ["torch"])


# -- the command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on a suite of one case, whose norm is 5; `norm` plants another."""
    where = suite(tmp_path, ONE_CASE)

    def call(out: str, *options: str, norm: float = 5.0) -> int:
        code = f"import numpy as np, unified_clip.numpy as uc; uc.global_norm = lambda *_: np.float32({norm})\n"
        code += "from unified_clip.parity.workers import worker; worker.main()"
        monkeypatch.setattr(pool, "command", lambda framework, python: [sys.executable, "-c", code, framework])
        monkeypatch.chdir(tmp_path)
        return cli.main(["parity", "--suite", str(where), "--out", out, *options])

    return call


def marks(report: Path) -> dict[str, str]:
    """What JUnit says of the one case."""
    suites = ElementTree.parse(report / "parity.xml").getroot()
    return {mark.tag: mark.attrib["message"] for case in suites.iter("testcase") for mark in case}


def test_the_command_shows_what_changed_and_fails_for_what_is_worse(
    run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    off = 5.0 + 2.0**-20
    assert run("good") == 0
    assert run("same", "--baseline", "good/parity.json") == 0
    assert "Against the baseline: nothing changed." in capfd.readouterr().out
    assert run("bad", "--baseline", "good/parity.json", norm=off) == 1
    printed = capfd.readouterr().out
    assert "Against the baseline: 1 changes, 1 of them for the worse." in printed
    assert "another verdict" in printed
    assert "Ours against the exact oracle" not in printed
    assert run("excused", "--baseline", "bad/parity.json", norm=off) == 0
    assert "1 wrong result of ours, of 1: as in the baseline, and no worse." in capfd.readouterr().out
    assert "as in the baseline: norm off by" in marks(tmp_path / "excused")["skipped"]
    assert run("worse", "--baseline", "bad/parity.json", norm=6.0) == 1
    assert "norm off by" in marks(tmp_path / "worse")["failure"]
    assert run("bad", "--baseline", "bad/parity.json") == 0  # read before it is written
    data = json.loads((tmp_path / "bad" / "parity.json").read_text(encoding="utf-8"))
    (change,) = data["baseline"]
    assert (change["kind"], change["after"], change["worse"]) == ("verdict", "equal", False)
    text = (tmp_path / "bad" / "parity.md").read_text(encoding="utf-8")
    assert "## Since the baseline\n\n|  | what | change | before | now | cases |" in text


def test_the_command_refuses_what_is_no_baseline_before_it_runs(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {"schema": 1})
    assert run("out", "--baseline", "old.json") == 2
    assert "unified-clip: the baseline old.json has the schema 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
