"""`unified-clip completion`: the scripts, and the completions in a shell."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from unified_clip import cli
from unified_clip._command import subcommands
from unified_clip._command.completion import SHELLS
from unified_clip.config.formats import FORMATS

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for shell in SHELLS:
        assert cli.main(["completion", shell]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        (tmp_path / shell).write_text(out, encoding="utf-8")
    return tmp_path


COMPLETE = """
source {script}
complete -p unified-clip | grep -o -- '-F [^ ]*' | cut -c 4- > function
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
"$(cat function)" unified-clip "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(scripts: Path, words: str) -> set[str]:
    ended = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE.format(script=scripts / "bash", words=words)],
        cwd=scripts,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    return {word.strip() for word in ended.stdout.splitlines() if word.strip()}


@needs_bash
def test_bash_completes_every_command_and_option(scripts: Path) -> None:
    commands = dict(subcommands(cli._parser()))
    top = {name for name in commands if " " not in name}
    assert completed(scripts, "unified-clip ''") >= top
    for name, command in commands.items():
        shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
        options = {option for action in shown for option in action.option_strings if option.startswith("--")}
        assert completed(scripts, f"unified-clip {name} --") == options
    assert completed(scripts, "unified-clip config ''") >= {"import", "export", "check"}


@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("unified-clip ex", {"explain"}),
        ("unified-clip compare --form", {"--format"}),
        ("unified-clip compare --format ''", {"text", "json"}),
        ("unified-clip port --format d", {"diff"}),
        ("unified-clip config import --from dee", {"deepspeed"}),
        ("unified-clip config export --to ''", set(FORMATS)),
        ("unified-clip compare a.jsonl b.jsonl --js", set()),
        ("unified-clip explain my", {"my.toml"}),
        ("unified-clip explain gr", {"grads.npz"}),
        ("unified-clip parity --out my", {"my.toml"}),
        ("unified-clip completion z", {"zsh"}),
    ],
)
def test_bash_completes_values(scripts: Path, words: str, expected: set[str]) -> None:
    for name in ("my.toml", "grads.npz"):
        (scripts / name).touch()
    assert completed(scripts, words) == expected


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_the_script_of_a_shell_is_valid(shell: str, scripts: Path) -> None:
    text = (scripts / shell).read_text(encoding="utf-8")
    for word in ("unified-clip", "explain", "deepspeed", "format"):
        assert word in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if shell != "tcsh":  # which has no option for a check
        subprocess.run([shell, "-n", str(scripts / shell)], check=True, capture_output=True)


def test_an_unknown_shell_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["completion", "cmd"])
    assert "error UC203: argument SHELL: invalid choice: 'cmd' (choose from 'bash', " in capsys.readouterr().err
