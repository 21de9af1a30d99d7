"""Paddle: when raw memory can be read and written, reports to autograd, and clips in Paddle's optimizers."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support import reference
from support.paddle_programs import tensor
from support.tiers import REMOVES_GRADIENTS

import unified_clip
import unified_clip.paddle as uc
from unified_clip._backends.paddle import releases
from unified_clip._compute import memory

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*Non compatible API:Warning")  # Paddle 3.2, about its own max


def with_gradient(gradient: paddle.Tensor) -> paddle.Tensor:
    parameter = paddle.create_parameter([2], "float32")
    parameter.grad_ = gradient
    return parameter


def after_backward(values: list[float]) -> paddle.Tensor:
    """Return a parameter with a gradient from a backward pass. Paddle treats this gradient as a leaf that records
    derivatives."""
    parameter = paddle.create_parameter([len(values)], "float32")
    (parameter * tensor(values)).sum().backward()
    assert not parameter.grad.stop_gradient
    return parameter


# -- the host path is taken for plain tensors only


def test_functional_names_take_gradients_as_a_backward_pass_leaves_them() -> None:
    gradient = after_backward([3.0, 4.0]).grad
    (clipped,), norm = uc.clip_by_global_norm([gradient], 1.0)
    assert clipped.tolist() == tensor([0.6, 0.8]).tolist()
    assert norm.item() == 5.0
    with pytest.raises(RuntimeError, match="position 0 has 1 NaN"):
        uc.get_total_norm([after_backward([math.nan]).grad], error_if_nonfinite=True)


def test_no_view_of_the_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # `parameter.grad = None` frees the memory under every view.
    views = []

    def view_at(*arguments: object) -> np.ndarray:
        view = original(*arguments)
        views.append(weakref.ref(view))
        return view

    original = memory.view_at
    monkeypatch.setattr(memory, "view_at", view_at)
    gradient = tensor([3.0, 4.0])
    gc.disable()
    try:
        kept = uc.clip_by_global_norm([gradient], 1.0)
        kept += (uc.clip_grad_norm_([with_gradient(gradient)], 1.0), uc.GradientClipByNorm(1.0)([(None, gradient)]))
        assert views
        assert not [view for view in views if view() is not None]
    finally:
        gc.enable()


# -- the device path


@pytest.fixture
def device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")


@pytest.mark.usefixtures("device_path")
def test_tiny_float16_products_become_zero() -> None:
    # Paddle's own conversion of 7e-27 from float32 to float16 gives 1e-7.
    values = tensor([6e-8, -6e-8, 1.0, 0.0, -0.0], "float16")
    (clipped,), _ = uc.clip_by_global_norm([values], 1.0, use_norm=8e18)
    expected = np.array([0.0, -0.0, 0.0, 0.0, -0.0], np.float16)
    assert clipped.numpy().tobytes() == expected.tobytes()
    parameter = with_gradient(values)
    uc.clip_grads_with_norm_([parameter], 1.0, 8e18)
    assert parameter.grad.numpy().tobytes() == expected.tobytes()
    every = np.arange(-(2**15), 2**15).astype(np.int16).view(np.float16)
    every = every[np.isfinite(every)]
    for coef in (1.0, 0.3, 1e-4, 1e-15, 1e-20):
        (clipped,), _ = uc.clip_by_global_norm([tensor(every, "float16")], 1.0, use_norm=1 / coef)
        expected = (every.astype(np.float32) * np.float32(1 / (1 / coef))).astype(np.float16)
        assert clipped.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("forced", [False, True])
def test_complex_elements_that_are_not_finite_are_counted_once(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    values = tensor([complex(math.nan, math.nan), complex(math.inf, -math.inf), 1.0], "complex64")
    with pytest.raises(RuntimeError, match="position 0 has 1 NaN and 1 inf"):
        uc.get_total_norm([values], error_if_nonfinite=True)


@pytest.mark.usefixtures("device_path")
def test_of_complex_numbers_each_part_is_scaled() -> None:
    # The product of two complex numbers would mix the parts: inf * 0 is NaN.
    values = tensor([complex(1.0, -0.0), complex(-0.0, math.inf)], "complex64")
    (clipped,), _ = uc.clip_by_global_norm([values], 1.0, use_norm=2.0)
    np.testing.assert_array_equal(clipped.numpy().view(np.float32), np.float32([0.5, -0.0, -0.0, math.inf]))
    assert np.signbit(clipped.numpy().view(np.float32)).tolist() == [False, True, True, False]


# -- writing


def test_views_of_any_layout_are_written_where_they_are() -> None:
    for view_of in (
        lambda t: t.T,
        lambda t: t[::2, 1:5:2],
        lambda t: t[::-1],
        lambda t: t[:, 2],
        lambda t: paddle.as_strided(t, [3, 2], [6, 2]),
    ):
        base = paddle.arange(24, dtype="float32").reshape([4, 6])
        view = view_of(base)
        before = view.numpy()
        expected = uc.clip_by_norm(before, 1.0).numpy()
        assert uc.clip_by_norm(view, 1.0).numpy().tobytes() == expected.tobytes()
        uc.clip_grads_with_norm_([with_gradient(view)], 1.0, 2.0)
        np.testing.assert_allclose(view_of(base).numpy(), before * (1 / (2 + 1e-6)), rtol=1e-6)


def test_gradients_of_a_backward_pass_are_written_in_their_own_layout() -> None:
    weight = paddle.create_parameter([2, 3], "float32")
    (weight.T * tensor(np.arange(6.0).reshape(3, 2))).sum().backward()
    assert not weight.grad.is_contiguous()
    address = weight.grad.data_ptr()
    uc.clip_grad_norm_([weight], 1.0)
    np.testing.assert_allclose(weight.grad.numpy(), np.arange(6.0).reshape(3, 2).T / math.sqrt(55), rtol=1e-6)
    assert weight.grad.data_ptr() == address


# -- parameters


def test_gradients_given_as_parameters_warn_though_they_look_like_leaves() -> None:
    gradient = after_backward([3.0, 4.0]).grad
    with pytest.warns(unified_clip.ClipWarning, match="takes parameters"):
        uc.clip_grad_norm_([gradient], 1.0)


def test_intermediate_results_in_place_of_parameters_warn_unless_they_are_beside_one() -> None:
    parameter = paddle.create_parameter([2], "float32")
    with pytest.warns(unified_clip.ClipWarning, match="the tensor at position 0 and 1 more cannot have a gradient"):
        uc.clip_grad_norm_([parameter * 2, parameter * 3], 1.0)
    uc.clip_grad_norm_([parameter, parameter * 2], 1.0)
    with pytest.warns(unified_clip.ClipWarning, match="the tensor at position 1 cannot have a gradient"):
        uc.clip_grad_norm_([parameter, after_backward([3.0, 4.0]).grad], 1.0)


def test_arrays_that_paddle_has_no_dtype_for_are_refused() -> None:
    for dtype in ("uint32", "uint64", "object"):
        with pytest.raises(TypeError, match=f"position 0 is {dtype}"):
            uc.global_norm([np.ones(2, dtype)])
        if dtype != "object":
            with pytest.raises(TypeError, match=f"no tensors of NumPy's {dtype}"):
                uc.clip_by_value(np.ones(2, dtype), 0, 1)
    assert uc.global_norm([np.array([3.0, 4.0], ">f4")]).item() == 5.0
    bits = tensor([3.0, 4.0], "bfloat16").numpy()
    assert bits.dtype == np.uint16
    assert uc.global_norm([bits]).item() == 5.0


# -- sparse gradients


def embedding(rows: list[int], *columns: list[float]) -> paddle.nn.Embedding:
    layer = paddle.nn.Embedding(4, 1, sparse=True)
    (layer(paddle.to_tensor(rows)) * tensor(columns)).sum().backward()
    assert layer.weight.grad.is_selected_rows()
    return layer


def dense(gradient: paddle.Tensor) -> list[float]:
    values = np.zeros(4, np.float32)
    np.add.at(values, gradient.rows(), gradient._get_tensor_from_selected_rows().numpy()[:, 0])
    return values.tolist()


@pytest.mark.parametrize("forced", [False, True])
def test_selected_rows_of_a_real_backward_pass(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    weight = embedding([1, 1, 2], [3.0], [4.0], [24.0]).weight
    expected = np.float32([0.0, 0.28, 0.96, 0.0])
    (clipped,), norm = uc.clip_by_global_norm([weight.grad], 1.0)
    assert norm.item() == 25.0
    np.testing.assert_allclose(dense(clipped), expected, rtol=1e-6)
    assert dense(weight.grad) == [0.0, 7.0, 24.0, 0.0]
    clip = uc.GradientClipByGlobalNorm(1.0)
    np.testing.assert_allclose(dense(clip([(weight, weight.grad)])[0][1]), expected, rtol=1e-6)
    assert uc.clip_grad_norm_([weight], 1.0).item() == 25.0
    assert weight.grad.is_selected_rows()
    assert weight.grad.rows() == [1, 2]
    np.testing.assert_allclose(dense(weight.grad), expected, rtol=1e-6)
    before = weight.numpy()[:, 0]
    paddle.optimizer.SGD(1.0, parameters=[weight]).step()
    np.testing.assert_allclose(before - weight.numpy()[:, 0], expected, atol=1e-6)


def test_sparse_gradients_do_not_leave_the_host_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle, "scatter_nd_add", None)
    weight = embedding([1, 1, 2], [3.0], [4.0], [24.0]).weight
    assert uc.global_norm([weight.grad]).item() == 25.0
    leaf = coo(stop_gradient=False)
    leaf.grad_ = coo(stop_gradient=False)
    for parameter in (weight, leaf):
        assert uc.clip_grad_norm_([parameter], 1.0).item() == 25.0


def coo(stop_gradient: bool = True) -> paddle.Tensor:
    sparse = paddle.sparse.sparse_coo_tensor([[1, 1, 2]], tensor([3.0, 4.0, 24.0]), [4])
    sparse.stop_gradient = stop_gradient
    return sparse


@pytest.mark.parametrize("forced", [False, True])
def test_coo_gradients(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    clipped = uc.clip_by_norm(coo(), 1.0)
    np.testing.assert_allclose(clipped.to_dense().numpy(), [0.0, 0.28, 0.96, 0.0], rtol=1e-6)
    leaf = coo(stop_gradient=False)
    (leaf.values() * tensor([1.0, 1.0, 1.0])).sum().backward()
    assert uc.clip_grad_norm_([leaf], 1.0).item() == float(np.float32(math.sqrt(5)))
    assert leaf.grad.is_sparse_coo()
    assert leaf.grad.is_leaf
    np.testing.assert_allclose(leaf.grad.to_dense().numpy(), np.array([0, 2, 1, 0]) / math.sqrt(5), rtol=1e-6)


def test_csr_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="sparse CSR"):
        uc.global_norm([paddle.sparse.sparse_csr_tensor([0, 1, 2], [1, 0], [3.0, 4.0], [2, 2])])


# -- optimizers


# -- hooks


@pytest.mark.parametrize(
    "remove", [pytest.param(releases._no_gradient, marks=REMOVES_GRADIENTS), releases._gradient_without_memory]
)
def test_a_removed_gradient_is_none_and_can_come_back(remove: Callable[[Any], None]) -> None:
    parameter = after_backward([3.0, 4.0])
    remove(parameter)
    assert parameter.grad is None
    (parameter * tensor([1.0, 2.0])).sum().backward()
    assert parameter.grad.tolist() == [1.0, 2.0]


def test_what_replaces_operations_of_paddle_2_computes_the_same() -> None:
    edges = np.array([math.inf, -math.inf, math.nan, 0.0, -0.0, 2.0**-25, 65519.0, 65520.0, 3e38], np.float32)
    numbers = np.concatenate([edges, np.random.default_rng(0).standard_normal(1000).astype(np.float32)])
    for name, dtype in (("float16", paddle.float16), ("bfloat16", paddle.bfloat16)):
        rounded = releases._rounded(paddle.to_tensor(numbers), dtype).numpy().view(np.uint16)
        expected = np.asarray(reference.array(numbers, name)).view(np.uint16)
        np.testing.assert_array_equal(np.delete(rounded, 2), np.delete(expected, 2))
        assert rounded[2] & 0x7FFF > {"float16": 0x7C00, "bfloat16": 0x7F80}[name]  # a NaN
    for row in (edges[:2], edges[2:], edges[:6]):
        assert float(releases._amax_with_nan(paddle.to_tensor(row))) == pytest.approx(float(np.max(row)), nan_ok=True)
    assert releases._full_from_array(2**62 + 1, paddle.int64, None).item() == 2**62 + 1
    assert releases._full_from_array(0.1, paddle.float64, None).item() == 0.1
    assert releases._one_element(paddle.zeros([3, 0])).shape == [3, 1]


def test_distributed_tensors_hold_a_part_only() -> None:
    mesh = paddle.distributed.ProcessMesh([0], dim_names=["x"])
    whole = paddle.distributed.shard_tensor(tensor([[3.0, 4.0]]), mesh, [paddle.distributed.Replicate()])
    assert whole.data_ptr()
    assert uc.global_norm([whole]).item() == 5.0
