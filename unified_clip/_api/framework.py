"""Bind the functions of `_api` to a framework: each public module, such as `unified_clip.torch`, has a `Framework`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .._core import entry
from .._core.backend import Backend

Number = TypeVar("Number")
"""The type of a threshold: float, or a tensor of the framework."""
Norm = TypeVar("Norm")
P = ParamSpec("P")
R = TypeVar("R")

Resolve = Callable[[Any], tuple[Backend, Any]]
"""Returns the backend of an argument, and the argument, with copies of the iterators that it read."""


class Framework(Generic[Number, Norm]):
    def __init__(self, module: str, resolve: Resolve) -> None:
        self.module = module
        self.resolve = resolve

    @classmethod
    def of(cls, module: str, backend: Backend) -> Framework[Number, Norm]:
        return cls(module, lambda argument: (backend, argument))

    def bind(self, body: Callable[Concatenate[Framework[Number, Norm], P], R]) -> Callable[P, R]:
        @functools.wraps(body)
        def public(*args: P.args, **kwargs: P.kwargs) -> R:
            return entry.run(body, self, *args, **kwargs)

        signature = inspect.signature(body)
        first, *parameters = signature.parameters.values()
        public.__module__ = self.module
        public.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        public.__annotations__ = {name: kind for name, kind in body.__annotations__.items() if name != first.name}
        return public
