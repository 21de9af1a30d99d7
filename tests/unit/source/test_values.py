"""The values of expressions: each folder of tests/data/source/values is a project.

A line such as `show(x)  # value 1.0: constant at a.py:3` expects a value and how it was found. A line such as
`show(x)  # unknown: ...` expects a sentence.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from unified_clip.source.project import Project
from unified_clip.source.values import Origin, Value, value_of

DATA = Path(__file__).parents[2] / "data" / "source" / "values"
EXPECTED = re.compile(r"# (value \S+|unknown): (.*)")
FOLDERS = sorted(path.name for path in DATA.iterdir())


def how(value: Value) -> str:
    return value.why_unknown or ", ".join(dict.fromkeys(map(text, value.origins))) or "constant"


def text(origin: Origin) -> str:
    assert origin.module.path is not None
    place = f"at {origin.module.path.name}:{origin.line}"
    kinds = {"caller": f"only caller {place}", "constant": f"constant {place}"}
    return kinds.get(origin.kind, f"default of {origin.kind} {origin.name}")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_value_is_found_or_a_sentence_says_why_not(folder: str) -> None:
    files = sorted((DATA / folder).glob("*.py"))
    project = Project(files)
    found, expected = [], []
    for module, call in [(each, call) for each in map(project.module, files) for call in each.calls]:
        if isinstance(call.func, ast.Name) and call.func.id == "show":
            value = value_of(project, module, call.args[0])
            kind = "unknown" if value.why_unknown else f"value {value.value!r}"
            found.append((call.lineno, kind, how(value)))
            match = EXPECTED.search(module.text.line(call.lineno))
            assert match is not None
            expected.append((call.lineno, match[1], match[2]))
    assert found == expected
