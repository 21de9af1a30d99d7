"""Compute norms over several ranks on GPUs. No rank waits for its GPU, and CUDA graphs can capture the computation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...._core.exact import UNIT, WORDS, Accumulator
from ...._core.types import Scalar, Tensor
from ...._distributed.digests import PIECES
from ...._distributed.integers import bits
from ...._distributed.on_device import FLAGS, TAG, TAGS, WINDOWS
from . import kernels, table
from .table import ERROR, OPTIONS, ORDERS, SUM_LANES, WIDE_ERROR, Table

assert kernels.STATE.value == 2 + WINDOWS


class Counted(NamedTuple):
    table: Table | None = None
    """None if there are no gradients, or if the kernels do not support one of the gradients."""

    total: Accumulator = Accumulator()
    """The exact sum of |g|**p over the gradients that are not in `table`."""

    largest: float = 0.0
    """The largest magnitude of the gradients that are not in `table`. Only used if p is inf."""


class Request(NamedTuple):
    numbers: Sequence[int]
    """The integers of the first all-reduce. The first WORDS integers are placeholders for the words of the sum."""

    own: Counted

    sum_terms: Callable[[], tuple[Counted, Counted]] | None
    """Adds up `Partial` gradients over all ranks. Returns (summed gradients, summed gradients that this rank owns)."""

    p: float
    is_wide: bool
    ranks: int


def norm_over_ranks(
    request: Request, device: torch.device, all_reduce: Callable[[Tensor, str], None]
) -> tuple[Scalar, Tensor]:
    """Return (norm over all ranks, result of the first all-reduce), both on the device.

    The first all-reduce adds up `request.numbers`. If the norm might be rounded wrongly, the last all-reduce adds up
    the exact sums. Otherwise, the last all-reduce adds up zeros. For p = inf, the last all-reduce takes the maximum
    of the magnitudes.
    """
    order, wide, own = ORDERS[request.p], request.is_wide, request.own
    options = {"order": order, "wide": wide, **OPTIONS}
    with table._on(device):
        added = _sent([*own.total.to_words(), *request.numbers[WORDS:]], device)
        sums = _sums(own, added, request)
        all_reduce(added, "SUM")
        terms = owned = Counted()
        of_terms = None
        if request.sum_terms is not None:
            terms, owned = request.sum_terms()
            if terms.total != Accumulator():
                added.split([WORDS, len(added) - WORDS])[0].add_(_sent(terms.total.to_words(), device))
            of_terms = _sums(terms, added, request)
        norm = torch.empty([], dtype=torch.float64, device=device)
        states = torch.empty([1, kernels.STATE.value], dtype=torch.int64, device=device)
        kernels.round_words[(1,)](
            added, norm, states, request.ranks,
            error=WIDE_ERROR if wide else ERROR, flags=FLAGS, tags=TAGS, tag=TAG, pieces=PIECES, **options,
        )  # fmt: skip
        second = states.view(-1).split([2, WINDOWS])[1]
        if request.p == math.inf:
            for counted, magnitudes in ((own, sums), (terms, of_terms)):
                if counted.table is not None:
                    kernels.pack_largest[(1,)](magnitudes, counted.table.chunks, states, width=SUM_LANES, **OPTIONS)
            largest = max(bits(own.largest), bits(terms.largest))  # NaN has the largest bits
            if largest:
                local_largest = _sent([largest, *[0] * (WINDOWS - 1)], device)
                torch.maximum(second, local_largest, out=second)
            all_reduce(second, "MAX")
            kernels.round_largest[(1,)](states, norm, **OPTIONS)
        else:
            for counted in (own, owned):
                if counted.table is not None:
                    counted.table.add_exactly(states, order, wide, per_tensor=False)
            if wide:
                kernels.flag[(1,)](states, **OPTIONS)
            total = own.total + owned.total
            if total.total or total.infinite:
                second += _sent([int(wide and total.infinite), *_in_windows(total, order, wide)], device)
            all_reduce(second, "SUM")
            kernels.decide[(1,)](states, norm, over_ranks=True, **options)
    return norm, added


def _sums(counted: Counted, words: Tensor, request: Request) -> Tensor | None:
    if counted.table is None:
        return None
    sums = counted.table.sums(ORDERS[request.p], request.is_wide, torch.float64)
    if request.p != math.inf:
        kernels.pack_sums[(1,)](sums, counted.table.chunks, words, width=SUM_LANES, wide=request.is_wide, **OPTIONS)
    return sums


def _sent(numbers: Sequence[int], device: torch.device) -> Tensor:
    return table._sent(torch.tensor(numbers, dtype=torch.int64, device="cpu"), device)


def _in_windows(own: Accumulator, p: int, wide: bool) -> list[int]:
    """Split a sum into windows of 24 bits.

    The last bit of the first window is 2**(-1075 * p) for a float64 norm, and 2**(-150 * p) for a float32 norm.
    """
    total = own.total << 2 >> UNIT + 2 - (1075 if wide else 150) * p
    return [total >> (24 * window) & (2**24 - 1) for window in range(WINDOWS - 1)]
