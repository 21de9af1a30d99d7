"""The toy framework: when its memory is read and written directly, and when it is not."""

from __future__ import annotations

import numpy as np
import pytest
from toyframe import Tensor

from unified_clip import toy as uc
from unified_clip._backends import toy


def test_tensors_take_the_host_path_unless_the_device_path_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for choice, on_host in (("", True), ("framework", False)):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", choice)
        assert toy.BACKEND.path([Tensor([3.0, 4.0])], differentiable=True).on_host == on_host


def test_memory_that_cannot_be_written_is_refused_before_any_write() -> None:
    good, read_only = np.array([30.0]), np.array([40.0])
    read_only.flags.writeable = False
    for bad in (Tensor(read_only), read_only, np.float64(40.0)):
        with pytest.raises(ValueError, match=r"position 1 .*read-only"):
            uc.clip_grad_norm_([Tensor(good), bad], 1.0)
        assert good.tolist() == [30.0]


def test_memory_that_overlaps_is_refused_before_any_write() -> None:
    memory = np.array([3.0, 4.0, 5.0])
    with pytest.raises(ValueError, match="overlap in memory"):
        uc.clip_grad_norm_([Tensor(memory[:2]), Tensor(memory[1:])], 1.0)
    assert memory.tolist() == [3.0, 4.0, 5.0]


def test_arrays_are_written_in_place_too() -> None:
    array = np.array([3.0, 4.0])
    uc.GradientClipByGlobalNorm(1.0).clip_([array, Tensor([0.0])])
    np.testing.assert_allclose(array, [0.6, 0.8])
