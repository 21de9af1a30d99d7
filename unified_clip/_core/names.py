"""Names of gradients: keys, attributes and list indices, joined by dots, such as `layers.0.w`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from ..recorder.lines import canonical

Namer = Callable[[Any], str | None]
"""Takes a `Leaf`."""


def join(path: str | None, key: Any) -> str:
    return str(key) if path is None else f"{path}.{key}"


def matches(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(canonical(name), pattern)


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """The pattern `*.bias` also matches the name `bias`. A pattern may contain the prefixes of wrappers."""
    if not patterns:
        return lambda name: False
    at_top = [pattern.removeprefix("*.") for pattern in patterns if pattern.startswith("*.")]
    compiled = re.compile("|".join(map(fnmatch.translate, [*patterns, *at_top])))
    return lambda name: bool(compiled.match(name) or compiled.match(canonical(name)))


def as_mapping(names: Any) -> Any:
    if isinstance(names, Iterator):
        names = list(names)
    if isinstance(names, (list, tuple)) and names:
        are_tuples = (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in names)
        return dict(names) if all(are_tuples) else names
    return names


def with_parameters(names: Any) -> Any:
    """Return the dict of a model's parameters. Return `names` itself if it is not a model."""
    names = as_mapping(names)
    return dict(names.named_parameters()) if callable(getattr(names, "named_parameters", None)) else names


def names_in(names: Any) -> list[str]:
    return [] if isinstance(names, FunctionType) else list(with_parameters(names) or ())


def make_namer(names: Any) -> Namer:
    """Pass the `names` of `record`, or a function that returns the name of a `Leaf`."""
    names = with_parameters(names)
    if names is None:
        return lambda leaf: leaf.name
    if isinstance(names, FunctionType):  # an integration passes such a function
        return names
    if not isinstance(names, (list, tuple, Mapping)):
        raise TypeError(
            f"names= has the type {type(names).__name__}. Pass a list of names, a dict of name to parameter, or a "
            "model with named_parameters()."
        )
    _check_names(list(names))
    if isinstance(names, Mapping):
        return ByParameter(names)
    return lambda leaf: names[leaf.position] if leaf.position < len(names) else None


class ByParameter:
    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names  # keeps the parameters alive, so that their ids stay unique
        self._by_id = {id(parameter): name for name, parameter in names.items()}

    def __call__(self, leaf: Any) -> str | None:
        name: str | None = self._by_id.get(id(leaf.parameter), leaf.name)
        return name


def _check_names(names: Sequence[Any]) -> None:
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"position {position} of names= has the type {type(name).__name__}. Pass strings.")
        if name in names[:position]:
            raise ValueError(
                f"position {position} of names= repeats the name {name!r}. Give each gradient its own name."
            )
