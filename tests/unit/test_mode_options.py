"""Options of one mode of a command are an error in its other modes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from unified_clip import cli
from unified_clip._command.mode_options import is_passed
from unified_clip.parity import cli as parity_command


@pytest.mark.parametrize(
    ("arguments", "option", "mode"),
    [
        (["parity", "--out", "report", "init"], "--out", "unified-clip parity without init"),
        (["parity", "--timeout", "5", "init"], "--timeout", "unified-clip parity without init"),
        (["parity", "--accept", "init"], "--accept", "unified-clip parity without init"),
        (["parity", "--case", "a", "--accept"], "--accept", "unified-clip parity without --case"),
        (["parity", "--case", "a", "--out", "report"], "--out", "unified-clip parity without --case"),
        (["parity", "init", "--case", "a"], "--case", "unified-clip parity without init"),
        (["parity", "init", "--timeout", "5"], "--timeout", "unified-clip parity without init"),
        (["parity", "init", "a.npz", "--accept"], "--accept", "unified-clip parity without init"),
        (["explain", "clip.toml", "--from-b", "deepspeed"], "--from-b", "a second configuration B"),
    ],
)
def test_an_option_of_another_mode_is_an_error_that_names_both(
    arguments: list[str],
    option: str,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n")
    Path("clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\nfamily = "pytorch"\n')
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"unified-clip: error UC202: {option} applies to {mode} only. Remove it, or use {mode}.\n",
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_every_option_of_parity_has_a_mode_or_is_shared() -> None:
    modes = {option.removeprefix("--").replace("-", "_") for option in parity_command.RUN_OPTIONS}
    subparsers = next(each for each in cli._parser()._actions if isinstance(each, argparse._SubParsersAction))
    actions = {
        each.dest: each for each in subparsers.choices["parity"]._actions if each.dest not in ("help", "==SUPPRESS==")
    }
    assert set(actions) == {*modes, "suite"}
    assert [name for name in modes if is_passed(actions[name].default)] == []
