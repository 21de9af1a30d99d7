"""`unified-clip parity`: the cases that run, the reports, and the exit status."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.cases import suite
from support.parity.reports import clip_result, known, native, one_case, report
from support.tiers import quick

from unified_clip import cli
from unified_clip._kit.install import command
from unified_clip.parity import run_suite
from unified_clip.parity.report import build, github, markdown, terminal, write
from unified_clip.parity.results import FrameworkResult, ParityReport
from unified_clip.parity.suite import load as suites
from unified_clip.parity.workers import run_worker

NAME = "worked example: global_norm()"


def report_with_verdicts(*kinds: Any, digests: tuple[str, ...] = ("a", "a"), **fields: Any) -> ParityReport:
    results = {
        name: FrameworkResult(host=clip_result(kind, sha256=digest, detail="why"))
        for name, kind, digest in zip(("numpy", "torch"), kinds, digests, strict=True)
    }
    return report(one_case(NAME, **results), **fields)


def report_with_function(problem: str, **fields: Any) -> ParityReport:
    differing = native("different" if problem else "known", 0.5, problem=problem, function="torch.norm")
    results = {
        "numpy": FrameworkResult(host=clip_result()),
        "torch": FrameworkResult(host=clip_result(), native=differing),
    }
    return report(one_case(NAME, **results), **fields)


STALE = known("no case shows this difference", None, function="torch.norm", reason="it is so", cases=[])


def test_the_exit_status_of_each_verdict() -> None:
    assert report_with_verdicts("equal", "equal").exit_code == 0
    assert report_with_verdicts("equal", "close").exit_code == 0
    assert report_with_verdicts("equal", "different").exit_code == 1
    assert report_with_verdicts("equal", "equal", digests=("a", "b")).exit_code == 1
    assert [
        report_with_verdicts("equal", kind).exit_code for kind in ("crashed", "timed out", "missing", "unreadable")
    ] == [3] * 4
    assert report_with_verdicts("crashed", "different").exit_code == 1


def test_a_run_without_a_report_removes_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jenkins would publish the passed tests of an earlier run."""
    monkeypatch.chdir(tmp_path)
    write.write(report_with_verdicts("equal", "equal"), Path("report"))
    Path("report/notes.txt").touch()
    Path("report/index.html").rename("report/page.html")
    assert cli.main(["parity", "--suite", "nowhere", "--case", "one"]) == 2
    assert Path("report/parity.json").exists()
    assert cli.main(["parity", "--suite", "nowhere"]) == 2
    assert sorted(path.name for path in Path("report").iterdir()) == ["notes.txt", "page.html"]
    Path("report/parity.xml").mkdir()
    capsys.readouterr()
    assert cli.main(["parity", "--suite", "nowhere"]) == 2
    assert "error UC205: report/parity.xml cannot be written: Is a directory" in capsys.readouterr().err


def test_equal_bits_are_reported_only_if_two_frameworks_were_compared() -> None:
    sentence = "On the host path, all frameworks gave the same bits."
    alone = report_with_verdicts("equal", "missing", may_be_missing=["torch"])
    natives = report(one_case(NAME, torch=FrameworkResult(native=native("equal", 0.0, ""))))
    assert sentence in markdown.glance(report_with_verdicts("equal", "equal"))
    assert alone.exit_code == natives.exit_code == 0
    assert sentence not in markdown.glance(alone)
    assert sentence not in markdown.glance(natives)


def test_a_missing_framework_is_not_reported_to_agree() -> None:
    results = {name: FrameworkResult(host=clip_result()) for name in ("numpy", "torch")}
    results["jax"] = FrameworkResult(host=clip_result("missing", math.inf, None))
    run = build.build_report(["numpy", "torch", "jax"], [one_case(NAME, **results)], may_be_missing=["jax"])
    other_lines = markdown.glance(run)
    assert run.verdict == ("PASS: 2 results of unified_clip are exact. jax is missing, which the suite allows.")
    assert "Host path: 2 of 2 bit-exact (100.0%): 1 equal on numpy; 1 equal on torch." in other_lines
    assert "On the host path, numpy, torch gave the same bits." in other_lines


