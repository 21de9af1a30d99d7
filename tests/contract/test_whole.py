"""Plain gradients are found and clipped in one go by the compiled kernels, and that shows in nothing but the time."""

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

ENTRIES = ("collect_parameters", "collect_tensors", "collect_param_grads")
SHAPES = [(2,), (), (3, 4), (1, 1, 5), (7,)]


@pytest.fixture(autouse=True)
def _compiled_and_eager(kit: Kit) -> None:
    if not kit.exact or not unified_clip.native_available():
        pytest.skip("about the compiled kernels on the host path")


@pytest.fixture
def backend(kit: Kit) -> Any:
    found = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
    if type(found).collect_tensors is Backend.collect_tensors:
        pytest.skip(f"every tensor of {kit.name} is looked at")
    if kit.on_parameters and not hasattr(type(kit.tensor([1.0])), "__dlpack_c_exchange_api__"):
        pytest.skip(f"every tensor of {kit.name} is looked at in this release, which has no C interface to them")
    return found


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [reference.array(rng.standard_normal(shape), dtype) for shape in SHAPES]


def tensors(kit: Kit, *more: Any) -> list[Any]:
    return [*(kit.from_array(array.copy()) for array in arrays()), None, *(kit.tensor(values) for values in more)]


def bits(kit: Kit, found: Any) -> Any:
    if isinstance(found, dict):
        return {key: bits(kit, item) for key, item in found.items()}
    if isinstance(found, list | tuple):
        return [bits(kit, item) for item in found]
    return found if found is None or isinstance(found, str) else (kit.dtype(found), kit.bits(found))


def in_place(kit: Kit, given: list[Any], call: Callable[[Any], Any]) -> Any:
    holders = kit.in_place(given)
    norm = call(holders)
    return [norm, kit.kept(holders)]


CALLS: dict[str, Callable[[Kit, list[Any], float], Any]] = {
    "clip_grad_norm_": lambda kit, given, c: in_place(kit, given, lambda g: kit.namespace.clip_grad_norm_(g, c)),
    "clip_grad_norm_ of order 1": lambda kit, given, c: in_place(
        kit, given, lambda g: kit.namespace.clip_grad_norm_(g, c, 1)
    ),
    "clip_grad_norm_ of order 3": lambda kit, given, c: in_place(
        kit, given, lambda g: kit.namespace.clip_grad_norm_(g, c, 3)
    ),
    "clip_grad_norm_ of order inf": lambda kit, given, c: in_place(
        kit, given, lambda g: kit.namespace.clip_grad_norm_(g, c, math.inf)
    ),
    "clip_grads_with_norm_": lambda kit, given, c: in_place(
        kit, given, lambda g: kit.namespace.clip_grads_with_norm_(g, c, 2.0)
    ),
    "clip_grad_value_": lambda kit, given, c: in_place(kit, given, lambda g: kit.namespace.clip_grad_value_(g, c)),
    "clip_by_global_norm": lambda kit, given, c: kit.namespace.clip_by_global_norm(given, c),
    "clip_by_global_norm of a tuple": lambda kit, given, c: kit.namespace.clip_by_global_norm(tuple(given), c),
    "clip_by_global_norm of an iterator": lambda kit, given, c: kit.namespace.clip_by_global_norm(iter(given), c),
    "clip_by_global_norm of a dict of dicts": lambda kit, given, c: kit.namespace.clip_by_global_norm(
        {"b": given[0], "a": {"d": given[1], "c": {"e": given[2]}}, "none": None}, c
    ),
    "clip_by_global_norm by a given norm": lambda kit, given, c: kit.namespace.clip_by_global_norm(given, c, 2.0),
    "clip_by_norm": lambda kit, given, c: kit.namespace.clip_by_norm([g for g in given if g is not None][-1], c),
    "get_total_norm": lambda kit, given, c: kit.namespace.get_total_norm(given, 1),
    "global_norm": lambda kit, given, c: kit.namespace.global_norm(given),
    "GradientClipByGlobalNorm": lambda kit, given, c: [
        gradient for _, gradient in kit.namespace.GradientClipByGlobalNorm(c)([(kit.parameter(), g) for g in given])
    ],
    "GradientClipByNorm": lambda kit, given, c: [
        gradient for _, gradient in kit.namespace.GradientClipByNorm(c)([(kit.parameter(), g) for g in given])
    ],
    "GradientClipByNorm.clip_": lambda kit, given, c: in_place(kit, given, kit.namespace.GradientClipByNorm(c).clip_),
    "GradientClipByValue": lambda kit, given, c: [
        gradient for _, gradient in kit.namespace.GradientClipByValue(c)([(kit.parameter(), g) for g in given])
    ],
    "GradientClipByGlobalNorm.clip_": lambda kit, given, c: in_place(
        kit, given, kit.namespace.GradientClipByGlobalNorm(c).clip_
    ),
    "GradientClipByValue.clip_": lambda kit, given, c: in_place(kit, given, kit.namespace.GradientClipByValue(c).clip_),
}
LOOKED_AT = {"GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue"}
"""Pairs are taken whole where parameters are a type of their own."""


