"""`unified-clip parity`: the cases that run, the reports, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from unified_clip.parity.known import match
from unified_clip.parity.known.entries import KnownDifference
from unified_clip.parity.report import github, terminal, view, write
from unified_clip.parity.results import FrameworkResult, ParityReport
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


CRASHED = native("crashed", None, "", function=None, detail="signal 11")
OUTCOMES: dict[str, tuple[ParityReport, int, list[str], list[str]]] = {
    "equal": (report_with_verdicts("equal", "equal"), 0, [], []),
    "close": (report_with_verdicts("equal", "close"), 0, [], []),
    "different": (
        report_with_verdicts("equal", "different"), 1, ["torch, host path, different"],
        ["torch, host path: failure: why"],
    ),
    "crashed": (
        report_with_verdicts("equal", "crashed"), 3, ["torch, host path, crashed"], ["torch, host path: error: why"],
    ),
    "missing": (
        report_with_verdicts("equal", "missing"), 3, ["torch, host path, missing"], ["torch, host path: error: why"],
    ),
    "may be missing": (
        report_with_verdicts("equal", "missing", may_be_missing=["torch"]), 0, [], ["torch, host path: skipped: why"],
    ),
    "crashed, and may be missing": (
        report_with_verdicts("equal", "crashed", may_be_missing=["torch"]), 3, ["torch, host path, crashed"],
        ["torch, host path: error: why"],
    ),
    "all missing": (
        report_with_verdicts("missing", "missing", may_be_missing=["numpy", "torch"]), 3, [],
        ["numpy, host path: skipped: why", "torch, host path: skipped: why"],
    ),
    "crashed and different": (
        report_with_verdicts("crashed", "different"), 1, ["numpy, host path, crashed", "torch, host path, different"],
        ["numpy, host path: error: why", "torch, host path: failure: why"],
    ),
    "different bits": (
        report_with_verdicts("equal", "equal", digests=("a", "b")), 1,
        ["results of unified_clip differ between frameworks on the host path"],
        ["between frameworks, host path: failure: different bits: norm"],
    ),
    "known": (report_with_function(""), 0, [], []),
    "new": (
        report_with_function("nobody knows"), 1, ["torch, torch.norm"],
        ["torch, framework's function: failure: nobody knows"],
    ),
    "stale": (
        report_with_verdicts("equal", "equal", known=[STALE]), 1, ["known difference torch, torch.norm"],
        ["known differences: failure: no case shows this difference"],
    ),
    "listed": (report_with_verdicts("equal", "equal", known=[known(size=0.5)]), 0, [], []),
    "no result of a framework's function": (
        report(one_case(NAME, torch=FrameworkResult(host=clip_result(), native=CRASHED))), 3,
        ["torch, framework's function, crashed"], ["torch, framework's function: error: signal 11"],
    ),
}  # fmt: skip
"""A report, its exit status, what its problems are, and the marks of its JUnit XML."""


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_exit_status_the_problems_and_the_marks_of_each_outcome(name: str, tmp_path: Path) -> None:
    run, status, problems, marks = OUTCOMES[name]
    assert (run.exit_code, [problem.what for problem in run.problems]) == (status, problems)
    write.write(run, tmp_path)
    markdown = (tmp_path / "parity.md").read_text(encoding="utf-8")
    assert all(f"- {what}: " in markdown for what in problems)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    found = [(each.get("name"), mark) for each in root for case in each for mark in case]
    assert [f"{suite}: {mark.tag}: {mark.get('message')}" for suite, mark in found] == marks
    for each in root:
        tags = [mark.tag for case in each for mark in case]
        counts = [len(each.findall("testcase")), tags.count("failure"), tags.count("error"), tags.count("skipped")]
        assert [int(each.attrib[key]) for key in ("tests", "failures", "errors", "skipped")] == counts
    sentence = "On the host path, all frameworks gave the same bits."
    assert (sentence in view.glance(run)) == (name in ("equal", "close", "listed", "known", "new", "stale"))


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


ONE_CASE = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }, { none = true }]
    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }]
"""


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
    assert set(data["versions"]) == {"numpy", "python", "torch", "unified_clip"}


FAULTS = """
import os
import unified_clip.numpy as uc
from unified_clip.parity.workers import worker
right = uc.clip_grad_norm_
def clip(grads, max_norm):
    print("garbage\\n" * 100000)
    if max_norm == 1.0:
        os.abort()
    return right(grads, 0.3 if max_norm == 2.0 else max_norm)
uc.clip_grad_norm_ = clip
worker.main()
"""


def test_a_case_that_fails_does_not_change_the_results_of_other_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A difference takes precedence over a failure: the exit status is 1, not 3. What a worker prints is no result."""
    monkeypatch.setattr(run_worker, "command", lambda framework, python: [python, "-c", FAULTS, framework])
    calls = ", ".join(f"{{ call = 'clip_grad_norm_', max_norm = {norm} }}" for norm in (1.0, 2.0, 5.0))
    where = suite(tmp_path, f"{ONE_CASE.rpartition('calls')[0]}calls = [{calls}]")
    assert cli.main(["parity", "--suite", str(where), "--out", str(tmp_path / "out")]) == 1
    cases = json.loads((tmp_path / "out/parity.json").read_text(encoding="utf-8"))["cases"]
    verdicts = [each["frameworks"]["numpy"]["host"]["verdict"] for each in cases]
    assert verdicts == ["crashed", "different", "equal"]
    assert "garbage" not in capfd.readouterr().out


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


def test_annotations_of_github_name_the_failure_and_the_line_of_the_users_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parity").mkdir()
    (tmp_path / "clip.py").write_text("import numpy\n\n\ndef clip(grads, limit):\n    pass\n\n\nalias = clip\n")
    (tmp_path / "broken.py").write_text("def clip(:\n")

    def printed(run: ParityReport) -> list[str]:
        terminal.show(run, tmp_path, list(github.lines(run, tmp_path / "parity")))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]

    def users(function: str) -> ParityReport:
        differing = native("different", 0.5, problem="100 % off:\n::error::x", function=function)
        return report(*(one_case(name, torch=FrameworkResult(native=differing)) for name in ("one", "two")))

    (line,) = printed(users("../clip.py:clip"))
    assert line.startswith(
        "::error file=clip.py,line=4,title=torch%2C ../clip.py%3Aclip::torch, ../clip.py:clip: 100 %25"
    )
    for name in ("clip.py:alias", "broken.py:clip", "absent.py:clip"):
        (line,) = printed(users(f"../{name}"))
        assert line.startswith(f"::error file={name.partition(':')[0]},title=")
    (error,) = printed(report_with_verdicts("equal", "different"))
    assert error.startswith("::error title=torch%2C host path%2C different::")
    assert printed(report_with_verdicts("equal", "equal")) == []
    entry = KnownDifference(framework="torch", function="torch.norm", cases=["gone"], size=0.5, reason="why")
    entry._file, entry._find_line = str(tmp_path / "parity" / "known.toml"), lambda: 3
    (stale,) = match.match_deviations([entry], {})[1]
    (line,) = printed(report_with_verdicts("equal", "equal", known=[stale]))
    assert line.startswith("::error file=parity/known.toml,line=3,title=known difference torch%2C torch.norm::")


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


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_an_invalid_timeout_is_rejected(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as rejection:
        cli.main(["parity", f"--timeout={seconds}"])
    assert rejection.value.code == 2
    assert f"--timeout: {seconds!r} is not a finite number above 0" in capsys.readouterr().err
