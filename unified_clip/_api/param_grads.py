"""(parameter, gradient) tuples, as optimizers pass them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._core import containers, validation
from .._core.backend import Backend
from .._core.types import Leaf

ParamGrads = list[tuple[Any, Any]]


def read_pairs(backend: Backend, params_grads: Any) -> tuple[list[Leaf], list[int]]:
    """(parameter, gradient) pairs as leaves, and the parameter's place in each pair: Variables tell the two apart."""
    if (
        backend.is_tensor(params_grads)
        or isinstance(params_grads, dict | str)
        or not isinstance(params_grads, Iterable)
    ):
        raise TypeError(f"params_grads is a {type(params_grads).__name__}; pass a list of (parameter, gradient) pairs")
    leaves, indices = [], []
    pairs = list(params_grads)
    if isinstance(params_grads, Iterator) and not pairs:
        validation.warn("an iterator over params_grads had nothing left in it; pass a list if you need it twice")
    for position, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"position {position} of params_grads is no (parameter, gradient) pair; pass pairs")
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
                f"position {position} of params_grads has its parameter where the gradient belongs; pass (parameter, "
                "gradient) pairs"
            )
        return 0
    variables = [backend.variables.is_variable(item) for item in pair]
    if variables == [True, True] or (variables == [False, False] and not isinstance(pair[0], str)):
        raise TypeError(
            f"position {position} of params_grads has {sum(variables)} Variables; one of the two must be the Variable, "
            "which is the parameter, and the other its gradient"
        )
    return int(variables[1])
