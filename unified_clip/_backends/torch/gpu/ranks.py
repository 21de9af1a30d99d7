"""Norms over several ranks that stay on a GPU: no rank waits for its GPU, and CUDA graphs can capture them."""

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


class Request(NamedTuple):
    """What one rank brings to a norm over all ranks."""

    words: Sequence[int]
    """The integers to be added up over the ranks. The first WORDS are those of an accumulator."""

    table: Table | None
    """The table of gradients whose powers are added to the words. None: there are none, or the words have their sum."""

    p: float
    is_wide: bool
    """Whether the norm is float64."""

    largest: float
    """The largest magnitude of gradients that have no table, if p is inf."""

    ranks: int


def norm_over_ranks(
    request: Request, device: torch.device, all_reduce: Callable[[Tensor, str], None]
) -> tuple[Scalar, Tensor]:
    """Return (norm over all ranks, the added words), on the device. `all_reduce`: reduces a tensor over the ranks by
    SUM or MAX.

    The second all-reduce adds up exact sums if the first leaves the last bit of the norm open, and zeros otherwise. If
    p is inf, it takes the maximum of magnitudes.
    """
    local, order, wide = request.table, ORDERS[request.p], request.is_wide
    options = {"order": order, "wide": wide, **OPTIONS}
    with table._on(device):
        added = _sent(request.words, device)
        sums = None if local is None else local.sums(order, wide, torch.float64)
        if local is not None and request.p != math.inf:
            kernels.pack_sums[(1,)](sums, local.chunks, added, width=SUM_LANES, wide=wide, **OPTIONS)
        all_reduce(added, "SUM")
        norm = torch.empty([], dtype=torch.float64, device=device)
        states = torch.empty([1, kernels.STATE.value], dtype=torch.int64, device=device)
        kernels.round_words[(1,)](
            added, norm, states, request.ranks,
            error=WIDE_ERROR if wide else ERROR, flags=FLAGS, tags=TAGS, tag=TAG, pieces=PIECES, **options,
        )  # fmt: skip
        second = states.view(-1).split([2, WINDOWS])[1]
        if request.p == math.inf:
            if local is not None:
                kernels.pack_largest[(1,)](sums, local.chunks, states, width=SUM_LANES, **OPTIONS)
            elif request.largest:
                second += _sent([bits(request.largest), *[0] * (WINDOWS - 1)], device)
            all_reduce(second, "MAX")
            kernels.round_largest[(1,)](states, norm, **OPTIONS)
        else:
            if local is not None:
                local.add_exactly(states, order, wide, per_tensor=False)
            if wide:
                kernels.flag[(1,)](states, **OPTIONS)
            own = Accumulator.from_words(request.words[:WORDS])
            if own.total or own.infinite:
                second += _sent([int(wide and own.infinite), *_in_windows(own, order, wide)], device)
            all_reduce(second, "SUM")
            kernels.decide[(1,)](states, norm, over_ranks=True, **options)
    return norm, added


def _sent(numbers: Sequence[int], device: torch.device) -> Tensor:
    return table._sent(torch.tensor(numbers, dtype=torch.int64, device="cpu"), device)


def _in_windows(own: Accumulator, p: int, wide: bool) -> list[int]:
    """Return an exact sum of powers as windows of 24 bits. They count units of 2**-1075 for a float64 norm, else of
    2**-150, to the power p.
    """
    total = own.total << 2 >> UNIT + 2 - (1075 if wide else 150) * p
    return [total >> (24 * window) & (2**24 - 1) for window in range(WINDOWS - 1)]
