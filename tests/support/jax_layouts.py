"""JAX: arrays on meshes of one process, and functions in graphs over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support import reference

Way = Callable[[Callable[..., Any], Mesh, Any], Callable[..., Any]]


def mesh_of(devices: int) -> Mesh:
    shape = (max(devices // 2, 1), min(devices, 2))
    return Mesh(np.array(jax.devices()[:devices]).reshape(shape), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


LAYOUTS: dict[str, list[P]] = {
    "rows": [P("x")],
    "columns": [P(None, "x")],
    "rows and columns": [P("x", "y")],
    "rows over both axes": [P(("x", "y"))],
    "columns over both axes": [P(None, ("x", "y"))],
    "replicated": [P()],
    "mixed": [P("x"), P(None, "y"), P("x", "y"), P(), P(("y", "x")), P("y")],
}


def specs_of(layout: str, number: int) -> list[P]:
    specs = LAYOUTS[layout]
    return [specs[index % len(specs)] for index in range(number)]


def put(arrays: list[np.ndarray], specs: list[P], mesh: Mesh) -> list[Any]:
    return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, specs, strict=True)]


def in_shard_map(function: Callable[..., Any], mesh: Mesh, specs: Any) -> Callable[..., Any]:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=(specs, P())))


WAYS: dict[str, Way] = {
    "eagerly": lambda function, mesh, specs: function,
    "jit": lambda function, mesh, specs: jax.jit(function),
    "shard_map": in_shard_map,
}


# -- arrays and comparison


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    """Return arrays whose axes can be sharded over four devices. One array is empty."""
    random = np.random.default_rng(3)
    shapes = [(8, 4), (4, 12), (16, 4), (4, 4), (4, 0), (8, 8)]
    return [reference.array(random.standard_normal(shape) * 3.0**number, dtype) for number, shape in enumerate(shapes)]


def assert_equal(results: list[Any], expected: list[np.ndarray]) -> None:
    for result, expected_result in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected_result, strict=True)


def fitting(array: np.ndarray) -> np.ndarray:
    """Return a similar array of two dimensions, which four devices can divide."""
    array = array.reshape(-1, 1) if array.ndim < 2 else array
    return np.pad(array, [(0, -length % 4) for length in array.shape])
