"""PyTorch: when raw memory can be read and written, and the reports to autograd after a write."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from support.kits import TorchKit
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

import unified_clip.torch as uc
from unified_clip._backends.torch.backend import BACKEND

# -- the host path is taken for plain tensors only


def test_under_a_dispatch_mode_nothing_escapes() -> None:
    traced = make_fx(lambda x: uc.clip_by_global_norm([x], 1.0)[0][0])(torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(traced(torch.tensor([6.0, 8.0])), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(traced(torch.tensor([0.3, 0.4])), torch.tensor([0.3, 0.4]))


# -- writing


with_gradient = TorchKit().holder


# -- parameters


def test_other_devices_dtypes_are_refused_with_their_name() -> None:
    with pytest.raises(TypeError, match="float8_e4m3fn"):
        uc.global_norm([torch.ones(2).to(torch.float8_e4m3fn)])


class Own(torch.Tensor):
    """A tensor that only PyTorch's own operations may compute with."""


@pytest.mark.parametrize("path", ["", "framework"])
def test_subclasses_in_one_memory_are_one_gradient(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    shared = torch.tensor([3.0, 4.0])
    holders = [with_gradient(shared[:].as_subclass(Own)), with_gradient(shared), with_gradient(shared.as_subclass(Own))]
    assert float(uc.clip_grad_norm_(holders, 1.0)) == 5.0
    torch.testing.assert_close(shared, torch.tensor([0.6, 0.8]))
    base = torch.arange(4.0)
    with pytest.raises(ValueError, match="overlap in memory"):
        uc.clip_grad_norm_([with_gradient(base[:3].as_subclass(Own)), with_gradient(base[1:].as_subclass(Own))], 1.0)
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_wrappers_of_one_tensor_are_one_gradient() -> None:
    from torch.testing._internal.two_tensor import TwoTensor  # of two: its memory is not known

    shared = torch.tensor([3.0, 4.0])
    holders = [with_gradient(Wrapper(shared)), with_gradient(Wrapper(shared[:]))]
    assert float(uc.clip_grad_norm_(holders, 1.0)) == 5.0
    torch.testing.assert_close(shared, torch.tensor([0.6, 0.8]))
    first, second = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.0])
    holders = [with_gradient(TwoTensor(first, second)), with_gradient(TwoTensor(first, second))]
    uc.clip_grad_norm_(holders, 1.0)
    torch.testing.assert_close((first, second), (torch.tensor([0.6, 0.8]), torch.tensor([0.6, 0.8])))
    with pytest.raises(ValueError, match="position 1 overlaps in memory with other gradients"):
        uc.clip_grad_norm_([holders[0], with_gradient(TwoTensor(first, torch.ones(2)))], 1.0)


@pytest.mark.parametrize("operation", ["mul", "where", "lt", "copy_"])
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_", "GradientClipByNorm", "GradientClipByValue"])
def test_what_refuses_an_operation_does_so_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, name: str, operation: str
) -> None:
    monkeypatch.setattr(Refusing, "operation", operation)
    plain, special = with_gradient(torch.tensor([30.0])), with_gradient(Refusing(torch.tensor([30.0])))
    clip_ = getattr(uc, name) if name.endswith("_") else lambda holders, limit: getattr(uc, name)(limit).clip_(holders)
    if operation in ("mul", "copy_") and (operation == "copy_" or "orm" in name):
        with pytest.raises(RuntimeError, match="not multiplied"):
            clip_([plain, special], 1.0)
    else:
        with contextlib.suppress(RuntimeError):  # not every name needs every operation
            clip_([plain, special], 1.0)
            return
    assert plain.grad.item() == 30.0
    assert special.grad.inner.item() == 30.0


