"""Plain gradients are collected in one pass by the compiled kernels, with the same results."""

from __future__ import annotations

import gc
import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import FLOATING, Kit

import unified_clip
from unified_clip._core.backend import Backend
from unified_clip.bench.measure import extra_memory

COLLECTORS = ("plain_gradients", "plain_tensors", "collect_parameters", "collect_tensors", "collect_param_grads")
SHAPES = [(2,), (), (3, 4), (1, 1, 5), (7,)]


@pytest.fixture(autouse=True)
def _compiled_and_eager(kit: Kit) -> None:
    if not kit.exact or not unified_clip.native_available():
        pytest.skip("tests the compiled kernels on the host path")


@pytest.fixture
def backend(kit: Kit) -> Any:
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


def test_results_share_no_memory_with_inputs_or_earlier_results(kit: Kit) -> None:
    """The memory of results is reused, but not while a result exists."""
    size = 2_000_000
    grads = [kit.from_array(np.full(size, 3.0, np.float32)), kit.from_array(np.full(9, 4.0, np.float32))]
    earlier = [kit.namespace.clip_by_global_norm(grads, 1.0)[0] for _ in range(3)]
    before = [bits_of(kit, grads) for grads in earlier]
    for _ in range(4):
        gc.collect()
        kit.namespace.clip_by_global_norm(grads, 0.5)
    assert [bits_of(kit, grads) for grads in earlier] == before
    assert float(kit.array(grads[0])[0]) == 3.0
    last_tensor = earlier[0][1]
    del earlier
    gc.collect()
    kit.namespace.clip_by_global_norm(grads, 0.25)
    assert (kit.dtype(last_tensor), kit.bits(last_tensor)) == before[0][1]


def test_a_list_with_one_tensor_that_is_not_plain_is_not_collected(kit: Kit, backend: Any) -> None:
    plain = kit.tensor([3.0, 4.0])
    for item in (kit.tensor(np.zeros(0)), kit.tensor([1.0], kit.complex[0]), 3.0, "weight", [plain], (plain, plain)):
        assert backend.collect_tensors([plain, item], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([None], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([plain, None], differentiable=False, in_place=False) is not None


def test_a_dict_keeps_its_order_and_nesting(kit: Kit) -> None:
    grads = {"b": kit.tensor([3.0]), "a": {"z": None, "c": kit.tensor([4.0])}}
    clipped, _ = kit.namespace.clip_by_global_norm(grads, 1.0)
    assert list(clipped) == ["b", "a"]
    assert list(clipped["a"]) == ["z", "c"]
    assert clipped["a"]["z"] is None
    np.testing.assert_allclose(kit.array(clipped["a"]["c"]), [0.8], rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc here")
def test_clipping_long_gradients_in_place_takes_no_memory(kit: Kit) -> None:
    if not (kit.writable and kit.writes_memory):
        pytest.skip("memory cannot be written")
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
        clip(kit.in_place([kit.tensor([3.0, 4.0])]))  # allocates what later calls share
        for layout, holders in inputs.items():
            memory = extra_memory(clip, holders)
            assert memory is not None
            assert memory < 1_000_000, (name, layout)
