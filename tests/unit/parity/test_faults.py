"""Faults that are planted in a worker: their verdict, exit status and sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.parity.cases import suite
from support.tiers import sampled

from unified_clip import cli
from unified_clip.parity import run_suite
from unified_clip.parity.workers import run_worker

CASES = """
    [[gradients]]
    name = "small"
    tensors = [
        { random = 1, exponents = [-12, -6], shape = [40, 50] },
        { random = 2, exponents = [-12, -6], shape = [40, 50] },
        { random = 3, exponents = [-9, -4], shape = [30] },
    ]
    [[cases]]
    gradients = ["small"]
"""

NUMPY = "[frameworks.numpy]\nmodes = ['host']"

START = """
import os, sys, time
import numpy as np
import unified_clip.numpy as uc
from unified_clip.parity.workers import worker
right = uc.clip_grad_norm_
"""


class Parity:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.tmp_path, self.monkeypatch, self.capfd = tmp_path, monkeypatch, capfd

    def __call__(
        self,
        code: str,
        *options: str,
        call: str = "{ call = 'clip_grad_norm_', max_norm = %s }",
        thresholds: Sequence[float] = (0.1,),
    ) -> tuple[int, list[dict[str, Any]], str]:
        def command(framework: str, python: str) -> list[str]:
            return [sys.executable, "-X", "faulthandler", "-c", f"{START}{code}\nworker.main()", framework]

        self.monkeypatch.setattr(run_worker, "command", command)
        calls = ", ".join(call % limit for limit in thresholds)
        where, out = suite(self.tmp_path, f"{CASES}calls = [{calls}]", frameworks=NUMPY), self.tmp_path / "out"
        status = cli.main(["parity", "--suite", str(where), "--out", str(out), *options])
        cases = json.loads((out / "parity.json").read_text(encoding="utf-8"))["cases"]
        return status, [each["frameworks"]["numpy"]["host"] for each in cases], self.capfd.readouterr().out


@pytest.fixture
def parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Parity:
    return Parity(tmp_path, monkeypatch, capfd)


def clip_function(body: str) -> str:
    lines = "\n    ".join(body.strip().splitlines())
    return f"def clip(grads, max_norm):\n    {lines}\nuc.clip_grad_norm_ = clip"


DIFFERENCES = {
    "wrong eps": (
        "from unified_clip._core import rule\nrule.PYTORCH = rule.PADDLE",
        "as if eps were 0 instead of 1e-06",
    ),
    "one tensor dropped": (
        clip_function("return right([grads[0], grads[2]], max_norm)"),
        "the call returned 'gradient 1' unchanged, and the norm leaves out 'gradient 1'",
    ),
    "one tensor left out of the norm": (
        clip_function("return uc.clip_grads_with_norm_(grads, max_norm, n := uc.get_total_norm(grads[:2])) or n"),
        "as if 'gradient 2' were left out of the norm",
    ),
    "float32 accumulation": (
        clip_function("""
n = np.sqrt(sum(np.add.accumulate(g.ravel() * g.ravel())[-1] for g in grads))
for g in grads:
    g *= np.float32(max_norm / (n + 1e-6))
