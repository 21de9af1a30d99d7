"""A suite is data: `cases.toml` names lists of gradients and the calls to make on them.

    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]

    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }, { call = "global_norm" }]

A list of gradients has either `tensors` or `file`, a safetensors file relative to the suite. A tensor is one of

    { values = [1.0, "0x1p-149", [70, 0.125]] }     numbers, hexadecimal floats, or [n, x] for n times x
    { random = 7, exponents = [-20, 4] }            see `_random`
    { none = true }                                 no gradient

with `copies` (how many such tensors), `shape` (default: one axis), `dtype` (default: float32; each number is rounded
to it once) and, for a sparse gradient, `rows`: the row of `shape` that each row of the values belongs to; rows may
repeat.

An entry of `cases` stands for every one of its calls on every one of its lists of gradients. `dtypes` repeats it
with all gradients rounded to each of these. `subnormal = true` says that the result depends on subnormal numbers,
which TensorFlow and XLA flush to zero.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from .arithmetic import FORMATS, Float64s, nearest, nearest_float, rounded
from .calls import CALLS, Call
from .tensors import Dense, Gradient, Sparse, UnreadableError, encode, load_recorded

FILE = "cases.toml"


class SuiteError(Exception):
    """The suite is wrong: what, and where."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call on one list of gradients."""

    name: str
    gradients_name: str
    gradients: Sequence[Gradient]
    call_name: str
    arguments: Mapping[str, Any]
    subnormal: bool

    @property
    def call(self) -> Call:
        return CALLS[self.call_name]


def read(suite: Path) -> list[Case]:
    """All cases of the suite in a directory."""
    path = suite / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}; name the suite's directory with --suite") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: {error}") from None
    _check_keys(data, {"gradients", "cases"}, set(), FILE)
    lists: dict[str, list[Gradient]] = {}
    for number, table in enumerate(_tables(data, "gradients"), 1):
        place = f"{FILE}, gradients {number}"
        name, gradients = _gradients(table, suite, place)
        if name in lists:
            raise SuiteError(f"{place}: the name {name!r} is used twice")
        lists[name] = gradients
    cases: dict[str, Case] = {}
    for number, table in enumerate(_tables(data, "cases"), 1):
        for case in _cases(table, lists, f"{FILE}, cases {number}"):
            if case.name in cases:
                raise SuiteError(f"{FILE}, cases {number}: the case {case.name!r} is there twice")
            cases[case.name] = case
    if not cases:
        raise SuiteError(f"{FILE}: there are no cases")
    return list(cases.values())


# -- gradients


def _gradients(table: dict[str, Any], suite: Path, place: str) -> tuple[str, list[Gradient]]:
    _check_keys(table, {"name"}, {"tensors", "file"}, place)
    if ("tensors" in table) == ("file" in table):
        raise SuiteError(f"{place}: give either tensors or file")
    if "file" in table:
        try:
            return table["name"], load_recorded(suite / table["file"])
        except UnreadableError as error:
            raise SuiteError(f"{place}: {error}") from None
    gradients: list[Gradient] = []
    for number, tensor in enumerate(_tables(table, "tensors", place), 1):
        copies = tensor.pop("copies", 1)
        gradients += [_tensor(tensor, f"{place}, tensor {number}")] * copies
    return table["name"], gradients


