"""PyTorch training on a real CUDA device, where there is one: scaled losses, graphs, recordings and shards."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.cuda import needs_cuda  # noqa: F401 - a fixture of each test
from torch._inductor.cudagraph_trees import reset_cudagraph_trees

import unified_clip
import unified_clip.torch as uc
from unified_clip import ClipConfig

THRESHOLD = 0.5


def start() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    return model.cuda(), torch.randn(32, 64, device="cuda")


def loss_of(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
    return (model(data).float() - data.sum(1, keepdim=True)).pow(2).mean()


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.to("cpu", copy=True) for parameter in model.parameters()]


def exact_norm(grads: list[torch.Tensor]) -> float:
    return float(uc.get_total_norm([gradient.cpu() for gradient in grads]))


# -- scaled losses


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_clips_unscaled_gradients(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.zeros(2, device="cuda"))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cuda")
    with ClipConfig(rule="global_norm", threshold=2.5, family="paddle").attach_to(optimizer) as handle:
        scaler.scale((weight * torch.tensor([3.0, 4.0], device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (handle.last.norm, handle.last.coef, weight.grad.tolist()) == (5.0, 0.5, [1.5, 2.0])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("nonfinite", ["family", "skip", "raise"])
def test_a_step_with_infinite_gradients_is_skipped(fused: bool, nonfinite: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    with ClipConfig(rule="global_norm", threshold=2.5, nonfinite=nonfinite).attach_to(optimizer):
        scaler.scale((weight * torch.tensor([math.inf, 4.0], device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0**9


def test_a_clip_of_a_fused_optimizer_does_not_wait_for_the_gpu() -> None:
    model, data = start()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    with ClipConfig(rule="global_norm", threshold=THRESHOLD).attach_to(optimizer) as handle:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, data)).backward()
            if step:  # the first step compiles kernels
                torch.cuda.set_sync_debug_mode("error")
            try:
                scaler.step(optimizer)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            scaler.update()
        assert handle.last.norm > THRESHOLD


# -- a run is that of PyTorch's function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_is_that_of_torch(dtype: torch.dtype) -> None:
    """The exact norm differs from PyTorch's in the last bits only."""
    losses = []
    for clip in (uc.clip_grad_norm_, torch.nn.utils.clip_grad_norm_):
        model, data = start()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = loss_of(model, data)
            loss.backward()
            grads = gradients(model)
            norm = clip(model.parameters(), THRESHOLD)
            assert float(norm) == pytest.approx(exact_norm(grads), rel=0 if clip is uc.clip_grad_norm_ else 1e-6)
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if dtype == torch.bfloat16 else 1e-4)
    assert math.isfinite(losses[0])


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_a_clip_is_compiled_with_the_step(mode: str | None) -> None:
    reset_cudagraph_trees()  # PyTorch fails to trace an optimizer after CUDA graphs of other functions
    model, data = start()
    reference = copy.deepcopy(model).to("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    @torch.compile(mode=mode)
    def step() -> torch.Tensor:
        norm = uc.clip_grad_norm_(model.parameters(), THRESHOLD)
        optimizer.step()
        return norm.clone()

    for _ in range(3):
        model.zero_grad(set_to_none=False)
        loss_of(model, data).backward()
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            other.data, other.grad = (tensor.to("cpu", copy=True) for tensor in (parameter.detach(), parameter.grad))
        expected_norm = uc.clip_grad_norm_(reference.parameters(), THRESHOLD)
        assert float(step()) == float(expected_norm)
        torch.optim.SGD(reference.parameters(), lr=1.0).step()
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(parameter.cpu(), other, rtol=1e-6, atol=1e-7)


# -- recordings


def recorded(path: Path, device: str) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(64, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unified_clip.record(path, norms=True):
        for scale in (1.0, 0.001, math.inf):
            for parameter in model.parameters():
                parameter.grad = (torch.randn(parameter.shape, generator=source) * scale).to(device)
            uc.clip_grad_norm_(model.parameters(), THRESHOLD)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recording_has_the_numbers_of_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_gpu = recorded(tmp_path / "cpu.jsonl", "cpu"), recorded(tmp_path / "gpu.jsonl", "cuda")
    assert len(on_cpu) == len(on_gpu) > 6
    compared = 0
    for expected, line in zip(on_cpu, on_gpu, strict=True):
        for field in {"norm", "coef", "clipped", "norms", "step", "settings", "function"} & expected.keys():
            assert line[field] == expected[field], field
            compared += 1
    assert compared > 20


# -- shards


def test_a_sharded_model_has_the_norm_of_the_model(tmp_path: Path) -> None:
    """One rank: the collectives, DTensors and devices are those of several."""
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    try:
        plain, data = start()
        sharded = copy.deepcopy(plain)
        for layer in sharded:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(sharded)
        norms = []
        for model in (plain, sharded):
            loss_of(model, data).backward()
            norms.append(uc.clip_grad_norm_(model.parameters(), THRESHOLD))
        assert float(norms[1]) == float(norms[0])
        for parameter, other in zip(sharded.parameters(), plain.parameters(), strict=True):
            assert torch.equal(parameter.grad.full_tensor(), other.grad)
    finally:
        dist.destroy_process_group()
