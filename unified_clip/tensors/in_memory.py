"""Read gradients of any framework from a dict, list or other container into `Dense` and `Sparse` tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from .. import _dispatch
from .._core import containers
from .._core.types import Leaf
from .frameworks import converter
from .types import STORAGE, Gradient


def read_container(container: Any) -> dict[str, Gradient]:
    """Return {name: gradient} for a container. A gradient without a name is named "gradient 0"."""
    backend, container = _dispatch.resolve(container)
    tensors = converter(backend.name)
    leaves = containers.flatten(backend, container).leaves
    gradients: dict[str, Gradient] = {}
    for name, leaf in zip(_names(leaves), leaves, strict=True):
        is_weight = backend.variables.is_trainable if backend.variables is not None else backend.is_parameter
        if leaf.tensor is not None and backend.is_parameter(leaf.tensor) and is_weight(leaf.tensor):
            raise TypeError(
                f"{leaf.place} is a parameter. Pass the gradient of the parameter, such as parameter.grad in PyTorch"
            )
        gradient = gradients[name] = None if leaf.tensor is None else tensors.read(leaf.tensor)
        if gradient is not None and gradient.dtype not in STORAGE:
            raise TypeError(
                f"{leaf.place} has dtype {gradient.dtype}. Convert the gradient to one of {', '.join(STORAGE)}"
            )
    return gradients


def _names(leaves: Sequence[Leaf]) -> list[str]:
    names: dict[str, None] = {}
    for leaf in leaves:
        name = leaf.name or f"gradient {leaf.position}"
        numbered = (f"{name} ({number})" for number in count(2))
        names[name if name not in names else next(each for each in numbered if each not in names)] = None
    return list(names)
