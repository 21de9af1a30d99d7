"""Prose of pages, docstrings and messages: no long sentence, private word or heading that is a clause.

support/prose.py has the rules, and support/source_prose.py finds the prose in source files. Names of variables and
parameters have to be nouns of the things that they are.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from support import prose, source_prose, syntax

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "conformance/README.md", "examples/README.md")
PAGES = [
    *(ROOT / name for name in TOP),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def test_pages_read_well() -> None:
    assert len(PAGES) > 40
    habits = [(page, habit) for page in PAGES for habit in prose.habits(page.read_text(encoding="utf-8"))]
    assert [f"{page.relative_to(ROOT)}: {habit.text!r}: {habit.remedy}" for page, habit in habits] == []


def test_docstrings_messages_and_help_read_well() -> None:
    texts = list(source_prose.texts(ROOT, ROOT / "unified_clip"))
    assert {text.kind for text in texts} == {"docstring", "message"}
    habits = [(text.place, habit) for text in texts for habit in prose.habits(text.text, mentions_native=True)]
    assert [f"{place}: {habit.text!r}: {habit.remedy}" for place, habit in habits] == []


LONG = "One " + "word " * 35 + "more."


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (LONG, "37 words: write two sentences, or a list"),
        (f"| cell | {LONG} |", "37 words: write two sentences, or a list"),
        (f"- An item.\n- {LONG}", "37 words: write two sentences, or a list"),
        ("Tensors do not tell this.", "return, print, report, or show"),
        ("The norms are ours.", "unified_clip"),
        ("Pass the ranks, all of which call.", "a second sentence"),
        ("It returns gradients, as Paddle's does.", "the noun after the possessive"),
        ("## What is read", "name the thing or the task that people search for"),
        ("The natives differ.", "define native first, or write: the framework's function"),
        ("A; b; c; d.", "write sentences"),
        ("The norm is infinite; the clip makes it 0.", "a semicolon joins sentences: write two"),
    ],
)
def test_a_habit_is_reported(text: str, remedy: str) -> None:
    assert [habit.remedy for habit in prose.habits(text)] == [remedy]


@pytest.mark.parametrize(
    "text",
    [
        "One " + "word " * 33 + "more.",
        "```python\ntold = ours  # a; b; c; d\n```",
        "A list:\n\n    told ours refused\n",
        "Call `told(" + "a, " * 40 + ")`.",
        "## What is a threshold?",
        "*Native* means a framework's own function. The natives differ.",
        "| a; b; c | d; e; f |",
        "The norm is infinite (it is NaN; it has no value).",
    ],
)
def test_allowed_text(text: str) -> None:
    assert prose.habits(text) == []


SOURCE = '''"""It reads it; it is short."""

def check(value):
    """Return the norm.

    Args:
        value: What a tensor tells.

    Raises:
        ValueError: {long}

    Example:
        >>> told = "ours is told here"
    """
    if value:
        raise ValueError(f"The clip of {{value}} was refused by ours.")
    told = ["ours", "a told b", r"(?:told|ours) \\d of what"]
    parser.add_argument("--told", help="print what the run tells")
'''


def test_habits_in_source_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE.format(long=LONG), encoding="utf-8")
    habits = [
        (text.place, text.kind, habit.remedy)
        for text in source_prose.texts(tmp_path, tmp_path)
        for habit in prose.habits(text.text, mentions_native=True)
    ]
    assert sorted(habits) == [
        ("module.py:1", "docstring", "a semicolon joins sentences: write two"),
        ("module.py:16", "message", "reject, or raise"),
        ("module.py:16", "message", "unified_clip"),
        ("module.py:18", "message", "return, print, report, or show"),
        ("module.py:4", "docstring", "37 words: write two sentences, or a list"),
        ("module.py:4", "docstring", "return, print, report, or show"),
    ]


EMPTY_NAMES = {"found", "wanted", "told", "said", "stated", "held", "ours", "theirs"}
"""Names of variables and parameters that do not show what the value is."""


def empty_names(path: Path) -> list[str]:
    """Return the places of `EMPTY_NAMES` in a file, except fields of classes, which may be keys of reports."""
    if not re.search(rf"\b(?:{'|'.join(EMPTY_NAMES)})\b", path.read_text(encoding="utf-8")):
        return []  # most files, without the time to parse them
    nodes = syntax.nodes(path)
    fields = {
        id(statement.target)
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    names = [
        (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for node in nodes
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        if id(node) not in fields
    ]
    return [f"{path}:{line}: {name}" for line, name in names if name in EMPTY_NAMES]


FOLDERS = ["unified_clip", "tests", "tools", "benchmarks", "examples"]


def python_files(folder: str) -> list[Path]:
    files = [path for path in (ROOT / folder).rglob("*.py") if ROOT / "tests" / "data" not in path.parents]
    assert files
    return files


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_of_variables_and_parameters_are_nouns(folder: str) -> None:
    files = python_files(folder)
    names = [name for path in files for name in empty_names(path)]
    assert names == [], "Name the thing: norms, gradients, result, expected, report, options, ..."


def test_empty_names_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "found = 1\ndef check(wanted, *, expected):\n    return [told for told in expected]\n"
        "class Report:\n    ours: float\n    def add(self, found): self.found = found\n",
        encoding="utf-8",
    )
    assert sorted(empty_names(path)) == [f"{path}:{line}" for line in ("1: found", "2: wanted", "3: told", "6: found")]


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
    assert len(docstrings) > 100
    assert [(place, entries) for place, text in docstrings if (entries := entries_without_a_name(text))] == []


def test_an_entry_of_arguments_without_a_name_is_reported() -> None:
    wrong = (
        "Clip.\n\n    Args:\n        grads: Gradients. They are\n        copied.\n\n    Example:\n        >>> 1\n    "
    )
    assert entries_without_a_name(wrong) == ["copied."]
