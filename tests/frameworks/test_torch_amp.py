"""PyTorch: mixed precision, where gradients are scaled, and have to be unscaled before they are clipped."""

from __future__ import annotations

import pytest
import torch
from support.kits import Kit

import unified_clip.torch as uc

LIMIT = 0.1


@pytest.fixture(autouse=True)
def _once(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("compared with steps in the same precision, whatever the path")


def start() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    data = torch.randn(32, 8)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), data, data.sum(1, keepdim=True)


def loss_of(model: torch.nn.Module, data: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = model(data)
    return (predicted.float() - expected).pow(2).mean()


def scaler(scale: float = 2.0**16) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_unscaled_first_a_run_is_that_without_scaling() -> None:
    plain, plain_steps, data, expected = start()
    scaled, scaled_steps, *_ = start()
    scaling = scaler()
    for _ in range(10):
        plain_steps.zero_grad()
        loss_of(plain, data, expected).backward()
        norm = uc.clip_grad_norm_(plain.parameters(), LIMIT)
        plain_steps.step()

        scaled_steps.zero_grad()
        scaling.scale(loss_of(scaled, data, expected)).backward()
        scaling.unscale_(scaled_steps)
        assert float(uc.clip_grad_norm_(scaled.parameters(), LIMIT)) == float(norm) > LIMIT
        scaling.step(scaled_steps)
        scaling.update()
    assert scaling.get_scale() > 2.0**16, "the scale has grown meanwhile"
    for one, other in zip(weights(plain), weights(scaled), strict=True):
        assert torch.equal(one, other)
