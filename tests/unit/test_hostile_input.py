"""Files that no program expects: every command ends with an error that has a code, and none blocks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.full_disk import full_disk

from unified_clip import cli, clip_by_norm, record

CLIP = 'rule = "global_norm"\nthreshold = 1.0\n'

COMMANDS = (
    "explain {file}",
    "config import {file} --from unified_clip",
    "config check {file} .",
    "config check clip.toml {file}",
    "port {file}",
    "compare {file} {file}",
    "compare a.jsonl a.jsonl --map {file}",
    "parity --suite {file}",
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("clip.toml").write_text(CLIP)
    return tmp_path


def status(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str]:
    try:
        code: int | str | None = cli.main(command.split())
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err


def _deep(text: str, name: str) -> Callable[[], str]:
    def write() -> str:
        Path(name).write_text(text)
        return name

    return write


def _pipe() -> str:
    os.mkfifo("pipe.toml")
    return "pipe.toml"


def _loop() -> str:
    Path("loop.toml").symlink_to("loop.toml")
    return "loop.toml"


INPUTS: dict[str, Callable[[], str]] = {
    "pipe": _pipe,
    "loop": _loop,
    "device": lambda: "/dev/zero",
    "memory": lambda: "/proc/self/mem",
    "unary minus": _deep(f"clip_grad_norm_ = {'-' * 20_000}1\n", "a.py"),
    "long sum": _deep(f"import optax\noptax.clip({'+'.join('1' * 900)})\n", "a.py"),
    "elif": _deep("import torch\nif a: torch.nn.utils.clip_grad_norm_(p, 1)\n" + "elif a: pass\n" * 300, "a.py"),
    "nested lists": _deep(f'{{"max_grad_norm": {"[" * 900}{"]" * 900}}}', "a.json"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_no_input_is_a_bug_or_blocks(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = INPUTS[kind]()
    if file.startswith("/") and not Path(file).exists():
        pytest.skip(f"there is no {file} here")
    for command in COMMANDS:
        code, errors = status(command.format(file=file), capsys)
        assert code in (0, 1, 2), f"{command}: {errors}"
        assert code != 2 or re.search(r"error UC[1-7]\d\d", errors), command


@pytest.mark.parametrize("command", ["config check clip.toml a.py --out old", "compare run.jsonl run.jsonl --html old"])
def test_on_a_full_disk_the_old_report_stays(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text("import torch\ntorch.nn.utils.clip_grad_norm_(p, 5.0)\n")
    with record("run.jsonl"):
        clip_by_norm(np.array([3.0, 4.0], np.float32), 1.0)
    Path("old").write_text("old")
    with full_disk():
        code, errors = status(command, capsys)
    assert (code, "error UC205" in errors) == (2, True), errors
    assert Path("old").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["help errors", "explain clip.toml"])
def test_a_full_standard_output_is_an_error_with_a_code(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "unified_clip", *command.split()], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, b"error UC205" in ended.stderr) == (2, True), ended.stderr


TEXTS = {
    "a.py": '{{"a": {}1e, "clipnorm": 1}}',
    "a.sh": '{{"a": {}1e, "clipnorm": 1}}',
    "b.sh": "python train.py {} --clip-grad 1.0\n",
    "a.yaml": "a: 1\n{}max_grad_norm: 1.0\n",
    "a.toml": "a = 1\n{}max_grad_norm = 1.0\n",
    "a.json": '{{"a": 1, {}"max_grad_norm": 1.0}}',
}


@pytest.mark.parametrize("space", ["\n", " "])
@pytest.mark.parametrize("name", TEXTS)
def test_the_time_of_every_reader_grows_linearly(name: str, space: str, capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(count: int) -> float:
        Path(name).write_text(TEXTS[name].format(space * count))
        begin = time.process_time()
        for command in (f"explain {name}", f"config import {name}", f"config check clip.toml {name}"):
            status(command, capsys)
        return time.process_time() - begin

    seconds(100)  # imports
    small, large = seconds(2_500), seconds(40_000)
    assert large < 64 * max(small, 0.1), "16 times the text takes at most 64 times as long, and not 256 times"
