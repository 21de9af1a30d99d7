"""Bind the functions of `_api` to a framework: each public module, such as `unified_clip.torch`, has a `Framework`."""

from __future__ import annotations

import functools
import inspect
import typing
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
"""Returns the backend of an argument, and the argument, or a new iterator in place of an iterator that it read."""


class Framework(Generic[Number, Norm]):
    """`Framework[float | torch.Tensor, torch.Tensor](__name__, resolve)` binds functions for a module of PyTorch."""

    def __init__(self, module: str, resolve: Resolve) -> None:
        self.module = module
        self.resolve = resolve

    def bind(self, body: Callable[Concatenate[Framework[Number, Norm], P], R]) -> Callable[P, R]:
        @functools.wraps(body)
        def public(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return entry.run(body, self, *args, **kwargs)
            except TypeError:
                _check_arguments(public, args, kwargs)  # Python's own message would count `framework`
                raise

        del public.__wrapped__  # compilers would unwrap it, and call the body
        first, *parameters = inspect.signature(body).parameters.values()
        variables: tuple[Any, ...] = Framework.__parameters__  # type: ignore[attr-defined]
        types = dict(zip(variables, typing.get_args(getattr(self, "__orig_class__", None)), strict=False))
        kinds = {name: _substituted(kind, types) for name, kind in typing.get_type_hints(body).items()}
        del kinds[first.name]
        described = [each.replace(annotation=kinds[each.name]) for each in parameters]
        public.__module__, public.__annotations__ = self.module, kinds
        public.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            described, return_annotation=kinds["return"]
        )
        return public


def to_backend(backend: Backend) -> Resolve:
    return lambda argument: (backend, argument)


def _check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None


def _substituted(kind: Any, types: dict[Any, Any]) -> Any:
    """Replace type variables in an annotation."""
    if kind in types:
        return types[kind]
    variables = getattr(kind, "__parameters__", ())
    return kind[tuple(types.get(each, Any) for each in variables)] if variables and types else kind
