"""Load a function of the user, and check the types of its results."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._dispatch import adapter_of
from ..._kit.display import describe_exception, enumeration
from ...tensors.files.convert_worker import load_function, with_line
from ...tensors.types import Dense, UnreadableError, densify, encode
from ..adapters.base import Invocation
from ..suite.call_form import leaves

FORMS = {
    "list": "(clipped gradients, norm)",
    "in place": "the norm",
    "measure": "the norm",
    "each": "the clipped gradient",
}
"""What a user's function must return, for each `PublicCall.style`, if the suite declares nothing else."""

SEE_ADAPTER = ", or list an adapter: docs/own-functions.md#functions-with-other-signatures"


class UserFunctionError(Exception):
    """A function of the user cannot be loaded, or returned a result of the wrong type."""


class UserFunction(NamedTuple):
    text: str
    """The name of the function in the suite and in reports: FILE.py:FUNCTION."""

    file: Path
    name: str
    place: str = ""
    """The framework and unified_clip's function, as in "numpy.clip_by_global_norm"."""

    returns: str = ""
    """The value for this function in the suite's table `returns`. The text is empty if the function returns the same
    kind of result as the public function."""

    def bound_to(self, invocation: Invocation) -> Callable[..., Any]:
        """Required arguments are passed to the user's function by position."""
        function = _load(self.file, self.name, self.text)
        marks = invocation.adapter.marks_parameters

        def clip(gradients: Any, **arguments: Any) -> Any:
            positional = [arguments.pop(key) for key in invocation.call.required]
            items = self._items(gradients, invocation)
            try:
                returned = function(gradients, *positional, **arguments)
            except Exception as error:
                if isinstance(error, TypeError) and (lacking := _lacking(function, arguments)):
                    names = enumeration(lacking)
                    remedy = (
                        f"Delete the suite's calls of {self._public_name} with {names}, or add {names} to the function"
                    )
                    raise TypeError(f"{error}. {remedy}") from None
                raise
            except BaseException as error:
                remedy = "Return a result, or raise an error of another class"
                raise UserFunctionError(f"{self.text} ended with {describe_exception(error)}. {remedy}") from None
            if any(new is not old for new, old in zip(self._items(gradients, invocation), items, strict=False)):
                example = "set parameter.grad = clipped" if marks else "write gradient[...] = clipped"
                problem = f"{self.text} replaced items of its first argument, which changes no gradient of the caller"
                raise UserFunctionError(f"{problem}. For each item, {example}{self._or_declare(invocation)}")
            return self._checked(returned, invocation)

        return clip

    def _checked(self, returned: Any, invocation: Invocation) -> Any:
        call, is_pair = invocation.call, isinstance(returned, tuple) and len(returned) == 2
        clipped, norm = returned if is_pair else (returned, None)
        if self.returns == "gradients":
            if not isinstance(clipped, list | tuple | dict):
                clipped, norm = returned, None  # two gradients
            if norm is not None or clipped is None:
                remove = f", or remove {self._public_name} from {self._table}" if call.style == "list" else SEE_ADAPTER
                raise self._wrong(returned, f"the clipped gradients, and no norm{remove}")
            return self._gradients(clipped, invocation)
        if self.returns == "nothing":
            if returned is not None:
                raise self._wrong(returned, f"nothing, or remove {self._public_name} from {self._table}")
        elif call.style == "list":
            if norm is None:
                raise self._wrong(returned, FORMS["list"] + self._or_declare(invocation))
            return self._gradients(clipped, invocation), self._norm(norm, invocation)
        elif call.style == "each":
            return self._gradients(returned, invocation)
        elif isinstance(returned, list | tuple | dict) or (returned is None and call.returns_norm):
            expected = FORMS[call.style] if call.returns_norm else "None"
            expected += ", and clip the gradients in place" if call.in_place else ""
            raise self._wrong(returned, expected + (SEE_ADAPTER if norm is not None else self._or_declare(invocation)))
        elif call.returns_norm:
            return self._norm(returned, invocation)
        return None

    def _or_declare(self, invocation: Invocation) -> str:
        """Return how to declare that the function returns no norm."""
        if invocation.call.style not in ("list", "in place"):
            return ""
        may_be_nothing = invocation.call.style == "in place" and invocation.call.returns_norm
        forms = '"gradients" or "nothing"' if may_be_nothing else '"gradients"'
        return f". Or, if it returns no norm, write {self._public_name} = {forms} under {self._table}"

    @property
    def _public_name(self) -> str:
        return self.place.partition(".")[2]

    @property
    def _table(self) -> str:
        return f"[frameworks.{self.place.partition('.')[0]}.returns]"

    def _items(self, gradients: Any, invocation: Invocation) -> list[Any]:
        is_written = invocation.call.style == "in place" and self.returns != "gradients" and invocation.adapter.writes
        return list(leaves(gradients)) if is_written and isinstance(gradients, list | dict) else []

    def _gradients(self, clipped: Any, invocation: Invocation) -> Any:
        framework = adapter_of(type(invocation.adapter.make(encode(np.ones(1), "float32"))))
        for tensor in leaves(clipped) if invocation.call.style != "each" else [clipped]:
            if tensor is not None and adapter_of(type(tensor)) != framework:
                raise self._wrong(tensor, f"each clipped gradient as a tensor of {framework}", " as a clipped gradient")
        container = invocation.container
        if isinstance(clipped, dict) and isinstance(container, dict) and clipped.keys() == container.keys():
            return {key: clipped[key] for key in container}  # some functions sort dicts by key
        return clipped

    def _norm(self, norm: Any, invocation: Invocation) -> Any:
        dense: Dense | None
        is_number = isinstance(norm, int | float | np.generic | np.ndarray) and not isinstance(norm, bool)
        if is_number:
            dense = encode(np.asarray(norm, np.float64), "float64")
        elif adapter_of(type(norm)) is None:
            raise self._wrong(norm, "the norm as a number or a tensor", " as the norm")
        else:
            dense = densify(invocation.adapter.read(norm))
        if dense is None or dense.array.size != 1:
            count = 0 if dense is None else dense.array.size
            raise self._wrong(norm, "a norm with one element", f" with {count} elements as the norm")
        return dense if is_number else norm

    def _wrong(self, value: Any, expected: str, role: str = "") -> UserFunctionError:
        module, *_ = type(value).__module__.split("#")  # as `load_function` names the module of the user's file
        kind = type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"
        kind = f"a {kind} of {len(value)}" if isinstance(value, tuple | list | dict) else kind
        return UserFunctionError(f"{self.text} returned {'None' if value is None else kind}{role}. Return {expected}")


def _lacking(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of optional arguments that a function does not accept."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some functions in C have no signature
        return []
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [] if takes_all else [name for name in arguments if name not in parameters]


@cache
def _load(file: Path, name: str, text: str) -> Callable[..., Any]:
    try:
        function = load_function(file, name)
    except ModuleNotFoundError as error:
        problem = f"the file cannot be imported: {with_line(error, file)}"
        remedy = f"Install the package for {sys.executable}, or set PYTHONPATH"
        raise UserFunctionError(f"{text}: {problem}. {remedy}") from None
    except UnreadableError as error:
        raise UserFunctionError(f"{text}: {error}") from None
    if isinstance(function, type) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"of type {type(function).__name__}"
        remedy = "Name a function, as docs/own-functions.md#functions-with-other-signatures shows"
        raise UserFunctionError(f"{text} is {kind}, not a function. {remedy}")
    return function