def test_an_unlisted_difference_of_a_frameworks_function_fails_the_run() -> None:
    assert report_with_function("").exit_code == 0
    assert report_with_function("nobody knows").exit_code == 1


def test_a_run_without_its_only_framework_names_it() -> None:
    missing = FrameworkResult(host=clip_result("missing", math.inf, None))
    run = build.build_report(["jax"], [one_case(NAME, jax=missing)], may_be_missing=["jax"])
    assert run.verdict == "FAIL: nothing was compared: jax is missing."


def test_a_stale_list_of_known_differences_fails_the_run() -> None:
    assert report_with_verdicts("equal", "equal", known=[known(size=0.5)]).exit_code == 0
    assert report_with_verdicts("equal", "equal", known=[STALE]).exit_code == 1


def test_a_framework_may_be_missing_if_the_suite_allows_it() -> None:
    assert report_with_verdicts("equal", "missing", may_be_missing=["torch"]).exit_code == 0
    report = report_with_verdicts("equal", "missing", may_be_missing=["numpy"])
    assert report.exit_code == 3
    (problem,) = report.problems
    interpreter = "set `python` under [frameworks.torch] of the suite to an interpreter that has the framework"
    assert problem.detail == f"why. Install the framework, or {interpreter}"
    assert report_with_verdicts("equal", "crashed", may_be_missing=["torch"]).exit_code == 3


def test_the_report_names_each_problem(tmp_path: Path) -> None:
    run = report_with_verdicts("equal", "different", digests=("a", "b"), known=[STALE])
    write.write(run, tmp_path)
    markdown = (tmp_path / "parity.md").read_text(encoding="utf-8")
    assert f"- torch, host path, different: why. Case: {NAME}" in markdown
    assert f"- results of unified_clip differ between frameworks on the host path: norm. Case: {NAME}" in markdown
    assert "known difference torch, torch.norm: 'it is so': no case shows this difference" in markdown
    data = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert data["cases"][0]["differing_stages"] == ["norm"]
    assert data["summary"]["host"] == {"numpy": {"equal": 1}, "torch": {"different": 1}}
    write.write(report_with_function("nobody knows"), tmp_path)
    assert f"torch, torch.norm: nobody knows. Case: {NAME}" in (tmp_path / "parity.md").read_text(encoding="utf-8")


def test_junit_has_a_failure_an_error_or_a_skip_for_each(tmp_path: Path) -> None:
    def found(run: ParityReport) -> dict[str, list[str]]:
        write.write(run, tmp_path)
        root = ElementTree.parse(tmp_path / "parity.xml").getroot()
        return {
            suite.attrib["name"]: [f"{mark.tag}: {mark.get('message')}" for case in suite for mark in case]
            for suite in root
        }

    assert found(report_with_verdicts("equal", "different"))["torch, host path"] == ["failure: why"]
    assert found(report_with_verdicts("equal", "crashed"))["torch, host path"] == ["error: why"]
    assert found(report_with_verdicts("equal", "missing"))["torch, host path"] == ["error: why"]
    assert found(report_with_verdicts("equal", "missing", may_be_missing=["torch"]))["torch, host path"] == [
        "skipped: why"
    ]
    assert found(report_with_verdicts("equal", "close", digests=("a", "b"))) == {
        "numpy, host path": [],
        "torch, host path": [],
        "between frameworks, host path": ["failure: different bits: norm"],
    }
    assert found(report_with_function("nobody knows"))["torch, framework's function"] == ["failure: nobody knows"]
    known = found(report_with_verdicts("equal", "equal", known=[STALE]))["known differences"]
    assert known == ["failure: no case shows this difference"]


def test_a_workers_colours_do_not_break_the_xml(tmp_path: Path) -> None:
    coloured = clip_result("crashed", math.inf, None, "\x1b[31mred\x00")
    write.write(report(one_case(NAME, torch=FrameworkResult(host=coloured))), tmp_path)
    (error,) = ElementTree.parse(tmp_path / "parity.xml").getroot().iter("error")
    assert error.get("message") == "\\x1b[31mred\\x00"


