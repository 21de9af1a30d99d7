"""Commands end quietly, with the status that shells expect, if nobody reads their output, and after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tiers import sampled

import unified_clip
from unified_clip import _command, cli
from unified_clip.bench import cli as bench_command
from unified_clip.compare import cli as compare_command
from unified_clip.parity import cli as parity_command

COMMAND = [sys.executable, "-P", "-m", "unified_clip"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
CONFIG = 'rule = "global_norm"\nthreshold = 1.0\nfamily = "pytorch"\n'


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], 1.0)
    (tmp_path / "clip.toml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("from torch.nn.utils import clip_grad_norm_\n")


def without_a_reader(directory: Path, *arguments: str, stream: str = "stdout") -> subprocess.CompletedProcess[str]:
    reading, writing = os.pipe()
    os.close(reading)
    other = "stderr" if stream == "stdout" else "stdout"
    try:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=directory,
            text=True,
            check=False,
            env=BUFFERED,
            **{stream: writing, other: subprocess.PIPE},
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "arguments",
    sampled(
        [
            "--help",
            "compare --help",
            "compare run.jsonl run.jsonl",
            "compare run.jsonl run.jsonl --json",
            "explain clip.toml",
            "explain clip.toml --format json",
            "port train.py",
            "port train.py --format json",
            "config export clip.toml --to deepspeed",
        ],
        3,
    ),
)
def test_a_command_whose_output_nobody_reads_ends_quietly(tmp_path: Path, arguments: str) -> None:
    ended = without_a_reader(tmp_path, *arguments.split())
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_an_error_that_nobody_reads_ends_quietly(tmp_path: Path) -> None:
    ended = without_a_reader(tmp_path, "compare", "run.jsonl", "missing.jsonl", stream="stderr")
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGPIPE, "")


def test_without_a_standard_output_the_status_is_that_of_the_result(tmp_path: Path) -> None:
    command = " ".join([*COMMAND, "compare run.jsonl run.jsonl --json >&-"])
    ended = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("command", ["parity init", "parity --suite s", "bench", "compare a b"])
def test_ctrl_c_in_any_command_has_status_130(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(parity_command, "run_init", interrupted)
    for module in (parity_command, bench_command, compare_command):
        monkeypatch.setattr(module, "run", interrupted)
    assert cli.main(command.split()) == _command.INTERRUPTED
    assert capsys.readouterr().err == "unified-clip: interrupted\n"
