"""Flatten and rebuild lists, tuples, iterators and dicts of tensors."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from . import names
from .backend import Backend
from .types import Leaf, Write, with_article

framework_of: Callable[[type], str | None] = dict[type, str]().get
"""`_dispatch` sets this function, which returns the name of a type's framework, or None for other types."""

Rebuild = Callable[[Iterator[Any]], Any]


class Tree(NamedTuple):
    leaves: list[Leaf]
    rebuild: Callable[[list[Any]], Any]
    used_up: bool = False
    """Whether the container is an iterator that has no items left."""


def flatten(backend: Backend, container: Any, into: list[Leaf] | None = None) -> Tree:
    """Collect the leaves of a container. For a flat tuple or an iterator, `Tree.rebuild` returns a list.

    into: An empty list for the leaves. After an error, it contains the leaves of all valid entries.
    """
    used_up = False
    if isinstance(container, Iterator):
        container = list(container)
        used_up = not container
    elif type(container) is tuple and all(item is None or backend.is_tensor(item) for item in container):
        container = list(container)
    leaves: list[Leaf] = [] if into is None else into
    try:
        rebuild = _walk(backend, container, leaves)
    except TypeError:
        if into is not None:
            _walk_other_entries(backend, container, leaves)
        raise
    return Tree(leaves, lambda results: rebuild(iter(results)), used_up)


def _walk_other_entries(backend: Backend, container: Any, leaves: list[Leaf]) -> None:
    if isinstance(container, (Mapping, list, tuple)):
        leaves.clear()
        for entry in container.values() if isinstance(container, Mapping) else container:
            with suppress(TypeError):
                _walk(backend, entry, leaves)


def _walk(
    backend: Backend,
    node: Any,
    leaves: list[Leaf],
    parent: str | None = None,
    key: str | int | None = None,
    is_named: bool = False,
) -> Rebuild:
    """parent: The path of the container.
    key: A key, the name of an attribute, or a list index.
    is_named: Whether `parent` has a part other than list indices.
    """
    path, is_named = parent if key is None else names.join(parent, key), is_named or isinstance(key, str)
    name = path if is_named else None
    if node is None or backend.is_tensor(node):
        leaves.append(Leaf(node, len(leaves), name or backend.parameter_name(node), node, path))
        return next
    pytree = None if isinstance(node, MutableMapping) else backend.pytree
    children = None if pytree is None else pytree.children(node)
    if pytree is not None and children is not None:
        walks = [_walk(backend, child, leaves, path, key) for key, child in children.items()]
        return lambda results: pytree.with_children(node, [rebuild(results) for rebuild in walks])
    if isinstance(node, Mapping):
        entries, first = dict(node.items()), len(leaves)
        by_key = {key: _walk(backend, value, leaves, path, str(key)) for key, value in entries.items()}
        kept = [*entries, *entries.values(), *(leaf.tensor for leaf in leaves[first:])]
        return lambda results: like_mapping(node, {key: rebuild(results) for key, rebuild in by_key.items()}, kept)
    if isinstance(node, (str, bytes)) or not isinstance(node, Iterable) or _is_array_like(node):
        raise not_a_tensor(backend, node, Leaf(node, len(leaves), name))
    try:
        items = list(node)
    except (TypeError, NotImplementedError):  # __iter__ of a symbolic tensor raises
        raise not_a_tensor(backend, node, Leaf(node, len(leaves), name)) from None
    if len(items) == 2 and isinstance(items[0], str):  # (name, gradient): the name replaces the list index
        label, rebuild_item = items[0], _walk(backend, items[1], leaves, parent, items[0])
        return lambda results: sequence(node, [label, rebuild_item(results)])
    if isinstance(node, tuple) and (variable := variable_index(backend, items)) is not None:
        gradient, owner = items[1 - variable], items[variable]
        leaves.append(Leaf(gradient, len(leaves), backend.parameter_name(owner), owner, path))
        return lambda results: sequence(node, _with_variable(next(results), owner, variable))
    keys = getattr(node, "_fields", range(len(items)))
    walks = [_walk(backend, item, leaves, path, key, is_named) for key, item in zip(keys, items, strict=True)]
    return lambda results: sequence(node, [rebuild(results) for rebuild in walks])