def test_an_interrupt_of_one_worker_ends_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), []

    def work(worker: list[str], *_: Any) -> run_worker.WorkerResults:
        if worker[-1] == "torch":
            begun.wait(10)
            raise KeyboardInterrupt
        begun.set()
        ended.append(run_worker.STOP.wait(10))
        return run_worker.WorkerResults()

    monkeypatch.setattr(run_worker, "run_worker", work)
    path = suite(tmp_path, ONE_CASE, frameworks="[frameworks.numpy]\n[frameworks.torch]\nmodes = ['host']")
    with pytest.raises(KeyboardInterrupt):
        run_suite.run(suites.read(path))
    assert ended == [True]
    assert run_worker.STOP.is_set()  # for threads that the interrupt left alone, until the next run


def test_a_run_without_comparisons_does_not_pass() -> None:
    assert report_with_verdicts("missing", "missing", may_be_missing=["numpy", "torch"]).exit_code == 3


def test_a_framework_function_without_a_result_is_a_failure(tmp_path: Path) -> None:
    crashed = native("crashed", None, "", function=None, detail="signal 11")
    run = report(one_case(NAME, torch=FrameworkResult(host=clip_result(), native=crashed)))
    assert run.exit_code == 3
    write.write(run, tmp_path)
    assert f"torch, framework's function, crashed: signal 11. Case: {NAME}" in (tmp_path / "parity.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.nightly
def test_a_difference_of_a_framework_function_alone_fails_the_run(tmp_path: Path) -> None:
    where = suite(tmp_path, NEGATIVE, frameworks="[frameworks.torch]\nmodes = ['native']")
    run = run_suite.run(suites.read(where))
    assert run.exit_code == 1
    assert "it returns a result, but should raise an error" in run.problems[0].detail
    assert [row[1:] for row in markdown.rows(run, markdown.unified_clip)] == [[markdown.NOTHING]]


def test_a_framework_that_always_crashes_is_a_failure_and_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_worker, "command", lambda framework, python: [python, "-c", "import os; os._exit(3)", framework]
    )
    known = "[[known]]\nframework = 'torch'\nfunction = '*'\nsize = 'raises KeyError'\ncases = ['*']\nreason = 'so'"
    where = suite(tmp_path, ONE_CASE, known, frameworks="[frameworks.torch]")
    assert run_suite.run(suites.read(where)).exit_code == 3


def test_junit_counts(tmp_path: Path) -> None:
    write.write(report_with_verdicts("different", "crashed"), tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    counts = {
        suite.get("name"): [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] for suite in root
    }
    assert counts["numpy, host path"] == ["1", "1", "0", "0"]
    assert counts["torch, host path"] == ["1", "0", "1", "0"]


ONE_CASE = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }, { none = true }]
    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }]
