"""What differs between releases of a framework stands in its `releases.py`."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

import unified_clip
from unified_clip.recorder import OLDEST

PACKAGE = Path(unified_clip.__file__).parent
MODULES = sorted(PACKAGE.rglob("*releases.py"))
TITLES = {"NumPy": "numpy", "PyTorch": "torch", "TensorFlow": "tensorflow", "Paddle": "paddle", "JAX": "jax"}
UNTIL = re.compile(rf"until ({'|'.join(TITLES)}) (\d+(?:\.\d+)+)")

MODULES_OF = {"torch": "torch", "jax": "jax", "tf": "tensorflow", "paddle": "paddle", "np": "numpy"}
ASKS = re.compile(
    rf"\b(?:hasattr|getattr|signature)\((?:{'|'.join(MODULES_OF)})\b[\w.]*, *\"[a-z]|\b(?:{'|'.join(MODULES_OF)})"
    r"(?:\.\w+)*\.__version(?:_info)?__|signature\((?:torch|jax|tf|paddle|np)\."
)
MAY_ASK = {"__init__.py", "numpy.py", "releases.py", "keras_releases.py"}
"""A backend's `__init__.py` passes the version to `check_release`."""


def comments(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [each.string for each in tokenize.tokenize(file.readline) if each.type == tokenize.COMMENT]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_line_names_a_release_above_the_oldest(path: Path) -> None:
    found = [match for comment in comments(path) if (match := UNTIL.search(comment))]
    assert found
    old = [match[0] for match in found if numbers(match[2]) <= numbers(OLDEST[TITLES[match[1]]])]
    assert old == []


def test_no_other_module_asks_for_a_release() -> None:
    asking = {
        f"{path.relative_to(PACKAGE)}:{number}"
        for folder in ("_backends", "_compute", "_core", "_api", "_distributed", "integrations")
        for path in (PACKAGE / folder).rglob("*.py")
        if path.name not in MAY_ASK
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ASKS.search(line)
    }
    assert asking == set()
