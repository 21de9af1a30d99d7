"""The folder `recorder` runs alone, in old environments."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import syntax

from unified_clip import recorder
from unified_clip.recorder import PYTHON, is_old_environment

FOLDER = Path(recorder.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))

FRAMEWORK = {
    "pytorch": "torch",
    "pytorch_names": "torch",
    "tensorflow1": "tensorflow",
    "tensorflow1_graphs": "tensorflow",
    "fluid": "paddle",
    "paddle2": "paddle",
}
STANDARD = {*sys.stdlib_module_names, "__future__"}


def _imported(file: Path) -> set[str]:
    nodes = [node for node in syntax.nodes(file) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += ["." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name if name.startswith(".") else name.partition(".")[0] for name in names}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_has_the_syntax_of_python_3_7(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_imports_only_the_standard_library_numpy_and_its_framework(file: Path) -> None:
    allowed = STANDARD | {"numpy", FRAMEWORK.get(file.stem, "numpy")}
    assert {name for name in _imported(file) if not name.startswith(".")} <= allowed
    assert not [name for name in _imported(file) if name.startswith("..")]


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:], sys.path[0])", encoding="utf-8")
    return Path(shutil.copytree(FOLDER, tmp_path / "elsewhere" / "recorder"))


def _run(alone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(alone), *arguments]
    return subprocess.run(command, cwd=alone.parents[1], capture_output=True, text=True, timeout=60)


def test_a_script_gets_its_own_arguments_and_folder(alone: Path) -> None:
    ended = _run(alone, "run.jsonl", "train.py", "--epochs", "1")
    assert ended.returncode == 0
    assert "run.jsonl: nothing was recorded" in ended.stderr
    assert ended.stdout.split() == ["['--epochs',", "'1']", str(alone.parents[1])]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "usage: "),
        (("run.jsonl",), "usage: "),
        (("run.jsonl", "other.py"), "other.py is no file"),
        (("train.py", "train.py"), "train.py exists"),
        (("none/run.jsonl", "train.py"), "none is no directory"),
    ],
)
def test_wrong_arguments_run_nothing(alone: Path, arguments: tuple[str, ...], problem: str) -> None:
    ended = _run(alone, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert problem in ended.stderr
    assert "train.py --epochs 1" in ended.stderr


@pytest.mark.parametrize(
    ("version", "framework", "is_old"),
    [
        ("1.13.1+cu117", "torch", True),
        ("2.4.0", "torch", False),
        ("1.15.5", "tensorflow", True),
        ("2.9.0", "tensorflow", False),
        ("1.8.5", "paddle", True),
    ],
)
def test_an_old_framework_is_recorded_by_the_folder_alone(
    monkeypatch: pytest.MonkeyPatch, version: str, framework: str, is_old: bool
) -> None:
    module = type(sys)(framework)
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, framework, module)
    assert is_old_environment(framework) is is_old


def test_an_old_python_is_recorded_by_the_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_old_environment("json")
    monkeypatch.setattr(sys, "version_info", (PYTHON[0], PYTHON[1] - 1, 0))
    assert is_old_environment("json")