"""

NEGATIVE = ONE_CASE.replace("calls = [", "raises = 'ValueError'\ncalls = [").replace("_norm = 5.0", "_norm = -1.0")


@pytest.mark.usefixtures("quick_pytorch_workers")
def test_the_command_runs_numpy_and_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = suite(tmp_path, ONE_CASE, frameworks="[frameworks.numpy]\nmodes = ['host']\n[frameworks.torch]")
    arguments = ["parity", "--suite", str(where), "--frameworks", "numpy,torch"]
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("PASS: ")
    assert "Host path: 2 of 2 bit-exact (100.0%): 1 equal on numpy; 1 equal on torch." in printed
    assert "Device path: 1 of 1 bit-exact (100.0%): 1 equal on torch." in printed
    data = json.loads((tmp_path / "out" / "parity.json").read_text(encoding="utf-8"))
    (case_result,) = data["cases"]
    assert all(
        case_result["frameworks"][name]["host"]["sha256"] == case_result["sha256"] for name in ("numpy", "torch")
    )
    assert case_result["frameworks"]["torch"]["native"]["function"] == "torch.nn.utils.clip_grad_norm_"
    assert set(data["versions"]) == {"numpy", "python", "torch"}


def test_the_command_fails_on_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from unified_clip._core import rule; rule.PYTORCH = rule.PADDLE; "
    code += "from unified_clip.parity.workers import worker; worker.main()"
    monkeypatch.setattr(run_worker, "command", lambda framework, python: [python, "-c", code, framework])
    arguments = ["parity", "--suite", str(suite(tmp_path, ONE_CASE)), "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 1


def test_the_report_is_the_same_every_time_except_for_durations(tmp_path: Path) -> None:
    read_suite = suites.read(suite(tmp_path, ONE_CASE))
    written = []
    for name in ("first", "second"):
        write.write(run_suite.run(read_suite), tmp_path / name)
        files = {file.name: file.read_text(encoding="utf-8") for file in (tmp_path / name).iterdir()}
        files["parity.xml"] = re.sub(' time(stamp)?="[^"]+"', "", files["parity.xml"])
        written.append(files)
    assert set(written[0]) == {"index.html", "parity.json", "parity.md", "parity.xml"}
    assert written[0] == written[1]


def test_cases_of_some_frameworks_are_run_on_these_only(tmp_path: Path) -> None:
    two_cases = ONE_CASE + ONE_CASE.split("[[cases]]")[1].replace("max_norm = 5.0", "max_norm = 4.0").join(
        ["[[cases]]", ""]
    )
    where = suite(tmp_path, two_cases + "frameworks = ['torch']", frameworks="[frameworks.numpy]\n[frameworks.torch]")
    read_suite = suites.read(where)
    assert [len(run_suite.work_items(read_suite, name)) for name in ("numpy", "torch")] == [1, 6]


@pytest.mark.usefixtures("quick_pytorch_workers")
def test_modes_that_are_left_out_are_named_in_every_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(suite(tmp_path, ONE_CASE, frameworks="[frameworks.torch]"))
    out = tmp_path / "report"
    assert cli.main(["parity", "--suite", where, "--out", str(out), "--without", "device,native"]) == 0
    sentence = "Not run, because of --without: device, native."
    assert sentence in capsys.readouterr().out
    assert sentence in json.loads((out / "parity.json").read_text(encoding="utf-8"))["notes"]
    assert all(sentence in (out / name).read_text(encoding="utf-8") for name in ("parity.md", "index.html"))
    assert cli.main(["parity", "--suite", where, "--without", "native", "--accept"]) == 2
    assert "--accept needs the results of every mode. Remove --without." in capsys.readouterr().err


def test_missing_suites_and_unwritable_reports_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", "--suite", str(tmp_path / "absent")]) == 2
    (tmp_path / "file").touch()
    where = str(suite(tmp_path, ONE_CASE))
    assert cli.main(["parity", "--suite", where, "--out", str(tmp_path / "file")]) == 2
    assert cli.main(["parity", "--suite", where, "--frameworks", "caffe"]) == 2
    printed = capsys.readouterr().err
    assert all(
        text in printed
        for text in ("Pass the suite to --suite", "cannot be written", "the suite has no framework 'caffe'")
    )


HANGS = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this
# Have another thread take the signals: that does not end a wait of the main thread, nor does one just before it.
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
from unified_clip import cli
from unified_clip.parity.workers import run_worker as launch
launch.command = lambda framework, python: [python, "-c", "import time; time.sleep(600)", framework]
sys.exit(cli.main(sys.argv[1:]))
"""

CONVERTED = """
[frameworks.numpy]
[[gradients]]
name = "made"
function = "grads.py:gradients"
[[cases]]
gradients = ["made"]
rules = ["clip_grad_norm_"]
thresholds = [1.0]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("name", quick(["SIGINT", "SIGTERM", "SIGHUP"], "SIGTERM"))
def test_a_terminated_command_leaves_no_files(tmp_path: Path, name: str) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    (tmp_path / "suite.toml").write_text(CONVERTED, encoding="utf-8")
    (tmp_path / "grads.py").write_text("import numpy\ndef gradients(): return numpy.ones(3)", encoding="utf-8")
    arguments = [sys.executable, "-c", HANGS, "parity", "--suite", str(tmp_path), "--out", str(out)]
    with subprocess.Popen(arguments, env={**os.environ, "TMPDIR": str(scratch)}) as process:
        while process.poll() is None and not list(scratch.glob("unified_clip_parity_*/out")):
            time.sleep(0.05)
        process.send_signal(getattr(signal, name))
        assert process.wait(60) == cli.INTERRUPTED
    assert not [*out.iterdir(), *scratch.iterdir()]


def test_the_command_names_a_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "rich" else object())
    assert cli.main(["parity"]) == 2
    assert f"not installed: rich. Install the extra `cli`: {command('cli')}" in capsys.readouterr().err


ADAPTER = """import numpy as np
from company import clip_grads
from company import clip_grads as imported, rules
import company.rules

