"""PyTorch on devices without float64. A CPU stands for such a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.calls import CALLS, function
from support.kits import TorchKit
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip import adaptive
from unified_clip._backends.torch import backend, gpu_lists, operations
from unified_clip._backends.torch.backend import BACKEND

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.complex64)
Call = Callable[[Sequence[torch.Tensor]], Any]


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


in_place = TorchKit().in_place


def called(name: str) -> Call:
    run = function(TorchKit(), name, 2.0)
    return lambda tensors: [leaf for leaf in tree_leaves(run(tensors)) if leaf is not None]


NORMS: dict[str, Call] = {name: called(name) for name, call in CALLS.items() if call.scope != "value"} | {
    "a threshold that is a tensor": lambda tensors: uc.clip_grad_norm_(in_place(tensors), torch.tensor(2.0), 1),
    "clip_by_norm axes": lambda tensors: uc.clip_by_norm(tensors[0], 0.5, axes=[1]),
    "zclip": lambda tensors: adaptive.clip_by_global_norm(
        tensors, adaptive.ZClip(), adaptive.initial_state(adaptive.ZClip(), tensors)
    ),
}
VALUES: dict[str, Call] = {name: called(name) for name, call in CALLS.items() if call.scope == "value"} | {
    "clip_by_value tensors": lambda tensors: uc.clip_by_value(tensors[0], torch.zeros(4), torch.tensor(0.3))
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*NORMS, *VALUES])
def test_results_have_the_bits_of_the_cpu(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype.is_complex and name in VALUES:
        pytest.skip("complex numbers have no order")

    def run() -> list[Any]:
        tensors = gradients(dtype)
        leaves = tree_leaves((NORMS | VALUES)[name](tensors))
        return [*(leaf for leaf in leaves if not isinstance(leaf, str)), *tensors]

    expected = run()
    forget_cpu(monkeypatch)
    for got, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


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


def test_derivatives_and_graphs_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_cpu(monkeypatch)
    gradient = torch.ones(3, requires_grad=True)
    compiled = torch.compile(uc.clip_by_global_norm, backend="eager", fullgraph=True)
    for run, error in ((uc.clip_by_global_norm, TypeError), (compiled, torch._dynamo.exc.Unsupported)):
        with pytest.raises(error):
            run([gradient], 1.0)
    with torch.no_grad():
        assert uc.clip_by_global_norm([gradient], 1.0)[1] == torch.tensor(3.0).sqrt()


def test_the_state_of_an_adaptive_threshold_is_on_the_cpu() -> None:
    with FakeTensorMode():
        there = torch.empty(3, 4, device="mps")
        assert adaptive.initial_state(adaptive.ZClip(), [there]).device.type == "cpu"
