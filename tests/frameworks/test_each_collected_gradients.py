"""Plain gradients are collected in one pass by the compiled kernels, with the same results."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import adaptive_tensors, calls
from support.calls import CALLS
from support.kits import Kit

import unified_clip
from unified_clip import ClipConfig
from unified_clip._core.backend import Backend
from unified_clip.adaptive.thresholds import TensorThresholds

COLLECTORS = ("plain_gradients", "plain_tensors", "collect_parameters", "collect_tensors", "collect_param_grads")


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


def recorded(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    return call


@pytest.mark.parametrize("limit", [0.1, math.inf])
def test_every_call_collects_plain_gradients(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """The results are those of the oracle: see tests/contract/test_property.py."""
    for name, call in CALLS.items():
        is_single, is_pair = name.startswith(("clip_by_norm", "clip_by_value", "Error")), call.prepare is calls.pairs
        if is_single or is_pair:  # pairs are collected only if parameters have their own type
            continue
        paths: list[Any] = []
        argument = call.prepare(kit, [kit.tensor([3.0, 4.0]), None, kit.tensor([[5.0]])])
        with monkeypatch.context() as patch:
            for entry in filter(partial(hasattr, backend), COLLECTORS):
                patch.setattr(backend, entry, recorded(getattr(backend, entry), paths))
            call.run(kit, argument, limit)
        assert paths, name
        assert paths[-1] is not None, name


def test_pairs_of_parameters_are_collected(kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kit.on_parameters:
        pytest.skip("parameters have no type of their own")
    for name in ("GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue"):
        paths: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(backend, "collect_param_grads", recorded(backend.collect_param_grads, paths))
            getattr(kit.namespace, name)(1.0)([(kit.parameter(), kit.tensor([3.0, 4.0]))])
        assert paths[-1] is not None, name


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
