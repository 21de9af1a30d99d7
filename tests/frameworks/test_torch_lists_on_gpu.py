"""PyTorch: gradients on a GPU that the compiled kernels collect in one pass. CPU memory stands for a GPU's here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kits import Kit

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu, gpu_list_path
from unified_clip._backends.torch.backend import BACKEND
from unified_clip._backends.torch.gpu_list_path import GpuListPath
from unified_clip._native import KERNELS

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kit.exact or KERNELS is None:
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


def collected(parameters: list[torch.nn.Parameter]) -> GpuListPath | None:
    return gpu_list_path.collect_parameters(BACKEND, parameters)


def test_a_list_has_the_addresses_and_lengths_of_gradients() -> None:
    channels_last = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    gradients = [
        torch.ones(7),
        channels_last,
        torch.ones(4, dtype=torch.bfloat16)[1:],
        torch.ones((), dtype=torch.float64),
    ]
    device_list = gpu_list_path.COLLECTOR.of_parameters_on_gpu(with_gradients(*gradients), on_cpu=True)
    assert device_list.codes == "ffBd"
    assert device_list.has_float64
    numbers = struct.unpack("=8q", device_list.memory)
    assert numbers == tuple(number for each in gradients for number in (each.data_ptr(), each.numel()))
    assert all(kept is gradient for kept, gradient in zip(device_list.tensors, gradients, strict=True))


def test_gradients_in_the_memory_of_the_cpu_are_on_no_gpu() -> None:
    assert gpu_list_path.COLLECTOR.of_parameters_on_gpu(with_gradients(torch.ones(3))) is None


def test_parameters_without_gradients_are_left_out() -> None:
    path = collected(with_gradients(None, torch.ones(3), None))
    assert path is not None
    assert len(path.tensors) == 1
    assert collected(with_gradients(None, None)) is None


def shared() -> list[torch.nn.Parameter]:
    memory = torch.ones(6)
    return with_gradients(memory[:4], memory[2:])


def excluded() -> list[torch.nn.Parameter]:
    parameters = with_gradients(torch.ones(3), torch.ones(3))
    parameters[1].need_clip = False
    return parameters


def in_main_grad() -> list[torch.nn.Parameter]:
    parameters = with_gradients(torch.ones(3), None)
    parameters[1].main_grad = torch.ones(())
    return parameters


def made_in_inference_mode() -> list[torch.nn.Parameter]:
    with torch.inference_mode():
        return with_gradients(torch.ones(3))


NOT_PLAIN: dict[str, Callable[[], list[torch.nn.Parameter]]] = {
    "a gap": lambda: with_gradients(torch.ones(4, 4)[:, :2]),
    "shared memory": shared,
    "excluded": excluded,
    "main_grad": in_main_grad,
    "inference mode": made_in_inference_mode,
    "empty": lambda: with_gradients(torch.ones(0)),
    "complex": lambda: with_gradients(torch.ones(2, dtype=torch.complex64)),
    "no memory": lambda: with_gradients(torch.ones(2, device="meta")),
    "another device": lambda: with_gradients(torch.ones(2), torch.ones(2, device="meta")),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_a_gradient_that_is_not_plain_is_checked_one_by_one(name: str) -> None:
    assert collected(with_gradients(torch.ones(3))) is not None
    assert collected(NOT_PLAIN[name]()) is None


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda parameters: uc.clip_grad_norm_(parameters, 2.0),
    "order 1": lambda parameters: uc.clip_grad_norm_(parameters, 2.0, 1),
    "value": lambda parameters: uc.clip_grad_value_(parameters, 0.5),
    "each": uc.GradientClipByNorm(1.0).clip_,
    "new tensors": lambda parameters: uc.clip_by_global_norm([each.grad for each in parameters], 2.0),
    "norm alone": lambda parameters: uc.get_total_norm([each.grad for each in parameters]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLIPS)
def test_results_are_those_of_gradients_checked_one_by_one(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(gpu_list_path, "GpuListPath", lambda *args: made.append(args) or GpuListPath(*args))
    parameters, others = with_gradients(*random(dtype)), with_gradients(*random(dtype))
    norm = CLIPS[name](parameters)
    assert made
    monkeypatch.setattr(gpu_list_path, "COLLECTOR", None)
    assert str(CLIPS[name](others)) == str(norm)
    for parameter, other in zip(parameters, others, strict=True):
        assert torch.equal(parameter.grad, other.grad)


def test_norms_per_tensor_have_the_dtype_of_their_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table with a float64 tensor would round all norms to float64."""
    pytest.importorskip("triton")
    monkeypatch.setattr(gpu, "ENABLED", True)
    gradients = [torch.full((3,), 0.1), torch.full((3,), 0.1, dtype=torch.float64)]
    path = collected(with_gradients(*gradients))
    assert path is not None
    per_tensor = path.per_tensor()
    assert per_tensor is not None
    monkeypatch.delenv("UNIFIED_CLIP_PATH")
    exact_norms = [float(uc.get_total_norm([gradient])) for gradient in gradients]
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    assert per_tensor.norm(2).tolist() == exact_norms


def test_gradients_that_record_a_derivative_are_not_collected() -> None:
    gradients = [torch.ones(2, requires_grad=True)]
    assert gpu_list_path.collect_tensors(gradients, recording=True) is None
    assert gpu_list_path.collect_tensors(gradients, recording=False) is not None
    assert gpu_list_path.collect_tensors([torch.ones(2)], recording=True) is not None


def test_a_table_is_that_of_the_gradients() -> None:
    pytest.importorskip("triton")
    from unified_clip._backends.torch.gpu import table

    gradients = [*random(torch.float32), *random(torch.bfloat16)]
    device_list = gpu_list_path.COLLECTOR.of_parameters_on_gpu(with_gradients(*gradients), on_cpu=True)
    made, expected = table.table_of_list(device_list), table.table_of(gradients)
    assert made is not None
    assert expected is not None
    assert torch.equal(made._memory, expected._memory)
    assert made._parts == expected._parts
    assert table.table_of_list(device_list) is made
