"""Undeclared copies of gradients are compared between ranks, and one rank owns them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.rank_tables import rows_of
from support.rank_threads import (
    ONES,
    Member,
    RankShards,
    Sums,
    common_error,
    norm_of,
    norm_of_ones,
    run_ranks,
)

from unified_clip._compute import checksums
from unified_clip._compute.host import HOST
from unified_clip._core.types import Leaf


def norm_of_copies(group: Any, p: float, arrays: Sequence[np.ndarray]) -> tuple[float, str]:
    path: Any = SimpleNamespace(xp=HOST, norm_dtype="")
    shards: Any = RankShards(group, arrays, copies=range(len(arrays)))
    shards.counted = lambda indices: arrays if group.rank == 0 else []
    n = shards.norm(path, range(len(arrays)), p, {}, Sums, function="", is_first=True)
    return n, path.norm_dtype


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_copies_have_the_same_bits_on_all_ranks(p: float) -> None:
    norms, calls = run_ranks(3, lambda group: norm_of_copies(group, p, [np.full(2, 3.0, np.float32)]))
    assert len(set(norms)) == 1
    assert calls == (2 if p == 3 else 1), "they are compared in the same collective"
    drifted = np.nextafter(np.float32(3.0), np.float32(4.0))
    for changed_rank in range(3):

        def run(group: Member, changed_rank: int = changed_rank) -> Any:
            value = drifted if group.rank == changed_rank else 3.0
            return norm_of_copies(group, p, [np.array([3.0, value], np.float32)])

        message = common_error(3, run)
        assert message.startswith("plain gradients differ between ranks: position 0. No gradient was changed.")
        (checksums_of,) = rows_of(message).values()
        assert {rank for rank, text in checksums_of.items() if text == checksums_of[changed_rank]} == {changed_rank}


@pytest.mark.parametrize("options", [{"rows": [np.array([[0]])]}, {"leaves": [Leaf(np.ones(3, np.int32), 0)]}])
def test_copies_with_other_stored_rows_or_another_dtype_differ(options: dict[str, Any]) -> None:
    message = common_error(2, lambda group: norm_of_ones(group, copies=[0], **(options if group.rank else {})))
    assert message.startswith("plain gradients differ between ranks: position 0. No gradient was changed.")


def test_copies_of_nan_may_have_other_bits() -> None:
    nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    for p in (2.0, math.inf):
        norms, _ = run_ranks(
            2, lambda group, p=p: norm_of_copies(group, p, [nan if group.rank else np.full(1, math.nan, np.float32)])
        )
        assert all(math.isnan(n) for n, _ in norms)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_equal_copies_need_one_checksum(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checksum waits for the device."""
    computed: list[int] = []
    checksum = Sums.checksum

    def counting(sums: Sums) -> int:
        computed.append(len(sums._tensors))
        return checksum(sums)

    monkeypatch.setattr(Sums, "checksum", counting)
    run_ranks(2, lambda group: norm_of_copies(group, p, [np.ones(2, np.float32)] * 5))
    assert computed == [5, 5]


def test_a_checksum_depends_on_every_bit_and_on_the_order() -> None:
    array = np.random.default_rng(0).standard_normal(3 * checksums.CHUNK // 2).astype(np.float32)
    computed = {checksums.checksum([array])}
    changes = [-array, array[::-1], np.roll(array, 1), np.roll(array, checksums.CHUNK), array[:-1], np.append(array, 0)]
    for bit in range(32):  # each bit of one number, and of two numbers, whose changes cancel in a sum
        for places in ([5], [5, 9], [checksums.CHUNK + 5, 5]):
            bits = array.copy().view(np.uint32)
            bits[places] ^= np.uint32(1 << bit)
            changes.append(bits.view(np.float32))
    for first, second in ((0, 1), (0, 2), (7, 3 * checksums.CHUNK // 2 - 1)):
        swapped = array.copy()
        swapped[[first, second]] = swapped[[second, first]]
        changes.append(swapped)
    computed |= {checksums.checksum([change]) for change in changes}
    assert len(computed) == 1 + len(changes)
    assert checksums.checksum([array[:7], array[7:]]) != checksums.checksum([array[:8], array[8:]])
    assert checksums.checksum([np.zeros(1, np.float16)]) != checksums.checksum([np.zeros(2, np.float16)])


def test_copies_are_compared_by_name() -> None:
    """Another rank has one more parameter before them."""

    def run(group: Member, change: int) -> Any:
        leaves = [Leaf(None, index + group.rank, name) for index, name in enumerate("ab")]
        return norm_of(group, [ONES, ONES + change], 2.0, copies=[0, 1], leaves=leaves)

    run_ranks(2, lambda group: run(group, 0))
    assert list(rows_of(common_error(2, lambda group: run(group, group.rank)))) == ["position 1 (parameter 'b')"]
