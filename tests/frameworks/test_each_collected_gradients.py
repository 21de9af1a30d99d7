"""Plain gradients are collected in one pass by the compiled kernels, with the same results."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import calls
from support.calls import CALLS
from support.kits import Kit
from support.tiers import where

import unified_clip
from unified_clip._core.backend import Backend

COLLECTORS = ("plain_gradients", "plain_tensors", "collect_parameters", "collect_tensors", "collect_param_grads")


@pytest.fixture
def backend(kit: Kit) -> Any:
    if not unified_clip.native_available():
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


@where(lambda kit: kit.name == "paddle")
def test_one_parameter_of_paddle_that_is_special_has_all_of_them_looked_at(kit: Kit, backend: Any) -> None:
    paddle, holder = importlib.import_module("paddle"), kit.holder
    plain = holder(paddle.ones([2]))
    left_out = holder(paddle.ones([2]))
    left_out.need_clip = False
    embedding = paddle.nn.Embedding(5, 3, sparse=True)
    embedding(paddle.to_tensor([1, 1])).sum().backward()
    tensor = paddle.ones([2])
    tensor.stop_gradient = False
    tensor.grad = paddle.ones([2])
    for special in (left_out, embedding.weight, tensor, ("weight", plain), plain, paddle.ones([2])):
        assert backend.collect_parameters([plain, special]) is None


@where(lambda kit: kit.name == "paddle")
def test_paddles_static_mode_and_the_setting_are_heeded(
    kit: Kit, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paddle, holder = importlib.import_module("paddle"), kit.holder
    given = [holder(paddle.ones([2]))]
    paddle.enable_static()
    try:
        assert backend.collect_parameters(given) is None
    finally:
        paddle.disable_static()
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    assert backend.collect_parameters(given) is None
