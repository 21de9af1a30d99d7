"""Paddle: when raw memory can be read and written, reports to autograd, and clips in Paddle's optimizers."""

from __future__ import annotations

import copy
import gc
import math
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from support import reference
from support.kits import Kit
from support.paddle_programs import tensor
from support.tiers import REMOVES_GRADIENTS

import unified_clip
import unified_clip.paddle as uc
from unified_clip._backends.paddle import releases
from unified_clip._backends.paddle.backend import BACKEND
from unified_clip._compute import memory

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*Non compatible API:Warning")  # Paddle 3.2, about its own max


@pytest.fixture(autouse=True)
def _eager(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("about the choice of the path, which is forced here")


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


def on_host(*tensors: paddle.Tensor, differentiable: bool = True) -> bool:
    return BACKEND.path(tensors, differentiable=differentiable).on_host


# -- the host path is taken for plain tensors only


def test_functional_names_take_gradients_as_a_backward_pass_leaves_them() -> None:
    gradient = after_backward([3.0, 4.0]).grad
    (clipped,), norm = uc.clip_by_global_norm([gradient], 1.0)
    assert clipped.tolist() == tensor([0.6, 0.8]).tolist()
    assert norm.item() == 5.0
    with pytest.raises(RuntimeError, match="position 0 has 1 NaN"):
        uc.get_total_norm([after_backward([math.nan]).grad], error_if_nonfinite=True)


def test_subclasses_and_uninitialised_tensors() -> None:
    class Own(paddle.Tensor):
        pass

    assert not on_host(Own(np.ones(2, np.float32)))
    cleared = paddle.ones([2])
    cleared._clear_data()
    assert not on_host(cleared)
    with paddle.LazyGuard():
        lazy = paddle.nn.Linear(2, 3).weight
    assert not on_host(lazy, differentiable=False)


def test_tensors_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = paddle.ones([2])
    monkeypatch.setattr(paddle.Tensor, "place", SimpleNamespace(is_cpu_place=lambda: False))
    assert not on_host(one)
    assert BACKEND.read(one[:1]) is None


def test_distributed_tensors_hold_a_part_only() -> None:
    mesh = paddle.distributed.ProcessMesh([0], dim_names=["x"])
    whole = paddle.distributed.shard_tensor(tensor([[3.0, 4.0]]), mesh, [paddle.distributed.Replicate()])
    assert whole.data_ptr()
    assert not on_host(whole)
    assert uc.global_norm([whole]).item() == 5.0


def test_the_setting_forces_the_device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    assert not on_host(paddle.ones([2]))


def test_thresholds_with_a_derivative() -> None:
    limit = tensor([1.0], stop_gradient=False)
    clipped, _ = uc.clip_by_global_norm([tensor([3.0, 4.0])], limit)
    clipped[0].sum().backward()
    np.testing.assert_allclose(limit.grad.numpy(), [1.4], rtol=1e-6)
    parameter = with_gradient(tensor([3.0, 4.0]))
    uc.clip_grad_norm_([parameter], limit)
    np.testing.assert_allclose(parameter.grad.numpy(), [0.6, 0.8], rtol=1e-6)


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


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_derivatives_of_16_bit_gradients_at_zero(dtype: str) -> None:
    point = tensor([0.0, 3.0, 4.0], dtype, stop_gradient=False)
    uc.clip_by_norm(point, 5.0).astype("float32").sum().backward()
    assert point.grad.astype("float32").tolist() == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("device_path")
def test_no_elements_have_no_greatest_magnitude() -> None:
    # Paddle's amax of nothing is whatever lies in memory, and seldom 0 as a float64.
    for _ in range(5):
        assert uc.get_total_norm([paddle.zeros([0, 3], "float64")], math.inf).item() == 0.0


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


@pytest.mark.usefixtures("device_path")
def test_a_gradient_written_there_keeps_its_memory() -> None:
    base = tensor([[3.0, 9.0], [4.0, 9.0]])
    column = base[:, 0]
    parameter = with_gradient(column)
    version = column.inplace_version
    uc.clip_grad_norm_([parameter], 1.0)
    np.testing.assert_allclose(base.numpy(), [[0.6, 9.0], [0.8, 9.0]], rtol=1e-6)
    assert column.inplace_version > version


# -- writing


def test_autograd_notices_that_a_saved_gradient_was_overwritten() -> None:
    parameter = after_backward([3.0, 4.0])
    result = (parameter.grad * parameter.grad).sum()  # saves parameter.grad
    uc.clip_grad_norm_([parameter], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_an_untouched_gradient_is_not_marked_as_written() -> None:
    parameter = with_gradient(tensor([3.0, 4.0]))
    version = parameter.grad.inplace_version
    uc.clip_grad_norm_([parameter], 10.0)
    assert parameter.grad.inplace_version == version
    uc.clip_grad_norm_([parameter], 1.0)
    assert parameter.grad.inplace_version > version


@pytest.mark.parametrize("forced", [False, True])
def test_in_place_names_and_class_instances_record_no_gradient(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    parameter = after_backward([3.0, 4.0])
    assert uc.clip_grad_norm_([parameter], 1.0).stop_gradient
    expected = tensor([3.0, 4.0], stop_gradient=False)
    for clip in (uc.GradientClipByNorm(1.0), uc.GradientClipByGlobalNorm(1.0), uc.GradientClipByValue(1.0)):
        assert clip([(None, expected)])[0][1].stop_gradient
        assert clip([(None, expected * tensor([1.0, 1.0]))])[0][1].stop_gradient


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


@pytest.mark.parametrize("forced", [False, True])
def test_memory_that_cannot_be_written_or_overlaps_is_refused(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    good = with_gradient(tensor([30.0]))
    base = paddle.arange(12, dtype="float32")
    expanded = with_gradient(paddle.as_strided(tensor([1.0]), [4], [0]))
    with pytest.raises(ValueError, match=r"position 1 \(parameter .*\) has elements that overlap in memory"):
        uc.clip_grad_norm_([good, expanded], 1.0)
    with pytest.raises(ValueError, match=r"position 1 .* and the gradient at position 2 .* overlap in memory"):
        uc.clip_grad_norm_([good, with_gradient(base[:7]), with_gradient(base[6:])], 1.0)
    assert good.grad.item() == 30.0
    assert base.tolist() == list(range(12))
    both = [with_gradient(base[::2]), with_gradient(base[1::2])]
    assert uc.clip_grad_norm_(both, 1e9).item() == float(np.float32(math.sqrt(506)))


# -- parameters


def test_gradients_given_as_parameters_warn_though_they_look_like_leaves() -> None:
    gradient = after_backward([3.0, 4.0]).grad
    with pytest.warns(unified_clip.ClipWarning, match="takes parameters"):
        uc.clip_grad_norm_([gradient], 1.0)


def test_frozen_parameters_and_inner_tensors_are_silent() -> None:
    frozen = paddle.create_parameter([2], "float32")
    frozen.stop_gradient = True
    assert uc.clip_grad_norm_([frozen], 1.0).item() == 0.0
    leaf = tensor([1.0, 1.0], stop_gradient=False)
    inner, kept = leaf * tensor(3.0), leaf * tensor(4.0)
    kept.retain_grads()
    (inner + kept).sum().backward()
    uc.clip_grad_norm_([leaf, inner, kept], 1.0)
    np.testing.assert_allclose(kept.grad.numpy(), np.ones(2) / math.sqrt(2 * 49 + 2), rtol=1e-6)


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


@pytest.mark.parametrize("name", ["SGD", "Adam", "Momentum"])
def test_optimizers_clip_selected_rows(name: str) -> None:
    weight = embedding([1, 1, 2], [3.0], [4.0], [24.0]).weight
    same = embedding([1, 2], [0.28], [0.96]).weight
    same.set_value(weight)
    optimizer = getattr(paddle.optimizer, name)
    optimizer(0.1, parameters=[weight], grad_clip=uc.GradientClipByGlobalNorm(1.0)).step()
    optimizer(0.1, parameters=[same]).step()
    np.testing.assert_allclose(weight.numpy(), same.numpy(), rtol=1e-5)


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


@pytest.mark.parametrize("forced", [False, True])
def test_coo_gradients_without_elements(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    (clipped,), norm = uc.clip_by_global_norm([paddle.zeros([4, 3]).to_sparse_coo(1)], 1.0)
    assert norm.item() == 0.0
    assert clipped.shape == [4, 3]


def test_coo_gradients_have_derivatives() -> None:
    leaf = coo(stop_gradient=False)
    uc.clip_by_norm(leaf, 1.0).values().sum().backward()
    np.testing.assert_allclose(leaf.grad.values().numpy(), [0.026112, 0.026112, -0.007616], rtol=1e-5)


@pytest.mark.parametrize("axes", [[], [0, 1]], ids=str)
def test_slices_of_coo_gradients_have_derivatives(axes: list[int]) -> None:
    weights = tensor([[1.0, -2.0], [0.5, 3.0]])
    dense = tensor([[3.0, 0.25], [4.0, -0.5]])
    dense.stop_gradient = False
    (uc.clip_by_norm(dense, 1.0, axes=axes) * weights).sum().backward()
    for dtype in ("float32", "float64"):
        entries = paddle.to_tensor([3.0, 0.25, 4.0, -0.5], dtype)
        sparse = paddle.sparse.sparse_coo_tensor([[0, 0, 1, 1], [0, 1, 0, 1]], entries, [2, 2])
        sparse.stop_gradient = False
        (uc.clip_by_norm(sparse, 1.0, axes=axes).values() * weights.flatten().astype(dtype)).sum().backward()
        np.testing.assert_allclose(sparse.grad.values().numpy(), dense.grad.numpy().ravel(), rtol=1e-5, atol=1e-6)


def test_csr_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="sparse CSR"):
        uc.global_norm([paddle.sparse.sparse_csr_tensor([0, 1, 2], [1, 0], [3.0, 4.0], [2, 2])])


# -- optimizers


def test_parameters_that_need_no_clip() -> None:
    layer = paddle.nn.Linear(2, 1, bias_attr=paddle.ParamAttr(need_clip=False))
    optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=uc.GradientClipByGlobalNorm(1.0))
    before = [p.numpy() for p in layer.parameters()]
    (layer(tensor([[3.0, 4.0]])).sum() * tensor(2.0)).backward()
    optimizer.step()
    moved = [b - p.numpy() for b, p in zip(before, layer.parameters(), strict=True)]
    np.testing.assert_allclose(moved[0], [[0.6], [0.8]], rtol=1e-5)
    np.testing.assert_allclose(moved[1], [2.0], rtol=1e-5)


def test_paddle_calls_a_clip_once_for_each_parameter_group() -> None:
    first, second = after_backward([3.0, 4.0]), after_backward([12.0])
    before = [first.numpy(), second.numpy()]
    groups = [{"params": [first]}, {"params": [second]}]
    paddle.optimizer.SGD(1.0, parameters=groups, grad_clip=uc.GradientClipByGlobalNorm(1.0)).step()
    np.testing.assert_allclose(before[0] - first.numpy(), [0.6, 0.8], rtol=1e-5)
    np.testing.assert_allclose(before[1] - second.numpy(), [1.0], rtol=1e-5)


def test_clips_can_be_printed_and_copied_as_paddles_own() -> None:
    clip = uc.GradientClipByGlobalNorm(2.0)
    assert (
        str(clip) == repr(copy.deepcopy(clip)) == "GradientClipByGlobalNorm(clip_norm=2.0, group_name='default_group')"
    )
    pairs = [(None, tensor([3.0, 4.0]))]
    assert clip._dygraph_clip(pairs)[0][1].tolist() == clip(pairs)[0][1].tolist()


def test_the_gradients_themselves_are_left_to_the_next_step() -> None:
    parameter = after_backward([3.0, 4.0])
    optimizer = paddle.optimizer.SGD(1.0, parameters=[parameter], grad_clip=uc.GradientClipByNorm(1.0))
    optimizer.step()
    assert parameter.grad.tolist() == [3.0, 4.0]
    optimizer.clear_grad()
    assert parameter.grad.tolist() == [0.0, 0.0]


# -- hooks


def test_error_clip_as_a_hook() -> None:
    leaf = tensor([1.0, 2.0], stop_gradient=False)
    leaf.register_hook(uc.ErrorClipByValue(0.5))
    (leaf * tensor([3.0, 0.25])).sum().backward()
    assert leaf.grad.tolist() == [0.5, 0.25]


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uc.clip_grad_norm_([after_backward([3.0, 4.0])], 1.0)
        uc.clip_by_norm(after_backward([3.0, 4.0]).grad, 1.0)


def test_the_derivative_by_a_float64_bound_of_16_bit_numbers() -> None:
    for dtype in ("float16", "bfloat16"):
        bound = paddle.to_tensor(np.random.default_rng(0).random(100) + 1, dtype="float64", stop_gradient=False)
        clipped = uc.clip_by_value(paddle.full([100], 9.0, dtype), 0.0, bound)
        clipped.astype("float64").sum().backward()
        assert bound.grad.numpy().tolist() == [1.0] * 100


@pytest.mark.parametrize("value", [False, 0, None])
def test_functions_leave_out_parameters_that_need_no_clip(value: object) -> None:
    parameters = [paddle.create_parameter([1], "float32") for _ in range(2)]
    for parameter in parameters:
        parameter.grad = paddle.to_tensor([3.0])
    parameters[1].need_clip = value
    assert float(uc.clip_grad_norm_(parameters, 1.0)) == 3.0
    uc.clip_grads_with_norm_(parameters, 1.0, 30.0)
    uc.clip_grad_value_(parameters, 0.01)
    assert parameters[0].grad.item() == float(np.float32(0.01))
    assert parameters[1].grad.item() == 3.0


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
    assert releases._positions_or_none(paddle.zeros([2, 0], "int64")).shape == [1]
    assert releases._one_element(paddle.zeros([3, 0])).shape == [3, 1]
