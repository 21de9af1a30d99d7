"""Make the list of gradients of a `[[gradients]]` table. `docs/suite.md` lists the keys."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...tensors import files
from ...tensors.arithmetic import FORMATS, Float64s, nearest_float, rounded
from ...tensors.types import PARTS, Gradient, Sparse, UnreadableError, encode
from .schema import GradientsTable, SuiteError, TensorTable


def read(table: GradientsTable, suite: Path, place: str, pythons: Mapping[str, str]) -> dict[str, Gradient]:
    try:
        if table.file is not None:
            return files.read(suite / table.file, files.scratch(), only=table.only or (), pythons=pythons)
        if table.function is not None:
            if table.framework and table.framework not in pythons:
                raise SuiteError(f"{place}: the suite has no [frameworks.{table.framework}]. Correct `framework`")
            python = pythons[table.framework] if table.framework else sys.executable
            return files.call(table.function, suite, files.scratch(), python=python, framework=table.framework)
    except UnreadableError as error:
        raise SuiteError(f"{place}: {error}", error.code) from None
    gradients: list[Gradient] = []
    for number, tensor in enumerate(table.tensors or [], 1):
        try:
            gradients += [_tensor(tensor)] * tensor.copies
        except (TypeError, ValueError, OverflowError) as error:
            raise SuiteError(f"{place}, tensors {number}: {error}") from None
    return {f"gradient {index}": gradient for index, gradient in enumerate(gradients)}


def _tensor(table: TensorTable) -> Gradient:
    if table.none:
        return None
    dtype, shape = table.dtype, table.shape
    dense_shape = shape if shape is None or table.rows is None else [len(table.rows), *shape[1:]]
    numbers = _random(table, dense_shape or []) if table.values is None else _literal(table.values, dtype)
    parts = [2] if dtype in PARTS else []
    count = None if dense_shape is None else math.prod([*dense_shape, *parts])
    if count not in (None, numbers.size):
        stored = "" if table.rows is None else f" with {len(table.rows)} rows"
        raise ValueError(f"{dtype} with shape = {shape}{stored} needs {count} numbers, but has {numbers.size}")
    if numbers.size % math.prod(parts):
        raise ValueError(f"{dtype} needs two numbers for each element, but `values` has {numbers.size}")
    dense = encode(numbers.reshape([-1, *parts] if dense_shape is None else [*dense_shape, *parts]), dtype)
    if table.rows is None or shape is None:
        return dense
    return Sparse(np.array(table.rows, np.int64), dense, tuple(shape))


def _literal(values: Sequence[Any], dtype: str) -> Float64s:
    numbers: list[float] = []
    for value in values:
        pair = value if isinstance(value, list) else [1, value]
        if len(pair) != 2 or not isinstance(pair[0], int) or pair[0] < 1:
            raise ValueError(f"`values` has {value}. Give a number, or [n, x] for n copies of x, with n from 1 on")
        count, number = pair
        try:
            read = float.fromhex(number) if isinstance(number, str) else float(number)
        except (ValueError, OverflowError):
            raise ValueError(f"`values` has {number!r:.60}. Give a float, or a text such as '0x1p-149'") from None
        if dtype == "int64" and (not read.is_integer() or abs(read) > 2**53):
            raise ValueError(f"`values` has {number}, but `dtype` is int64. Give whole numbers from -2**53 to 2**53")
        numbers += [nearest_float(read, dtype) if dtype in FORMATS else read] * count
    return np.array(numbers, np.float64)


def _random(table: TensorTable, shape: Sequence[int]) -> Float64s:
    """Return numbers from Python's `random.Random(seed)`, which are the same on every machine.

    `table.random` is the seed. `table.exponents` contains the smallest and the largest exponent of the numbers. Complex
    dtypes get two numbers for each element.
    """
    low, high = table.exponents or (0, 0)
    bits, precision = random.Random(table.random).getrandbits, FORMATS[table.dtype].precision
    mantissas, exponents = [], []
    for _ in range(math.prod(shape) * (2 if table.dtype in PARTS else 1)):
        mantissa, exponent, negative = bits(precision), bits(16), bits(1)
        mantissas.append(-mantissa if negative else mantissa)
        exponents.append(low + exponent % (high - low + 1) - precision)
    with np.errstate(over="ignore"):
        numbers = np.ldexp(np.array(mantissas, np.float64), np.array(exponents, np.int32))  # rounds at most once
    return rounded(numbers, table.dtype)


def as_dtype(gradient: Gradient, dtype: str) -> Gradient:
    if gradient is None:
        return None
    dense = gradient.values if isinstance(gradient, Sparse) else gradient
    result = encode(rounded(dense.values(), dtype), dtype)
    return Sparse(gradient.rows, result, gradient.shape) if isinstance(gradient, Sparse) else result
