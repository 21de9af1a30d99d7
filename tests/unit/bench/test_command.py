"""The command `unified-clip bench`, and the ends of its workers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bench import DATA, check_schema

from unified_clip import cli
from unified_clip.bench import gradients, report, run
from unified_clip.tensors.types import UnreadableError


def bench(out: Path, *more: str, frameworks: str = "numpy") -> int:
    arguments = ["--frameworks", frameworks, "--lists", "10x10", "--seconds", "0"]
    return cli.main(["bench", *arguments, "--out", str(out), *more])


@pytest.mark.nightly
def test_the_command_measures_writes_and_shows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path / "out", "--threads", "1") == 0
    data = json.loads((tmp_path / "out/bench.json").read_text(encoding="utf-8"))
    check_schema(data)
    assert (data["threads"], data["versions"]["numpy"]) == (1, np.__version__)
    assert [each["what"] for each in data["results"]] == ["clipped", "not clipped", "norm alone"]
    assert data["machine"]["other_load"] >= 0
    printed = capfd.readouterr().out
    assert "plain NumPy" in printed
    assert str(tmp_path / "out/bench.json") in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frameworks", "numpy,caffe"], "--frameworks has 'caffe'. Choose from torch, "),
        (["--lists", "GPT-9"], "--lists has 'GPT-9'. Choose from 10x10, "),
        (
            ["--lists", "gone.npz"],
            "Choose from 10x10, 1000x100, ResNet-50, GPT-2, Llama-7B-layer, or pass the path of a",
        ),
        (
            ["--lists", "10x10,pyproject.toml"],
            "pyproject.toml: the suffix of the file is not one of .safetensors, .npz",
        ),
        (["--dtypes", ""], "--dtypes has ''"),
        (["--threads", "0"], "--threads is 0"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--device", "tpu"], "--device is 'tpu'. Choose from cpu, cuda."),
        (
            ["--device", "cuda", "--frameworks", "torch,numpy"],
            "--device cuda measures torch only. Pass --frameworks torch",
        ),
    ],
)
def test_the_command_refuses_what_there_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_tensor_without_elements_is_not_measured(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", scale=np.float32(1), empty=np.zeros((0, 3)))
    assert gradients.shapes_in(tmp_path / "model.npz") == [()]
    np.savez(tmp_path / "empty.npz", empty=np.zeros((0, 3)))
    with pytest.raises(UnreadableError, match=r"empty\.npz"):
        gradients.shapes_in(tmp_path / "empty.npz")


@pytest.mark.nightly
def test_a_file_is_measured_with_the_shapes_of_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    np.savez("old/model.npz", weight=np.zeros((200, 30), np.float32))
    np.savez("model.npz", weight=np.zeros((40, 30)), scale=np.float32(1), steps=np.arange(9), empty=np.zeros((0, 3)))
    np.savez("wide.npz", weight=np.zeros((2**20 + 1,), np.float32))
    assert bench(tmp_path, "--lists", "model.npz,10x10,wide.npz,old/model.npz") == 0
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    titles = [row["list"] for row in data["results"] if row["what"] == "clipped"]
    assert titles == ["model.npz", "10x10", "wide.npz", "old/model.npz"]
    assert [(row["list"], row["bytes"]) for row in data["limits"]] == [("wide.npz", 4 * (2**20 + 1))]
    assert "wide.npz" in capfd.readouterr().out
    assert bench(tmp_path, "--lists", "model.npz", "--device", "cuda") == 2
    assert "--device cuda measures torch only" in capfd.readouterr().err


def without(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    right = run.command
    lines = f"import sys; sys.modules['torch'] = None; from unified_clip.bench import worker; {code}"
    dying = [sys.executable, "-X", "faulthandler", "-c", lines, "torch"]
    monkeypatch.setattr(run, "command", lambda name: dying if name == "torch" else right(name))


@pytest.mark.nightly
def test_a_worker_that_dies_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "import os; os.write(1, b'{\"results\": ['); os.abort()")
    assert bench(tmp_path, frameworks="torch,numpy") == 3
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert data["failed"]["torch"].startswith(
        "signal 6 (SIGABRT); the last lines of stderr: Fatal Python error: Aborted"
    )
    assert {each["framework"] for each in data["results"]} == {"numpy"}
    assert "torch: the benchmark process ended: signal 6" in capfd.readouterr().out


@pytest.mark.nightly
def test_a_framework_that_is_not_installed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "worker.main()")
    assert bench(tmp_path, frameworks="torch,numpy") == 3
    printed = " ".join(capfd.readouterr().out.split())
    assert "torch was not measured: import of torch halted" in printed
    assert "Install it, or leave torch out of --frameworks" in printed
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["failed"] == {}


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, 0), ({"missing": {"jax": "why"}}, 0), ({"failed": {"jax": "why"}}, 3), ({"results": []}, 3)],
)
def test_the_exit_status_says_whether_all_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], status: int
) -> None:
    """A framework that is not installed must be measured only if the user named it."""
    monkeypatch.setattr(run, "run", lambda options, progress: DATA | {"limits": []} | change)
    monkeypatch.setattr(report, "write", lambda data, out: None)
    assert cli.main(["bench", "--out", str(tmp_path)]) == status


HANGS = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
# Have another thread take the signal: then it does not end a read of the main thread.
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
from unified_clip import cli
from unified_clip.bench import run
hang = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
run.command = lambda framework: [sys.executable, "-c", hang, "started"]
sys.exit(cli.main(["bench", "--frameworks", "numpy", "--out", "out"]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_ctrl_c_ends_a_run_whose_worker_prints_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (tmp_path / "started").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (
        cli.INTERRUPTED,
        "unified-clip: interrupted. All processes of the command were ended, and no report was written.\n",
    )
