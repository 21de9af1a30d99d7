"""Read Paddle's `.pdparams` and `.pdopt` without Paddle, and without running code of the file.

A pickle calls functions by name. The reader replaces them by the harmless functions in `STAND_INS`.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..._kit import atomic_files
from ..._kit.display import describe_exception
from ..._kit.limits import LimitError, Tree, check_shape
from ..types import Dense, UnreadableError, from_numpy, name_of
from .entries import Item, flatten
from .memmap import Raw, dense, open_map

LONG = 1 << 16
"""Objects of this size are mapped, because pickle protocol 4 stores them outside of its frames. Smaller objects are
read."""

_Unpickler: Any = pickle._Unpickler
"""Unlike subclasses of `pickle.Unpickler`, subclasses of this class can replace methods such as `load_reduce`."""

LONGEST_CODE = 16

PLAIN = (str, bytes, int, float, bool, type(None))
"""The allowed types of dict keys. Hashing a nested tuple can take forever."""

NOT_WRITTEN = (
    pickle.INST + pickle.OBJ + pickle.NEWOBJ + pickle.NEWOBJ_EX + pickle.EXT1 + pickle.EXT2 + pickle.EXT4
    + pickle.PERSID + pickle.BINPERSID + pickle.BYTEARRAY8 + pickle.NEXT_BUFFER + pickle.READONLY_BUFFER
)  # fmt: skip
"""Opcodes that `paddle.save` does not write. They can create objects, or reserve too much memory."""

SLICED = "UnpackBigParamInfor@@"
"""Below pickle protocol 4, `paddle.save` slices tensors of more than 1 GiB, and adds this key."""


class Dtype:
    """A dtype in Paddle's pickles. Paddle has no uint16, and writes bfloat16 as uint16."""

    def __init__(self, code: str, *flags: bool) -> None:
        if not isinstance(code, str) or len(code) > LONGEST_CODE:
            raise ValueError("the pickle has a dtype that NumPy does not support")
        self.numpy = np.dtype("V2" if code == "u2" else code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numpy = self.numpy.newbyteorder(state[1])


class Array:
    def __init__(self, *empty: Any) -> None:
        """Ignore the arguments, which describe an empty array. `__setstate__` sets all attributes."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], Dtype, bool, bytes | Raw]) -> None:
        _, self.shape, dtype, self.in_columns, self.data = state
        self.dtype = dtype.numpy
        check_shape("an array", self.shape)
        size, expected = len(self.data), math.prod(self.shape) * self.dtype.itemsize
        if size != expected and not self.dtype.hasobject:
            raise ValueError(
                f"a {name_of(self.dtype)} array with the shape {self.shape} has {size} bytes instead of {expected}"
            )

    def read(self, raw: Raw) -> Dense:
        if isinstance(self.data, np.memmap) and not self.in_columns and self.dtype.isnative:
            return dense(raw, name_of(self.dtype), self.shape, self.data.offset)
        array = np.frombuffer(self.data, self.dtype)
        return from_numpy(array.reshape(self.shape, order="F" if self.in_columns else "C"))


def _value(name: str, values: Mapping[str, Any]) -> Any:
    if not isinstance(name, str):
        raise TypeError("the pickle evaluates code")
    return values[name]


def _ordered(pairs: Sequence[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """Return a dict in place of an OrderedDict. Pickles of Python 2 pass its entries as an argument."""
    return {key: value for key, value in pairs if isinstance(key, PLAIN)}


STAND_INS: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): lambda *number: None,
    ("builtins", "eval"): _value,
    ("builtins", "tuple"): lambda named: named[1],  # paddle.save writes a tensor as tuple((its name, its array))
    ("builtins", "bytes"): lambda: b"",
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # protocol 2 writes bytes as text
    ("collections", "OrderedDict"): _ordered,
}

OTHER_SPELLINGS = {"__builtin__": "builtins", "numpy._core.multiarray": "numpy.core.multiarray"}


class CheckedFile:
    """A file that rejects reads beyond its end. A wrong length in a damaged file could otherwise fill the memory."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size = file, size

    def read(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise EOFError("the file ends early")
        return self.file.read(count)

    def readline(self) -> bytes:
        return self.file.readline()


def _checking_keys(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Return a function that checks the types of the keys on the unpickler's stack, and then calls `load`."""

    def load_checked(unpickler: Any) -> None:
        for key in unpickler.stack[keys]:
            if not isinstance(key, PLAIN):
                raise UnreadableError(
                    f"a dict has a key of type {type(key).__name__}. Save a dict with strings as keys"
                )
        load(unpickler)

    return load_checked


class Unpickler(_Unpickler):  # type: ignore[misc]
    """An unpickler that calls only the functions in `STAND_INS`."""

    def __init__(self, file: IO[bytes], raw: Raw) -> None:
        super().__init__(CheckedFile(file, len(raw)))
        self.file, self.raw = file, raw
        self.passed = 0  # characters and list entries that the pickle has passed to functions

    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[OTHER_SPELLINGS.get(module, module), name]
        except KeyError:
            raise UnreadableError(
                f"the pickle calls {module}.{name}. Save only tensors, as in "
                'paddle.save({"weight": gradient}, "gradients.pdparams")'
            ) from None

    def load_counted_bytes(self, width: int) -> None:
        size = int.from_bytes(self.read(width), "little")
        if size < LONG:
            self.append(self.read(size))
            return
        start = self.file.tell()
        piece: Any = self.raw[start : start + size]
        piece.offset = start
        self.append(piece)
        self.file.seek(start + size)

    def load_reduce(self) -> None:
        """Limit the data that functions receive. A small pickle could pass the same data to many functions."""
        self.passed += sum(len(argument) for argument in self.stack[-1] if isinstance(argument, str | list))
        if self.passed > len(self.raw):
            raise ValueError("the pickle copies the same data many times")
        super().load_reduce()

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Array | Dtype):
            target.__setstate__(state)
        elif not isinstance(target, dict):
            raise ValueError(f"the pickle sets attributes of a {type(target).__name__}")

    def load_frozenset(self) -> None:
        self.pop_mark()
        self.append(None)

    def load_not_written(self) -> None:
        raise ValueError("the pickle has an opcode that paddle.save does not write")

    dispatch = {  # noqa: RUF012
        **_Unpickler.dispatch,
        **dict.fromkeys(NOT_WRITTEN, load_not_written),
        pickle.BINBYTES[0]: partial(load_counted_bytes, width=4),
        pickle.BINBYTES8[0]: partial(load_counted_bytes, width=8),
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: _checking_keys(_Unpickler.load_setitem, slice(-2, -1)),
        pickle.SETITEMS[0]: _checking_keys(_Unpickler.load_setitems, slice(None, None, 2)),
        pickle.DICT[0]: _checking_keys(_Unpickler.load_dict, slice(None, None, 2)),
        # A set becomes None: tensors have no hash, so a set contains none.
        pickle.EMPTY_SET[0]: lambda unpickler: unpickler.append(None),
        pickle.ADDITEMS[0]: _Unpickler.pop_mark,
        pickle.FROZENSET[0]: load_frozenset,
    }


def items(path: Path) -> Iterator[Item]:
    raw = open_map(path)
    try:
        with atomic_files.reading(path) as file:
            loaded = Unpickler(file, raw).load()
        if isinstance(loaded, Mapping) and SLICED in loaded:
            raise UnreadableError(
                "the file has large tensors in slices. Load the file with paddle.load, and save the result with "
                "protocol 4, the default of paddle.save"
            )
        arrays = list(flatten(loaded, lambda value: isinstance(value, Array), tree=Tree(len(raw))))
        yield from [Item(name, name_of(array.dtype), partial(array.read, raw), array.shape) for name, array in arrays]
    except (UnreadableError, LimitError, MemoryError, OSError):
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UnreadableError(
            f"the file is damaged, or paddle.save did not write it: {describe_exception(error)}. Save the "
            "gradients with paddle.save"
        ) from None
