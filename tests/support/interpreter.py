"""Make Triton's interpreter several times faster for kernels that call functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a launch prepare each module of kernels once. The interpreter does it again at each call of a function."""
    from triton.runtime import interpreter

    prepare: Callable[[Any], Any] = interpreter._patch_lang
    launch: Callable[..., None] = interpreter.GridExecutor.__call__
    modules: set[int] = set()

    def prepare_once(function: Any) -> Any:
        is_new = id(function.__globals__) not in modules
        modules.add(id(function.__globals__))
        return prepare(function) if is_new else None

    def launch_prepared(*args: Any, **kwargs: Any) -> None:
        modules.clear()
        launch(*args, **kwargs)

    monkeypatch.setattr(interpreter, "_patch_lang", prepare_once)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_prepared)
