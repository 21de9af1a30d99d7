"""Paddle's `.pdparams` and `.pdopt`, which are pickles, read without Paddle and without running what they hold.

A pickle names functions and classes, and calls what it names. Here it gets what `STAND_INS` has for the names that
`paddle.save` writes, and any other name is refused. Large arrays are mapped where they lie inside the pickle.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from .items import Item, flatten, from_array, name_of
from .mapped import Raw, dense, open_map
from .tensors import Dense, UnreadableError

LONG = 1 << 16
"""Bytes: as many or more are mapped. Pickles of protocol 4 hold them apart from what is in frames."""

_Unpickler: Any = pickle._Unpickler
"""The one written in Python, whose way to read bytes can be replaced."""

SLICED = "UnpackBigParamInfor@@"
"""A key that is there where tensors of more than a GiB are in slices, as earlier protocols want them."""


class Dtype:
    """Stands for np.dtype. Paddle has no uint16: those are the bits of bfloat16."""

    def __init__(self, code: str, *flags: bool) -> None:
        self.numpy = np.dtype("V2" if code == "u2" else code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numpy = self.numpy.newbyteorder(state[1])


class Array:
    """Stands for np.ndarray."""

    def __init__(self, *empty: Any) -> None:
        """As `_reconstruct` is called, before the pickle says what is in the array."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], Dtype, bool, bytes | Raw]) -> None:
        _, self.shape, dtype, self.in_columns, self.data = state
        self.dtype = dtype.numpy
        if len(self.data) != math.prod(self.shape) * self.dtype.itemsize and not self.dtype.hasobject:
            raise ValueError(f"an array of {self.dtype} and shape {self.shape} has {len(self.data)} bytes")

    def read(self, raw: Raw) -> Dense:
        if isinstance(self.data, np.memmap) and not self.in_columns and self.dtype.isnative:
            return dense(raw, name_of(self.dtype), self.shape, self.data.offset)
        array = np.frombuffer(self.data, self.dtype)
        return from_array(array.reshape(self.shape, order="F" if self.in_columns else "C"))


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    return text.encode("latin1")


def _value(name: str, values: Mapping[str, Any]) -> Any:
    """Paddle writes a dense tensor as a call of `eval` with a name and a dict."""
    return values[name]


def _tensor(named: tuple[str, Any]) -> Any:
    """And a tensor as one of `tuple`, with its name and an array."""
    return named[1]


STAND_INS: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): lambda *number: None,
    ("builtins", "eval"): _value,
    ("builtins", "tuple"): _tensor,
    ("builtins", "bytes"): lambda: b"",
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
}
"""By module, in today's spelling, and name."""

OTHER_SPELLINGS = {"__builtin__": "builtins", "numpy._core.multiarray": "numpy.core.multiarray"}


class Unpickler(_Unpickler):  # type: ignore[misc]
    """Calls nothing but the stand-ins, and leaves long bytes where they are in the file."""

    def __init__(self, file: IO[bytes], raw: Raw) -> None:
        super().__init__(file)
        self.file, self.raw = file, raw

    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[OTHER_SPELLINGS.get(module, module), name]
        except KeyError:
            raise UnreadableError(
                f"it is a pickle that calls {module}.{name}, which is not done; save tensors alone with paddle.save"
            ) from None

    def load_binbytes(self) -> None:
        self.load_counted_bytes(4)

    def load_binbytes8(self) -> None:
        self.load_counted_bytes(8)

    def load_counted_bytes(self, width: int) -> None:
        """Of bytes behind their number, which is `width` bytes long. Long ones are in no frame, but in the file."""
        size = int.from_bytes(self.read(width), "little")
        if size < LONG:
            self.append(self.read(size))
            return
        start = self.file.tell()
        piece: Any = self.raw[start : start + size]
        piece.offset = start
        self.append(piece)
        self.file.seek(start + size)

    dispatch = {  # noqa: RUF012
        **_Unpickler.dispatch,
        pickle.BINBYTES[0]: load_binbytes,
        pickle.BINBYTES8[0]: load_binbytes8,
    }


def items(path: Path) -> Iterator[Item]:
    """The arrays in a file, in its order."""
    raw = open_map(path)
    try:
        with path.open("rb") as file:
            loaded = Unpickler(file, raw).load()
        if isinstance(loaded, Mapping) and SLICED in loaded:
            raise UnreadableError(
                "its large tensors are in slices; save it with protocol 4, as paddle.save does by default"
            )
        found = list(flatten(loaded, lambda value: isinstance(value, Array)))
        yield from [Item(name, name_of(array.dtype), partial(array.read, raw)) for name, array in found]
    except UnreadableError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UnreadableError(f"it is no whole pickle: {type(error).__name__}: {error}") from None