@pytest.mark.parametrize("path", ["", "framework"])
def test_sparse_gradients_of_embeddings_that_are_added_are_two(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Autograd uses the same memory for the values of both gradients."""
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    tables = torch.nn.Embedding(30, 2, sparse=True), torch.nn.Embedding(6, 2, sparse=True)
    rows = torch.tensor([0, 1]), torch.tensor([4, 5])
    total = sum(table(row) for table, row in zip(tables, rows, strict=True))
    (total * torch.tensor([[3.0, 4.0], [1.0, 2.0]])).sum().backward()
    assert float(uc.clip_grad_norm_([table.weight for table in tables], 1.0)) == float(np.float32(math.sqrt(60)))
    for table, row in zip(tables, rows, strict=True):
        assert table.weight.grad.shape == table.weight.shape
        assert table.weight.grad.coalesce().indices().flatten().tolist() == row.tolist()
    torch.testing.assert_close(tables[1].weight.grad.to_dense()[4], torch.tensor([3.0, 4.0]) / math.sqrt(60))


def test_a_dense_gradient_over_the_values_of_a_sparse_one_stays_dense() -> None:
    values = torch.tensor([3.0, 4.0])
    table, dense = torch.nn.Parameter(torch.zeros(9)), with_gradient(values)
    table.grad = torch.sparse_coo_tensor([[0, 5]], values, (9,), check_invariants=True)
    assert float(uc.clip_grad_norm_([table, dense], 1.0)) == float(np.float32(math.sqrt(50)))
    torch.testing.assert_close(dense.grad, torch.tensor([3.0, 4.0]) / math.sqrt(50))
    torch.testing.assert_close(table.grad.to_dense()[5], torch.tensor(4.0) / math.sqrt(50))


@pytest.mark.parametrize("path", ["", "framework"])
@pytest.mark.parametrize("clip_", [uc.clip_grad_norm_, uc.clip_grad_value_])
def test_what_pytorch_cannot_write_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, path: str, clip_: object
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    good = with_gradient(torch.tensor([30.0]))
    expanded = torch.nn.Parameter(torch.zeros(4))
    expanded.grad = torch.ones(1).expand(4).as_subclass(Own)
    nothing = torch.nn.Parameter(torch.zeros(2))
    nothing.grad = torch._efficientzerotensor((2,))
    for wrong, why in ((expanded, "elements that overlap in memory"), (nothing, "has no memory")):
        with pytest.raises(ValueError, match=f"position 1 .*{why}"):
            clip_([good, wrong], 1.0)
        assert good.grad.item() == 30.0


@pytest.mark.parametrize("path", ["", "framework"])
def test_tensors_of_inference_mode_are_written(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    with torch.inference_mode():
        gradient = torch.tensor([3.0, 4.0])
    holder = torch.nn.Parameter(torch.zeros(2))
    holder.grad = gradient
    assert float(uc.clip_grad_norm_([holder], 1.0)) == 5.0
    assert gradient.tolist() == pytest.approx([0.6, 0.8], rel=1e-6)


def test_a_threshold_tensor_is_read_as_it_is_where_subnormal_numbers_are_flushed() -> None:
    threshold = torch.tensor(1e-40)
    torch.set_flush_denormal(True)
    try:
        got = uc.clip_by_norm(torch.tensor([1.0]), threshold)
    finally:
        torch.set_flush_denormal(False)
    assert got.item() == float(np.float32(1e-40))


def test_autograd_hears_of_a_write_through_every_alias() -> None:
    saved = torch.tensor([3.0, 4.0])
    leaf = torch.tensor([2.0, 2.0], requires_grad=True)
    first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    first.grad, second.grad = saved.data, saved.view(2)
    result = (leaf * second.grad).sum()  # saves it
    uc.clip_grad_norm_([first, second], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_other_layouts_are_refused_before_anything_is_written() -> None:
    rows = torch.nn.Parameter(torch.eye(2).to_sparse_csr())
    rows.grad = torch.eye(2).to_sparse_csr() * 9
    good = with_gradient(torch.tensor([30.0]))
    with pytest.raises(TypeError, match="sparse_csr cannot be clipped"):
        uc.clip_grad_value_([good, rows], 1.0)
    assert good.grad.item() == 30.0


def test_a_module_is_told_from_its_parameters() -> None:
    with pytest.raises(TypeError, match=r"Pass model\.parameters\(\)"):
        uc.clip_grad_norm_(torch.nn.Linear(1, 1), 1.0)


class Wrapper(torch.Tensor):
    """A tensor that holds its values in another one, as DTensor does."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> Wrapper:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: object, types: object, args: object = (), kwargs: object = None) -> object:
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, function(*args, **kwargs))


