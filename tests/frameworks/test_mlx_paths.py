"""MLX: which arrays take the host path, and that its writes change no other array."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import unified_clip
import unified_clip.mlx as uc
from unified_clip._backends.mlx import BACKEND


def takes_host_path(*arrays: Any) -> bool:
    return BACKEND.path(arrays, differentiable=True).on_host


@mx.custom_function
def custom(x: mx.array) -> mx.array:
    return x * 1.0


@custom.vjp
def _custom_vjp(_: Any, cotangent: mx.array, __: Any) -> mx.array:
    SEEN.append(takes_host_path(cotangent))
    return cotangent


SEEN: list[bool] = []

TRANSFORMATIONS: dict[str, Callable[[Callable[[mx.array], mx.array], mx.array], Any]] = {
    "grad": lambda function, x: mx.grad(function)(x),
    "value_and_grad": lambda function, x: mx.value_and_grad(function)(x),
    "vjp": lambda function, x: mx.vjp(function, [x], [mx.array(1.0)]),
    "jvp": lambda function, x: mx.jvp(function, [x], [x]),
    "vmap": lambda function, x: mx.vmap(function)(mx.stack([x, x])),
    "compile": lambda function, x: mx.compile(function)(x),
    "compile of any shape": lambda function, x: mx.compile(function, shapeless=True)(x),
    "checkpoint": lambda function, x: mx.grad(mx.checkpoint(function))(x),
    "grad of grad": lambda function, x: mx.grad(lambda y: mx.grad(function)(y).sum())(x),
    "compile of grad": lambda function, x: mx.compile(mx.grad(function))(x),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_a_transformation_traces_takes_the_device_path(name: str) -> None:
    constant = mx.array([3.0, 4.0])
    traced, untraced = [], []

    def function(x: mx.array) -> mx.array:
        traced.extend([takes_host_path(x), takes_host_path(constant, x), takes_host_path(x * 2)])
        untraced.append(takes_host_path(constant))
        return (x * x).sum()

    TRANSFORMATIONS[name](function, mx.array([1.0, 2.0]))
    assert set(traced) == {False}
    assert untraced[0]


def test_inside_a_backward_rule_all_arrays_take_the_device_path() -> None:
    SEEN.clear()
    mx.grad(lambda x: custom(x).sum())(mx.array([1.0, 2.0]))
    assert SEEN == [False]


def test_a_traced_bound_takes_the_device_path() -> None:
    gradient = mx.array([1.0, 3.0])
    clipped = mx.compile(lambda bound: uc.clip_by_value(gradient, -bound, bound))(mx.array(2.0))
    assert clipped.tolist() == [1.0, 2.0]


def test_an_array_that_a_transformation_left_behind_is_an_ordinary_array() -> None:
    left: list[mx.array] = []
    mx.grad(lambda x: (left.append(x * 3), x.sum())[1])(mx.array([1.0, 2.0]))
    assert takes_host_path(*left)
    assert uc.global_norm(left).item() == np.float32(45**0.5)


def test_an_array_that_has_no_value_is_an_error_before_any_write() -> None:
    left: list[mx.array] = []
    mx.compile(lambda x: (left.append(x * 3), x.sum())[1])(mx.array([1.0, 2.0]))
    good = mx.array([30.0])
    with pytest.raises(RuntimeError, match="without a primitive"):
        uc.clip_grad_norm_([good, *left], 1.0)
    assert good.tolist() == [30.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_any_layout_is_read(dtype: str) -> None:
    numbers = np.arange(24.0).reshape(4, 6) - 7
    plain = mx.array(numbers, getattr(mx, dtype))
    layouts = {
        "transposed": (plain.T, numbers.T),
        "reversed": (plain[::-1, ::-2], numbers[::-1, ::-2]),
        "part": (plain[1:, 2:5], numbers[1:, 2:5]),
        "expanded": (mx.broadcast_to(plain[:1], (3, 6)), np.broadcast_to(numbers[:1], (3, 6))),
        "one": (plain[2, 3], numbers[2, 3]),
        "none": (plain[:0], numbers[:0]),
    }
    for name, (array, expected) in layouts.items():
        assert uc.global_norm([array]).item() == np.float32(np.linalg.norm(expected)), name
        clipped = uc.clip_by_value(array, -3.0, 3.0)
        assert clipped.dtype == plain.dtype
        np.testing.assert_array_equal(np.array(clipped.astype(mx.float32)), np.clip(expected, -3, 3), err_msg=name)


# -- what in-place names change


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "clip_grad_norm_": lambda gradients: uc.clip_grad_norm_(gradients, 1.0),
    "clip_grads_with_norm_": lambda gradients: uc.clip_grads_with_norm_(gradients, 1.0, 5.0),
    "clip_grad_value_": lambda gradients: uc.clip_grad_value_(gradients, 0.5),
    "GradientClipByNorm": lambda gradients: uc.GradientClipByNorm(1.0).clip_(gradients),
    "ClipConfig": lambda gradients: unified_clip.ClipConfig(rule="global_norm", threshold=1.0).clip_(gradients),
}


@pytest.mark.parametrize("path", ["", "framework"], ids=["host", "device"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_the_array_object_changes_and_no_other_array(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    gradient = mx.array([3.0, 4.0])
    same, part, copied, later = gradient, gradient[1:], copy.copy(gradient), gradient + 0
    view = np.asarray(gradient)
    mx.eval(part)
    IN_PLACE[name]([gradient])
    assert gradient is same
    assert max(gradient.tolist()) < 1
    assert [part.tolist(), copied.tolist(), later.tolist(), view.tolist()] == [
        [4.0],
        [3.0, 4.0],
        [3.0, 4.0],
        [3.0, 4.0],
    ]


def test_two_gradients_in_the_same_memory_both_count_and_are_both_written() -> None:
    x = mx.array([3.0, 4.0])
    gradients = list(mx.grad(lambda a, b: ((a + b) ** 2).sum() / 4, argnums=(0, 1))(x, x))
    addresses = [np.asarray(each).__array_interface__["data"][0] for each in gradients]
    assert addresses[0] == addresses[1]  # otherwise, the test would show nothing
    assert uc.clip_grad_norm_(gradients, 1.0).item() == np.float32(50**0.5)
    scale = 1 / 50**0.5
    np.testing.assert_allclose([each.tolist() for each in gradients], [[3 * scale, 4 * scale]] * 2, rtol=1e-6)


def test_the_leaves_of_a_tree_are_the_gradients_themselves() -> None:
    tree = {"layers": [{"weight": mx.array([3.0])}, {"weight": mx.array([4.0])}]}
    uc.clip_grad_norm_(nn.utils.tree_flatten(tree), 1.0)
    assert [layer["weight"].item() for layer in tree["layers"]] == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("path", ["", "framework"], ids=["host", "device"])
def test_an_unchanged_result_is_another_array_object(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    gradient = mx.array([3.0, 4.0])
    for threshold in (10.0, float("inf")):
        (result,), _ = uc.clip_by_global_norm([gradient], threshold)
        result *= 2
        assert gradient.tolist() == [3.0, 4.0]


def test_memory_that_cannot_be_written_is_an_error_before_any_write() -> None:
    good, read_only = mx.array([30.0]), np.array([40.0])
    read_only.flags.writeable = False
    for bad in (read_only, np.float64(40.0)):
        with pytest.raises(ValueError, match=r"position 1 .*read-only"):
            uc.clip_grad_norm_([good, bad], 1.0)
        assert good.tolist() == [30.0]


def test_arrays_of_numpy_cannot_be_written_from_a_compiled_graph() -> None:
    array = np.array([30.0], np.float32)
    with pytest.raises(ValueError, match="function transformations"):
        mx.compile(lambda x: uc.clip_grad_norm_([x, array], 1.0))(mx.array([40.0]))
    assert array.tolist() == [30.0]


# -- rejections


def test_complex128_is_rejected() -> None:
    for function in (lambda g: uc.clip_grad_norm_([g], 1.0), lambda g: uc.clip_by_norm(g, 1.0)):
        with pytest.raises(TypeError, match=r"complex128, which MLX lacks\. Pass complex64"):
            function(np.array([3 + 4j]))


def test_a_model_is_rejected_since_its_arrays_are_weights() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.tolist()
    message = r"Linear is a model, which contains weights and no gradients\. Pass the gradients that nn\.value_and_grad"
    for container in (model, [model], {"deep": model}):
        for function in (uc.clip_grad_norm_, unified_clip.clip_grad_norm_, uc.clip_by_global_norm):
            with pytest.raises(TypeError, match=message):
                function(container, 1e-3)
    assert model.weight.tolist() == before


def test_nonfinite_norms_are_errors_inside_grad_and_rejected_inside_compile() -> None:
    def function(x: mx.array) -> mx.array:
        return uc.get_total_norm([x], error_if_nonfinite=True)

    with pytest.raises(unified_clip.NonFiniteNormError, match="position 0 has 1 NaN"):
        mx.grad(function)(mx.array([1.0, float("nan")]))
    with pytest.raises(TypeError, match="from inside a graph"):
        mx.compile(function)(mx.array([1.0]))


# -- arithmetic of the device path


def test_the_exponential_and_the_cosine_have_the_precision_of_float64() -> None:
    """MLX computes both in float32 on a CPU."""
    angles = np.linspace(0, np.pi / 2, 101)
    with BACKEND.scope(False):
        np.testing.assert_allclose(np.asarray(BACKEND.cos(mx.array(angles, mx.float64))), np.cos(angles), atol=1e-15)
        root = BACKEND.root(mx.array(7.0, mx.float64), 3.0)
    assert root.item() == pytest.approx(7.0 ** (1 / 3), rel=1e-15)


def test_zeros_of_both_signs_are_different_bounds_in_a_compiled_graph() -> None:
    clipped = mx.compile(uc.GradientClipByValue(0.0))([(None, mx.array([-1.0, 1.0, 0.0]))])[0][1]
    assert np.signbit(np.array(clipped)).tolist() == [True, False, False]


def test_vmap_clips_the_gradients_of_each_example() -> None:
    gradients = {"a": mx.array([[3.0], [30.0], [0.3]]), "b": mx.array([[4.0, 0.0], [40.0, 0.0], [0.4, 0.0]])}
    clipped, norms = mx.vmap(lambda example: uc.clip_by_global_norm(example, 1.0))(gradients)
    np.testing.assert_allclose(np.array(norms), [5.0, 50.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(np.array(clipped["a"])[:, 0], [0.6, 0.6, 0.3], rtol=1e-6)
    np.testing.assert_allclose(np.array(clipped["b"])[:, 0], [0.8, 0.8, 0.4], rtol=1e-6)


def test_directional_derivatives() -> None:
    at, along = mx.array([3.0, 4.0]), mx.array([1.0, 0.0])
    _, (derivative,) = mx.jvp(lambda gradient: uc.clip_by_norm(gradient, 1.0), [at], [along])
    np.testing.assert_allclose(np.array(derivative), [0.128, -0.096], rtol=1e-5)  # (1 - u u^T) / 5, with u = g / 5
    with pytest.raises(ValueError, match="jvp"):  # MLX has no jvp of `view`
        mx.jvp(lambda gradient: uc.clip_by_norm(gradient, 1.0), [mx.array([3 + 4j])], [mx.array([1 + 0j])])


def test_gradients_of_complex_gradients() -> None:
    def weighted(gradient: mx.array) -> mx.array:
        clipped = uc.clip_by_norm(gradient, 1.0)
        return (mx.real(clipped) + 2.0 * mx.imag(clipped)).sum()

    at, step = mx.array([3 + 4j]), 1e-2
    differences = [(weighted(at + step * unit) - weighted(at - step * unit)).item() / (2 * step) for unit in (1, 1j)]
    derivative = np.array(mx.grad(weighted)(at))
    np.testing.assert_allclose([derivative.real[0], derivative.imag[0]], differences, rtol=1e-3)


def test_a_compiled_step_clips_as_an_eager_one() -> None:
    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = mx.random.normal((32, 8))
    loss_and_gradients = nn.value_and_grad(model, lambda model, x: (model(x) - 3.0).square().mean())

    def step(x: mx.array) -> Any:
        _, gradients = loss_and_gradients(model, x)
        norm = uc.clip_grad_norm_(gradients, 0.5)
        return norm, gradients

    (eager_norm, eager), (norm, compiled) = step(inputs), mx.compile(step, inputs=model.state)(inputs)
    assert norm.item() == pytest.approx(eager_norm.item(), rel=1e-6)
    for (name, left), (_, right) in zip(nn.utils.tree_flatten(eager), nn.utils.tree_flatten(compiled), strict=True):
        np.testing.assert_allclose(np.array(left), np.array(right), rtol=1e-5, atol=1e-7, err_msg=name)