def with_parameters(backend: Backend, leaves: Sequence[Leaf], parameters: Any) -> list[Leaf]:
    """Assign a parameter to each gradient, by name or by position.

    Use names if `parameters` is a dict and all gradients have names.
    """
    parameter_leaves = flatten(backend, parameters).leaves
    if len(parameter_leaves) != len(leaves):
        raise ValueError(
            f"`parameters` has {len(parameter_leaves)} entries, but there are {len(leaves)} gradients. "
            "Pass one parameter for "
            "each gradient."
        )
    by_name = {leaf.name: leaf.tensor for leaf in parameter_leaves}
    are_unique = len(by_name) == len({leaf.name for leaf in leaves}) == len(leaves)
    if not isinstance(parameters, Mapping) or not are_unique or None in (*by_name, *(leaf.name for leaf in leaves)):
        return [
            leaf._replace(parameter=parameter_leaf.tensor)
            for leaf, parameter_leaf in zip(leaves, parameter_leaves, strict=True)
        ]
    missing = [leaf.name for leaf in leaves if leaf.name not in by_name]
    if missing:
        raise ValueError(f"`parameters` has no key {missing[0]!r}. Pass a dict with the keys of the gradients.")
    return [leaf._replace(parameter=by_name[leaf.name]) for leaf in leaves]


def plain_items(backend: Backend, node: Any) -> tuple[Sequence[Any], Rebuild] | None:
    """Return (items, rebuild) for a tensor, a list, a tuple or nested dicts, and None for other containers. Items are
    not checked."""
    if type(node) in (list, tuple):
        return node, list
    if type(node) is not dict:
        return ([node], next) if backend.is_tensor(node) else None
    items: list[Any] = []
    _append_items(node, items)
    return items, lambda results: _with_items(node, results)


def _append_items(node: dict[Any, Any], items: list[Any]) -> None:
    for item in node.values():
        if type(item) is dict:
            _append_items(item, items)
        else:
            items.append(item)


def _with_items(node: dict[Any, Any], results: Iterator[Any]) -> dict[Any, Any]:
    return {key: _with_items(item, results) if type(item) is dict else next(results) for key, item in node.items()}


def is_variable(backend: Backend, value: Any) -> bool:
    return backend.variables is not None and backend.variables.is_variable(value)


def variable_index(backend: Backend, items: list[Any] | tuple[Any, ...]) -> int | None:
    """Return None if `items` is not a (gradient, variable) or (variable, gradient) tuple."""
    if len(items) != 2 or is_variable(backend, items[0]) == is_variable(backend, items[1]):
        return None
    index = int(is_variable(backend, items[1]))
    return index if items[1 - index] is None or backend.is_tensor(items[1 - index]) else None


def check_replaceable(backend: Backend, container: Any, function: str, instead: str) -> None:
    if backend.is_tensor(container) and not is_variable(backend, container):
        raise TypeError(
            f"{function} received one tensor, and tensors of {backend.name} cannot be written in place. "
            f"Use {instead}, which returns the result, or pass a list with the tensor"
        )
    _check_replaceable(backend, container, function, instead, inside_mutable=False)


def _check_replaceable(backend: Backend, node: Any, function: str, instead: str, inside_mutable: bool) -> None:
    if backend.variables is not None and backend.variables.is_variable(node):
        if backend.variables.is_trainable(node):
            raise TypeError(
                f"{function} received the trainable variable {backend.parameter_name(node)!r}, which is a weight, "
                "not a gradient. Pass the gradients, or (gradient, variable) tuples"
            )
    elif isinstance(node, list):
        for item in node:
            if not isinstance(item, str):  # the name in a [name, gradient]
                _check_replaceable(backend, item, function, instead, True)
    elif isinstance(node, MutableMapping):
        for item in node.values():
            _check_replaceable(backend, item, function, instead, True)
    elif isinstance(node, tuple) and inside_mutable:
        if variable_index(backend, node) is None:
            for item in node:
                if not isinstance(item, str):
                    _check_replaceable(backend, item, function, instead, True)
    elif not (inside_mutable and (node is None or backend.is_tensor(node))):
        kind = "an iterator" if isinstance(node, Iterator) else with_article(type(node).__qualname__)
        raise TypeError(
            f"{function} received {kind}{' inside a list or a dict' * inside_mutable}, but updates only a list or a "
            f"dict, because tensors of {backend.name} cannot be written in place. Use {instead}, which returns the "
            "result"
        )


