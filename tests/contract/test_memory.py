"""Results of clips have memory of their own, and clips in place take none."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

import unified_clip
from unified_clip.bench.measure import extra_memory


def bits_of(kit: Kit, gradients: list[Any]) -> list[tuple[str, bytes]]:
    return [(kit.dtype(each), kit.bits(each)) for each in gradients]


def test_results_share_no_memory_with_inputs_or_earlier_results(kit: Kit) -> None:
    """The memory of results is reused, but not while a result exists."""
    size = 2_000_000
    grads = [kit.from_array(np.full(size, 3.0, np.float32)), kit.from_array(np.full(9, 4.0, np.float32))]
    earlier = [kit.namespace.clip_by_global_norm(grads, 1.0)[0] for _ in range(3)]
    before = [bits_of(kit, clipped) for clipped in earlier]
    for _ in range(4):
        gc.collect()
        kit.namespace.clip_by_global_norm(grads, 0.5)
    assert [bits_of(kit, clipped) for clipped in earlier] == before
    assert float(kit.array(grads[0])[0]) == 3.0
    last_tensor = earlier[0][1]
    del earlier
    gc.collect()
    kit.namespace.clip_by_global_norm(grads, 0.25)
    assert bits_of(kit, [last_tensor]) == before[0][1:]


@pytest.mark.nightly
@where(lambda kit: kit.writable and kit.writes_memory and kit.exact and unified_clip.native_available())
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc here")
def test_clipping_long_gradients_in_place_takes_no_memory(kit: Kit) -> None:
    array = np.ones((4096, 4096), np.float32)
    inputs = {
        "dense": kit.in_place([kit.from_array(array.copy())]),
        "with gaps": kit.in_place([kit.from_array(array.copy()[:, :4000])]),
    }
    clips = {
        "by the norm": lambda holders: kit.namespace.clip_grad_norm_(holders, 0.5),
        "by value": lambda holders: kit.namespace.clip_grad_value_(holders, 1e-5),
        "each by its norm": lambda holders: kit.namespace.GradientClipByNorm(1e-3).clip_(holders),
    }
    for name, clip in clips.items():
        for layout, holders in inputs.items():
            clip(holders)  # allocates what later calls share
            memory = extra_memory(clip, holders)
            assert memory is not None
            assert memory < 1_000_000, (name, layout)
