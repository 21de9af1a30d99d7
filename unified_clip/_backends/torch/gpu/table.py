"""The table of a gradient list on a GPU: the addresses and lengths of tensors, which the kernels read.

Most gradients have the same address in every step, so tables are kept. A clip with a kept table copies no data to the
GPU and reads no data from the GPU. Each call allocates new memory for its sums and norms, and does not change the
table.
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
OF_CODES = {"d": torch.float64, "f": torch.float32, "B": torch.bfloat16, "e": torch.float16}
"""Maps the dtype codes of the compiled kernels to dtypes."""

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Maps each complex dtype to the dtype of its parts. The kernels read both parts as separate numbers."""

ORDERS = {1: 1, 2: 2, math.inf: kernels.INF.value}

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels on tensors in CPU memory."""

CHUNK = 65536
"""The number of elements that one program (an instance of a Triton kernel) adds up."""

LANES = 2048
"""The number of elements that one program reads at a time."""

SUM_LANES = 256
"""The number of chunks whose sums one program reads at a time."""

ERROR = 2.0**-40
"""A bound on the relative error of a norm before it is rounded.

Each element passes through CHUNK / LANES + LANES + MAX_CHUNKS / SUM_LANES + SUM_LANES additions, at most 2**13. All
numbers are 0 or positive, so each addition increases the relative error by at most 2**-53.
"""

WIDE_ERROR = 2.0**-77
"""The same as ERROR, for sums that are stored as two float64 numbers.

The second number is the sum of at most 2**13 rounding errors. So the second number is at most 2**-40 times the first.
The relative error of the second number is about 2**-40. So the relative error of the sum is about 2**-80.
"""

NARROW_ERROR = 2.0**-35
"""The same as ERROR, for sums that are stored as two float32 numbers.

Each lane adds CHUNK / LANES numbers. The second number is the sum of the rounding errors. Each rounding error is at
most 2**-24 times the first number. Each addition of two lanes has a relative error of at most 3 * 2**-48.
"""

MAX_CHUNKS = 2**20
EXACT_PROGRAMS = 264
"""The maximum number of programs that run `add_exactly`."""

OPTIONS = {"enable_fp_fusion": False}
"""Triton must not fuse products with sums: the error bounds assume that products are rounded before they are added."""

FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))
"""The compute capabilities of NVIDIA GPUs on which float64 has half the speed of float32. On most other NVIDIA
GPUs, float64 has 1/64 of the speed."""

LEAST_MAJOR = 8
"""The lowest major version of a compute capability that Triton supports."""

FAST_FLOAT64_AMD = ("gfx90a", "gfx94", "gfx95")
"""The AMD architectures on which float64 has at least half the speed of float32."""

MAX_TABLES, MAX_NUMBERS = 256, 2**22
"""The maximum number of kept tables, and of 8-byte numbers in all kept tables."""


class Addresses(NamedTuple):
    """The addresses of gradients and of results. A complex tensor counts as a real tensor of twice the length."""

    device: torch.device
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


class Part(NamedTuple):
    """The chunks from `first` to `end` - 1, whose tensors have one dtype. One kernel launch handles these chunks."""

    tensor: int
    """The index of the first tensor."""

    dtype: torch.dtype
    first: int
    end: int

    @property
    def options(self) -> dict[str, Any]:
        width = min(LANES, 128) if INTERPRETED else LANES  # the interpreter adds float64 lanes one by one
        return {"dtype": DTYPES[self.dtype], "chunk_size": CHUNK, "width": width, **OPTIONS}


class Table:
    def __init__(self, addresses: Addresses) -> None:
        self.device, self._length = addresses.device, len(addresses.sources)
        self._in_place = addresses.sources == addresses.targets
        self.is_wide = torch.float64 in addresses.dtypes
        counts = [-(-length // CHUNK) for length in addresses.lengths]
        self.chunks = sum(counts)
        order = sorted(range(self._length), key=lambda index: str(addresses.dtypes[index]))
        self._parts = list(_parts(addresses, counts, order))
        numbers = _numbers(addresses, _on_host(counts), _on_host(order))
        self.size = len(numbers)
        self._memory = _sent(numbers, self.device)
        self._groups = self._memory[3 * self._length + 2 * self.chunks :]

    def norms(self, p: float, *, per_tensor: bool) -> Scalar:
        return _rounded([self], self._groups[2:] if per_tensor else self._groups[:2], p, per_tensor=per_tensor)

    def sums(self, order: int, wide: bool, dtype: torch.dtype) -> Tensor:
        """Return the sum of |g|**p of each chunk as two numbers. If p is inf, return the largest magnitude."""
        with _on(self.device):
            sums = torch.empty(2 * self.chunks, dtype=dtype, device=self.device)
            for part in self._parts:
                kernels.add[(part.end - part.first,)](
                    self._memory, self._length, part.first, sums, order=order, wide=wide, **part.options
                )
        return sums

    def add_exactly(self, states: Tensor, order: int, wide: bool, *, per_tensor: bool) -> None:
        with _on(self.device):
            for part in self._parts:
                kernels.add_exactly[(min(EXACT_PROGRAMS, part.end - part.first),)](
                    self._memory, self._length, part.first, part.end, states,
                    order=order, wide=wide, per_tensor=per_tensor, **part.options,
                )  # fmt: skip

    def products(self, coef: Scalar, *, per_tensor: bool) -> list[Callable[[], None]]:
        change = functools.partial(self._change, coef, per_tensor=per_tensor, clamps=False)
        return [functools.partial(change, part, (0, 0)) for part in self._parts]

    def clamped(self, bounds: Sequence[Sequence[float]]) -> list[Callable[[], None]]:
        """`bounds` has (low, high) for each tensor. All tensors of one dtype have the same bounds."""
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
    chunks = sum(table.chunks for table in tables)
    groups = torch.arange(0, 2 * chunks, chunks, device=tables[0].device)  # one group: chunks from 0 to `chunks`
    return _rounded(tables, groups, p, per_tensor=False)


def _rounded(tables: Sequence[Table], groups: Tensor, p: float, *, per_tensor: bool) -> Scalar:
    device, count, order = tables[0].device, len(groups) // 2, ORDERS[p]
    wide = any(table.is_wide for table in tables)
    options = {"order": order, "wide": wide, **OPTIONS}
    narrow = not wide and any(_has_slow_float64(table.device) for table in tables)
    dtype = torch.float32 if narrow else torch.float64
    sums = [table.sums(order, wide, dtype).to(device, non_blocking=True) for table in tables]
    with _on(device):
        norms = torch.empty([count] if per_tensor else [], dtype=torch.float64, device=device)
        states = torch.empty([count, kernels.STATE.value], dtype=torch.int64, device=device)
        kernels.round_sums[(count,)](
            groups, torch.cat(sums) if len(sums) > 1 else sums[0], norms, states,
            error=WIDE_ERROR if wide else NARROW_ERROR if narrow else ERROR, width=SUM_LANES, **options,
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
        kernels.decide[(count,)](states, norms, over_ranks=False, **options)
    return norms


@functools.cache
def _is_supported(device: torch.device) -> bool:
    is_nvidia = device.type == "cuda" and not torch.version.hip
    return not is_nvidia or bool(torch.cuda.get_device_properties(device).major >= LEAST_MAJOR)


@functools.cache
def _has_slow_float64(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return not properties.gcnArchName.startswith(FAST_FLOAT64_AMD)
    return (properties.major, properties.minor) not in FAST_FLOAT64


def _bits(number: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _parts(addresses: Addresses, counts: Sequence[int], order: Sequence[int]) -> Iterator[Part]:
    """`order` has the indices of the tensors, sorted by dtype."""
    end = 0
    for dtype, group in itertools.groupby(order, key=lambda index: addresses.dtypes[index]):
        same = list(group)
        first, end = end, end + sum(counts[index] for index in same)
        if first < end:
            yield Part(same[0], dtype, first, end)


def _numbers(addresses: Addresses, counts: Tensor, order: Tensor) -> Tensor:
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
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


_tables: OrderedDict[Hashable, Table] = OrderedDict()
_captured: list[Tensor] = []
"""The tables of captured CUDA graphs, in host memory. Each replay of a graph copies the graph's tables to the GPU."""


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Set the current device, because Triton ignores the device of a kernel's arguments."""
    is_current = device.type != "cuda" or device.index == torch.cuda.current_device()
    return nullcontext() if is_current else torch.cuda.device(device)


