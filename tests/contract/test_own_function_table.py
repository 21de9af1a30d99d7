"""docs/own-functions.md: how functions clip in place, and a function that calls a class of Paddle."""

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

from unified_clip.parity.adapters.base import Adapter
from unified_clip.tensors.types import encode

PAGE = (Path(__file__).parents[2] / "docs" / "own-functions.md").read_text(encoding="utf-8")
TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "paddle": "Paddle", "jax": "JAX", "numpy": "NumPy"}
pytestmark = where(lambda kit: kit.exact and type(kit) is KITS[kit.name] and kit.name in TITLES)


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    made: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").FrameworkAdapter()
    return made


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
