"""The cases of a suite are data: TOML files that name lists of gradients and the calls to make on them.

    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]

    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }, { call = "global_norm" }]

A list of gradients has either `tensors` or `file`, relative to the suite (see `files`). A tensor is one of

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
    update = true                compare an SGD step with the clipped gradients too (float32 and float64)
    subnormal = true             the result depends on subnormal numbers, which TensorFlow and XLA flush to zero
"""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from . import schema
from .arithmetic import FORMATS, Float64s, nearest, nearest_float, rounded
from .calls import CALLS, Call
from .files import read as read_file
from .manner import PLAIN, Manner
from .schema import CasesTable, GradientsTable, SuiteError, TensorTable
from .tensors import PARTS, Dense, Gradient, Sparse, UnreadableError, encode

LONG = 100
"""Gradients."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call on one list of gradients."""

    name: str
    gradients_name: str
    gradients: Sequence[Gradient]
    call_name: str
    arguments: Mapping[str, Any]
    manner: Manner = PLAIN
    names: Sequence[str] = ()
    """What each gradient is called."""

    frameworks: Sequence[str] = ()
    """Where it is run; everywhere if empty."""

    raises: str = ""
    warns: bool = False
    update: bool = False
    subnormal: bool = False

    @property
    def call(self) -> Call:
        return CALLS[self.call_name]

    def is_for_graphs(self, left_out: Sequence[str]) -> bool:
        """Whether a graph can show what is right: not by memory, warnings or values that are not known there.

        `left_out`: of `sparse`, `in place`, `raises`, `groups` and `hook`, what a framework's graphs do not have, and
        `long` lists of gradients, which a compiler may need minutes for.
        """
        manner, raises = self.manner, bool(self.raises)
        needs_value = raises or self.call.style in ("class", "class in place", "hook")
        unknown = manner.expanded or manner.overlapping or (manner.tensor_arguments and needs_value)
        told = self.warns or "error_if_nonfinite" in self.arguments
        kinds = {
            "sparse": any(isinstance(gradient, Sparse) for gradient in self.gradients),
            "in place": self.call.in_place,
            "raises": raises,
            "groups": bool(manner.groups),
            "hook": self.call.style == "hook",
            "long": len(self.gradients) > LONG,
        }
        return not (unknown or told or any(kinds[kind] for kind in left_out))


def read(files: Sequence[Path]) -> list[Case]:
    """All cases in the files, in order."""
    tables = [(path, schema.read(path, schema.CasesFile)) for path in files]
    lists: dict[str, dict[str, Gradient]] = {}
    for path, data in tables:
        for number, table in enumerate(data.gradients, 1):
            place = f"{path.name}, gradients {number}"
            if table.name in lists:
                raise SuiteError(f"{place}: the name {table.name!r} is used twice")
            lists[table.name] = _gradients(table, path.parent, place)
    cases: dict[str, Case] = {}
    for path, data in tables:
        for number, entry in enumerate(data.cases, 1):
            place = f"{path.name}, cases {number}"
            for case in _cases(entry, lists, place):
                if case.name in cases:
                    raise SuiteError(f"{place}: the case {case.name!r} is there twice")
                _check(case, place)
                cases[case.name] = case
    return list(cases.values())


# -- gradients


def _gradients(table: GradientsTable, suite: Path, place: str) -> dict[str, Gradient]:
    """By name."""
    if table.file is not None:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                return read_file(suite / table.file, Path(scratch))
        except UnreadableError as error:
            raise SuiteError(f"{place}: {error}") from None
    gradients: list[Gradient] = []
    for number, tensor in enumerate(table.tensors or [], 1):
        try:
            gradients += [_tensor(tensor)] * tensor.copies
        except (TypeError, ValueError, OverflowError) as error:
            raise SuiteError(f"{place}, tensor {number}: {error}") from None
    return {f"gradient {index}": gradient for index, gradient in enumerate(gradients)}