def _tensor(table: dict[str, Any], place: str) -> Gradient:
    if "none" in table:
        _check_keys(table, {"none"}, set(), place)
        return None
    source = "random" if "random" in table else "values"
    required = {"random", "exponents", "shape"} if source == "random" else {"values"}
    _check_keys(table, required, {"shape", "dtype", "rows"}, place)
    dtype, rows = table.get("dtype", "float32"), table.get("rows")
    if dtype not in FORMATS:
        raise SuiteError(f"{place}: dtype is {dtype!r}; it may be {', '.join(FORMATS)}")
    try:
        shape = tuple(table["shape"]) if "shape" in table else None
        held = shape if rows is None or shape is None else (len(rows), *shape[1:])
        numbers = _random(table, held, dtype) if source == "random" else _literal(table["values"], dtype)
        dense = encode(numbers.reshape(numbers.shape if held is None else held), dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SuiteError(f"{place}: {error}") from None
    if rows is None:
        return dense
    if shape is None or not all(isinstance(row, int) and 0 <= row < shape[0] for row in rows):
        raise SuiteError(f"{place}: rows needs a shape, and every row must be below its first length")
    return Sparse(np.array(rows, np.int64), dense, shape)


def _literal(values: Sequence[Any], dtype: str) -> Float64s:
    numbers: list[float] = []
    for value in values:
        count, number = value if isinstance(value, list) else (1, value)
        read = float.fromhex(number) if isinstance(number, str) else float(number)
        numbers += [nearest_float(read, dtype)] * count
    return np.array(numbers, np.float64)


def _random(table: dict[str, Any], shape: Sequence[int] | None, dtype: str) -> Float64s:
    """Numbers from Python's `random.Random(seed).getrandbits`, the same on every machine and version.

    For each element in turn, with P the significant bits of the dtype and [low, high] the exponents: m of P bits, e
    of 16 bits and s of 1 bit; the number is (-1)**s * m * 2**(low + e % (high - low + 1) - P), rounded to the dtype.
    """
    low, high = table["exponents"]
    bits, precision = random.Random(table["random"]).getrandbits, FORMATS[dtype].precision
    numbers = []
    for _ in range(math.prod(shape or ())):
        mantissa, exponent, negative = bits(precision), bits(16), bits(1)
        exact = mantissa * Fraction(2) ** (low + exponent % (high - low + 1) - precision)
        numbers.append(nearest(-exact if negative else exact, dtype))
    return np.array(numbers, np.float64)


def _as_dtype(gradient: Gradient, dtype: str) -> Gradient:
    if isinstance(gradient, Sparse):
        return Sparse(gradient.rows, _dense_as_dtype(gradient.values, dtype), gradient.shape)
    return None if gradient is None else _dense_as_dtype(gradient, dtype)


def _dense_as_dtype(dense: Dense, dtype: str) -> Dense:
    return encode(rounded(dense.values(), dtype), dtype)


# -- cases


def _cases(table: dict[str, Any], lists: Mapping[str, list[Gradient]], place: str) -> Iterator[Case]:
    _check_keys(table, {"gradients", "calls"}, {"dtypes", "subnormal"}, place)
    calls = [_call(call, place) for call in _tables(table, "calls", place)]
    for name in table["gradients"]:
        if name not in lists:
            raise SuiteError(f"{place}: there are no gradients named {name!r}; there are {', '.join(lists)}")
        for dtype in table.get("dtypes", [None]):
            if dtype is not None and dtype not in FORMATS:
                raise SuiteError(f"{place}: dtypes has {dtype!r}; it may have {', '.join(FORMATS)}")
            title = name if dtype is None else f"{name} as {dtype}"
            gradients = lists[name] if dtype is None else [_as_dtype(gradient, dtype) for gradient in lists[name]]
            for call_name, arguments in calls:
                written = ", ".join(f"{key}={value}" for key, value in arguments.items())
                full_name = f"{title}: {call_name}({written})"
                yield Case(full_name, title, gradients, call_name, arguments, table.get("subnormal", False))


def _call(table: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    arguments = dict(table)
    name = arguments.pop("call", None)
    if name not in CALLS:
        raise SuiteError(f"{place}: call is {name!r}; it may be {', '.join(CALLS)}")
    call = CALLS[name]
    _check_keys(arguments, set(call.required), set(call.optional), f"{place}, {name}")
    for key, value in arguments.items():
        numbers = value if key == "axes" and isinstance(value, list) else [value]
        if not all(isinstance(number, int | float) for number in numbers):
            raise SuiteError(f"{place}, {name}: {key} is {value!r}; give a number, or for axes a list of them")
    if arguments.get("norm_type", 2) not in (1, 2, math.inf):
        raise SuiteError(f"{place}, {name}: norm_type may be 1, 2 or inf, whose results are exact")
    return name, arguments


# -- checks


def _tables(data: Mapping[str, Any], key: str, place: str = FILE) -> list[dict[str, Any]]:
    found = data[key]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise SuiteError(f"{place}: {key} must be a list of tables")
    return found


def _check_keys(table: Mapping[str, Any], required: set[str], optional: set[str], place: str) -> None:
    missing, unknown = required - table.keys(), table.keys() - required - optional
    if missing:
        raise SuiteError(f"{place}: {', '.join(sorted(missing))} is missing")
    if unknown:
        known = ", ".join(sorted(required | optional))
        raise SuiteError(f"{place}: unknown {', '.join(sorted(unknown))}; it may have {known}")
