"""The table of a gradient list on a GPU, and the launches of kernels over it.

A table is made once for a list, and kept: the addresses of gradients mostly stay the same from step to step. Then a
clip copies nothing to the GPU, and reads nothing from it. A table only depends on addresses, lengths and dtypes, and
nothing writes it. What a call computes with is new memory of that call.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ...._core.types import Scalar, Tensor
from . import kernels

DTYPES = {
    torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16
}  # fmt: skip
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtypes of the two parts of complex numbers, as which the kernels take them."""

ORDERS = {1: 1, 2: 2, math.inf: kernels.INF.value}

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels, on tensors in CPU memory: for tests."""

CHUNK = 65536
LANES = 2048
"""Elements that a program reads before it adds the first: more bytes are on their way than with fewer."""

SUM_LANES = 256
"""Lanes that add up the sums of chunks."""

ERROR = 2.0**-40
"""A bound of the relative error of a norm before it is rounded. A sum of at most 2**13 numbers in a row, none of them
negative, has a smaller one: CHUNK / LANES, then LANES, then MAX_CHUNKS / SUM_LANES, then SUM_LANES."""

WIDE_ERROR = 2.0**-77
"""A bound if sums are two float64 numbers: of the 2**13 errors in a row, each at most 2**-53 of the sum, the sum is
rounded 2**13 times."""

MAX_CHUNKS = 2**20
EXACT_PROGRAMS = 264
"""Programs of the exact pass, which mostly ends at once."""

OPTIONS = {"enable_fp_fusion": False}
"""No result depends on it. Triton warns where it is not given."""

MAX_TABLES, MAX_NUMBERS = 256, 2**22
"""Tables that are kept, and the 8-byte numbers in all of them."""


class Addresses(NamedTuple):
    """A gradient list on one device: the addresses of gradients and results, and what is there."""

    device: torch.device
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


class Part(NamedTuple):
    """The chunks of one dtype."""

    tensor: int
    """The index of a tensor of this dtype."""

    dtype: torch.dtype
    first: int
    end: int

    @property
    def options(self) -> dict[str, Any]:
        return {"dtype": DTYPES[self.dtype], "chunk_size": CHUNK, "width": LANES, **OPTIONS}


class Table:
    """One list of gradients in the memory of one device."""

    def __init__(self, addresses: Addresses) -> None:
        self.device, self._length = addresses.device, len(addresses.sources)
        self._in_place = addresses.sources == addresses.targets
        self.is_wide = torch.float64 in addresses.dtypes
        counts = [_chunks(length) for length in addresses.lengths]
        self.chunks = sum(counts)
        order = sorted(range(self._length), key=lambda index: str(addresses.dtypes[index]))
        self._parts = list(_parts(addresses, counts, order))
        numbers = _numbers(addresses, _on_host(counts), _on_host(order))
        self.size = len(numbers)
        self._memory = _sent(numbers, self.device)
        self._groups = self._memory[3 * self._length + 2 * self.chunks :]

    def norms(self, p: float, *, per_tensor: bool) -> Scalar:
        """Return the norm over all tensors, or a vector with one per tensor, as float64.

        They are rounded to float64 if any tensor is float64, else to float32.
        """
        return _rounded([self], self._groups[2:] if per_tensor else self._groups[:2], p, per_tensor=per_tensor)

    def sums(self, order: int, wide: bool) -> Tensor:
        """Return the sum of each chunk as two float64 numbers, or the largest magnitude."""
        with _on(self.device):
            sums = torch.empty(2 * self.chunks, dtype=torch.float64, device=self.device)
            for part in self._parts:
                kernels.add[(part.end - part.first,)](
                    self._memory, self._length, part.first, sums, order=order, wide=wide, **part.options
                )
        return sums

    def add_exactly(self, states: Tensor, order: int, wide: bool, *, per_tensor: bool) -> None:
        """Add the powers of norms in doubt to their windows."""
        with _on(self.device):
            for part in self._parts:
                kernels.add_exactly[(min(EXACT_PROGRAMS, part.end - part.first),)](
                    self._memory, self._length, part.first, part.end, states,
                    order=order, wide=wide, per_tensor=per_tensor, **part.options,
                )  # fmt: skip

    def products(self, coef: Scalar, *, per_tensor: bool) -> list[Callable[[], None]]:
        """Return the launches that multiply by the coefficient, or each tensor by its own from a vector."""
        change = functools.partial(self._change, coef, per_tensor=per_tensor, clamps=False)
        return [functools.partial(change, part, (0, 0)) for part in self._parts]

    def clamped(self, bounds: Sequence[Sequence[float]]) -> list[Callable[[], None]]:
        """Return the launches that clamp each tensor to its bounds, which are the same for each dtype."""
        change = functools.partial(self._change, self._memory, per_tensor=False, clamps=True)
        return [functools.partial(change, part, list(map(_bits, bounds[part.tensor]))) for part in self._parts]

    def _change(self, coef: Scalar, part: Part, bounds: Sequence[int], *, per_tensor: bool, clamps: bool) -> None:
        with _on(self.device):
            kernels.change[(part.end - part.first,)](
                self._memory, self._length, part.first, coef, *bounds,
                in_place=self._in_place, per_tensor=per_tensor, clamps=clamps,
                by_bits=INTERPRETED and part.dtype == torch.bfloat16, **part.options,
            )  # fmt: skip


def norm_of_all(tables: Sequence[Table], p: float) -> Scalar:
    """Return the norm over several tables, on the device of the first, without waiting for any."""
    chunks = sum(table.chunks for table in tables)
    groups = torch.arange(0, 2 * chunks, chunks, device=tables[0].device)  # 0, and how many
    return _rounded(tables, groups, p, per_tensor=False)


def _rounded(tables: Sequence[Table], groups: Tensor, p: float, *, per_tensor: bool) -> Scalar:
    """Return the norm of each group of chunks. `groups`: as `round_sums` of `kernels` describes them."""
    device, count, order = tables[0].device, len(groups) // 2, ORDERS[p]
    wide = any(table.is_wide for table in tables)
    options = {"order": order, "wide": wide, **OPTIONS}
    sums = [table.sums(order, wide).to(device, non_blocking=True) for table in tables]
    with _on(device):
        norms = torch.empty([count] if per_tensor else [], dtype=torch.float64, device=device)
        states = torch.empty([count, kernels.STATE.value], dtype=torch.int64, device=device)
        kernels.round_sums[(count,)](
            groups, torch.cat(sums) if len(sums) > 1 else sums[0], norms, states,
            error=WIDE_ERROR if wide else ERROR, width=SUM_LANES, **options,
        )  # fmt: skip
    if p == math.inf:
        return norms
    copies = [states.to(table.device, non_blocking=True) for table in tables]
    for table, copy in zip(tables, copies, strict=True):
        table.add_exactly(copy, order, wide, per_tensor=per_tensor)
    with _on(device):
        for copy in copies:
            if copy is not states:
                moved = copy.to(device, non_blocking=True)
                states[:, 1] = torch.maximum(states[:, 1], moved[:, 1])
                states[:, 2:] += moved[:, 2:]
        kernels.decide[(count,)](states, norms, **options)
    return norms


def _bits(number: float) -> int:
    """Return the bits of a float64 number."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _chunks(length: int) -> int:
    return -(-length // CHUNK)


def _parts(addresses: Addresses, counts: Sequence[int], order: Sequence[int]) -> Iterator[Part]:
    """Yield the parts of tensors. `counts`: their numbers of chunks. `order`: their indices, sorted by dtype."""
    end = 0
    for dtype, group in itertools.groupby(order, key=lambda index: addresses.dtypes[index]):
        same = list(group)
        first, end = end, end + sum(counts[index] for index in same)
        yield Part(same[0], dtype, first, end)


def _numbers(addresses: Addresses, counts: Tensor, order: Tensor) -> Tensor:
    """Return the numbers of a table, which `kernels` describe, and the groups of chunks: all, then of each tensor."""
    in_order = counts[order]
    ends = in_order.cumsum(0)
    total = int(counts.sum())
    numbers = torch.arange(total, device="cpu") - (ends - in_order).repeat_interleave(in_order)
    chunks = torch.stack([order.repeat_interleave(in_order), numbers], 1)
    last = torch.empty_like(ends).index_copy_(0, order, ends)
    groups = torch.stack([last - counts, last], 1)
    lists = [_on_host(each) for each in (addresses.sources, addresses.targets, addresses.lengths)]
    return torch.cat([*lists, chunks.flatten(), _on_host([0, total]), groups.flatten()])


def _on_host(numbers: Sequence[int]) -> Tensor:
    """Return integers in the memory of the host, also where the caller has set another default device."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


_tables: OrderedDict[Hashable, Table] = OrderedDict()
_captured: list[Tensor] = []
"""The memory on the host of tables in CUDA graphs: each replay copies its table from there."""


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which Triton launches on a device: it takes the current one, not that of the arguments."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _sent(numbers: Tensor, device: torch.device) -> Tensor:
    """Return integers on a device, without waiting for the copy."""
    if device.type != "cuda":
        return numbers
    on_host = numbers.pin_memory()
    if torch.cuda.is_current_stream_capturing():
        _captured.append(on_host)
    return on_host.to(device, non_blocking=True)


def table_of(tensors: Sequence[Tensor], results: Sequence[Tensor] | None = None) -> Table | None:
    """Return the table of tensors on one device, and of where results go (by default to the tensors).

    None if there are too many chunks for the error bound or none, or a tensor has no memory.
    """
    sources = tuple(tensor.data_ptr() for tensor in tensors)
    targets = sources if results is None else tuple(tensor.data_ptr() for tensor in results)
    lengths = tuple(tensor.numel() * (1 + (tensor.dtype in PARTS)) for tensor in tensors)
    dtypes = tuple(PARTS.get(tensor.dtype, tensor.dtype) for tensor in tensors)
    have_memory = all(source or not length for source, length in zip(sources, lengths, strict=True))
    if not 0 < sum(map(_chunks, lengths)) <= MAX_CHUNKS or not have_memory:
        return None
    addresses = Addresses(tensors[0].device, sources, targets, lengths, dtypes)
    with _on(addresses.device):
        if addresses.device.type != "cuda":
            return _kept(0, addresses)
        if torch.cuda.is_current_stream_capturing():
            return Table(addresses)  # the graph may outlive any other
        return _kept(torch.cuda.current_stream(addresses.device).cuda_stream, addresses)


def _kept(stream: int, addresses: Addresses) -> Table:
    """Return the table of a list for launches on a stream: its memory is filled, and used again, in that order."""
    key = (stream, addresses)
    table = _tables.pop(key, None) or Table(addresses)
    _tables[key] = table  # the last one used
    while len(_tables) > MAX_TABLES or (len(_tables) > 1 and sum(t.size for t in list(_tables.values())) > MAX_NUMBERS):
        _tables.popitem(last=False)
    return table
