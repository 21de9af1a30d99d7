"""Read the (parameter, gradient) tuples that optimizers pass to a clip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._core import containers, validation
from .._core.backend import Backend
from .._core.types import Leaf

ParamGrads = list[tuple[Any, Any]]


def read_pairs(backend: Backend, params_grads: Any) -> tuple[list[Leaf], list[int]]:
    """Return (gradients, index of the parameter in each tuple)."""
    if (
        backend.is_tensor(params_grads)
        or isinstance(params_grads, (dict, str))
        or not isinstance(params_grads, Iterable)
    ):
        raise TypeError(
            f"params_grads has the type {type(params_grads).__name__}. Pass a list of (parameter, gradient) tuples"
        )
    leaves, indices = [], []
    pairs = list(params_grads)
    if isinstance(params_grads, Iterator) and not pairs:
        validation.warn("params_grads has no pairs: the iterator was empty or used up. Pass a list")
    for position, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"position {position} of params_grads is not a tuple of two. Pass (parameter, gradient) tuples"
            )
        index = _parameter_index(backend, pair, position)
        parameter, gradient = pair[index], pair[1 - index]
        name = parameter if isinstance(parameter, str) else backend.parameter_name(parameter)
        leaf = Leaf(gradient, position, name, parameter)
        if gradient is not None and not backend.is_tensor(gradient):
            raise containers.not_a_tensor(backend, gradient, leaf)
        leaves.append(leaf)
        indices.append(index)
    return leaves, indices


def _parameter_index(backend: Backend, pair: Sequence[Any], position: int) -> int:
    if backend.variables is None:
        if backend.is_parameter(pair[1]) and not backend.is_parameter(pair[0]):
            raise TypeError(
                f"position {position} of params_grads is a (gradient, parameter) tuple. Pass (parameter, gradient) "
                "tuples"
            )
        return 0
    variables = [backend.variables.is_variable(item) for item in pair]
    if variables == [True, True] or (variables == [False, False] and not isinstance(pair[0], str)):
        raise TypeError(
            f"position {position} of params_grads has {sum(variables)} Variables. Pass (gradient, variable) or "
            "(variable, gradient) tuples"
        )
    return int(variables[1])
