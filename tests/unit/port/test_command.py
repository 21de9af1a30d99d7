"""`unified-clip port`, the command: what it prints, writes and rejects, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unified_clip import cli

CERTAIN = "import torch\n\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
PORTED = "import torch\nimport unified_clip.torch\n\nunified_clip.torch.clip_grad_norm_(parameters, 1.0)\n"
FLAGGED = "import optax\n\noptimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))\n"
CLEAN = "x = 1\n"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **files: str) -> tuple[int, str, str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        status = cli.main(["port", *arguments])
        return status, *capsys.readouterr()

    return call


def commit() -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)


def test_without_options_it_reports_and_changes_nothing(run: Run) -> None:
    status, out, _ = run("a.py", a=CERTAIN)
    assert status == 0
    assert "3:1  rewritten  torch.nn.utils.clip_grad_norm_ -> unified_clip.torch.clip_grad_norm_" in out
    assert "1 file read, 1 clip found: 1 rewritten, 0 flagged, 0 left." in out
    assert Path("a.py").read_text() == CERTAIN


def test_several_paths_are_ported_together_and_a_file_is_read_once(run: Run) -> None:
    Path("sub").mkdir()
    Path("sub/b.py").write_text(CERTAIN)
    Path("link.py").symlink_to("a.py")
    status, out, _ = run("a.py", "sub", "./sub/b.py", "link.py", ".", a=CERTAIN, c=CLEAN)
    assert status == 0
    assert [line for line in out.splitlines() if line.endswith(".py")] == ["a.py", "sub/b.py"]
    assert "3 files read, 2 clips found: 2 rewritten" in out


def test_a_flagged_clip_has_status_1_and_the_lines_to_write(run: Run) -> None:
    status, out, _ = run(".", a=FLAGGED, b=CLEAN)
    assert status == 1
    assert "why: An optax transformation is part of an optimizer" in out
    assert "unified_clip.torch.GradientClipByGlobalNorm(0.5)" in out


def test_drop_in_has_other_lines_to_write(run: Run) -> None:
    _, out, _ = run("a.py", "--to", "drop-in", a=FLAGGED)
    assert 'unified_clip.ClipConfig(rule="global_norm", threshold=0.5, family="paddle").as_optax()' in out


def test_an_unreadable_file_has_status_1_and_other_files_are_ported(run: Run) -> None:
    status, out, _ = run(".", a=CERTAIN, b="# clip_grad_norm_\nprint 'x'\n")
    assert status == 1
    assert "b.py was not read: Line 2 is not valid in Python 3, and" in out
    assert "1 rewritten" in out


def test_git_applies_the_patch(run: Run) -> None:
    _, out, _ = run(".", "--format", "diff", a=CERTAIN, b=CERTAIN.rstrip("\n"), c=CLEAN)
    assert Path("a.py").read_text() == CERTAIN
    subprocess.run(["git", "apply", "-"], input=out, text=True, check=True)
    assert Path("a.py").read_text() == PORTED
    assert Path("b.py").read_text() == PORTED.rstrip("\n")


def test_a_patch_names_on_standard_error_how_many_clips_it_does_not_have(run: Run) -> None:
    broken = "import paddle\nlinear = paddle.nn.Linear(1, 1\uff0cbias_attr=clip_grad_norm_)\n"
    status, out, err = run(".", "--diff", a=CERTAIN, b=FLAGGED, c=broken)
    assert status == 1
    assert out.count("--- a/") == 1
    assert (
        "1 flagged, 0 left. 1 file was not read. The diff contains only the rewritten clips. To see flagged clips "
        "and unread files, omit" in err
    )
    _, out, _ = run("c.py")
    assert "c.py was not read: Line 2 is not valid Python: invalid character" in out
    _, _, err = run("a.py", "--diff")
    assert err == ""


def test_git_applies_the_patch_of_a_file_in_another_directory(run: Run, tmp_path: Path) -> None:
    elsewhere = tmp_path / "work"
    elsewhere.mkdir()
    _, out, _ = run("work/../a.py", "--diff", a=CERTAIN)
    assert out.startswith("--- a/a.py\n+++ b/a.py\n")


@pytest.mark.nightly
def test_a_closed_stdout_ends_the_command_without_an_error(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.py").write_text(CERTAIN * 4)
    command = f"{sys.executable} -P -m unified_clip port {tmp_path} --diff | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("--- a/")
    assert done.stderr == ""


def test_write_changes_committed_files(run: Run) -> None:
    Path("a.py").write_text(CERTAIN)
    commit()
    status, out, _ = run(".", "--write")
    assert status == 0
    assert Path("a.py").read_text() == PORTED
    assert "run the tests" in out


@pytest.mark.parametrize("options", [[], ["--format", "diff"], ["--check"]])
def test_force_needs_a_command_that_writes(run: Run, options: list[str]) -> None:
    status, _, err = run(".", "--force", *options, a=CERTAIN)
    assert status == 2
    assert "--force applies to --write only" in err


def test_write_changes_uncommitted_files_only_with_force(run: Run) -> None:
    status, out, err = run(".", "--write", a=CERTAIN)
    assert (status, out) == (2, "")
    assert "a.py is not in a git repository" in err
    assert Path("a.py").read_text() == CERTAIN
    assert run(".", "--write", "--force")[0] == 0
    assert Path("a.py").read_text() == PORTED


def test_write_with_nothing_to_change_needs_no_repository(run: Run) -> None:
    assert run(".", "--write", a=CLEAN)[0] == 0


def test_the_removed_option_report_names_what_to_do(run: Run) -> None:
    status, _, err = run(".", "--write", "--force", "--report", "out.json", a=CERTAIN)
    assert (status, Path("a.py").read_text()) == (2, CERTAIN)
    assert "--format json > port.json" in err


def test_json_is_the_report(run: Run) -> None:
    _, out, _ = run(".", "--json", a=CERTAIN)
    assert json.loads(out)["summary"]["rewritten"] == 1


def test_a_notebook_is_rejected_with_the_command_that_converts_it(run: Run) -> None:
    Path("a.ipynb").write_text('{"cells": [{"source": ["torch.nn.utils.clip_grad_norm_(p, 1.0)"]}]}')
    status, _, err = run("a.ipynb")
    assert (status, "jupyter nbconvert --to script" in err) == (2, True)


@pytest.mark.parametrize("name", ["clip.toml", "args.yaml", "requirements.txt", "grads.npz"])
def test_a_file_that_is_not_python_is_rejected(run: Run, name: str) -> None:
    Path(name).write_text("torch\n")
    status, _, err = run("a.py", name, a=CERTAIN)
    assert (status, f"{name}: this is not a Python file. Pass Python files" in err) == (2, True)


@pytest.mark.parametrize("name", ["a.py", "script"])
def test_a_file_that_python_cannot_parse_is_not_read_even_if_it_names_no_clip(run: Run, name: str) -> None:
    Path(name).write_text("x = = 1\n")
    status, out, _ = run(name)
    assert (status, f"{name} was not read: Line 1 is not valid Python" in out, "0 files read" in out) == (1, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Pass the files or directories to port"),
        (["nowhere"], "nowhere cannot be read: No such file or directory"),
        (["a.py", "nowhere", "--write", "--force"], "nowhere cannot be read: No such file or directory"),
        (["a.py", "--native"], "--native is removed. The new code calls unified_clip.torch, which clips by PyTorch's"),
    ],
)
def test_an_invalid_command_is_rejected(run: Run, arguments: list[str], message: str) -> None:
    status, _, err = run(*arguments, a=CERTAIN)
    assert status == 2
    assert message in err
    assert Path("a.py").read_text() == CERTAIN


def test_no_framework_is_imported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CERTAIN + FLAGGED)
    code = (
        "import sys\nfrom unified_clip import cli\n"
        f"cli.main(['port', {str(tmp_path)!r}])\n"
        "print({'torch', 'tensorflow', 'paddle', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


SUBCLASS = "import paddle\n\nclass ClipWithLog(paddle.nn.ClipGradByGlobalNorm):\n    pass\n"


@pytest.mark.parametrize(
    ("line", "package", "named"),
    [
        ("from pkg.clips import ClipWithLog", "", ["pkg/clips.py"]),
        ("import os, pkg.clips as c", "", ["pkg/clips.py"]),
        ("from pkg import (  # x\n    a, clips as c\n)", "", ["pkg/clips.py"]),
        ("import b", "", ["pkg/clips.py"]),
        ("from pkg import ClipWithLog", "from .clips import ClipWithLog", ["pkg/clips.py"]),
        ("from pkg import ClipWithLog", "from .clips import *", ["pkg/clips.py"]),
        ("from pkg import other", "from .clips import ClipWithLog\nfrom .other import other", []),
        ("import pkg", "from .clips import ClipWithLog", []),
    ],
)
def test_an_imported_file_that_was_not_passed_but_may_clip_is_named(
    run: Run, line: str, package: str, named: list[str]
) -> None:
    Path("pkg").mkdir()
    Path("pkg/__init__.py").write_text(package)
    Path("pkg/clips.py").write_text(SUBCLASS)
    status, out, _ = run("a.py", "--format", "json", a=f"{line}\n", b="from pkg import clips\n")
    report = json.loads(out)
    assert (status, [each["path"] for each in report["unread"]]) == (len(named), named)
    assert all("line 3" in each["reason"] for each in report["unread"])
    status, out, _ = run("a.py", "pkg", "--format", "json")
    assert (status, json.loads(out)["unread"]) == (1, [])


def test_an_imported_file_without_a_clip_is_not_named(run: Run) -> None:
    status, out, _ = run("a.py", a="import b, missing, torch\n", b=CLEAN)
    assert (status, out.splitlines()[-1]) == (0, "There is nothing to do.")
