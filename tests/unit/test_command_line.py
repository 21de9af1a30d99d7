"""What all commands have in common: their help, `--format` and the exit statuses."""

from __future__ import annotations

import argparse
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from unified_clip import cli
from unified_clip._command import statuses, subcommands
from unified_clip._command.parser import FORMATS, Parser, add_format
from unified_clip.parity.suite import schema

COMMANDS = dict(subcommands(cli._parser()))
LEAVES = [name for name, command in COMMANDS.items() if not any(other.startswith(f"{name} ") for other in COMMANDS)] + [
    "parity"
]
"""The commands that run. `config` only has sub-commands."""

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("command_line", ROOT / "tools" / "command_line.py")
assert SPEC
assert SPEC.loader
PAGES = module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)


def test_every_command_has_its_exit_statuses_in_the_table() -> None:
    assert sorted(statuses.COMMANDS) == sorted(LEAVES)
    for meanings in statuses.COMMANDS.values():
        assert set(meanings) <= set(statuses.GENERAL)
        assert {statuses.SUCCESS, statuses.REJECTED} <= set(meanings)


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_the_help_of_a_command_lists_its_exit_statuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    listed = COMMANDS[name].format_help().partition("\nexit status:\n")[2]
    assert listed.splitlines() == list(statuses.lines(statuses.COMMANDS[name]))


@pytest.mark.parametrize("columns", ["20", "40", "80"])
@pytest.mark.parametrize("name", sorted(LEAVES))
def test_the_help_fits_the_terminal(name: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    paragraph = COMMANDS[name].format_help().partition("\nexit status:\n")[2]
    assert paragraph
    longest = max(map(len, paragraph.splitlines()))
    assert longest <= max(int(columns), 22)


def test_the_help_of_parity_has_the_time_limit_of_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert f"(default: `timeout` of the suite, or {schema.TIMEOUT:g})" in COMMANDS["parity"].format_help()


def test_every_command_that_prints_a_format_calls_it_format() -> None:
    formats = {
        name: action.choices
        for name in LEAVES
        for action in COMMANDS[name]._actions
        if "--format" in action.option_strings
    }
    assert formats.keys() >= {"compare", "explain", "port", "verify"}
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `--format (\w+)` \|", page, re.MULTILINE) == list(FORMATS)
    for name, choices in formats.items():
        assert set(choices or ()) <= set(FORMATS)
        shown = COMMANDS[name].format_help()
        assert [f"--{each}" for each in FORMATS if f" --{each} " in shown or f"[--{each}]" in shown] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "text"), (["--format", "json"], "json"), (["--json"], "json"), (["--format", "text"], "text")],
)
def test_the_old_spelling_of_a_format_still_works(arguments: list[str], expected: str) -> None:
    parser = Parser()
    add_format(parser, "text", "json", old=["json"])
    assert parser.parse_args(arguments).format == expected


@pytest.mark.parametrize("arguments", [["--json", "--format=text"], ["--format", "yaml"], ["--format"]])
def test_two_formats_or_an_unknown_one_are_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_format(parser, "text", "json", old=["json"])
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(arguments)
    assert "--format" in capsys.readouterr().err


def test_a_patch_does_not_go_with_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["port", "train.py", "--write", "--diff"]) == 2
    expected = "--format diff does not apply to --write. Remove --format diff, or remove --write."
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "port {}",
        "config check clip.toml {}",
        "config check clip.toml . --out {}",
        "config import clip.toml --from unified_clip --out {}",
        "compare {} b.jsonl",
        "compare a.jsonl b.jsonl --html {}",
        "explain {}",
        "parity --suite {}",
        "parity --suite {} init",
        "record {} -- true",
        "verify {}.py:step b.py:step --weights a.npz --batches b.npz",
    ],
)
def test_a_path_that_cannot_be_looked_up_is_no_bug(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clip.toml").write_text("rule = 'none'\n")
    assert cli.main(command.format("n" * 300).split()) == 2
    err = capsys.readouterr().err
    assert "nnn" in err
    assert "UC901" not in err
