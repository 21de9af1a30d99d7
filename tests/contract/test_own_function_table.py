"""docs/own-functions.md: the framework's function that a user's function replaces, and how functions clip in place."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.kits import KITS, Kit
from support.tiers import where

from unified_clip.parity.adapters.base import Adapter, Invocation
from unified_clip.parity.suite.call_form import CallForm
from unified_clip.parity.suite.own_functions import REPLACEABLE
from unified_clip.parity.suite.public_calls import CALLS
from unified_clip.tensors.types import encode

PAGE = (Path(__file__).parents[2] / "docs" / "own-functions.md").read_text(encoding="utf-8")
TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "paddle": "Paddle", "jax": "JAX", "numpy": "NumPy"}
pytestmark = where(lambda kit: kit.exact and type(kit) is KITS[kit.name] and kit.name in TITLES)
NUMBERS = {"clip_value_min": -1.0, "total_norm": 5.0}


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    made: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").FrameworkAdapter()
    return made


def native(adapter: Adapter, name: str) -> str:
    """Return the name of the framework's function that runs for a public name, or ''."""
    arguments = {key: NUMBERS.get(key, 1.0) for key in CALLS[name].required}
    tensor = adapter.make(encode(np.array([3.0, 4.0]), "float32"))
    invocation = Invocation(adapter, CALLS[name], CallForm(), arguments, [tensor])
    if adapter.has_native(invocation):
        adapter.native(invocation)
    return invocation.native


def test_the_page_has_the_function_that_one_of_the_user_replaces(adapter: Adapter, kit: Kit) -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| (name in .*|`\w+`) \|", line)]
    header, *lines = [row for row in rows if not row[1].startswith(("`f(", "how the suite calls"))]
    assert [line[0].strip("`") for line in lines] == list(REPLACEABLE)
    if kit.name == "numpy":
        assert not any(native(adapter, name) for name in REPLACEABLE)
        return
    column = header.index(TITLES[kit.name])
    table = {line[0].strip("`"): line[column].strip("`").replace("none", "") for line in lines}
    in_release = {name: "" if kit.lacks(function) else function for name, function in table.items()}
    assert in_release == {name: native(adapter, name) for name in REPLACEABLE}


def test_the_page_has_how_functions_clip_in_place(adapter: Adapter, kit: Kit) -> None:
    (row,) = [
        line for line in PAGE.splitlines() if re.match(rf"\| [\w, ]*\b{TITLES[kit.name]}\b[\w, ]* \| a list of", line)
    ]
    how = (
        "write into each array"
        if kit.name == "numpy"
        else "change each `.grad`"
        if adapter.writes
        else "replace the items"
    )
    assert how in row


@where(lambda kit: kit.name == "paddle")
def test_a_class_of_paddle_is_called_by_the_function_of_the_page(
    kit: Kit, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(from ourclip import OurClip.*?)```", PAGE, re.DOTALL)
    module = SimpleNamespace(OurClip=importlib.import_module("paddle").nn.ClipGradByGlobalNorm)
    monkeypatch.setitem(sys.modules, "ourclip", module)
    scope: dict[str, Any] = {}
    exec(code, scope)
    gradient = adapter.make(encode(np.array([3.0, 4.0]), "float32"))
    (clipped,) = scope["clip_by_global_norm"]([gradient], 2.5)
    assert [adapter.read(each).values().tolist() for each in (gradient, clipped)] == [[3.0, 4.0], [1.5, 2.0]]
