"""Load a function of the user, and check the types of its results."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
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
    "gradients": "the clipped gradients, and no norm",
    "list": "(clipped gradients, norm)",
    "in place": "the norm",
    "measure": "the norm",
    "each": "the clipped gradient",
}
"""What a user's function must return, for each `PublicCall.style`. "gradients" is for functions that return no norm."""


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
                raise UserFunctionError(
                    f"{self.text} replaced items of its first argument, but this does not change the gradients "
                    f"of the caller. For each item, {example}. {self._or_gradients()}"
                )
            return self._checked(returned, invocation)

        return clip

    def _checked(self, returned: Any, invocation: Invocation) -> Any:
        style, call = invocation.call.style, invocation.call
        if self.returns == "gradients":
            return self._gradients(returned, invocation)
        if style == "list":
            if not isinstance(returned, tuple) or len(returned) != 2 or returned[1] is None:
                role = " whose norm is None" if _is_pair(returned) else ""
                advice = self._or_in_place() if returned is None else self._or_gradients()
                raise self._wrong(returned, FORMS[style], role, advice)
            clipped, norm = returned
            self._check_tensors(list(leaves(clipped)), invocation)
            return _in_order(clipped, invocation.container), self._norm(norm, invocation)
        if style == "each":
            self._check_tensors([returned], invocation)
            return returned
        if style == "in place" and isinstance(returned, list | tuple | dict):
            if _has_norm(returned):
                raise self._both(invocation)
            norm = FORMS[style] if call.returns_norm else "None"
            expected = f"{norm}, and write the clipped values into the gradients, as {self._public_name} does"
            raise self._wrong(returned, expected, "", self._or_gradients())
        if not call.returns_norm:
            return None
        if self.returns == "nothing":
            if returned is not None:
                remedy = f"Remove {self._public_name} from {self._table}, so that the norm is compared"
                raise UserFunctionError(f"{self.text} returned a norm. {remedy}")
            return None
        if returned is None:
            setting = f'{self._public_name} = "nothing" under {self._table}'
            advice = (
                f"Or, if your function clips in place and returns nothing, write {setting}"
                if style == "in place"
                else ""
            )
            raise self._wrong(returned, FORMS[style], "", advice)
        return self._norm(returned, invocation)

    def _gradients(self, returned: Any, invocation: Invocation) -> Any:
        if _has_norm(returned):
            raise self._both(invocation)
        if _is_pair(returned):
            returned, _ = returned
        self._check_tensors(list(leaves(returned)), invocation)
        return _in_order(returned, invocation.container)

    def _both(self, invocation: Invocation) -> UserFunctionError:
        name, table = self._public_name, self._table
        if invocation.call.style == "list":
            return UserFunctionError(
                f"{self.text} also returned a norm. Remove {name} from {table}, or return {FORMS['gradients']}"
            )
        remedy = (
            "Write a function that calls yours and returns only the clipped gradients. List the new function in place "
            f'of yours, and write {name} = "gradients" under {table}'
        )
        if name == "clip_grad_norm_":
            remedy += ". Or list your function under clip_by_global_norm, whose rule has no eps"
            remedy += (
                ". To compare the norm, too, write the adapter of docs/own-functions.md#functions-that-return-no-norm"
            )
        return UserFunctionError(
            f"{self.text} returned (clipped gradients, norm), but {name} must not return this tuple. {remedy}"
        )

    def _or_gradients(self) -> str:
        return f'Or, if your function returns no norm, write {self._public_name} = "gradients" under {self._table}'

    def _or_in_place(self) -> str:
        table = self._table.replace("returns", "functions")
        setting = f'clip_grad_norm_ = "nothing" under {self._table}'
        return (
            f"Or, if your function clips in place, list it under {table} as clip_grad_norm_, and write {setting}. Your "
            "function must then also add 1e-6 to the norm, as clip_grad_norm_ does"
        )

    @property
    def _public_name(self) -> str:
        return self.place.partition(".")[2]

    @property
    def _table(self) -> str:
        return f"[frameworks.{self.place.partition('.')[0]}.returns]"

    def _items(self, gradients: Any, invocation: Invocation) -> list[Any]:
        is_written = invocation.call.style == "in place" and self.returns != "gradients" and invocation.adapter.writes
        return list(leaves(gradients)) if is_written and isinstance(gradients, list | dict) else []

    def _check_tensors(self, tensors: Sequence[Any], invocation: Invocation) -> None:
        framework = adapter_of(type(invocation.adapter.make(encode(np.ones(1), "float32"))))
        for tensor in tensors:
            if tensor is not None and adapter_of(type(tensor)) != framework:
                raise self._wrong(tensor, f"each clipped gradient as a tensor of {framework}", " as a clipped gradient")

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

    def _wrong(self, value: Any, expected: str, role: str = "", more: str = "") -> UserFunctionError:
        kind = type(value).__name__ if type(value).__module__ == "builtins" else _qualified(type(value))
        kind = f"a {kind} of {len(value)}" if isinstance(value, tuple | list | dict) else kind
        kind = "None" if value is None else kind
        return UserFunctionError(f"{self.text} returned {kind}{role}. Return {expected}{more and f'. {more}'}")


def _lacking(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of optional arguments that a function does not accept."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some functions in C have no signature
        return []
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [] if takes_all else [name for name in arguments if name not in parameters]


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], list | tuple | dict)


def _has_norm(returned: Any) -> bool:
    return _is_pair(returned) and returned[1] is not None


def _in_order(clipped: Any, container: Any) -> Any:
    """Some functions sort dicts by key, so restore the key order of the container."""
    if isinstance(clipped, dict) and isinstance(container, dict) and clipped.keys() == container.keys():
        return {key: clipped[key] for key in container}
    return clipped


def _qualified(kind: type) -> str:
    module, *_ = kind.__module__.split("#")  # as `load_function` names the module of the user's file
    return f"{module}.{kind.__name__}"


@cache
def _load(file: Path, name: str, text: str) -> Callable[..., Any]:
    try:
        function = load_function(file, name)
    except ModuleNotFoundError as error:
        remedy = (
            f"Install the package for {sys.executable}, add the directory of the package to PYTHONPATH, or "
            "correct the import"
        )
        problem = f"the file cannot be imported: {with_line(error, file)}"
        raise UserFunctionError(f"{text}: {problem}. {remedy}") from None
    except UnreadableError as error:
        raise UserFunctionError(f"{text}: {error}") from None
    if isinstance(function, type):
        remedy = "Write a function that calls the class, as docs/own-functions.md#functions-with-other-signatures shows"
        raise UserFunctionError(f"{text} is a class, not a function. {remedy}")
    if not callable(function):
        raise UserFunctionError(
            f"{text} is of type {type(function).__name__}, not a function. Write the name of a function"
        )
    return function
