"""PyTorch and Paddle: what autograd hears of writes in place, memory that cannot be written, and parameters."""

from __future__ import annotations

import importlib
import math
import os
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

pytestmark = [
    pytest.mark.graphs,  # older releases have the contract only
    where(lambda kit: kit.on_parameters),
]


@pytest.fixture(autouse=True, params=["", "framework"], ids=["host", "device"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", request.param)


def leaf(kit: Kit, values: list[float]) -> Any:
    tensor = kit.tensor(values)
    tensor.stop_gradient, tensor.requires_grad = False, True  # Paddle's and PyTorch's attribute
    return tensor


def records(kit: Kit, tensor: Any) -> bool:
    return tensor.requires_grad if kit.name == "torch" else not tensor.stop_gradient


def version(kit: Kit, tensor: Any) -> int:
    return tensor._version if kit.name == "torch" else tensor.inplace_version


def test_autograd_notices_that_a_saved_gradient_was_overwritten(kit: Kit) -> None:
    gradient = kit.tensor([3.0, 4.0])
    result = (leaf(kit, [2.0, 2.0]) * gradient).sum()  # saves the gradient
    kit.namespace.clip_grad_norm_(kit.in_place([gradient]), 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_an_untouched_gradient_is_not_marked_as_written(kit: Kit) -> None:
    (holder,) = kit.in_place([kit.tensor([3.0, 4.0])])
    before = version(kit, holder.grad)
    kit.namespace.clip_grad_norm_([holder], 10.0)
    if not os.environ["UNIFIED_CLIP_PATH"]:  # a GPU multiplies without asking, by 1
        assert version(kit, holder.grad) == before
    kit.namespace.clip_grad_norm_([holder], 1.0)
    assert version(kit, holder.grad) > before


def test_in_place_names_and_classes_record_no_gradient(kit: Kit) -> None:
    recorded = leaf(kit, [3.0, 4.0]) * kit.tensor([1.0, 1.0])
    assert records(kit, recorded)
    for name in ("GradientClipByNorm", "GradientClipByGlobalNorm", "GradientClipByValue"):
        for gradient in (recorded, leaf(kit, [3.0, 4.0])):
            assert not records(kit, getattr(kit.namespace, name)(1.0)([(None, gradient)])[0][1])
    (holder,) = kit.in_place([kit.tensor([3.0, 4.0])])
    (holder * kit.tensor([0.0, 0.0])).sum().backward()  # Paddle's gradient is a leaf that records derivatives
    assert not records(kit, kit.namespace.clip_grad_norm_([holder], 1.0))
    np.testing.assert_allclose(kit.array(holder.grad), [0.6, 0.8], rtol=1e-6)


def test_memory_that_cannot_be_written_or_overlaps_is_refused(kit: Kit) -> None:
    framework, base = importlib.import_module(kit.name), kit.tensor(np.arange(12))
    expanded = framework.as_strided(kit.tensor([1.0]), [4], [0])
    good, wrong, *overlapping = kit.in_place([kit.tensor([30.0]), expanded, base[:7], base[6:]])
    with pytest.raises(ValueError, match=r"position 1.* has elements that overlap in memory"):
        kit.namespace.clip_grad_norm_([good, wrong], 1.0)
    with pytest.raises(ValueError, match=r"position 1.* and the gradient at position 2.* overlap in memory"):
        kit.namespace.clip_grad_norm_([good, *overlapping], 1.0)
    assert good.grad.item() == 30.0
    assert base.tolist() == list(range(12))
    norm = kit.namespace.clip_grad_norm_(kit.in_place([base[::2], base[1::2]]), 1e9)
    assert norm.item() == float(np.float32(math.sqrt(506)))


def test_frozen_parameters_and_inner_tensors_are_silent(kit: Kit) -> None:
    frozen = kit.parameter()
    frozen.stop_gradient, frozen.requires_grad = True, False
    assert kit.namespace.clip_grad_norm_([frozen], 1.0).item() == 0.0
    first = leaf(kit, [1.0, 1.0])
    inner, kept = first * 3, first * 4
    kept.retain_grad() if kit.name == "torch" else kept.retain_grads()
    (inner + kept).sum().backward()
    kit.namespace.clip_grad_norm_([first, inner, kept], 1.0)
    np.testing.assert_allclose(kit.array(kept.grad), np.ones(2) / math.sqrt(2 * 49 + 2), rtol=1e-6)


def test_error_clip_as_a_hook(kit: Kit) -> None:
    first = leaf(kit, [1.0, 2.0])
    first.register_hook(kit.namespace.ErrorClipByValue(0.5))
    (first * kit.tensor([3.0, 0.25])).sum().backward()
    assert first.grad.tolist() == [0.5, 0.25]
