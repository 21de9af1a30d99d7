"""Norms of many tensors from one pass have the bits of the norm of each, and so has their total norm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unified_clip._backends.numpy import BACKEND
from unified_clip._compute import kernels
from unified_clip._core.path import CollectedPath, Path
from unified_clip._native import KERNELS

needs_kernels = pytest.mark.skipif(KERNELS is None, reason="without compiled kernels, each tensor has its own pass")


def same_bits(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def collected(tensors: list[np.ndarray]) -> CollectedPath:
    path = BACKEND.collect_tensors(tensors, in_place=False, differentiable=False)
    assert path is not None
    return path


def norms_of(path: Path) -> list[float]:
    together = path.per_tensor()
    assert together is not None
    with together.scope():
        norms: list[float] = together.norm(2).tolist()
    return norms


def check(tensors: list[np.ndarray]) -> None:
    path = collected(tensors)
    norms = norms_of(path)
    assert all(
        same_bits(norm, BACKEND.path([tensor], differentiable=False).norm(2))
        for norm, tensor in zip(norms, tensors, strict=True)
    )
    assert same_bits(path.norm(2), BACKEND.path(tensors, differentiable=False).norm(2))


@needs_kernels
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norms_have_the_bits_of_each(dtype: type) -> None:
    source = np.random.default_rng(3)
    for scale in (1.0, 1e-3, 1e-30, 1e3):
        shapes = [(7,), (64, 33), (), (200_000,), (1, 5)]
        check([np.asarray(source.standard_normal(shape) * scale).astype(dtype) for shape in shapes])


@needs_kernels
def test_norms_in_doubt_are_rounded_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    certified = kernels.certified_roots

    def wrong_and_in_doubt(*arguments: object) -> tuple[np.ndarray, list[int]]:
        roots, _ = certified(*arguments)
        return roots * 2, list(range(len(roots)))

    monkeypatch.setattr(kernels, "certified_roots", wrong_and_in_doubt)
    check([np.arange(1, 6, dtype=np.float32), np.ones((3, 3), np.float32)])


@needs_kernels
def test_a_total_norm_after_the_norms_of_collected_tensors_needs_no_pass() -> None:
    tensor = np.array([3.0, 4.0], np.float32)
    path = collected([tensor, np.zeros(2, np.float32)])
    assert norms_of(path) == [5, 0]
    tensor *= 2
    assert path.norm(2) == 5  # from the sums of the norms
    assert path.norm(2) == 10
