"""Paddle: lists of parameters that the compiled kernels collect in one pass. The results are the same."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
from support.kits import Kit
from support.tiers import PADDLE_READS_TENSORS

import unified_clip
from unified_clip._backends.paddle.backend import BACKEND


@pytest.fixture(autouse=True)
def _compiled_and_eager(kit: Kit) -> None:
    if not kit.exact or not unified_clip.native_available():
        pytest.skip("about the compiled kernels on the host path")


def parameter(gradient: Any) -> Any:
    made = paddle.create_parameter(gradient.shape, gradient.dtype)
    made.grad = gradient
    return made


@PADDLE_READS_TENSORS
def test_plain_parameters_are_taken_whole() -> None:
    given = [
        parameter(paddle.ones(shape, dtype))
        for shape, dtype in (([2], "float32"), ([3, 2], "float64"), ([], "float32"))
    ]
    path = BACKEND.collect_parameters([*given, None, paddle.create_parameter([2], "float32")])
    assert path is not None
    assert len(path.tensors) == 3


def test_one_that_is_special_has_all_of_them_looked_at() -> None:
    plain = parameter(paddle.ones([2]))
    left_out = parameter(paddle.ones([2]))
    left_out.need_clip = False
    embedding = paddle.nn.Embedding(5, 3, sparse=True)
    embedding(paddle.to_tensor([1, 1])).sum().backward()
    tensor = paddle.ones([2])
    tensor.stop_gradient = False
    tensor.grad = paddle.ones([2])
    for special in (left_out, embedding.weight, tensor, ("weight", plain), plain, paddle.ones([2])):
        assert BACKEND.collect_parameters([plain, special]) is None


def test_static_mode_and_the_setting_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [parameter(paddle.ones([2]))]
    paddle.enable_static()
    try:
        assert BACKEND.collect_parameters(given) is None
    finally:
        paddle.disable_static()
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    assert BACKEND.collect_parameters(given) is None
