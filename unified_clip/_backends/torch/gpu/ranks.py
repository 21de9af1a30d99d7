"""Norms over several ranks that stay on a GPU: no rank waits for its GPU, and CUDA graphs can capture them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...._core.exact import UNIT, WORDS, Accumulator
from ...._core.types import Scalar, Tensor
from ...._distributed.digests import PIECES
from ...._distributed.on_device import FLAGS, TAG, TAGS, WINDOWS
from . import kernels, table
from .table import ERROR, OPTIONS, SUM_LANES, Table

assert kernels.STATE.value == 3 + WINDOWS

NUMBER_BITS = 150
"""The windows count units of 2**-NUMBER_BITS, to the power p."""


class Request(NamedTuple):
    """What one rank brings to a norm over all ranks."""

    words: Sequence[int]
    """The integers to be added up over the ranks. The first WORDS are those of an accumulator."""

    table: Table | None
    """The table of gradients whose powers are added to the words. None: there are none, or the words have their sum."""

    p: int
    ranks: int


def norm_over_ranks(
    request: Request, device: torch.device, all_reduce: Callable[[Tensor], None]
) -> tuple[Scalar, Tensor]:
    """Return (norm over all ranks, the added words), on the device. `all_reduce`: adds a tensor up over the ranks.

    The second all-reduce adds up exact sums if the first leaves the last bit of the norm open, and zeros otherwise.
    """
    words, local, order, ranks = request
    options = {"order": order, **OPTIONS}
    own = Accumulator.from_words(words[:WORDS])
    with table._on(device):
        added = table._sent(torch.tensor(words, dtype=torch.int64, device="cpu"), device)
        if local is not None:
            sums = local.sums(order, False, torch.float64)
            kernels.pack_sums[(1,)](sums, local.chunks, added, width=SUM_LANES, **OPTIONS)
        all_reduce(added)
        norm = torch.empty([], dtype=torch.float64, device=device)
        states = torch.empty([1, kernels.STATE.value], dtype=torch.int64, device=device)
        kernels.round_words[(1,)](
            added, norm, states, ranks,
            error=ERROR, flags=FLAGS, tags=TAGS, tag=TAG, pieces=PIECES, **options,
        )  # fmt: skip
        if local is not None:
            local.add_exactly(states, order, False, per_tensor=False)
        windows = states.view(-1).split([3, WINDOWS])[1]
        if own.total:
            windows += table._sent(torch.tensor(_in_windows(own, order), dtype=torch.int64, device="cpu"), device)
        all_reduce(windows)
        kernels.decide[(1,)](states, norm, wide=False, **options)
    return norm, added


def _in_windows(own: Accumulator, p: int) -> list[int]:
    """Return an exact sum of powers of numbers of at most 32 bits as windows of 24 bits."""
    total = own.total >> (UNIT - NUMBER_BITS * p)
    return [total >> (24 * window) & (2**24 - 1) for window in range(WINDOWS)]