def _tensor(table: TensorTable) -> Gradient:
    if table.none:
        return None
    dtype, shape = table.dtype, table.shape
    held = shape if shape is None or table.rows is None else [len(table.rows), *shape[1:]]
    numbers = _random(table, held or []) if table.values is None else _literal(table.values, dtype)
    parts = [2] if dtype in PARTS else []
    dense = encode(numbers.reshape([-1, *parts] if held is None else [*held, *parts]), dtype)
    if table.rows is None or shape is None:
        return dense
    return Sparse(np.array(table.rows, np.int64), dense, tuple(shape))


def _literal(values: Sequence[Any], dtype: str) -> Float64s:
    numbers: list[float] = []
    for value in values:
        count, number = value if isinstance(value, list) else (1, value)
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{value} is [n, x] for n times x, and n is not 1 or more")
        read = float.fromhex(number) if isinstance(number, str) else float(number)
        if dtype == "int64" and (not read.is_integer() or abs(read) > 2**53):
            raise ValueError(f"{number} is no whole number of at most 2**53")
        numbers += [nearest_float(read, dtype) if dtype in FORMATS else read] * count
    return np.array(numbers, np.float64)


def _random(table: TensorTable, shape: Sequence[int]) -> Float64s:
    """Numbers from Python's `random.Random(seed).getrandbits`, the same on every machine and version.

    For each element in turn, with P the significant bits of the dtype and [low, high] the exponents: m of P bits, e
    of 16 bits and s of 1 bit; the number is (-1)**s * m * 2**(low + e % (high - low + 1) - P), rounded to the dtype.
    """
    low, high = table.exponents or (0, 0)
    bits, precision = random.Random(table.random).getrandbits, FORMATS[table.dtype].precision
    numbers = []
    for _ in range(math.prod(shape) * (2 if table.dtype in PARTS else 1)):
        mantissa, exponent, negative = bits(precision), bits(16), bits(1)
        exact = mantissa * Fraction(2) ** (low + exponent % (high - low + 1) - precision)
        numbers.append(nearest(-exact if negative else exact, table.dtype))
    return np.array(numbers, np.float64)


def _as_dtype(gradient: Gradient, dtype: str) -> Gradient:
    if isinstance(gradient, Sparse):
        return Sparse(gradient.rows, _dense_as_dtype(gradient.values, dtype), gradient.shape)
    return None if gradient is None else _dense_as_dtype(gradient, dtype)


def _dense_as_dtype(dense: Dense, dtype: str) -> Dense:
    return encode(rounded(dense.values(), dtype), dtype)


# -- cases


def _cases(table: CasesTable, lists: Mapping[str, Mapping[str, Gradient]], place: str) -> Iterator[Case]:
    calls = [_call(call, f"{place}, calls {number}") for number, call in enumerate(table.calls, 1)]
    expected = table.model_dump(include={"frameworks", "raises", "warns", "update", "subnormal"}, exclude_unset=True)
    manner = Manner.read(table.model_dump(include={each.name for each in dataclasses.fields(Manner)}))
    for name in table.gradients:
        if name not in lists:
            raise SuiteError(f"{place}: there are no gradients named {name!r}; there are {', '.join(lists)}")
        for dtype in table.dtypes or [""]:
            title = f"{name} as {dtype}" if dtype else name
            gradients = list(lists[name].values())
            if dtype:
                gradients = [_as_dtype(gradient, dtype) for gradient in gradients]
            for call_name, arguments in calls:
                written = ", ".join(f"{key}={value}" for key, value in arguments.items())
                raises = f", raises {table.raises}" if table.raises else ""
                full_name = f"{title}: {call_name}({written}){manner.describe()}{raises}"
                yield Case(full_name, title, gradients, call_name, arguments, manner, list(lists[name]), **expected)


