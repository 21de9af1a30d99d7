"""Plain gradients are collected in one pass by the compiled kernels, with the same results."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import adaptive_tensors, reference
from support.kits import FLOATING, Kit

import unified_clip
from unified_clip import ClipConfig
from unified_clip._core.backend import Backend
from unified_clip.adaptive.tensor_thresholds import TensorThresholds

COLLECTORS = ("plain_gradients", "plain_tensors", "collect_parameters", "collect_tensors", "collect_param_grads")
SHAPES = [(2,), (), (3, 4), (1, 1, 5), (7,)]


@pytest.fixture
def backend(kit: Kit) -> Any:
    if not kit.exact or not unified_clip.native_available():
        pytest.skip("tests the compiled kernels on the host path")
    backend_ = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    if type(backend_).collect_tensors is Backend.collect_tensors:
        pytest.skip(f"every tensor of {kit.name} is looked at")
    if not kit.is_collected:
        pytest.skip(f"every tensor of {kit.name} is looked at in this release, which has no C interface to them")
    return backend_


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [reference.array(rng.standard_normal(shape), dtype) for shape in SHAPES]


def tensors(kit: Kit, *extra: Any) -> list[Any]:
    return [*(kit.from_array(array.copy()) for array in arrays()), None, *(kit.tensor(values) for values in extra)]


def bits_of(kit: Kit, result: Any) -> Any:
    if isinstance(result, dict):
        return {key: bits_of(kit, item) for key, item in result.items()}
    if isinstance(result, list | tuple):
        return [bits_of(kit, item) for item in result]
    return result if result is None or isinstance(result, str) else (kit.dtype(result), kit.bits(result))


def in_place(kit: Kit, grads: list[Any], call: Callable[[Any], Any]) -> Any:
    holders = kit.in_place(grads)
    norm = call(holders)
    return [norm, kit.kept(holders)]


CALLS: dict[str, Callable[[Kit, list[Any], float], Any]] = {
    "clip_grad_norm_": lambda kit, grads, c: in_place(kit, grads, lambda g: kit.namespace.clip_grad_norm_(g, c)),
    "clip_grad_norm_ of order 1": lambda kit, grads, c: in_place(
        kit, grads, lambda g: kit.namespace.clip_grad_norm_(g, c, 1)
    ),
    "clip_grad_norm_ of order 3": lambda kit, grads, c: in_place(
        kit, grads, lambda g: kit.namespace.clip_grad_norm_(g, c, 3)
    ),
    "clip_grad_norm_ of order inf": lambda kit, grads, c: in_place(
        kit, grads, lambda g: kit.namespace.clip_grad_norm_(g, c, math.inf)
    ),
    "clip_grads_with_norm_": lambda kit, grads, c: in_place(
        kit, grads, lambda g: kit.namespace.clip_grads_with_norm_(g, c, 2.0)
    ),
    "clip_grad_value_": lambda kit, grads, c: in_place(kit, grads, lambda g: kit.namespace.clip_grad_value_(g, c)),
    "clip_by_global_norm": lambda kit, grads, c: kit.namespace.clip_by_global_norm(grads, c),
    "clip_by_global_norm of a tuple": lambda kit, grads, c: kit.namespace.clip_by_global_norm(tuple(grads), c),
    "clip_by_global_norm of an iterator": lambda kit, grads, c: kit.namespace.clip_by_global_norm(iter(grads), c),
    "clip_by_global_norm of a dict of dicts": lambda kit, grads, c: kit.namespace.clip_by_global_norm(
        {"b": grads[0], "a": {"d": grads[1], "c": {"e": grads[2]}}, "none": None}, c
    ),
    "clip_by_global_norm by a passed norm": lambda kit, grads, c: kit.namespace.clip_by_global_norm(grads, c, 2.0),
    "clip_by_norm": lambda kit, grads, c: kit.namespace.clip_by_norm([g for g in grads if g is not None][-1], c),
    "get_total_norm": lambda kit, grads, c: kit.namespace.get_total_norm(grads, 1),
    "global_norm": lambda kit, grads, c: kit.namespace.global_norm(grads),
    "GradientClipByGlobalNorm": lambda kit, grads, c: [
        gradient for _, gradient in kit.namespace.GradientClipByGlobalNorm(c)([(kit.parameter(), g) for g in grads])
    ],
    "GradientClipByNorm": lambda kit, grads, c: [
        gradient for _, gradient in kit.namespace.GradientClipByNorm(c)([(kit.parameter(), g) for g in grads])
    ],
    "GradientClipByNorm.clip_": lambda kit, grads, c: in_place(kit, grads, kit.namespace.GradientClipByNorm(c).clip_),
    "GradientClipByValue": lambda kit, grads, c: [
        gradient for _, gradient in kit.namespace.GradientClipByValue(c)([(kit.parameter(), g) for g in grads])
    ],
    "GradientClipByGlobalNorm.clip_": lambda kit, grads, c: in_place(
        kit, grads, kit.namespace.GradientClipByGlobalNorm(c).clip_
    ),
    "GradientClipByValue.clip_": lambda kit, grads, c: in_place(kit, grads, kit.namespace.GradientClipByValue(c).clip_),
}
NOT_COLLECTED = {"GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue"}
"""Pairs are collected only if parameters have their own type."""


def recorded(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    return call


@pytest.mark.parametrize("limit", [0.0, 0.1, 1e9, math.inf])
@pytest.mark.parametrize("name", CALLS)
def test_collected_gradients_give_the_same_bits(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch, name: str, limit: float
) -> None:
    for extra in ([], [[math.inf, 1.0]], [[math.nan]], [[-0.0, 1e-45, -3e38]]):
        paths: list[Any] = []
        with monkeypatch.context() as patch:
            for entry in filter(partial(hasattr, backend), COLLECTORS):
                patch.setattr(backend, entry, recorded(getattr(backend, entry), paths))
            collected = bits_of(kit, CALLS[name](kit, tensors(kit, *extra), limit))
        if name not in NOT_COLLECTED or kit.on_parameters:
            assert paths[-1] is not None, paths
        with monkeypatch.context() as patch:
            for entry in filter(partial(hasattr, backend), COLLECTORS):
                patch.setattr(backend, entry, lambda *arguments, **options: None)
            assert bits_of(kit, CALLS[name](kit, tensors(kit, *extra), limit)) == collected


@pytest.mark.parametrize("dtypes", [["float16"], ["bfloat16"], ["float64"], ["float32", "float16"], list(FLOATING)])
def test_collected_gradients_of_every_dtype_give_the_same_bits(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch, dtypes: list[str]
) -> None:
    if not set(dtypes) <= set(kit.floating):
        pytest.skip(f"{kit.name} has no float64 here")

    def clip_lists() -> Any:
        grads = [kit.from_array(array.copy()) for dtype in dtypes for array in arrays(dtype)]
        return [bits_of(kit, CALLS[name](kit, list(grads), 0.3)) for name in ("clip_by_global_norm", "clip_grad_norm_")]

    collected = clip_lists()
    for entry in filter(partial(hasattr, backend), COLLECTORS):
        monkeypatch.setattr(backend, entry, lambda *grads, **options: None)
    assert clip_lists() == collected


def test_a_list_with_one_tensor_that_is_not_plain_is_not_collected(kit: Kit, backend: Any) -> None:
    plain = kit.tensor([3.0, 4.0])
    for item in (kit.tensor(np.zeros(0)), kit.tensor([1.0], kit.complex[0]), 3.0, "weight", [plain], (plain, plain)):
        assert backend.collect_tensors([plain, item], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([None], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([plain, None], differentiable=False, in_place=False) is not None


def gradients_of(kit: Kit, norms: list[float | None]) -> list[Any]:
    return [None if array is None else kit.tensor(array) for array in adaptive_tensors.gradients(norms)]


def test_adagc_in_place_measures_tensors_together_also_beside_one_without_a_gradient(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kit.name not in ("torch", "paddle", "numpy"):
        pytest.skip("gradients are measured one by one")
    adaptive = {"rule": "adagc", "warmup_steps": 2}
    clip = ClipConfig(rule="norm", adaptive=adaptive, family="paddle").clipper()
    steps = [[2.0, None, 1.0], [3.0, 1.0, None], [9.0, None, 1.0], [None, None, None], [2.0, 2.0, 2.0]]
    expected = adaptive_tensors.adagc(steps[:3] + steps[4:], warmup_steps=2, eps=0.0)
    monkeypatch.setattr(TensorThresholds, "_decided", None)  # which decides on tensors that were measured alone
    for norms in steps:
        holders = kit.in_place(gradients_of(kit, norms))
        if kit.on_parameters and norms[1] is None:
            holders[1] = kit.parameter()
        clip.clip_(holders)
        if norms == [None] * 3:
            continue
        coefs, state = next(expected)
        for result, array in zip(kit.kept(holders), adaptive_tensors.scaled(norms, coefs), strict=True):
            assert (None if result is None else kit.bits(result)) == (None if array is None else array.tobytes())
        assert clip.state_dict()["adaptive"][""]["state"] == state
