"""Paddle: every name in static programs, and in the graphs of to_static."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.paddle_programs import BACKWARD_WARNS, program, tensor
from support.tiers import quick

import unified_clip.paddle as uc
from unified_clip import ClipConfig
from unified_clip._backends.paddle import dense

INPUT = np.array([[3.0, -0.0, -4.0], [0.3, 0.4, -0.0], [0.0, 0.0, 0.0], [1e-5, -2.0, 1e4]], np.float32)


# -- every name in a program that is not run yet


@pytest.mark.usefixtures("static")
def test_what_has_no_place_in_a_static_program_is_refused(eager: list[paddle.Tensor]) -> None:
    with program():
        value = paddle.static.data("value", [4, 3], "float32")
        parameter = paddle.static.create_parameter([3, 2], "float32")
        for refused in eager:
            with pytest.raises(TypeError, match="an eager tensor cannot be clipped in static mode"):
                uc.clip_by_norm(refused, 1.0)
        with pytest.raises(TypeError, match="parameters have no gradients in a static program"):
            uc.clip_grad_norm_([parameter], 1.0)
        with pytest.raises(TypeError, match="ErrorClipByValue works only as a hook of eager tensors"):
            uc.ErrorClipByValue(1.0)(value)
        with pytest.raises(TypeError, match="cannot raise from inside a graph"):
            uc.get_total_norm([value], error_if_nonfinite=True)


def ran(build: Callable[..., list[Any]], **fed: np.ndarray) -> list[np.ndarray]:
    """Return the results of a program of Values with derivatives. Each dimension of an input is unknown."""
    with program():
        values = {name: paddle.static.data(name, [-1] * a.ndim, str(a.dtype)) for name, a in fed.items()}
        for value in values.values():
            value.stop_gradient = False
        return paddle.static.Executor().run(feed=fed, fetch_list=build(**values))


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_unknown_number_of_rows_may_turn_out_to_be_none(dtype: str) -> None:
    def build(t: Any) -> list[Any]:
        norms = [uc.get_total_norm([t], p) for p in (1, 2, 3, math.inf)]
        return [*norms, uc.clip_by_norm(t, 1.0), uc.clip_by_norm(t, 1.0, 1), uc.clip_by_value(t, -1.0, 1.0)]

    *norms, whole, rows, values = ran(build, t=np.zeros((0, 3), dtype))
    assert norms == [0.0] * 4
    assert whole.shape == rows.shape == values.shape == (0, 3)


@pytest.mark.usefixtures("static")
def test_programs_are_cloned_saved_and_loaded(tmp_path: Path) -> None:
    executor, path = paddle.static.Executor(), str(tmp_path / "program")
    with program():
        t = paddle.static.data("t", [-1, 3], "float32")
        y = uc.clip_by_norm(paddle.static.nn.fc(t, 2), 0.5, axes=1)
        executor.run(paddle.static.default_startup_program())
        mapping = paddle.pir.IrMapping()
        main = paddle.static.default_main_program()
        clone = main.clone(mapping)
        expected = executor.run(main, feed={"t": INPUT}, fetch_list=[y])[0]
        cloned = executor.run(clone, feed={"t": INPUT}, fetch_list=[mapping.look_up(y)])[0]
        paddle.static.save_inference_model(path, [t], [y], executor)
    loaded, names, fetched = paddle.static.load_inference_model(path, executor)
    result = executor.run(loaded, feed={names[0]: INPUT}, fetch_list=fetched)[0]
    assert result.tobytes() == cloned.tobytes() == expected.tobytes()
    assert np.linalg.norm(expected, axis=1).max() == pytest.approx(0.5, rel=1e-6)


# -- derivatives


def clips_of(t: Any) -> list[Any]:
    clipped, norm = uc.clip_by_global_norm([t, None, t.reshape([-1])], 0.75)
    norms = [uc.get_total_norm([t], p) for p in (0.5, 1, 2, 3, math.inf)]
    results = [clipped[0], clipped[2], uc.clip_by_norm(t, 0.75), uc.clip_by_norm(t, 0.75, 1)]
    return [*results, uc.clip_by_value(t, -0.5, 0.5), norm, *norms]


@BACKWARD_WARNS
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_derivatives_in_programs_are_the_eager_ones(dtype: str) -> None:
    point = tensor(INPUT, dtype, stop_gradient=False)
    expected = [paddle.grad([y.astype("float64").sum()], [point])[0].numpy() for y in clips_of(point)]
    paddle.enable_static()
    try:
        result = ran(
            lambda t: [paddle.static.gradients([y.astype("float64").sum()], [t])[0] for y in clips_of(t)],
            t=INPUT.astype(dtype),
        )
    finally:
        paddle.disable_static()
    for a, b in zip(result, expected, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=1e-3 if dtype == "float16" else 1e-6, atol=1e-7)


# -- how norms are taken of many numbers


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PIECE", 20)
    monkeypatch.setattr(dense, "SHORT", 6)


SHAPES = [(3, 30), (0, 2), (5,), (), (2, 3), (1, 1, 100), (7, 1), (6,), (2, 2), (41,), (3, 0), (4,), (5, 2, 3)]
"""Shapes that are longer than `PIECE`, at most `SHORT` long, in between, and empty."""


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("static_mode", quick([False, True], True))
@pytest.mark.parametrize("widest", ["float32", "float64"])
def test_norms_of_pieces_are_those_of_the_whole(
    widest: str, recorded: bool, static_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    generator = np.random.default_rng(2)
    arrays = [generator.integers(-9, 9, shape) * 1.0 for shape in SHAPES]
    arrays += [arrays[0] + 1j * arrays[0][::-1], np.array([1 - 2j, 2 + 1j]), 1j * arrays[1]]
    dtypes = ["float32", widest, "float16", "bfloat16"] * 4
    dtypes[len(SHAPES) :] = ["complex64"] * 3
    flat = np.concatenate([array.ravel() for array in arrays])
    orders = [1, 2, 2.5, math.inf]
    expected = [np.linalg.norm(flat, p) if p != 2.5 else (np.abs(flat) ** p).sum() ** (1 / p) for p in orders]
    given = [a if "16" in d else a.astype(d) for a, d in zip(arrays, dtypes, strict=True)]
    if static_mode:
        paddle.enable_static()
    try:
        with program(), nullcontext() if recorded else paddle.no_grad():
            values = [paddle.to_tensor(a).astype(d) for a, d in zip(given, dtypes, strict=True)]
            for value in values:
                value.stop_gradient = False
            norms = [uc.get_total_norm(values, p) for p in orders]
            clipped = uc.clip_by_global_norm(values, expected[1] / 2)[0]
            scaled = [c.astype(d if "16" not in d else "float32") for c, d in zip(clipped, dtypes, strict=True)]
            both = [*norms, *scaled]
            result = paddle.static.Executor().run(fetch_list=both) if static_mode else [each.numpy() for each in both]
    finally:
        paddle.disable_static()
    np.testing.assert_allclose(result[:4], expected, rtol=1e-12 if widest == "float64" else 2.0**-23)
    for a, b in zip(result[4:], arrays, strict=True):
        np.testing.assert_allclose(a, b / 2, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("small_pieces")
def test_norms_of_pieces_have_the_same_derivatives() -> None:
    points = [tensor(np.random.default_rng(3).standard_normal(shape), stop_gradient=False) for shape in SHAPES[:7]]
    uc.global_norm(points).backward()
    norm = math.sqrt(sum((point.numpy().astype(np.float64) ** 2).sum() for point in points))
    for point in points:
        np.testing.assert_allclose(point.grad.numpy(), point.numpy() / norm, rtol=1e-6)


@pytest.mark.usefixtures("static")
def test_a_norm_of_long_gradients_needs_no_copy_of_them() -> None:
    with program():
        clip = uc.GradientClipByGlobalNorm(1.0)
        shapes = [[3000, 1000]] * 2 + [[dense.SHORT]] * 40
        values = [paddle.static.create_parameter(shape, "float32") for shape in shapes]
        clip([(value, value) for value in values])
        operations = paddle.static.default_main_program().global_block().ops
        wide = [r.shape for o in operations for r in o.results() if o.name() == "pd_op.cast" and len(r.shape)]
    assert len(wide) == 2 * 3 + 3
    assert max(math.prod(shape) for shape in wide) <= dense.PIECE


# -- the graphs of to_static


@pytest.mark.parametrize("clip", [lambda c, x: c([x])[0], lambda c, x: c.pairs([(None, x)])[0][1]])
def test_a_graph_of_to_static_has_the_clip_of_a_configuration(clip: Callable[..., paddle.Tensor]) -> None:
    clipper = ClipConfig(rule="norm", threshold=1.0, family="paddle").clipper()

    def function(t: paddle.Tensor) -> paddle.Tensor:
        return clip(clipper, t)

    got = paddle.jit.to_static(function, full_graph=True)(tensor(INPUT))
    assert np.array_equal(got.numpy(), uc.clip_by_norm(tensor(INPUT), 1.0).numpy())


def test_to_static_leaves_its_graph_for_the_host_path_by_default() -> None:
    clip = uc.GradientClipByNorm(1.0)

    def function(t: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        clipped, norm = uc.clip_by_global_norm([t * 2.0, None], 1.0)
        return clipped[0], norm, clip([(None, t)])[0][1]

    translated = paddle.jit.to_static(function, full_graph=False)
    for values in (INPUT, INPUT * 3, INPUT):
        for got, expected in zip(translated(tensor(values)), function(tensor(values)), strict=True):
            assert got.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("clip", [lambda held: uc.clip_grad_norm_(held, 1.0), uc.GradientClipByNorm(1.0).clip_])
def test_parameters_are_not_clipped_in_place_in_a_graph_of_to_static(clip: Callable[..., Any]) -> None:
    layer = paddle.nn.Linear(2, 1)
    (layer(paddle.ones([1, 2])).sum() * 10).backward()

    def function(t: paddle.Tensor) -> paddle.Tensor:
        clip(layer.parameters())
        return t + 1

    with pytest.raises(TypeError, match="parameters have no gradients in a static program"):
        paddle.jit.to_static(function, full_graph=True)(paddle.ones([2]))
    assert (layer.weight.grad.numpy() == 10).all()


def test_settings_under_to_static() -> None:
    parameter = paddle.create_parameter([2], "float32")

    def function(t: paddle.Tensor) -> paddle.Tensor:
        return uc.append_gradient_clip_ops([(parameter, t)])[0][1]

    def setting(t: paddle.Tensor) -> paddle.Tensor:
        uc.set_gradient_clip(None)
        return t + 1

    uc.set_gradient_clip(uc.GradientClipByNorm(1.0))
    try:
        clipped = paddle.jit.to_static(function, full_graph=False)(tensor([3.0, 4.0]))
        with pytest.raises(TypeError, match="clips cannot be set in a graph of to_static"):
            paddle.jit.to_static(setting, full_graph=True)(tensor([3.0, 4.0]))
        with pytest.raises(TypeError, match="append_gradient_clip_ops is not supported in a graph of to_static"):
            paddle.jit.to_static(function, full_graph=True)(tensor([3.0, 4.0]))
    finally:
        uc.set_gradient_clip(None)
    np.testing.assert_allclose(clipped.numpy(), [0.6, 0.8], rtol=1e-6)