def _call(table: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    arguments = dict(table)
    name = arguments.pop("call", None)
    if not isinstance(name, str) or name not in CALLS:
        raise SuiteError(f"{place}: call is {name!r}; it may be {', '.join(CALLS)}")
    call = CALLS[name]
    missing = set(call.required) - arguments.keys()
    unknown = arguments.keys() - {*call.required, *call.optional}
    if missing or unknown:
        wrong = f"{', '.join(sorted(missing))} is missing" if missing else f"unknown {', '.join(sorted(unknown))}"
        raise SuiteError(f"{place}, {name}: {wrong}; it has {', '.join([*call.required, *call.optional]) or 'none'}")
    for key, value in arguments.items():
        numbers = [value] if key != "axes" else value if isinstance(value, list) else [None]
        kinds = int if key == "axes" else bool if key == "error_if_nonfinite" else (int, float)
        if not all(
            isinstance(number, kinds) and (abs(number) < 10**400 or isinstance(number, float)) for number in numbers
        ):
            raise SuiteError(
                f"{place}, {name}: {key} is {value!r:.60}; give a number, or for axes a list of whole ones"
            )
    return name, arguments


def _is_huge(number: float) -> bool:
    """Whether it is a whole number that no float can hold."""
    return isinstance(number, int) and abs(number) > 10**300


# -- what the oracle and the workers know how to do


def _check(case: Case, place: str) -> None:
    """Refuse what would be compared with something else than is meant."""
    for wrong, remedy in _unfit(case):
        if wrong:
            raise SuiteError(f"{place}, {case.call_name}: {remedy}")


def _unfit(case: Case) -> Iterator[tuple[bool, str]]:
    call, manner, count = case.call, case.manner, len(case.gradients)
    dtypes = {gradient.dtype for gradient in case.gradients if gradient is not None}
    yield case.manner.container in ("nested", "tensor") and not count, "this container needs gradients"
    yield case.manner.container == "tensor" and count != 1, "the container tensor holds one gradient"
    contained = call.in_place or call.style in ("list", "measure")
    yield manner.container != "list" and not contained, "its gradients are not passed in a container"
    for key, values in (("need_clip", manner.need_clip), ("groups", manner.groups)):
        yield bool(values) and len(values) != count, f"{key} has {len(values)} entries for {count} gradients"
    yield bool(manner.groups) and call.style != "settings", "groups are for append_gradient_clip_ops"
    on_parameters = bool(case.frameworks) and set(case.frameworks) <= {"torch", "paddle"}
    heeds = call.style in ("class", "class in place", "settings") or (call.in_place and on_parameters)
    yield bool(manner.need_clip) and not heeds, "need_clip is for classes, and in place for frameworks = torch, paddle"
    listed = set(manner.listed)
    yield (
        bool(listed) and (not call.in_place or listed != set(range(count))),
        ("listed is for names in place, and has every gradient's number"),
    )
    yield manner.gradients_for_parameters and call.style != "in place", "gradients_for_parameters is for names in place"
    shared = manner.expanded or manner.overlapping
    yield shared and not case.raises, "expanded and overlapping memory is refused: say what it raises"
    numbers = not {"norm_type", "axes", "error_if_nonfinite"} & case.arguments.keys()
    yield (
        manner.tensor_arguments and not (dtypes <= {"float32"} and numbers),
        ("tensor_arguments are float32, for thresholds of float32 gradients alone"),
    )
    yield case.update and not dtypes <= {"float32", "float64"}, "update is for float32 and float64"
    yield (
        not case.raises and "int64" in dtypes and case.call_name != "clip_by_value",
        "int64 is for clip_by_value, or raises",
    )
    if not case.raises:
        yield from _unfit_numbers(case)


def _unfit_numbers(case: Case) -> Iterator[tuple[bool, str]]:
    arguments = case.arguments
    thresholds = [arguments[key] for key in (*case.call.required, "use_norm", "min") if key in arguments]
    yield any(math.isnan(value) for value in thresholds), "a threshold is NaN: say what it raises"
    p = arguments.get("norm_type", 2)
    yield not (p == math.inf or 0.01 <= p <= 100), "norm_type is inf, or between 0.01 and 100, or say what it raises"
    ranks = [len(gradient.shape) for gradient in case.gradients if gradient is not None]
    axes = arguments.get("axes", [])
    yield any(not -rank <= axis < rank for axis in axes for rank in ranks), "axes has one that a gradient lacks"
