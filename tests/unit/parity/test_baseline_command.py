"""`unified-clip parity --baseline`: what the command prints and writes, and its exit status."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.baselines import write_baseline
from support.parity.cases import ONE_CASE, suite
from support.parity.reports import clip_result, known, native, one_case, report

from unified_clip import cli
from unified_clip.parity.report import baseline, build, write
from unified_clip.parity.results import FrameworkResult, ParityReport
from unified_clip.parity.workers import run_worker


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    where = suite(tmp_path, ONE_CASE)

    def call(out: str, *options: str, norm: float = 5.0) -> int:
        code = f"import numpy as np, unified_clip.numpy as uc; uc.global_norm = lambda *_: np.float32({norm})\n"
        code += "from unified_clip.parity.workers import worker; worker.main()"
        monkeypatch.setattr(run_worker, "command", lambda framework, python: [sys.executable, "-c", code, framework])
        monkeypatch.chdir(tmp_path)
        return cli.main(["parity", "--suite", str(where), "--out", out, *options])

    return call


def junit_marks(report: Path) -> dict[str, str]:
    suites = ElementTree.parse(report / "parity.xml").getroot()
    return {mark.tag: mark.attrib["message"] for case in suites.iter("testcase") for mark in case}


def test_the_command_reports_what_frameworks_and_without_leave_out_as_not_run(
    run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("good") == 0
    old = ParityReport.model_validate_json((tmp_path / "good/parity.json").read_text(encoding="utf-8"))
    old.frameworks.append("torch")
    path = write_baseline(tmp_path, old.model_dump_json(by_alias=True))
    assert run("part", "--baseline", str(path), "--frameworks", "numpy") == 0
    assert "not run" in capfd.readouterr().out
    assert run("whole", "--baseline", str(path)) == 0
    assert "gone" in capfd.readouterr().out


@pytest.mark.nightly
def test_the_command_prints_changes_and_fails_for_worse_ones(
    run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    off = 5.0 + 2.0**-20
    assert run("good") == 0
    assert run("same", "--baseline", "good/parity.json") == 0
    assert "Against the baseline: nothing changed." in capfd.readouterr().out
    assert run("bad", "--baseline", "good/parity.json", norm=off) == 1
    printed = capfd.readouterr().out
    assert "Against the baseline: 1 change (1 fails the run)." in printed
    assert "another verdict" in printed
    assert "unified_clip against the exact results" not in printed
    assert run("excused", "--baseline", "bad/parity.json", norm=off) == 0
    printed = capfd.readouterr().out
    assert "The baseline already contains 1 failure: 1 of 1 result of unified_clip is wrong (numpy)." in printed
    assert "\nalready in the baseline: numpy, host path, different: " in f"\n{printed}"
    assert "This failure does not fail this run, because the baseline has the same failure. " in printed
    assert "The baseline run ended with: FAIL: 1 of 1 result of unified_clip is wrong (numpy)." in printed
    assert "already in the baseline: norm off by" in junit_marks(tmp_path / "excused")["skipped"]
    assert run("strict", "--baseline", "bad/parity.json", "--strict", norm=off) == 1
    assert "already in the baseline" not in capfd.readouterr().out
    assert "norm off by" in junit_marks(tmp_path / "strict")["failure"]
    assert run("worse", "--baseline", "bad/parity.json", norm=6.0) == 1
    assert "norm off by" in junit_marks(tmp_path / "worse")["failure"]
    assert run("bad", "--baseline", "bad/parity.json") == 0  # read before it is written
    data = json.loads((tmp_path / "bad" / "parity.json").read_text(encoding="utf-8"))
    (found_change,) = data["baseline"]
    assert (found_change["kind"], found_change["after"], found_change["worse"]) == ("verdict", "equal", False)
    text = (tmp_path / "bad" / "parity.md").read_text(encoding="utf-8")
    assert "## Since the baseline\n\n|  | what | change | before | now | cases |" in text


def test_the_command_rejects_an_invalid_baseline_before_it_runs(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_baseline(tmp_path, {"schema": 1})
    assert run("out", "--baseline", "old.json") == 2
    assert "unified-clip: error UC302: The baseline old.json has schema 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_problems_have_their_function_and_whether_the_baseline_excuses_them(tmp_path: Path) -> None:
    def run(*sizes: float) -> ParityReport:
        natives = [native("different", size, problem="unlisted", function="clip.py:clip") for size in sizes]
        cases = [one_case(f"{i}", torch=FrameworkResult(native=result)) for i, result in enumerate(natives)]
        lost = one_case("lost", torch=FrameworkResult(host=clip_result("crashed", math.inf, None)))
        return report(*cases, lost, known=[known("stale", function="clip.py:other")])

    def problems(new: ParityReport) -> list[tuple[Any, ...]]:
        return [
            (result.framework, result.mode, result.function, result.excused, result.cases) for result in new.problems
        ]

    old, new = run(0.1, 0.1), run(0.1, 0.5)
    crash, stale = ("torch", "host", None, False, ["lost"]), (None, None, "clip.py:other", False, [])
    assert problems(new) == [("torch", "native", "clip.py:clip", False, ["0", "1"]), crash, stale]
    compared = build.with_changes(new, baseline.changes(old, new))
    assert problems(compared) == [
        ("torch", "native", "clip.py:clip", True, ["0"]),
        ("torch", "native", "clip.py:clip", False, ["1"]),
        crash,
        (*stale[:3], True, []),
    ]
    write.write(compared, tmp_path)
    data = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert [result["excused"] for result in data["problems"]] == [True, False, False, True]
    for name in ("parity.md", "index.html"):
        assert (tmp_path / name).read_text(encoding="utf-8").lower().count("already in the baseline: ") == 2