def packed(grads, limit):
    copies = [g.copy() for g in grads]
    return company.rules.clip_grads(copies, limit)

def by_class(grads, limit):
    return rules.Clip(limit)(grads)


def both(grads, limit):
    return clip_grads(grads, limit) or rules.Clip(limit)

def computing(grads, limit):
    return [g * clip_grads(grads, limit) for g in grads]

def outside(grads, limit):
    return np.clip(grads, limit), company.rules.clip_grads(grads)
"""


def test_annotations_of_github_name_the_failure_and_the_line_of_the_users_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.py").write_text("import numpy\n\n\ndef clip(grads, limit):\n    pass\n\n\nalias = clip\n")
    (tmp_path / "parity").mkdir()
    (tmp_path / "broken.py").write_text("def clip(:\n")

    def printed(run: ParityReport) -> list[str]:
        terminal.show(run, tmp_path, github.lines(run, tmp_path / "parity"))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]

    def users(function: str) -> ParityReport:
        differing = native("different", 0.5, problem="100 % off:\n::error::x", function=function)
        return report(*(one_case(name, torch=FrameworkResult(native=differing)) for name in ("one", "two")))

    where, sentence = "torch, ../clip.py:clip", "100 %25 off:\\n::error::x. 2 cases, first: one"
    title = "torch%2C ../clip.py%3Aclip"
    assert printed(users("../clip.py:clip")) == [f"::error file=clip.py,line=4,title={title}::{where}: {sentence}"]
    for name in ("clip.py:alias", "broken.py:clip", "absent.py:clip"):
        (line,) = printed(users(f"../{name}"))
        assert line.startswith(f"::error file={name.partition(':')[0]},title=")
    (tmp_path / "company").mkdir()
    (tmp_path / "company" / "__init__.py").write_text("from .rules import clip_grads\nfrom . import missing\n")
    (tmp_path / "company" / "rules.py").write_text("\ndef clip_grads(grads, limit): pass\n\nclass Clip: pass\n")
    (tmp_path / "adapter.py").write_text(ADAPTER)
    places = [("packed", 2), ("by_class", 4), ("imported", 2), ("both", 14), ("computing", 17), ("outside", 20)]
    for name, number in places:
        (line,) = printed(users(f"../adapter.py:{name}"))
        file = "company/rules.py" if number < 5 else "adapter.py"
        assert line.startswith(f"::error file={file},line={number},title=torch%2C ../adapter.py%3A{name}")
    run = report_with_verdicts("equal", "different")
    (error,) = printed(run)
    assert error.startswith("::error title=torch%2C host path%2C different::torch, host path, different: ")
    assert printed(report_with_verdicts("equal", "equal")) == []


def test_the_command_prints_annotations_for_github(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = suite(tmp_path, ONE_CASE, frameworks="[frameworks.numpy]\npython = 'absent'\n")
    command = ["parity", "--suite", str(where), "--out", str(tmp_path / "out"), "--format"]
    assert cli.main([*command, "github"]) == 3
    assert "\n::error title=numpy%2C host path%2C missing" in capfd.readouterr().out
    assert cli.main([*command, "text"]) == 3
    assert "\n- numpy, host path, missing" in capfd.readouterr().out
    assert cli.main([*command[:3], "--format", "github", "--case", NAME]) == 2
    assert "--format applies to unified-clip parity without --case only" in capfd.readouterr().err
    assert cli.main([*command, "github", "init"]) == 2
    assert "--out, --format apply to unified-clip parity without init only" in capfd.readouterr().err
