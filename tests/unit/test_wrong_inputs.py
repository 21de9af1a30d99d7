"""Wrong inputs of every command: one error with a code, the exit status 2, nothing printed, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import unified_clip
from unified_clip import cli
from unified_clip._command import subcommands

COMMANDS = (
    "explain {}",
    "explain clip.toml {}",
    "explain {} --format json",
    "port {} --format diff",
    "config import {}",
    "config export {} --to deepspeed",
    "config check {} .",
    "config check clip.toml {}",
    "config check clip.toml {} --format sarif",
    "compare {} run.jsonl",
    "compare {} run.jsonl --format json",
    "compare run.jsonl {}",
    "compare run.jsonl run.jsonl --map {}",
    "port {}",
    "parity --suite {}",
    "parity init {} --suite new",
    "verify {}:step step.py:step --weights init.npz --batches init.npz",
    "verify step.py:step step.py:step --weights {} --batches init.npz",
    "verify step.py:step step.py:step --weights init.npz --batches {}",
    "record {} -- true",
)
"""Each command reads or writes a file whose name replaces {}."""

INPUTS = ("missing", "missing.toml", "directory", "directory.toml", "empty.json", "damaged.npz", "damaged.jsonl")

FOUND = ("damaged.npz", "damaged.jsonl", "empty.json")
RIGHT = {
    *(f"port {file}" for file in FOUND),
    *(f"port {file} --format diff" for file in FOUND),
    *(f"config check clip.toml {file}" for file in FOUND),
    *(f"config check clip.toml {file} --format sarif" for file in FOUND),
    "compare run.jsonl run.jsonl --map empty.json",
    "record missing -- true",
    "record missing.toml -- true",
}
"""A file that is named is searched for clips, whatever its suffix. `config check` reports a file without a clip. A map
may be empty. A recording must not exist."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("directory", "directory.toml"):
        Path(name).mkdir()
    Path("empty.json").touch()
    for name in ("damaged.npz", "damaged.jsonl"):
        Path(name).write_bytes(bytes(range(200, 256)))
    Path("clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n')
    Path("step.py").write_text("def step(weights, batches): ...\n")
    np.savez("init.npz", weight=np.ones((2, 1), np.float32))
    with unified_clip.record("run.jsonl"):
        unified_clip.clip_grad_norm_([np.ones(2)], 1.0)
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


@pytest.mark.parametrize("file", INPUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_file_is_one_error_and_nothing_is_written(
    command: str, file: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command.format(file)
    if arguments in RIGHT:
        pytest.skip("the input is right")
    before = contents(directory)
    status = cli.main(arguments.split())
    out, error = capsys.readouterr()
    assert (status, out) == (2, "")
    assert re.fullmatch(r"unified-clip: error UC[1-7]\d\d: .+\n", error)
    assert "Errno" not in error
    assert "Traceback" not in error
    assert contents(directory) == before


@pytest.mark.parametrize("command", ["explain {}", "config import {}", "config export {} --to hf"])
@pytest.mark.parametrize(
    ("file", "reason"), [("directory", "it is a directory"), ("damaged.py", "byte 0 is not UTF-8")]
)
def test_a_file_that_cannot_be_read_is_not_one_of_an_unknown_format(
    command: str, file: str, reason: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("damaged.py").write_bytes(b"\xff\xfe")
    assert cli.main(command.format(file).split()) == 2
    error = capsys.readouterr().err
    assert "error UC101: " in error
    assert reason in error


def test_every_command_that_reads_a_file_is_among_them() -> None:
    others = {"bench", "completion", "help", "config"}
    assert {name for name, _ in subcommands(cli._parser())} - others == {
        " ".join(command.split()[: 2 if command.startswith(("config", "parity init")) else 1]) for command in COMMANDS
    }