class Refusing(Wrapper):
    operation = "mul"

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Refusing:
        return Wrapper.__new__(cls, inner)

    @classmethod
    def __torch_dispatch__(cls, function: object, types: object, args: object = (), kwargs: object = None) -> object:
        if f".{cls.operation}." in str(function) and not getattr(args[0], "dtype", None) == torch.float64:
            raise RuntimeError("not multiplied")
        args, kwargs = tree_map_only(Wrapper, lambda tensor: tensor.inner, (args, kwargs or {}))
        return function(*args, **kwargs)


def test_a_clip_has_to_know_its_threshold() -> None:
    with pytest.raises(TypeError, match=r"clip_norm is a tensor on a device .* its value is not known"):
        uc.GradientClipByNorm(torch.ones((), device="meta"))
    with pytest.raises(TypeError, match=r"max is a tensor on a device .* its value is not known"):
        uc.GradientClipByValue(torch.ones((), device="meta"))


def test_a_sparse_gradient_keeps_its_device_whatever_the_default_is() -> None:
    dense, embedding = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(4, 1))
    dense.grad = torch.tensor([30.0, 40.0])
    embedding.grad = torch.sparse_coo_tensor([[1, 1]], [[60.0], [60.0]], (4, 1), check_invariants=True)
    torch.set_default_device("meta")
    try:
        assert uc.clip_grad_norm_([dense, embedding], 13.0).item() == 130.0
    finally:
        torch.set_default_device(None)
    assert embedding.grad.device.type == "cpu"
    torch.testing.assert_close(dense.grad, torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(embedding.grad.to_dense(), torch.tensor([[0.0], [12.0], [0.0], [0.0]]))


def check_rejected(gradient: torch.Tensor, message: str) -> None:
    for call in (uc.get_total_norm, lambda tensors: uc.clip_by_global_norm(tensors, 1.0)):
        with pytest.raises(TypeError, match=rf"^position 1 is {message}"):
            call([torch.ones(2), gradient])
    for call in (lambda tensor: uc.clip_by_norm(tensor, 1.0), lambda tensor: uc.clip_by_value(tensor, -1.0, 1.0)):
        with pytest.raises(TypeError, match=rf"^position 0 is {message}"):
            call(gradient)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_rejected(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.tensor([3.0]), torch.tensor([0.0, 4.0])], layout=layout)
    check_rejected(nested, "a nested tensor")
    assert uc.get_total_norm(nested.unbind()) == 5.0


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_values_of_a_lazily_conjugated_tensor_stay_valid_after_they_are_read(size: int) -> None:
    numbers = torch.randn(size, dtype=torch.complex64)
    values = BACKEND.to_numpy(numbers.conj())  # reads a copy, as it does for a GPU
    others = [torch.zeros(size, dtype=torch.complex64) for _ in range(8)]  # in the copy's memory, if that is free
    assert len(others) == 8
    np.testing.assert_array_equal(values, numbers.numpy().conj())


def test_lazy_conjugates_and_negatives() -> None:
    tensor = torch.tensor([3 + 4j, 1 - 2j])
    got = uc.clip_by_norm(tensor.conj(), 1.0)
    torch.testing.assert_close(got, uc.clip_by_norm(tensor, 1.0).conj().resolve_conj())
    clipped = uc.clip_by_norm(tensor.conj().imag, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([-4.0, 2.0]) / math.sqrt(20))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_under_jit_trace() -> None:
    traced = torch.jit.trace(lambda x: uc.clip_by_norm(x, 1.0), torch.tensor([3.0, 4.0]), check_trace=False)
    torch.testing.assert_close(traced(torch.tensor([0.3, 0.4])), torch.tensor([0.3, 0.4]))
