"""PyTorch: gradients of sharded models after a backward pass are clipped to the same bits as on one process.

The reference is the exact rule, applied to the gradients gathered from all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded_models as models
from support.processes.torch_sharded_models import CALLS, MODELS, THRESHOLD, Clipped
from support.processes.worlds import World
from support.tiers import nightly

import unified_clip.numpy as np_uc

Worlds = Callable[[int], World]

SIZES = [1, 2, *nightly(4)]


def merge(processes: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    merged: dict[str, np.ndarray] = {}
    for gradients in processes:
        for name, array in gradients.items():
            np.testing.assert_array_equal(merged.setdefault(name, array), array, strict=True)
    return merged


def run(
    world: World, kind: str, dtype: str, call: str, *arguments: float, count_pytorch: bool = False
) -> list[Clipped]:
    return world.run(models.clip_model, kind, dtype, call, arguments, count_pytorch)


def check_clips(results: Sequence[Clipped], p: float = 2.0) -> None:
    full, local_values, after = (
        merge([getattr(result, name) for result in results]) for name in ("before", "local_values", "after")
    )
    n = reference.norm(full.values(), p)
    kind = f"Tensor torch.{reference.norm_dtype(array.dtype.name for array in full.values())} 0"
    assert [result.norm for result in results] == [(n, kind)] * len(results)
    assert n > THRESHOLD, "there is something to clip"
    coef = reference.coefficient(n, THRESHOLD, 1e-6)
    for name, array in local_values.items():
        np.testing.assert_array_equal(after[name], reference.scaled(array, coef), strict=True, err_msg=name)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_a_model_is_clipped_as_on_one_process(torch_worlds: Worlds, size: int, kind: str, p: float) -> None:
    check_clips(run(torch_worlds(size), kind, "float32", "clip_grad_norm_", p), p)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["FSDP2", "FSDP2 and tensor parallel", "a pipeline of FSDP2"])
@pytest.mark.parametrize("size", SIZES)
def test_models_of_bfloat16_and_float64(torch_worlds: Worlds, size: int, kind: str, dtype: str) -> None:
    results = run(torch_worlds(size), kind, dtype, "clip_grad_norm_")
    check_clips(results)
    assert [result.calls for result in results] == [["all_reduce"] * (size > 1)] * size


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_a_clip_of_a_model_has_one_collective(torch_worlds: Worlds, size: int, kind: str) -> None:
    """Count the collectives by a mock, and by PyTorch's counter, which includes collectives inside PyTorch's
    operations.

    All partial sums together need one more collective.
    """
    number = 0 if size == 1 or kind == "DDP" else 2 if kind == "terms of sums, and plain" else 1
    results = run(torch_worlds(size), kind, "float32", "clip_grad_norm_", count_pytorch=True)
    check_clips(results)
    assert [(result.calls, result.pytorch_count) for result in results] == [(["all_reduce"] * number, number)] * size


NEED_OWNERSHIP = ["clip_by_global_norm", "global_norm"]
"""Functions without a parameter `ownership`, which tensors on a submesh need."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "call"),
    [(kind, call) for kind in ("DDP", "FSDP2", "HSDP") for call in CALLS]
    + [("FSDP2, tensor and expert parallel", call) for call in CALLS if call not in NEED_OWNERSHIP],
)
@pytest.mark.parametrize("size", SIZES)
def test_every_function_returns_the_results_of_one_process(
    torch_worlds: Worlds, size: int, kind: str, call: str
) -> None:
    for clip in run(torch_worlds(size), kind, "float32", call):
        expected = {name: array.copy() for name, array in clip.before.items()}
        arrays = list(expected.values())
        norm, results = CALLS[call](np_uc, arrays, arrays, {})
        assert (clip.norm and clip.norm[0]) == norm
        for result, expected_gradient in zip(clip.after.values(), results or arrays, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)


@pytest.mark.parametrize(("call", "number"), [("GradientClipByNorm.clip_", 2), ("GradientClipByValue.clip_", 0)])
@pytest.mark.parametrize("size", SIZES)
def test_clipping_by_own_norms_needs_few_collectives(torch_worlds: Worlds, size: int, call: str, number: int) -> None:
    """One all-reduce compares the arguments of the ranks, and one computes all norms."""
    for clip in run(torch_worlds(size), "FSDP2", "float32", call):
        assert clip.calls == ["all_reduce"] * (number if size > 1 else 0)
