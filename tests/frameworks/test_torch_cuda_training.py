"""PyTorch training on a real CUDA device, where there is one: scaled losses, graphs, recordings and shards."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
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


# -- scaled losses


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