def recorded(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    """A function that notes what it returns."""

    def call(*given: Any, **options: Any) -> Any:
        results.append(function(*given, **options))
        return results[-1]

    return call


@pytest.mark.parametrize("limit", [0.0, 0.1, 1e9, math.inf])
@pytest.mark.parametrize("name", CALLS)
def test_every_name_gives_the_same_bits(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch, name: str, limit: float
) -> None:
    for more in ([], [[math.inf, 1.0]], [[math.nan]], [[-0.0, 1e-45, -3e38]]):
        taken: list[Any] = []
        with monkeypatch.context() as patch:
            for entry in filter(partial(hasattr, backend), ENTRIES):
                patch.setattr(backend, entry, recorded(getattr(backend, entry), taken))
            found = bits(kit, CALLS[name](kit, tensors(kit, *more), limit))
        if name not in LOOKED_AT or kit.on_parameters:
            assert [path is not None for path in taken] == [True]
        with monkeypatch.context() as patch:
            for entry in filter(partial(hasattr, backend), ENTRIES):
                patch.setattr(backend, entry, lambda *given, **options: None)
            assert bits(kit, CALLS[name](kit, tensors(kit, *more), limit)) == found


@pytest.mark.parametrize("dtypes", [["float16"], ["bfloat16"], ["float64"], ["float32", "float16"], list(FLOATING)])
def test_every_dtype_gives_the_same_bits(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch, dtypes: list[str]
) -> None:
    if not set(dtypes) <= set(kit.floating):
        pytest.skip(f"{kit.name} has no float64 here")

    def found() -> Any:
        given = [kit.from_array(array.copy()) for dtype in dtypes for array in arrays(dtype)]
        return [bits(kit, CALLS[name](kit, list(given), 0.3)) for name in ("clip_by_global_norm", "clip_grad_norm_")]

    whole = found()
    for entry in filter(partial(hasattr, backend), ENTRIES):
        monkeypatch.setattr(backend, entry, lambda *given, **options: None)
    assert found() == whole


def test_a_result_shares_no_memory_with_what_was_given_or_came_before(kit: Kit) -> None:
    """Memory of results is used again, and never while somebody has it."""
    size = 2_000_000
    given = [kit.from_array(np.full(size, 3.0, np.float32)), kit.from_array(np.full(9, 4.0, np.float32))]
    kept = [kit.namespace.clip_by_global_norm(given, 1.0)[0] for _ in range(3)]
    before = [bits(kit, results) for results in kept]
    for _ in range(4):
        gc.collect()
        kit.namespace.clip_by_global_norm(given, 0.5)
    assert [bits(kit, results) for results in kept] == before
    assert float(kit.array(given[0])[0]) == 3.0
    last = kept[0][1]
    del kept
    gc.collect()
    kit.namespace.clip_by_global_norm(given, 0.25)
    assert (kit.dtype(last), kit.bits(last)) == before[0][1]


def test_one_tensor_that_is_not_plain_has_all_looked_at(kit: Kit, backend: Any) -> None:
    plain = kit.tensor([3.0, 4.0])
    for other in (kit.tensor(np.zeros(0)), kit.tensor([1.0], kit.complex[0]), 3.0, "weight", [plain], (plain, plain)):
        assert backend.collect_tensors([plain, other], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([None], differentiable=False, in_place=False) is None
    assert backend.collect_tensors([plain, None], differentiable=False, in_place=False) is not None


def test_a_dict_keeps_its_order_and_its_kind(kit: Kit) -> None:
    given = {"b": kit.tensor([3.0]), "a": {"z": None, "c": kit.tensor([4.0])}}
    clipped, _ = kit.namespace.clip_by_global_norm(given, 1.0)
    assert list(clipped) == ["b", "a"]
    assert list(clipped["a"]) == ["z", "c"]
    assert clipped["a"]["z"] is None
    np.testing.assert_allclose(kit.array(clipped["a"]["c"]), [0.8], rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc here")
def test_clipping_in_place_takes_no_memory_for_what_is_long(kit: Kit) -> None:
    if not (kit.writable and kit.writes_memory):
        pytest.skip("memory cannot be written")
    long = np.ones((4096, 4096), np.float32)
    given = {
        "dense": kit.in_place([kit.from_array(long.copy())]),
        "with gaps": kit.in_place([kit.from_array(long.copy()[:, :4000])]),
    }
    clips = {
        "by the norm": lambda holders: kit.namespace.clip_grad_norm_(holders, 0.5),
        "by value": lambda holders: kit.namespace.clip_grad_value_(holders, 1e-5),
        "each by its norm": lambda holders: kit.namespace.GradientClipByNorm(1e-3).clip_(holders),
    }
    for name, clip in clips.items():
        clip(kit.in_place([kit.tensor([3.0, 4.0])]))  # whatever is made once
        for kind, holders in given.items():
            grown = extra_memory(clip, holders)
            assert grown is not None
            assert grown < 1_000_000, (name, kind)