def _sent(numbers: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return numbers
    on_host = numbers.pin_memory()
    if torch.cuda.is_current_stream_capturing():
        _captured.append(on_host)
    return on_host.to(device, non_blocking=True)


def table_of(tensors: Sequence[Tensor], results: Sequence[Tensor] | None = None) -> Table | None:
    """Return None for an unsupported device, too many chunks, or a tensor without memory."""
    # Comprehensions, because a generator costs a function call for each tensor of every step.
    sources = tuple([tensor.data_ptr() for tensor in tensors])
    targets = sources if results is None else tuple([tensor.data_ptr() for tensor in results])
    lengths = tuple([tensor.numel() * (1 + (tensor.dtype in PARTS)) for tensor in tensors])
    dtypes = tuple([PARTS.get(tensor.dtype, tensor.dtype) for tensor in tensors])
    if [length for source, length in zip(sources, lengths, strict=True) if length and not source]:
        return None  # these tensors lack memory
    addresses = Addresses(tensors[0].device, sources, targets, lengths, dtypes)
    return _kept(addresses.device, addresses, lambda: addresses)


def table_of_list(device_list: Any) -> Table | None:
    device, memory, codes = device_list.tensors[0].device, device_list.memory, device_list.codes

    def addresses() -> Addresses:
        numbers = struct.unpack(f"={len(memory) // 8}q", memory)
        sources, lengths = numbers[::2], numbers[1::2]
        return Addresses(device, sources, sources, lengths, tuple(OF_CODES[code] for code in codes))

    return _kept(device, (device.index, memory, codes), addresses)


def _kept(device: torch.device, key: Hashable, addresses: Callable[[], Addresses]) -> Table | None:
    """Return the kept table of the current CUDA stream, or a new table.

    Each CUDA stream has its own tables, because tables are copied to the GPU asynchronously, and other streams do not
    wait for the copy. Tables of CUDA graphs are not kept here: old kept tables are deleted, but a graph can run again.
    """
    if not _is_supported(device):
        return None
    with _on(device):
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return _made(addresses())
            key = (torch.cuda.current_stream(device).cuda_stream, key)
        table = _tables.pop(key, None) or _made(addresses())
    if table is None:
        return None
    _tables[key] = table  # put the last used table at the end
    while len(_tables) > MAX_TABLES or (len(_tables) > 1 and sum(t.size for t in list(_tables.values())) > MAX_NUMBERS):
        _tables.popitem(last=False)
    return table


def _made(addresses: Addresses) -> Table | None:
    has_few_chunks = sum([-(-length // CHUNK) for length in addresses.lengths]) <= MAX_CHUNKS
    return Table(addresses) if has_few_chunks else None