return n"""),
        "as if the squares were added up in float32, one after the other",
    ),
    "swapped parameters": (
        clip_function(
            "n = right(grads, max_norm)\ngrads[0][:], grads[1][:] = grads[1].copy(), grads[0].copy()\nreturn n"
        ),
        "'gradient 0' and 'gradient 1' are swapped",
    ),
    "per tensor for global": (
        clip_function("n = uc.get_total_norm(grads)\nfor g in grads:\n    right([g], max_norm)\nreturn n"),
        "as if each gradient were clipped by its own norm instead of the total norm",
    ),
    "NaN in one tensor": (
        clip_function("n = right(grads, max_norm)\ngrads[1][3, 4] = np.nan\nreturn n"),
        "unexpected NaN in 'gradient 1'. 'gradient 1' has 1 NaN among 2000 elements, the first at [3, 4]",
    ),
    "clipped twice": (
        clip_function("n = right(grads, max_norm)\nright(grads, max_norm)\nreturn n"),
        "as if all gradients were clipped twice",
    ),
    "not clipped": (clip_function("return uc.get_total_norm(grads)"), "nothing were clipped"),
    "another threshold": (
        clip_function("return right(grads, 2 * max_norm)"),
        "as if the threshold were 0.2 instead of 0.1",
    ),
}
"""The fault, and words of the sentence. The verdict is `different`, and the exit status is 1."""


@pytest.mark.parametrize("fault", sampled(DIFFERENCES, 3))
def test_a_difference_has_its_cause(parity: Parity, fault: str) -> None:
    code, words = DIFFERENCES[fault]
    status, [result], printed = parity(code)
    assert (status, result["verdict"]) == (1, "different")
    assert words in result["detail"]
    assert result["detail"] in printed
    assert "of unified_clip is wrong" in printed


def test_global_for_per_tensor_has_its_cause(parity: Parity) -> None:
    code = "class Clip(uc.GradientClipByGlobalNorm):\n    pass\nuc.GradientClipByNorm = Clip"
    status, [result], _ = parity(code, call="{ call = 'GradientClipByNorm', clip_norm = %s }")
    assert (status, result["verdict"]) == (1, "different")
    assert "as if each gradient were clipped by the total norm instead of its own norm" in result["detail"]


FAILURES = {
    "killed": (
        clip_function("os.kill(os.getpid(), 9)"),
        "crashed",
        "signal 9 (SIGKILL): ended from outside, often by the kernel because memory ran out",
    ),
    "crashed": (
        clip_function("import ctypes\nctypes.string_at(0)"),
        "crashed",
        "signal 11 (SIGSEGV): an access to memory that the process does not own",
    ),
    "hangs": (
        clip_function("time.sleep(60)"),
        "timed out",
        "no new result in 2 seconds (set by --timeout); the process was in clip (<string>, line 8), "
        "called by call_public_name (invoke.py, line ",
    ),
    "garbage for a result": (
        "worker.memmap.append = lambda file, gradient: file.write(b'garbage')",
        "unreadable",
        "the result of the framework's process cannot be read: TypeError: ",
    ),
    "no memory for NumPy": (clip_function("np.empty(1 << 50)"), "out of memory", "Unable to allocate 8.00 PiB"),
    "no memory in C++": (
        clip_function("import ctypes\nctypes.CDLL('libstdc++.so.6')._Znwm(ctypes.c_size_t(1 << 62))"),
        "out of memory",
        "std::bad_alloc; signal 6 (SIGABRT); the last lines of stderr: Fatal Python error: Aborted",
    ),
    "no memory at the start": ("raise MemoryError", "out of memory", "MemoryError; exit status 1"),
    "no framework": (
        "import importlib\nimportlib.import_module = lambda name: exec('raise ModuleNotFoundError(\"No numpy\")')",
        "missing",
        "No numpy",
    ),
}
"""The fault, the verdict, and words of the sentence. The exit status is 3."""


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAILURES)
def test_a_failed_worker_has_its_reason(parity: Parity, fault: str) -> None:
    code, verdict, words = FAILURES[fault]
    status, [result], printed = parity(code, "--timeout", "2" if fault == "hangs" else "60")
    assert (status, result["verdict"]) == (3, verdict)
    assert words in result["detail"]
    assert result["detail"] in printed
    assert re.search(r"FAIL: .* results? missing \(numpy\)", printed)


def test_the_output_of_a_worker_is_not_printed_and_changes_no_result(parity: Parity) -> None:
    status, [result], printed = parity("print('\\n\\x1b[31mgarbage')\nprint('garbage\\n' * 100000)")
    assert (status, result["verdict"]) == (0, "equal")
    assert "garbage" not in printed


def test_a_case_that_fails_does_not_change_the_results_of_other_cases(parity: Parity) -> None:
    """A difference takes precedence over a failure: the exit status is 1, not 3."""
    code = clip_function("if max_norm == 0.1:\n    os.abort()\nreturn right(grads, max_norm if max_norm == 9 else 0.3)")
    status, results, _ = parity(code, thresholds=(0.1, 0.2, 9.0))
    assert (status, [each["verdict"] for each in results]) == (1, ["crashed", "different", "equal"])


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    where = suite(tmp_path, f"{CASES}calls = [{{ call = 'global_norm' }}]", frameworks=NUMPY)
    return ["parity", "--suite", str(where), "--out", str(tmp_path / "out")]


def test_a_fault_of_the_command_itself_is_no_difference(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_suite, "run", lambda *arguments_of_run: 1 / 0)
    assert cli.main(arguments) == 70
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed
    assert "error UC901: This is a bug of unified-clip" in printed


def test_a_report_that_cannot_be_written_is_no_difference(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "parity.md").mkdir(parents=True)
    assert cli.main(arguments) == 2
    assert "parity.md cannot be written: Is a directory." in capsys.readouterr().err


def test_a_closed_stdout_is_no_difference(arguments: list[str]) -> None:
    unread, stdout = os.pipe()
    os.close(unread)
    with os.fdopen(stdout, "wb") as pipe:
        assert (
            subprocess.run(
                [sys.executable, "-P", "-m", "unified_clip", *arguments], stdout=pipe, check=False
            ).returncode
            == 0
        )


# -- invalid commands


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_an_invalid_timeout_is_rejected(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as rejection:
        cli.main(["parity", f"--timeout={seconds}"])
    assert rejection.value.code == 2
    assert (
        f"--timeout: {seconds!r} is not a finite number above 0. Pass a number of seconds, such as 60"
        in capsys.readouterr().err
    )
