"""Docstrings describe parameters that exist."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from support import source_prose, syntax

ROOT = Path(__file__).parents[2]
FOLDERS = ["unified_clip", "tests", "tools", "benchmarks", "examples"]


def python_files(folder: str) -> list[Path]:
    files = [path for path in (ROOT / folder).rglob("*.py") if ROOT / "tests" / "data" not in path.parents]
    assert files
    return files


PARAMETER = re.compile(r"(?:^|\n|\. )\s*([a-z_][a-z_0-9]*): [A-Z]")
"""A description of a parameter in a docstring, such as "path: The file."."""


def described_parameters(path: Path) -> list[str]:
    missing = []
    for node in syntax.nodes(path):
        if isinstance(node, ast.FunctionDef):
            parameters = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            summary, _, rest = (ast.get_docstring(node) or "").partition("\n")
            results = set(re.findall(r"\w+", summary))  # as in: Return (changes, problem)
            described = [name for name in PARAMETER.findall(rest) if name not in parameters | results]
            missing += [f"{path}:{node.lineno}: {name}" for name in described]
    return missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_describe_parameters_that_exist(folder: str) -> None:
    assert [place for path in python_files(folder) for place in described_parameters(path)] == []


def test_a_description_of_a_missing_parameter_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'def load(file):\n    """Load.\n\n    file: A file. path: The former name.\n    """\n', encoding="utf-8"
    )
    assert described_parameters(path) == [f"{path}:1: path"]


def entries_without_a_name(docstring: str) -> list[str]:
    """Return the lines of the section "Args" that begin an entry without "name: ". The site rejects such lines."""
    section = re.search(r"^Args:\n((?:(?: .*)?\n)*)", f"{inspect.cleandoc(docstring)}\n", re.MULTILINE)
    entries = re.findall(r"^ {4}(\S.*)$", section[1], re.MULTILINE) if section is not None else []
    return [entry for entry in entries if re.match(r"[\w*]+(, [\w*]+)*: ", entry) is None]


def test_each_entry_of_arguments_begins_with_a_name() -> None:
    docstrings = [
        (f"{path}:{line}", text)
        for path in sorted((ROOT / "unified_clip").rglob("*.py"))
        for line, text, kind in source_prose.strings(syntax.parse(path))
        if kind == "docstring" and "Args:" in text
    ]
    assert len(docstrings) > 60
    assert [(place, entries) for place, text in docstrings if (entries := entries_without_a_name(text))] == []


def test_an_entry_of_arguments_without_a_name_is_reported() -> None:
    wrong = (
        "Clip.\n\n    Args:\n        grads: Gradients. They are\n        copied.\n\n    Example:\n        >>> 1\n    "
    )
    assert entries_without_a_name(wrong) == ["copied."]
