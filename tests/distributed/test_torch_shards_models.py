"""PyTorch: models that are cut over processes, after a backward pass, are clipped to the bits of one process.

The reference is what the exact rule makes of the gradients gathered from all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded_models as models
from support.processes.torch_sharded_models import CALLS, LIMIT, MODELS, Clipped
from support.processes.worlds import World
from support.tiers import nightly

import unified_clip.numpy as whole

Worlds = Callable[[int], World]

SIZES = [1, 2, *nightly(4)]


def merged(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """All gradients of a model; those that several processes gave have to be the same."""
    found: dict[str, np.ndarray] = {}
    for part in parts:
        for name, array in part.items():
            np.testing.assert_array_equal(found.setdefault(name, array), array, strict=True)
    return found


def run(world: World, kind: str, dtype: str, call: str, *arguments: float, watched: bool = False) -> list[Clipped]:
    return world.run(models.clipped, kind, dtype, call, arguments, watched)


def check(found: Sequence[Clipped], p: float = 2.0) -> None:
    """The norm and the gradients, of all processes."""
    before, held, after = (merged([getattr(each, name) for each in found]) for name in ("before", "held", "after"))
    n = reference.norm(before.values(), p)
    kind = f"Tensor torch.{reference.norm_dtype(array.dtype.name for array in before.values())} 0"
    assert [each.norm for each in found] == [(n, kind)] * len(found)
    assert n > LIMIT, "there is something to clip"
    coef = reference.coefficient(n, LIMIT, 1e-6)
    for name, array in held.items():
        np.testing.assert_array_equal(after[name], reference.scaled(array, coef), strict=True, err_msg=name)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_a_model_is_clipped_as_on_one_process(torch_worlds: Worlds, size: int, kind: str, p: float) -> None:
    check(run(torch_worlds(size), kind, "float32", "clip_grad_norm_", p), p)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["FSDP2", "FSDP2 and tensor parallel", "a pipeline of FSDP2"])
@pytest.mark.parametrize("size", SIZES)
def test_parameters_may_be_narrower_or_wider(torch_worlds: Worlds, size: int, kind: str, dtype: str) -> None:
    found = run(torch_worlds(size), kind, dtype, "clip_grad_norm_")
    check(found)
    assert [each.calls for each in found] == [["all_reduce"] * (size > 1)] * size


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_all_is_found_with_one_collective_call(torch_worlds: Worlds, size: int, kind: str) -> None:
    """PyTorch's own count includes what its operations call, and is that of a path on which nothing is read raw. Terms
    of sums need one more, whatever their number."""
    number = 0 if size == 1 or kind == "DDP" else 2 if kind == "terms of sums, and plain" else 1
    found = run(torch_worlds(size), kind, "float32", "clip_grad_norm_", watched=True)
    check(found)
    assert [(each.calls, each.seen) for each in found] == [(["all_reduce"] * number, number)] * size


NEED_OWNERSHIP = ["clip_by_global_norm", "global_norm"]
"""Names that cannot be told what tensors on parts of a mesh leave open."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "call"),
    [(kind, call) for kind in ("DDP", "FSDP2", "HSDP") for call in CALLS]
    + [("FSDP2, tensor and expert parallel", call) for call in CALLS if call not in NEED_OWNERSHIP],
)
@pytest.mark.parametrize("size", SIZES)
def test_every_name_does_what_it_does_on_one_process(torch_worlds: Worlds, size: int, kind: str, call: str) -> None:
    """The results are held as the gradients are."""
    for found in run(torch_worlds(size), kind, "float32", call):
        expected = {name: array.copy() for name, array in found.before.items()}
        arrays = list(expected.values())
        norm, results = CALLS[call](whole, arrays, arrays, {})
        assert (found.norm and found.norm[0]) == norm
        for got, wanted in zip(found.after.values(), results or arrays, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize(("call", "number"), [("GradientClipByNorm.clip_", 2), ("GradientClipByValue.clip_", 0)])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_by_themselves_are_clipped_with_few_collective_calls(
    torch_worlds: Worlds, size: int, call: str, number: int
) -> None:
    """All norms are found together: what the processes pass is compared first."""
    for found in run(torch_worlds(size), "FSDP2", "float32", call):
        assert found.calls == ["all_reduce"] * (number if size > 1 else 0)
