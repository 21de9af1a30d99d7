"""PyTorch on a real CUDA device, where there is one: the CPU's numbers, no waiting, graphs, and few kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.cuda import needs_cuda  # noqa: F401 - a fixture of each test
from support.gpu_cases import OPERATIONS, check
from support.kits import TorchKit
from torch.distributed.tensor import Shard, distribute_tensor
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip._compute import cuda

CUDA = torch.device("cuda")
SHAPES = [(), (3,), (64, 33), (1000,), (7, 1, 5), (4097,)]


def random(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    source = torch.Generator("cpu").manual_seed(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.randn(shape, generator=source, dtype=wide, device="cpu").to(dtype) for shape in shapes]


def gradients(dtype: torch.dtype, number: int = len(SHAPES)) -> list[torch.Tensor]:
    return random([SHAPES[index % len(SHAPES)] for index in range(number)], dtype)


def parameters(grads: list[torch.Tensor], device: torch.device | str) -> list[torch.nn.Parameter]:
    return with_gradients([gradient.to(device, copy=True) for gradient in grads])


with_gradients = TorchKit().in_place


def assert_same_gradients(params: list[torch.nn.Parameter], expected: list[torch.nn.Parameter]) -> None:
    """Compare the bits. Without the kernels, float64 gradients may differ by 1e-12."""
    for actual, reference in zip(params, expected, strict=True):
        wide = reference.grad.dtype in (torch.float64, torch.complex128) and not cuda.ENABLED
        torch.testing.assert_close(actual.grad.cpu(), reference.grad, rtol=1e-12 if wide else 0, atol=0, equal_nan=True)


CLIPS: dict[str, Callable[[Any], Any]] = {
    "clip_grad_norm_": lambda params: uc.clip_grad_norm_(params, 5.0),
    "clip_grad_norm_ of order 1": lambda params: uc.clip_grad_norm_(params, 5.0, 1),
    "clip_grad_norm_ of order inf": lambda params: uc.clip_grad_norm_(params, 0.5, math.inf),
    "clip_grad_norm_, nothing to do": lambda params: uc.clip_grad_norm_(params, 1e9),
    "clip_grad_value_": lambda params: uc.clip_grad_value_(params, 0.7),
    "GradientClipByNorm": uc.GradientClipByNorm(2.0).clip_,
    "GradientClipByGlobalNorm": uc.GradientClipByGlobalNorm(2.0).clip_,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_lists_have_the_results_of_exact_arithmetic(
    seed: int, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From FAST_FROM elements on, the first sum is float64, and a doubtful one is computed again."""
    if not cuda.ENABLED:
        pytest.skip("about the kernels")
    random = np.random.default_rng([seed, OPERATIONS.index(operation)])
    if seed % 2:
        monkeypatch.setattr(cuda, "FAST_FROM", 0)
        cuda._launcher.cache_clear()
    for _ in range(30):
        check(random, operation, 65536, CUDA.type)
    cuda._launcher.cache_clear()


def assert_clips_as_on_the_cpu(name: str, grads: list[torch.Tensor], cuda_params: list[torch.nn.Parameter]) -> None:
    cpu_params = parameters(grads, "cpu")
    norms = CLIPS[name](cpu_params), CLIPS[name](cuda_params)
    if norms[0] is not None:
        assert norms[1].device.type == CUDA.type
        assert_same_gradients(with_gradients([norms[1]]), with_gradients([norms[0]]))
    assert_same_gradients(cuda_params, cpu_params)


LARGE = [(65536,), (3 * 65536 + 5,), (2, 32, 33, 31), (65537,)]
"""More than one chunk of the kernels, with remainders of several lengths."""


@pytest.fixture
def new_launcher() -> Iterator[None]:
    cuda._launcher.cache_clear()
    yield
    cuda._launcher.cache_clear()


def test_a_long_list_of_bfloat16_has_the_norm_of_the_cpu() -> None:
    """From FAST_FROM elements on, the first sum is float64."""
    gradient = random([(cuda.FAST_FROM + 5,)], torch.bfloat16)[0]
    assert uc.get_total_norm([gradient.to(CUDA)]).item() == uc.get_total_norm([gradient]).item()


