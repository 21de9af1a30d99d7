"""PyTorch: gradients on a GPU that the compiled kernels collect in one pass. CPU memory stands for a GPU's here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import emulated_gpu
from support.tiers import READS_TENSORS
from torch.utils._pytree import tree_leaves

import unified_clip
import unified_clip.torch as uc
from unified_clip._backends.torch import gpu_lists
from unified_clip._native import KERNELS

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if KERNELS is None:
        pytest.skip("the path and the compiled kernels are chosen here")
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")


def with_gradients(*gradients: torch.Tensor | None) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros(()) if each is None else torch.zeros_like(each)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def random(dtype: torch.dtype) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    shapes = [(3,), (), (17, 5), (2, 3, 4, 5), (1000,)]
    return [torch.randn(shape, generator=source, dtype=torch.float64).to(dtype) for shape in shapes]


def test_gradients_in_the_memory_of_the_cpu_are_on_no_gpu() -> None:
    assert gpu_lists.COLLECTOR.of_parameters_on_gpu(with_gradients(torch.ones(3))) is None


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda parameters: uc.clip_grad_norm_(parameters, 2.0),
    "order 1": lambda parameters: uc.clip_grad_norm_(parameters, 2.0, 1),
    "value": lambda parameters: uc.clip_grad_value_(parameters, 0.5),
    "each": uc.GradientClipByNorm(1.0).clip_,
    "new tensors": lambda parameters: uc.clip_by_global_norm([each.grad for each in parameters], 2.0),
    "norm alone": lambda parameters: uc.get_total_norm([each.grad for each in parameters]),
}


@READS_TENSORS
def test_gradients_that_record_a_derivative_are_not_collected() -> None:
    gradients = [torch.ones(2, requires_grad=True)]
    assert gpu_lists.collect_tensors(gradients, recording=True) is None
    assert gpu_lists.collect_tensors(gradients, recording=False) is not None
    assert gpu_lists.collect_tensors([torch.ones(2)], recording=True) is not None


# -- the kernels, on an emulated GPU


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the number of launches, in its attribute `value`."""
    emulated_gpu.install_for_torch(monkeypatch)
    count = emulated_gpu.variable("emulated_launches")
    count.value = 0
    return count


LAUNCHES = {"norm": 2, "order 1": 2, "value": 1, "each": 3, "new tensors": 3, "norm alone": 2}
"""`clip_grad_norm_` takes two: the second rounds the norm, and multiplies."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLIPS)
def test_kernels_compute_the_bits_of_the_host_path(
    name: str, dtype: torch.dtype, launches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, others = with_gradients(*random(dtype)), with_gradients(*random(dtype))
    versions = [parameter.grad._version for parameter in parameters]
    result = CLIPS[name](parameters)
    assert launches.value == LAUNCHES[name]
    is_written = name not in ("new tensors", "norm alone")
    assert [each.grad._version for each in parameters] == [version + is_written for version in versions]
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "")
    assert_same(result, CLIPS[name](others))
    assert_same([each.grad for each in parameters], [each.grad for each in others])


def assert_same(actual: Any, expected: Any) -> None:
    for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert (one is None and other is None) or (one.dtype == other.dtype and torch.equal(one, other))


OTHERS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "complex": lambda: [torch.full((3,), 3 + 4j, dtype=torch.complex64), torch.ones(2)],
    "empty": lambda: [torch.ones(0), torch.full((3,), 3.0), torch.ones(0, 2)],
    "channels last": lambda: [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(3)],
    "mixed": lambda: [torch.full((3,), 0.1), torch.full((3,), 0.1, dtype=torch.float64), torch.ones(3).bfloat16()],
}


@pytest.mark.parametrize("clip", ["norm", "each", "new tensors"])
@pytest.mark.parametrize("name", OTHERS)
def test_kernels_take_gradients_that_are_not_plain(
    name: str, clip: str, launches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    gradients = OTHERS[name]()
    parameters, others = (with_gradients(*(gradient.clone() for gradient in gradients)) for _ in range(2))
    result = CLIPS[clip](parameters)
    assert launches.value
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "")
    assert_same(result, CLIPS[clip](others))
    assert_same([each.grad for each in parameters], [each.grad for each in others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists_of_several_devices_have_the_bits_of_one(
    dtype: torch.dtype, launches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lists on the emulated GPU stand for two GPUs."""
    tensors = random(dtype)
    whole, halves = gpu_lists.of_tensors(tensors), gpu_lists.of_tensors(tensors)
    assert whole is not None
    assert halves is not None
    parts = []
    for indices in ([0, 2, 4], [1, 3]):
        lists = gpu_lists.of_tensors([tensors[index] for index in indices])
        assert lists is not None
        parts.append(lists._parts[0]._replace(indices=indices))
    monkeypatch.setattr(halves, "_parts", parts)
    for p in (1, 2, math.inf):
        assert_same(halves.norm(p), whole.norm(p))
    assert_same(halves.norms(), whole.norms())
    results = [[torch.empty_like(each) for each in tensors] for _ in range(2)]
    coefs = torch.linspace(0.1, 1, len(tensors), dtype=torch.float64)
    for coef in (coefs, coefs[0]):
        whole.scale(coef, results[0])()
        halves.scale(coef, results[1])()
        assert_same(*results)
    scaled = [each.clone() for each in results[0]]
    whole.clamp(-0.3, 0.2, results[0])()
    halves.clamp(-0.3, 0.2, results[1])()
    assert_same(*results)
    assert not any(map(torch.equal, scaled, results[0]))
    assert halves.clip(2, 1.0, 0.0, False) is None


def test_a_norm_that_must_be_finite_is_checked_before_a_write(launches: Any) -> None:
    parameters = with_gradients(torch.tensor([1.0, math.nan]), torch.ones(2))
    with pytest.raises(unified_clip.NonFiniteNormError):
        uc.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    assert torch.equal(parameters[1].grad, torch.ones(2))


def test_other_orders_take_operations(launches: Any) -> None:
    parameters = with_gradients(torch.tensor([1.0, 2.0]))
    assert float(uc.clip_grad_norm_(parameters, 10.0, 3.0)) == pytest.approx(9 ** (1 / 3))
    assert launches.value == 1  # the product
