"""PyTorch: compiled graphs on a GPU call the CUDA kernels, by the operators of those on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import emulated_gpu
from support.tiers import nightly
from torch._subclasses.fake_tensor import FakeTensorMode

import unified_clip.torch as uc
from unified_clip._backends.torch import kernel_operators
from unified_clip._backends.torch.backend import norm_by_operations, scale_by_operations
from unified_clip._compute import cuda

NORM, SCALE = "unified_clip.norm", "unified_clip.scale_"


@pytest.fixture(autouse=True)
def _on_request(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cuda, "ENABLED", True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parameters(*gradients: torch.Tensor) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient
    return params


def graph_of(
    clip: Callable[[Any], Any], *places: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 4)
) -> list[str]:
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    with FakeTensorMode():
        params = parameters(*(torch.empty(shape, device=place, dtype=dtype) for place in places))
        torch.compile(lambda params: clip(params), backend=backend, fullgraph=True)(params)
        assert [str(parameter.grad.device) for parameter in params] == list(places)
    (names,) = graphs
    return [name for name in names if "unified_clip" in name]


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "order 1": lambda params: uc.clip_grad_norm_(params, 1.0, 1),
    "order 3": lambda params: uc.clip_grad_norm_(params, 1.0, 3),
    "order 2": lambda params: uc.clip_grad_norm_(params, 1.0),
    "order inf": lambda params: uc.clip_grad_norm_(params, 1.0, math.inf),
    "one norm per gradient": uc.GradientClipByNorm(1.0).clip_,
}


@pytest.mark.parametrize("dtype", [torch.float64, *nightly(torch.float32, torch.bfloat16, torch.float16)])
@pytest.mark.parametrize("name", ["order 2", "order inf", "one norm per gradient"])
def test_a_graph_measures_and_scales_by_one_operator_each(name: str, dtype: torch.dtype) -> None:
    assert graph_of(IN_PLACE[name], "cuda:0", "cuda:0", dtype=dtype) == [NORM, SCALE]


def test_functional_names_leave_products_to_the_compiler() -> None:
    clip = lambda params: uc.clip_by_global_norm([parameter.grad for parameter in params], 1.0)  # noqa: E731
    assert graph_of(clip, "cuda:0", "cuda:0") == [NORM]


def test_several_gpus_and_complex_gradients_are_one_list() -> None:
    clip = IN_PLACE["order 2"]
    assert graph_of(clip, "cuda:0", "cuda:1") == [NORM, SCALE]
    assert graph_of(clip, "cuda:1", "cuda:0", dtype=torch.complex64) == [NORM, SCALE]
    assert graph_of(clip, "cuda:0", "cuda:0", shape=(0, 3)) == [NORM, SCALE]


def test_norms_per_complex_or_empty_gradient_are_one_list() -> None:
    clip, places = IN_PLACE["one norm per gradient"], ["cuda:0"] * 5
    assert graph_of(clip, *places, dtype=torch.complex64) == [NORM, SCALE]
    assert graph_of(clip, *places, shape=(0, 3)) == [NORM, SCALE]
    new_tensors = lambda params: uc.GradientClipByNorm(1.0)([(None, p.grad) for p in params])  # noqa: E731
    assert graph_of(new_tensors, *places, dtype=torch.complex64) == [NORM]


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a gradient on the CPU": ("order 2", {"places": ["cuda:0", "cpu"]}),
    "magnitudes of complex numbers": ("order 1", {"dtype": torch.complex64}),
    "another order": ("order 3", {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_norm_of_other_lists_takes_operations(name: str) -> None:
    order, options = OTHERS[name]
    assert NORM not in graph_of(IN_PLACE[order], *options.pop("places", ["cuda:0", "cuda:0"]), **options)


def test_without_a_request_a_graph_takes_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "ENABLED", False)
    assert graph_of(IN_PLACE["order 2"], "cuda:0", "cuda:0") == []


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_the_operators_compute(
    dtype: torch.dtype, layout: str, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels compute the results. Operations compute them for memory that kernels do not support, because a graph has
    no strides."""
    emulated_gpu.install_for_torch(monkeypatch)
    launches = emulated_gpu.variable("emulated_launches")
    launches.value = 0
    numbers = [[3.0 + 4.0j, 0.0], [0.0, 0.0]] if dtype.is_complex else [[3.0, 0.0], [0.0, 4.0]]
    values = [torch.tensor(numbers), torch.tensor([[0.0, 12.0], [0.0, 0.0]]).to(dtype)]
    tensors = [value.clone() if layout == "contiguous" else value.t().contiguous().t() for value in values]
    norms = kernel_operators.norm_on_gpu(norm_by_operations, tensors, 2, per_tensor)
    assert norms.tolist() == ([5.0, 12.0] if per_tensor else 13.0)
    coefs = torch.tensor([0.5, 0.25] if per_tensor else 0.5, dtype=torch.float64)
    kernel_operators.scale_on_gpu(scale_by_operations, tensors, coefs, per_tensor)
    for value, tensor, coef in zip(values, tensors, coefs.expand(2), strict=True):
        assert torch.equal(tensor, value * coef)
    assert bool(launches.value) == (layout == "contiguous")
    lists = [torch.empty(0, dtype=torch.float64), *values], [*values[:1], torch.empty(2, 0), torch.ones(4).expand(4)]
    assert kernel_operators.norm_on_gpu(norm_by_operations, lists[0], 2, True).tolist() == [0.0, 5.0, 12.0]
    assert kernel_operators.norm_on_gpu(norm_by_operations, lists[1], 2, True).tolist() == [5.0, 0.0, 2.0]
    for p in (1, 3):
        expected = float(torch.stack(values).abs().norm(p))
        assert float(kernel_operators.norm_on_gpu(norm_by_operations, values, p, False)) == pytest.approx(expected)