def test_a_first_call_may_be_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_launcher: None) -> None:
    """Kernels are compiled and loaded while a CUDA graph is captured."""
    if not cuda.ENABLED:
        pytest.skip("about the kernels")
    monkeypatch.setenv("UNIFIED_CLIP_CUDA_CACHE", str(tmp_path))
    params = parameters(gradients(torch.float32), CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = uc.clip_grad_norm_(params, 5.0)
    graph.replay()
    cpu_params = parameters(gradients(torch.float32), "cpu")
    assert norm.item() == uc.clip_grad_norm_(cpu_params, 5.0).item()
    assert_same_gradients(params, cpu_params)


def test_a_gradient_may_have_more_than_2_to_the_31_elements() -> None:
    length = 2**31 + 65536 + 3
    if not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 6 * length:
        pytest.skip("this GPU has too little free memory")
    gradient = torch.zeros(length, dtype=torch.bfloat16, device=CUDA)
    gradient[-2:] = torch.tensor([3.0, 4.0])
    gradient[2**31 - 1] = 12.0
    assert uc.get_total_norm([gradient]).item() == 13.0
    assert uc.get_total_norm([gradient], math.inf).item() == 12.0
    clipped = uc.clip_by_value(gradient, -2.0, 2.0)
    assert clipped[-2:].tolist() == [2.0, 2.0]
    assert clipped[2**31 - 1].item() == 2.0


def needs_rounded_norms(name: str) -> None:
    """Skip a test of norms that compiled code computes, where `torch.compile` leaves out their rounding to float32."""
    if name == "GradientClipByNorm" and TorchVersion(torch.__version__) < "2.13":
        pytest.skip("this release of PyTorch is not supported inside torch.compile")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "clip",
    [
        lambda given: uc.clip_by_global_norm(given, 5.0),
        lambda given: [uc.clip_by_norm(each, 2.0) for each in given],
        lambda given: [uc.clip_by_value(each, -0.3, 0.7) for each in given],
    ],
    ids=["global norm", "norm", "value"],
)
def test_functional_results_have_the_bits_of_the_cpu(clip: Callable[[Any], Any], dtype: torch.dtype) -> None:
    cpu_results, cuda_results = (
        tree_leaves(clip([gradient.to(device) for gradient in gradients(dtype)])) for device in ("cpu", CUDA)
    )
    tolerance = 1e-12 if dtype == torch.float64 and not cuda.ENABLED else 0.0
    for expected, result in zip(cpu_results, cuda_results, strict=True):
        assert result.is_cuda
        torch.testing.assert_close(result.cpu(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_norm_ of order inf", "GradientClipByNorm"])
def test_a_compiled_clip_has_the_bits_of_the_cpu(name: str, dtype: torch.dtype, devices: int) -> None:
    if torch.cuda.device_count() < devices or (dtype.is_complex and name == "clip_grad_norm_ of order inf"):
        pytest.skip("this machine has too few CUDA devices, or the norm is computed by operations")
    needs_rounded_norms(name)
    cpu_params = parameters(gradients(dtype), "cpu")
    cuda_params = with_gradients(
        [gradient.to(f"cuda:{index % devices}") for index, gradient in enumerate(gradients(dtype))]
    )
    norms = CLIPS[name](cpu_params), torch.compile(lambda params: CLIPS[name](params), fullgraph=True)(cuda_params)
    if norms[0] is not None:
        assert norms[1].item() == norms[0].item()
    for expected, actual in zip(cpu_params, cuda_params, strict=True):
        assert torch.equal(actual.grad.cpu(), expected.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLIPS)
def test_no_clip_waits_for_the_device(name: str, dtype: torch.dtype) -> None:
    params = parameters(gradients(dtype), CUDA)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        CLIPS[name](params)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(parameter.grad.is_cuda for parameter in params)


@pytest.mark.parametrize("name", CLIPS)
def test_a_cuda_graph_is_captured_once_and_replayed(name: str) -> None:
    cuda_params = parameters(gradients(torch.float32), CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        CLIPS[name](cuda_params)  # the first call compiles the kernels
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = CLIPS[name](cuda_params)
    for factor in (1.0, 10.0, 0.01):
        cpu_params = parameters([gradient * factor for gradient in gradients(torch.float32)], "cpu")
        for parameter, reference in zip(cuda_params, cpu_params, strict=True):
            parameter.grad.copy_(reference.grad)
        graph.replay()
        expected_norm = CLIPS[name](cpu_params)
        if norm is not None:
            assert norm.item() == expected_norm.item()
        for parameter, reference in zip(cuda_params, cpu_params, strict=True):
            assert torch.equal(parameter.grad.cpu(), reference.grad)


def count_kernels(clip: Callable[[Any], Any], dtype: torch.dtype, number: int) -> int:
    params = parameters(gradients(dtype, number), CUDA)
    clip(params)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        clip(params)
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in CLIPS if name != "GradientClipByNorm"])
def test_the_number_of_kernels_does_not_grow_with_the_number_of_gradients(name: str, dtype: torch.dtype) -> None:
    """40 gradients fit in one launch of a list operation."""
    few, many = count_kernels(CLIPS[name], dtype, 10), count_kernels(CLIPS[name], dtype, 40)
    assert 0 < few == many


def test_per_tensor_clipping_starts_at_most_one_kernel_per_gradient() -> None:
    clip = CLIPS["GradientClipByNorm"]
    assert count_kernels(clip, torch.float32, 40) - count_kernels(clip, torch.float32, 10) <= 30


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("name", CLIPS)
def test_a_list_on_two_gpus_has_the_bits_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one CUDA device")
    if dtype.is_complex and name not in ("clip_grad_norm_", "GradientClipByNorm"):
        pytest.skip("not by kernels, or not defined for complex numbers")
    grads = random([*SHAPES, *LARGE], dtype)
    devices = [f"cuda:{index % 2}" for index in range(len(grads))]
    cuda_params = with_gradients([gradient.to(device) for gradient, device in zip(grads, devices, strict=True)])
    torch.cuda.set_sync_debug_mode("error")
    try:
        CLIPS[name](with_gradients([parameter.grad.clone() for parameter in cuda_params]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_clips_as_on_the_cpu(name, grads, cuda_params)


def test_the_norm_of_a_list_on_two_devices_is_on_the_first_gradients_device() -> None:
    cpu_grads, copies = gradients(torch.float32), gradients(torch.float32)
    mixed_params = [*parameters(copies[:3], CUDA), *parameters(copies[3:], "cpu")]
    cpu_params = parameters(cpu_grads, "cpu")
    norm, expected_norm = uc.clip_grad_norm_(mixed_params, 5.0), uc.clip_grad_norm_(cpu_params, 5.0)
    assert norm.is_cuda
    assert norm.item() == expected_norm.item()
    for actual, reference in zip(mixed_params, cpu_params, strict=True):
        assert torch.equal(actual.grad.cpu(), reference.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_a_cuda_graph_captures_a_clip_of_shards(tmp_path: Path, p: float, dtype: torch.dtype) -> None:
    """NCCL has one rank here. The kernels and the all-reduces are those of several ranks."""
    if not cuda.ENABLED or not dist.is_nccl_available():
        pytest.skip("UNIFIED_CLIP_CUDA=1 and NCCL are needed")
    device = torch.device("cuda", 0)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    try:
        mesh = dist.device_mesh.init_device_mesh("cuda", (1,))
        grads = random([(70_000,), (33, 5)], dtype)
        shards = [distribute_tensor(gradient.to(device, copy=True), mesh, [Shard(0)]) for gradient in grads]
        params = with_gradients(shards)

        def clip() -> torch.Tensor:
            return uc.clip_grad_norm_(params, 5.0, p)

        clip()  # in the first call, the host reads the norm
        clip()  # compiles the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = clip()
        for scale in (1.0, 3.0, 0.001):
            scaled = [gradient * scale for gradient in grads]
            for shard, gradient in zip(shards, scaled, strict=True):
                shard.to_local().copy_(gradient)
            graph.replay()
            cpu_params = with_gradients(scaled)
            assert captured.item() == uc.clip_grad_norm_(cpu_params, 5.0, p).item()
            for shard, expected in zip(shards, cpu_params, strict=True):
                assert torch.equal(shard.to_local().cpu(), expected.grad)
    finally:
        dist.destroy_process_group()
