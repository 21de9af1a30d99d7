"""The table of a gradient list on a GPU, and the launches of kernels over it.

A table is made once for a list, and kept: the addresses of gradients mostly stay the same from step to step. Then a
clip copies nothing to the GPU, and reads nothing from it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ...._core.types import Scalar, Tensor
from . import kernels

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels, on tensors in CPU memory: for tests."""

CHUNK = 65536
LANES = 1024
SUM_LANES = 256
"""Lanes that add up the sums of chunks."""

ERROR = 2.0**-40
"""A bound of the relative error of a norm before it is rounded. A sum of at most 2**13 numbers in a row, none of them
negative, has a smaller one: CHUNK / LANES, then LANES, then MAX_CHUNKS / SUM_LANES, then SUM_LANES."""

MAX_CHUNKS = 2**20
EXACT_PROGRAMS = 264
"""Programs of the exact pass, which mostly ends at once."""

OPTIONS = {"enable_fp_fusion": False}
"""No result depends on it. Triton warns where it is not given."""

MAX_TABLES = 16
"""Tables that are kept: one for each list and stream."""


class Part(NamedTuple):
    """The chunks of one dtype."""

    dtype: torch.dtype
    first: int
    end: int
    is_aligned: bool

    @property
    def options(self) -> dict[str, Any]:
        return {"dtype": DTYPES[self.dtype], "chunk_size": CHUNK, "width": LANES, **OPTIONS}


class Table:
    """One list of gradients in the memory of one device."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._device, self._length = tensors[0].device, len(tensors)
        order = sorted(range(len(tensors)), key=lambda index: str(tensors[index].dtype))
        counts = [-(-tensor.numel() // CHUNK) for tensor in tensors]
        chunks = [(index, number) for index in order for number in range(counts[index])]
        ends = dict(zip(order, itertools.accumulate(counts[index] for index in order), strict=True))
        numbers = [
            *(tensor.data_ptr() for tensor in tensors), *(tensor.numel() for tensor in tensors),
            *itertools.chain.from_iterable(chunks),
            0, len(chunks), *(number for i, count in enumerate(counts) for number in (ends[i] - count, ends[i])),
        ]  # fmt: skip
        self._parts = list(_parts([tensors[index] for index in order], [counts[index] for index in order]))
        self._memory, self._on_host = _sent(numbers, self._device)
        self._groups = self._memory[2 * len(tensors) + 2 * len(chunks) :]
        self._sums = torch.empty(len(chunks), dtype=torch.float64, device=self._device)
        self._exact_sums: dict[int, tuple[Tensor, Tensor]] = {}

    def norms(self, order: int, *, per_tensor: bool) -> Scalar:
        """Return the norm over all tensors, or a vector with one per tensor: rounded to float32, as float64."""
        count = self._length if per_tensor else 1
        norms = torch.empty(count, dtype=torch.float64, device=self._device)
        doubtful, windows = self._exact(count)
        for part in self._parts:
            kernels.add[(part.end - part.first,)](
                self._memory, self._length, part.first, self._sums,
                order=order, aligned=part.is_aligned, **part.options,
            )  # fmt: skip
        groups = self._groups[2:] if per_tensor else self._groups
        kernels.round_sums[(count,)](
            groups, self._sums, norms, doubtful, error=ERROR, order=order, width=SUM_LANES, **OPTIONS
        )
        for part in self._parts:
            kernels.add_exactly[(min(EXACT_PROGRAMS, part.end - part.first),)](
                self._memory, self._length, part.first, part.end, doubtful, windows,
                order=order, per_tensor=per_tensor, **part.options,
            )  # fmt: skip
        kernels.decide[(count,)](doubtful, windows, norms, order=order, **OPTIONS)
        return norms if per_tensor else norms[0]

    def scale_(self, coef: Scalar, *, per_tensor: bool) -> None:
        """Multiply by the coefficient in place, or each tensor by its own from a vector."""
        for part in self._parts:
            kernels.scale[(part.end - part.first,)](
                self._memory, self._length, part.first, coef, aligned=part.is_aligned, per_tensor=per_tensor,
                by_bits=INTERPRETED and part.dtype == torch.bfloat16, **part.options,
            )  # fmt: skip

    def _exact(self, count: int) -> tuple[Tensor, Tensor]:
        """Return which of so many norms are in doubt, and the windows of their exact sums, which are 0."""
        if count not in self._exact_sums:
            doubtful = torch.empty(count, dtype=torch.int32, device=self._device)
            windows = torch.zeros(count * kernels.WINDOWS.value, dtype=torch.int64, device=self._device)
            self._exact_sums[count] = doubtful, windows
        return self._exact_sums[count]


def _parts(tensors: Sequence[Tensor], counts: Sequence[int]) -> Iterator[Part]:
    """Yield the parts of tensors that are sorted by dtype. `counts`: their numbers of chunks."""
    end = 0
    for dtype, group in itertools.groupby(zip(tensors, counts, strict=True), key=lambda item: item[0].dtype):
        same = list(group)
        first, end = end, end + sum(count for _, count in same)
        yield Part(dtype, first, end, all(tensor.data_ptr() % 16 == 0 for tensor, _ in same))


def _sent(numbers: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return integers on a device, and the memory on the host that they are copied from without waiting."""
    on_host = torch.tensor(numbers, dtype=torch.int64, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True), on_host


_tables: OrderedDict[Hashable, Table] = OrderedDict()
_captured: list[Table] = []
"""The tables of CUDA graphs, each of which copies its table from this memory."""


def table_of(tensors: Sequence[Tensor]) -> Table | None:
    """Return the table of tensors on one device; None if there are too many chunks for the error bound."""
    if sum(-(-tensor.numel() // CHUNK) for tensor in tensors) > MAX_CHUNKS:
        return None
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        _captured.append(Table(tensors))
        return _captured[-1]
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream if tensors[0].is_cuda else 0
    key = (stream, tensors[0].device, *((tensor.data_ptr(), tensor.numel(), tensor.dtype) for tensor in tensors))
    table = _tables.pop(key, None) or Table(tensors)
    _tables[key] = table  # the last one used
    while len(_tables) > MAX_TABLES:
        _tables.popitem(last=False)
    return table