def replacements(backend: Backend, node: Any, results: Iterator[Any]) -> tuple[Any, list[Write]]:
    """Return the new container, and the writes into lists, mutable dicts and variables.

    `results` are in the order of `flatten`.
    """
    variables = backend.variables
    if variables is not None and variables.is_variable(node):
        new = next(results)
        if new is node:
            return node, []
        old = backend.as_tensor(node)
        return node, [Write(partial(variables.assign, node, new), partial(variables.assign, node, old))]
    if node is None or backend.is_tensor(node):
        return next(results), []
    if isinstance(node, list):
        items, writes = _replaced_items(backend, node, results)
        return node, [*writes, _put(node, dict(enumerate(items)))]
    if isinstance(node, MutableMapping):
        replaced = {key: replacements(backend, node[key], results) for key in list(node)}
        writes = [write for _, item_writes in replaced.values() for write in item_writes]
        return node, [*writes, _put(node, {key: item for key, (item, _) in replaced.items()})]
    items, writes = _replaced_items(backend, node, results)
    return sequence(node, items), writes


def _put(node: Any, items: Mapping[Any, Any]) -> Write:
    old = {key: node[key] for key in items}

    def put() -> None:
        for key, value in items.items():
            node[key] = value

    def restore() -> None:
        for key, value in old.items():
            if node[key] is not value:  # a container may reject any item
                node[key] = value

    return Write(put, restore)


def _replaced_items(backend: Backend, items: Any, results: Iterator[Any]) -> tuple[list[Any], list[Write]]:
    variable = variable_index(backend, items) if isinstance(items, tuple) else None
    if variable is not None:
        return _with_variable(next(results), items[variable], variable), []
    replaced = [(item, []) if isinstance(item, str) else replacements(backend, item, results) for item in items]
    return [item for item, _ in replaced], [write for _, writes in replaced for write in writes]


def _with_variable(gradient: Any, variable: Any, index: int) -> list[Any]:
    return [gradient, variable] if index else [variable, gradient]


def sequence(like: Any, items: list[Any]) -> Any:
    if isinstance(like, tuple):
        return like._make(items) if hasattr(like, "_make") else tuple(items)
    return items


def like_mapping(node: Mapping[Any, Any], items: dict[Any, Any], kept: Iterable[Any]) -> Any:
    """Return a dict if `node` is immutable. Do not copy the objects in `kept`."""
    if type(node) is dict or not isinstance(node, MutableMapping):
        return items
    # A shallow copy of an object around a dict would share this dict, and the items would change `node`.
    new = copy.copy(node) if isinstance(node, dict) else copy.deepcopy(node, {id(value): value for value in kept})
    for key, value in items.items():  # update() of a Counter adds
        new[key] = value
    return new


def not_a_tensor(backend: Backend, value: Any, leaf: Leaf) -> TypeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, numbers.Number):
        return TypeError(f"{leaf.place} is the plain number {value!r}. Pass {accepted(backend)}")
    if reason := backend.unsupported(value):
        return TypeError(f"{leaf.place} is {reason}")
    is_masked = _is_array_like(value) and callable(getattr(value, "filled", None))  # such as a masked array of NumPy
    if not is_masked and (framework := other_framework(backend, value)):
        return TypeError(f"{leaf.place} is {describe_other(backend, framework)}")
    remedy = "Pass tensors of one framework, or a list, a dict or an iterator of tensors"
    if is_masked:
        remedy = "Pass the array that its method filled(0) returns"
    if callable(getattr(value, "parameters", None)):
        remedy = "Pass the gradients"
        if backend.parameters is not None:
            remedy = (
                "Pass model.parameters() to a function that clips in place, or gradients to a function that returns "
                "new tensors"
            )
    return TypeError(f"{leaf.place} is {with_article(kind)}, which unified_clip.{backend.name} cannot clip. {remedy}")


def accepted(backend: Backend) -> str:
    return "a NumPy array" if backend.name == "numpy" else f"a tensor of {backend.name} or a NumPy array"


def other_framework(backend: Backend, value: Any) -> str | None:
    """Return the framework of a tensor, or None if the value is not a tensor of another framework."""
    framework = framework_of(type(value))
    return framework if _is_array_like(value) and framework != backend.name else None


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def describe_other(backend: Backend, framework: str) -> str:
    return f"a {framework} tensor. Call the functions of unified_clip.{framework}, or pass tensors of {backend.name}"
