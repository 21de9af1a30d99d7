"""Paddle: every name in static programs, and in the graphs of to_static."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from kits import Kit
from paddle_programs import program, tensor

import unified_clip.paddle as uc

INPUT = np.array([[3.0, -0.0, -4.0], [0.3, 0.4, -0.0], [0.0, 0.0, 0.0], [1e-5, -2.0, 1e4]], np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")  # append_backward


@pytest.fixture(autouse=True)
def _eager(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("about static programs, which take the device path anyway")


# -- every name in a program that is not run yet


def every_name(t: object, limit: object) -> list[object]:
    results = [uc.get_total_norm([t], p) for p in (0.5, 1, 2, 3, math.inf)]
    results += [uc.clip_by_norm(t, c, axes) for c in (1.0, 1e9, math.inf) for axes in (None, 1, [0])]
    results += [uc.clip_by_value(t, -0.5, limit), uc.clip_by_value(t, -0.5, 0.5)]
    clipped, norm = uc.clip_by_global_norm([t, None, t], limit)
    for clip in (uc.GradientClipByNorm(1.0), uc.GradientClipByGlobalNorm(1.0), uc.GradientClipByValue(0.5)):
        results.append(clip([(None, t)])[0][1])
    return [*results, clipped[0], clipped[2], norm]


def on_the_device_path(dtype: str, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    with monkeypatch.context() as patch:
        patch.setenv("UNIFIED_CLIP_PATH", "framework")
        return [result.numpy().tobytes() for result in every_name(tensor(INPUT, dtype), tensor(0.75))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rows", [4, -1])
def test_static_programs_compute_what_the_device_path_does(
    dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = on_the_device_path(dtype, monkeypatch)
    paddle.enable_static()
    try:
        with program():
            t, limit = paddle.static.data("t", [rows, 3], dtype), paddle.static.data("limit", [], "float32")
            fetched = paddle.static.Executor().run(
                feed={"t": INPUT.astype(dtype), "limit": np.float32(0.75)}, fetch_list=every_name(t, limit)
            )
    finally:
        paddle.disable_static()
    assert [result.tobytes() for result in fetched] == wanted


@pytest.mark.usefixtures("static")
def test_what_has_no_place_in_a_static_program_is_refused(eager: list[paddle.Tensor]) -> None:
    with program():
        value = paddle.static.data("value", [4, 3], "float32")
        parameter = paddle.static.create_parameter([3, 2], "float32")
        for refused in eager:
            with pytest.raises(TypeError, match="an eager tensor cannot be clipped in static mode"):
                uc.clip_by_norm(refused, 1.0)
        with pytest.raises(TypeError, match="keeps no gradients on its parameters"):
            uc.clip_grad_norm_([parameter], 1.0)
        with pytest.raises(TypeError, match="ErrorClipByValue is for register_hook of an eager tensor"):
            uc.ErrorClipByValue(1.0)(value)
        with pytest.raises(TypeError, match="cannot raise from inside a graph"):
            uc.get_total_norm([value], error_if_nonfinite=True)


@pytest.mark.usefixtures("static")
def test_static_optimizers_accept_the_clips() -> None:
    with program():
        parameter = paddle.static.create_parameter(
            [2], "float32", default_initializer=paddle.nn.initializer.Constant(0.0)
        )
        loss = (parameter * paddle.to_tensor(np.float32([3.0, 4.0]))).sum()
        paddle.optimizer.SGD(1.0, grad_clip=uc.GradientClipByGlobalNorm(1.0)).minimize(loss)
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        executor.run(fetch_list=[loss])
        np.testing.assert_allclose(executor.run(fetch_list=[loss])[0], -5.0, rtol=1e-6)


# -- the graphs of to_static


def test_a_graph_of_to_static_computes_what_the_device_path_does(monkeypatch: pytest.MonkeyPatch) -> None:
    @paddle.jit.to_static(full_graph=True)
    def function(t: paddle.Tensor, limit: paddle.Tensor) -> list[paddle.Tensor]:
        return every_name(t, limit)

    got = [result.numpy().tobytes() for result in function(tensor(INPUT), tensor(0.75))]
    assert got == on_the_device_path("float32", monkeypatch)


def test_to_static_leaves_its_graph_for_the_host_path_by_default() -> None:
    clip = uc.GradientClipByNorm(1.0)

    def function(t: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        clipped, norm = uc.clip_by_global_norm([t * 2.0, None], 1.0)
        return clipped[0], norm, clip([(None, t)])[0][1]

    translated = paddle.jit.to_static(function, full_graph=False)
    for values in (INPUT, INPUT * 3, INPUT):
        for got, wanted in zip(translated(tensor(values)), function(tensor(values)), strict=True):
            assert got.numpy().tobytes() == wanted.numpy().tobytes()


def test_in_place_names_under_to_static() -> None:
    parameter = paddle.create_parameter([2], "float32")
    parameter.grad_ = tensor([3.0, 4.0])

    def function(t: paddle.Tensor) -> paddle.Tensor:
        return uc.clip_grad_norm_([parameter], 1.0) + t.sum()

    assert paddle.jit.to_static(function, full_graph=False)(paddle.ones([2])).item() == 7.0
    np.testing.assert_allclose(parameter.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(TypeError, match="keeps no gradients on its parameters"):
        paddle.jit.to_static(function, full_graph=True)(paddle.ones([2]))
