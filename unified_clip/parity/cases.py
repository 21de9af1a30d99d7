"""The cases of a suite are data: TOML files that name lists of gradients and the calls to make on them.

    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]

    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }, { call = "global_norm" }]

A list of gradients has either `tensors` or `file`, a safetensors file relative to the suite. A tensor is one of

    { values = [1.0, "0x1p-149", [70, 0.125]] }     numbers, hexadecimal floats, or [n, x] for n times x; of complex
                                                    numbers the real and the imaginary parts in turn
    { random = 7, exponents = [-20, 4] }            see `_random`
    { none = true }                                 no gradient

with `copies` (how many such tensors), `shape` (default: one axis), `dtype` (default: float32; each number is rounded
to it once) and, for a sparse gradient, `rows`: the row of `shape` that each row of the values belongs to; rows may
repeat.

An entry of `cases` stands for every one of its calls on every one of its lists of gradients; lists may be named in
any of the suite's files. It may have, beside the fields of `manner.Manner`,

    dtypes = ["float16"]         repeat it with all gradients rounded to each of these
    frameworks = ["torch"]       only these
    raises = "ValueError"        the call raises this, and leaves the gradients as they are
    warns = true                 the call gives a ClipWarning
    update = true                compare an SGD step with the clipped gradients too
    subnormal = true             the result depends on subnormal numbers, which TensorFlow and XLA flush to zero
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from .arithmetic import FORMATS, Float64s, nearest, nearest_float, rounded
from .calls import CALLS, Call
from .manner import CONTAINERS, PLAIN, Manner
from .tensors import PARTS, STORAGE, Dense, Gradient, Sparse, UnreadableError, encode, load_recorded


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
    manner: Manner = PLAIN
    frameworks: Sequence[str] = ()
    """Where it is run; everywhere if empty."""

    raises: str = ""
    warns: bool = False
    update: bool = False
    subnormal: bool = False

    @property
    def call(self) -> Call:
        return CALLS[self.call_name]


def read(files: Sequence[Path]) -> list[Case]:
    """All cases in the files, in order."""
    tables = [(path, read_toml(path)) for path in files]
    lists: dict[str, list[Gradient]] = {}
    for path, data in tables:
        check_keys(data, set(), {"gradients", "cases"}, path.name)
        for number, table in enumerate(_tables(data, "gradients", path.name), 1):
            place = f"{path.name}, gradients {number}"
            name, gradients = _gradients(table, path.parent, place)
            if name in lists:
                raise SuiteError(f"{place}: the name {name!r} is used twice")
            lists[name] = gradients
    cases: dict[str, Case] = {}
    for path, data in tables:
        for number, table in enumerate(_tables(data, "cases", path.name), 1):
            for case in _cases(table, lists, f"{path.name}, cases {number}"):
                if case.name in cases:
                    raise SuiteError(f"{path.name}, cases {number}: the case {case.name!r} is there twice")
                cases[case.name] = case
    return list(cases.values())


# -- gradients


def _gradients(table: dict[str, Any], suite: Path, place: str) -> tuple[str, list[Gradient]]:
    check_keys(table, {"name"}, {"tensors", "file"}, place)
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
        check_keys(table, {"none"}, set(), place)
        return None
    source = "random" if "random" in table else "values"
    required = {"random", "exponents", "shape"} if source == "random" else {"values"}
    check_keys(table, required, {"shape", "dtype", "rows"}, place)
    dtype, rows = table.get("dtype", "float32"), table.get("rows")
    if dtype not in STORAGE:
        raise SuiteError(f"{place}: dtype is {dtype!r}; it may be {', '.join(STORAGE)}")
    try:
        shape = tuple(table["shape"]) if "shape" in table else None
        held = shape if rows is None or shape is None else (len(rows), *shape[1:])
        numbers = _random(table, held, dtype) if source == "random" else _literal(table["values"], dtype)
        held = held if held is None or dtype not in PARTS else (*held, 2)
        dense = encode(numbers.reshape(_held_shape(numbers, dtype) if held is None else held), dtype)
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
        numbers += [nearest_float(read, dtype) if dtype in FORMATS else read] * count
    return np.array(numbers, np.float64)


def _held_shape(numbers: Float64s, dtype: str) -> tuple[int, ...]:
    """One axis; of complex numbers, and another for their parts."""
    return (-1, 2) if dtype in PARTS else numbers.shape


def _random(table: dict[str, Any], shape: Sequence[int] | None, dtype: str) -> Float64s:
    """Numbers from Python's `random.Random(seed).getrandbits`, the same on every machine and version.

    For each element in turn, with P the significant bits of the dtype and [low, high] the exponents: m of P bits, e
    of 16 bits and s of 1 bit; the number is (-1)**s * m * 2**(low + e % (high - low + 1) - P), rounded to the dtype.
    """
    low, high = table["exponents"]
    bits, precision = random.Random(table["random"]).getrandbits, FORMATS[dtype].precision
    numbers = []
    for _ in range(math.prod(shape or ()) * (2 if dtype in PARTS else 1)):
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
    manners = {each.name for each in fields(Manner)}
    expectations = {"frameworks", "raises", "warns", "update", "subnormal"}
    check_keys(table, {"gradients", "calls"}, {"dtypes", *expectations, *manners}, place)
    calls = [_call(call, place) for call in _tables(table, "calls", place)]
    expected = {key: table[key] for key in expectations & table.keys()}
    manner = _manner({key: table[key] for key in manners & table.keys()}, place)
    for name in table["gradients"]:
        if name not in lists:
            raise SuiteError(f"{place}: there are no gradients named {name!r}; there are {', '.join(lists)}")
        _check_lengths(manner, len(lists[name]), place)
        for dtype in table.get("dtypes", [None]):
            if dtype is not None and dtype not in FORMATS:
                raise SuiteError(f"{place}: dtypes has {dtype!r}; it may have {', '.join(FORMATS)}")
            title = name if dtype is None else f"{name} as {dtype}"
            gradients = lists[name] if dtype is None else [_as_dtype(gradient, dtype) for gradient in lists[name]]
            for call_name, arguments in calls:
                written = ", ".join(f"{key}={value}" for key, value in arguments.items())
                raises = f", raises {expected['raises']}" if "raises" in expected else ""
                full_name = f"{title}: {call_name}({written}){manner.describe()}{raises}"
                yield Case(full_name, title, gradients, call_name, arguments, manner, **expected)


def _manner(table: dict[str, Any], place: str) -> Manner:
    manner = Manner.read(table)
    if manner.container not in CONTAINERS:
        raise SuiteError(f"{place}: container is {manner.container!r}; it may be {', '.join(CONTAINERS)}")
    return manner


def _check_lengths(manner: Manner, count: int, place: str) -> None:
    for key, values in (("need_clip", manner.need_clip), ("groups", manner.groups)):
        if values and len(values) != count:
            raise SuiteError(f"{place}: {key} has {len(values)} entries for {count} gradients")
    if any(not 0 <= index < count for index in manner.listed):
        raise SuiteError(f"{place}: listed has a number that is not below {count}, the number of gradients")


def _call(table: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    arguments = dict(table)
    name = arguments.pop("call", None)
    if name not in CALLS:
        raise SuiteError(f"{place}: call is {name!r}; it may be {', '.join(CALLS)}")
    call = CALLS[name]
    check_keys(arguments, set(call.required), set(call.optional), f"{place}, {name}")
    for key, value in arguments.items():
        numbers = value if key == "axes" and isinstance(value, list) else [value]
        if not all(isinstance(number, int | float) for number in numbers):
            raise SuiteError(f"{place}, {name}: {key} is {value!r}; give a number, or for axes a list of them")
    return name, arguments


# -- checks


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}; name the suite's directory with --suite") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: {error}") from None


def _tables(data: Mapping[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise SuiteError(f"{place}: {key} must be a list of tables")
    return found


def check_keys(table: Mapping[str, Any], required: set[str], optional: set[str], place: str) -> None:
    missing, unknown = required - table.keys(), table.keys() - required - optional
    if missing:
        raise SuiteError(f"{place}: {', '.join(sorted(missing))} is missing")
    if unknown:
        known = ", ".join(sorted(required | optional))
        raise SuiteError(f"{place}: unknown {', '.join(sorted(unknown))}; it may have {known}")
