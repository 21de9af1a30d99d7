"""Gradients for the property tests: any dtypes, shapes, layouts, numbers, thresholds and containers."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from support import reference
from support.kits import Kit

SHAPES = [(), (1,), (3,), (0, 2), (5, 7), (2, 1, 4), (4097,)]

NEAR_A_BOUNDARY = [2.0**24, 2.0**12, 2.0**12] + 70 * [2.0**-3]
"""The norm is just above the midpoint of two float32 numbers, so a float64 sum depends on the order of additions."""

HALF_WAY = [2.0**24, 2.0**12, 2.0**12, 1.0]
"""The norm is half-way between two float32 numbers: (2**24 + 1)**2 is the sum of the squares."""

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0]
SUBNORMAL = [1e-40, -3e-41, 1e-45]


class Gradient(NamedTuple):
    array: np.ndarray
    has_gaps: bool
    """Whether the tensor is a view of memory with other numbers, if the framework has such views."""


def numbers(kit: Kit, dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Arrays of random numbers of one size, with a few numbers that Hypothesis chooses."""
    width = {"float16": 16, "bfloat16": 16, "float64": 64, "complex128": 64}.get(dtype, 32)
    chosen = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=False)
    top = {"float16": 4, "float64": 307, "complex128": 307}.get(dtype, 38)  # some numbers overflow
    bottom = -15
    if kit.exact or kit.keeps_subnormals_on_device:
        bottom, chosen = -38, chosen | st.sampled_from(SUBNORMAL)

    def made(shape: tuple[int, ...], seed: int, exponent: int | None, chosen: list[float]) -> np.ndarray:
        random = np.random.default_rng(seed)
        with np.errstate(over="ignore"):
            values = random.standard_normal(shape) * (0.0 if exponent is None else 10.0**exponent)
        if dtype in kit.complex:
            values = values + 1j * random.permutation(np.ravel(values)).reshape(shape)
        array = reference.array(values, dtype)
        flat = array.reshape(-1)
        for number in chosen if flat.size else []:
            flat[random.integers(flat.size)] = reference.array(number, dtype)
        return flat.reshape(shape)

    exponents = st.sampled_from([0, 1, -3, bottom, top - 1, top, None]) | st.integers(bottom, top)  # None: zeros
    shapes = [shape for shape in SHAPES if kit.keeps_empty_gradients or 0 not in shape]
    of_size = st.builds(made, st.sampled_from(shapes), st.integers(0, 99), exponents, st.lists(chosen, max_size=3))
    if dtype in ("float16", "bfloat16"):
        return of_size
    boundary = st.sampled_from([NEAR_A_BOUNDARY, HALF_WAY, [*HALF_WAY, 2.0**-40]]).flatmap(st.permutations)
    return of_size | boundary.map(lambda values: reference.array(values, dtype))


@st.composite
def gradients(draw: st.DrawFn, kit: Kit, dtypes: Sequence[str]) -> list[Gradient | None]:
    chosen = draw(st.lists(st.sampled_from(dtypes), min_size=1, max_size=2, unique=True))
    listed: list[Gradient | None] = []
    for dtype in draw(st.lists(st.sampled_from(chosen), max_size=5)):
        gradient = Gradient(draw(numbers(kit, dtype)).copy(), draw(st.booleans()))
        if gradient.array.size and draw(st.integers(0, 9)) == 0:
            gradient.array.reshape(-1)[-1] = reference.array(draw(st.sampled_from(SPECIAL)), dtype)
        listed.append(gradient)
    if draw(st.booleans()):
        listed.insert(draw(st.integers(0, len(listed))), None)
    return listed


def thresholds(exact: bool) -> st.SearchStrategy[Callable[[float], float]]:
    """Functions of the norm. On the device path, the norm can be off by 1 ULP, so none is next to the norm."""
    factors = st.sampled_from([0.0, 1e-4, 0.3, 0.999, 1.5, 1e4] + [1.0, 1 + 1e-6] * exact)
    relative = factors.map(lambda factor: lambda n: factor * n if math.isfinite(n) else factor)
    absolute = st.sampled_from([0.0, 1e-8, 0.3, 1.1, 2, 1e39, 1e300, math.inf]).map(lambda limit: lambda n: limit)
    return relative | absolute


Pair = namedtuple("Pair", ["first", "second"])

FLAT: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "iterator": iter, "generator": lambda items: (item for item in items),
    "values": lambda items: dict(enumerate(items)).values(),
}  # fmt: skip
"""Containers for which a functional clip returns a list. The items are in their order."""

NESTED: dict[str, Callable[[list[Any]], Any]] = {
    "dict": lambda items: {f"k{9 - index}": item for index, item in enumerate(items)},
    "ordered dict": lambda items: OrderedDict((str(index), item) for index, item in enumerate(items)),
    "names": lambda items: [(f"n{index}", item) for index, item in enumerate(items)],
    "nested": lambda items: {"layer": [*items[:1], {"deep": list(items[1:2])}], "rest": list(items[2:]), "empty": {}},
    "named tuple": lambda items: Pair(list(items[:1]), {"rest": list(items[1:])}),
}


def leaves(container: Any) -> list[Any]:
    """Return the items in their order, without names."""
    if isinstance(container, dict):
        return [leaf for item in container.values() for leaf in leaves(item)]
    if isinstance(container, (list, tuple)):
        return [leaf for item in container for leaf in leaves(item)]
    return [] if isinstance(container, str) else [container]


def shape_of(container: Any) -> Any:
    """Return the types and keys of a container, with None in place of each tensor."""
    if isinstance(container, dict):
        return type(container), [(key, shape_of(item)) for key, item in container.items()]
    if isinstance(container, (list, tuple)):
        return type(container), [shape_of(item) for item in container]
    return container if isinstance(container, str) else None
