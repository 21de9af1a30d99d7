"""PyTorch on devices without float64. A CPU stands for such a device, or FakeTensors of MPS without values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support.kits import Kit
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip import adaptive
from unified_clip._backends.torch import backend, gpu_lists, operations
from unified_clip._backends.torch.backend import BACKEND

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.complex64)
Call = Callable[[Sequence[torch.Tensor]], Any]


@pytest.fixture(autouse=True)
def _eager(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the device path is forced here")


def forget_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let CPU tensors pass for tensors on a device without float64."""
    patch.setattr(operations, "WITHOUT_FLOAT64", ("cpu",))
    for module in (backend, gpu_lists):
        patch.setattr(module, "COLLECTOR", None)


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_cpu(monkeypatch)


def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    shapes = [(3, 4), (0,), (), (70, 70), (5, 1)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def in_place(tensors: Sequence[torch.Tensor]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors]
    for parameter, tensor in zip(parameters, tensors, strict=True):
        parameter.grad = tensor
    return parameters


NORMS: dict[str, Call] = {
    "clip_grad_norm_": lambda tensors: uc.clip_grad_norm_(in_place(tensors), 2.0),
    "clip_grad_norm_ inf": lambda tensors: uc.clip_grad_norm_(in_place(tensors), 2.0, math.inf),
    "clip_grad_norm_ 1": lambda tensors: uc.clip_grad_norm_(in_place(tensors), torch.tensor(2.0), 1),
    "clip_grad_norm_ 3": lambda tensors: uc.clip_grad_norm_(in_place(tensors), 2.0, 3, foreach=True),
    "clip_grads_with_norm_": lambda tensors: uc.clip_grads_with_norm_(in_place(tensors), 1.0, torch.tensor(7.0)),
    "nothing to clip": lambda tensors: uc.clip_grad_norm_(in_place(tensors), 1e9),
    "clip_by_global_norm": lambda tensors: uc.clip_by_global_norm(tensors, 2.0),
    "clip_by_norm": lambda tensors: [uc.clip_by_norm(tensor, 0.5) for tensor in tensors],
    "clip_by_norm axes": lambda tensors: uc.clip_by_norm(tensors[0], 0.5, axes=[1]),
    "classes": lambda tensors: uc.GradientClipByNorm(0.5)(list(zip(in_place(tensors), tensors, strict=True))),
    "zclip": lambda tensors: adaptive.clip_by_global_norm(
        tensors, adaptive.ZClip(), adaptive.initial_state(adaptive.ZClip(), tensors)
    ),
}
VALUES: dict[str, Call] = {
    "clip_grad_value_": lambda tensors: uc.clip_grad_value_(in_place(tensors), 0.5),
    "clip_by_value": lambda tensors: [uc.clip_by_value(tensor, -1, 0.3) for tensor in tensors],
    "clip_by_value tensors": lambda tensors: uc.clip_by_value(tensors[0], torch.zeros(4), torch.tensor(0.3)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*NORMS, *VALUES])
def test_results_have_the_bits_of_the_cpu(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype.is_complex and name in VALUES:
        pytest.skip("complex numbers have no order")

    def run() -> list[Any]:
        tensors = gradients(dtype)
        return [*tree_leaves((NORMS | VALUES)[name](tensors)), *tensors]

    expected = run()
    forget_cpu(monkeypatch)
    for got, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.usefixtures("without_float64")
def test_gradients_within_the_threshold_are_not_written() -> None:
    tensors = gradients(torch.float32)
    versions = [tensor._version for tensor in tensors]
    uc.clip_grad_norm_(in_place(tensors), 1e9)
    assert [tensor._version for tensor in tensors] == versions
    uc.clip_grad_norm_(in_place(tensors), 1.0)
    assert [tensor._version for tensor in tensors] == [version + 1 for version in versions]


@pytest.mark.usefixtures("without_float64")
def test_gradients_that_record_a_derivative_are_clipped_in_place() -> None:
    gradient = torch.tensor([3.0, 4.0], requires_grad=True)
    uc.clip_grad_norm_(in_place([gradient * 1, torch.zeros(2, requires_grad=True)]), 1.0)
    assert uc.clip_grad_norm_(in_place([gradient]), 1.0) == 5.0
    assert gradient.tolist() == pytest.approx([0.6, 0.8])
    assert gradient.is_leaf


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # before 2.13
def test_sparse_gradients_have_the_same_bits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> torch.Tensor:
        rows = torch.tensor([[1.0, 0.1], [3.0, 4.0], [1e-8, 6.0]])
        gradient = torch.sparse_coo_tensor([[2, 0, 2]], rows, (4, 2), check_invariants=True)
        return uc.clip_by_norm(gradient, 1.0).to_dense()

    expected = run()
    forget_cpu(monkeypatch)
    assert torch.equal(run(), expected)


@pytest.mark.usefixtures("without_float64")
def test_buffers_tell_gradients_apart() -> None:
    """On MPS, the addresses of buffer objects are closer together than the buffers are long."""
    base, other = torch.arange(12.0), torch.arange(12.0)
    assert BACKEND.alias_owners([base, other, base[:]], str) == [0, 1, 0]
    assert BACKEND.alias_owners([base[::2], base[1::2]], str) == [0, 1]
    with pytest.raises(ValueError, match="0 and 1 overlap in memory"):
        BACKEND.alias_owners([base[:7], base[6:]], str)
    shared = torch.tensor([3.0, 4.0])
    assert float(uc.clip_grad_norm_(in_place([shared, shared[:], torch.tensor([12.0])]), 1.0)) == 13.0
    torch.testing.assert_close(shared, torch.tensor([3.0, 4.0]) / 13)


# -- derivatives and graphs


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_derivatives_are_those_of_the_cpu(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (uc.clip_by_norm(x, 2.0).cumsum(0) ** 2).sum() + uc.get_total_norm([x], p)

    def derivatives() -> tuple[torch.Tensor, ...]:
        point = torch.tensor([3.0, -4.0, 12.0])
        return torch.autograd.functional.hessian(function, point), torch.func.grad(function)(point)

    expected = derivatives()
    forget_cpu(monkeypatch)
    torch.testing.assert_close(derivatives(), expected, rtol=3e-6, atol=1e-7)


@pytest.mark.usefixtures("without_float64")
def test_under_vmap() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    got = torch.func.vmap(lambda x: uc.clip_by_global_norm([x], 1.0)[0][0])(rows)
    assert torch.equal(got, torch.stack([uc.clip_by_norm(row, 1.0) for row in rows]))


@pytest.mark.graphs
@pytest.mark.usefixtures("without_float64")
def test_compiled_without_a_graph_break() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, c: uc.clip_by_global_norm([x], c), backend="aot_eager", fullgraph=True)
    in_graph = torch.compile(lambda holders: uc.clip_grad_norm_(holders, 1.0), backend="aot_eager", fullgraph=True)
    values, limit = torch.randn(37, generator=torch.Generator().manual_seed(8)), torch.tensor(0.3)
    torch.testing.assert_close(compiled(values, limit), uc.clip_by_global_norm([values], limit), rtol=0, atol=0)
    holders, others = in_place([values.clone()]), in_place([values.clone()])
    assert torch.equal(in_graph(holders), uc.clip_grad_norm_(others, 1.0))
    assert torch.equal(holders[0].grad, others[0].grad)
    torch._dynamo.reset()


# -- what happens on the device


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "mps":
                assert tensor.dtype not in (torch.float64, torch.complex128), function
        return result


@pytest.fixture
def on_mps() -> Iterator[list[torch.Tensor]]:
    """Without an MPS device, PyTorch can neither write to its tensors nor compute derivatives."""
    with FakeTensorMode(), NoFloat64():
        yield [torch.empty(3, 4, device="mps").to(dtype) for dtype in DTYPES]


@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip_by_norm", "clip_by_norm axes", "clip_by_value"])
def test_no_float64_tensor_is_made_on_the_device(name: str, on_mps: list[torch.Tensor]) -> None:
    tensors = on_mps[:3] if name in VALUES else on_mps
    results = tree_leaves((NORMS | VALUES)[name](tensors))
    assert {result.device.type for result in results} == {"mps"}


def test_arguments_and_lists_on_several_devices(on_mps: list[torch.Tensor]) -> None:
    there, wide = on_mps[2], torch.empty(2, dtype=torch.float64)
    for tensors in ([there, torch.empty(4)], [torch.empty(4), there], [there, wide], [wide, there]):
        clipped, norm = uc.clip_by_global_norm(tensors, torch.ones((), device="mps"))
        assert [(new.device, new.dtype) for new in clipped] == [(old.device, old.dtype) for old in tensors]
        is_wide = tensors[0] is wide or tensors[1] is wide
        assert norm.device.type == ("cpu" if is_wide else tensors[0].device.type)
    bounded = uc.clip_by_value(there, torch.zeros(4, dtype=torch.float64), torch.zeros((), device="mps"))
    assert (bounded.device.type, bounded.dtype) == ("mps", torch.float32)
    here, _ = uc.clip_by_global_norm([], torch.ones((), device="mps"))
    assert here == []
    assert adaptive.initial_state(adaptive.ZClip(), [there]).device.type == "cpu"
