"""PyTorch: mixed precision, where gradients are scaled, and have to be unscaled before they are clipped."""

from __future__ import annotations

import copy
import math

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


def test_clipped_without_unscaling_the_step_is_smaller_by_the_scale() -> None:
    model, steps, data, expected = start()
    scaling, before = scaler(), weights(start()[0])
    scaling.scale(loss_of(model, data, expected)).backward()
    assert float(uc.clip_grad_norm_(model.parameters(), LIMIT)) > 2.0**16 * LIMIT
    scaling.step(steps)
    moved = uc.global_norm([old - new for old, new in zip(before, weights(model), strict=True)])
    assert float(moved) < 0.1 * LIMIT / 2.0**14


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("unscaled", [True, False])
def test_an_infinite_gradient_still_skips_the_step(bad: float, unscaled: bool) -> None:
    model, steps, data, expected = start()
    scaling, before = scaler(), weights(model)
    scaling.scale(loss_of(model, data, expected)).backward()
    next(model.parameters()).grad[0, 0] = bad
    if unscaled:
        scaling.unscale_(steps)
    uc.clip_grad_norm_(model.parameters(), LIMIT)
    scaling.step(steps)
    scaling.update()
    assert all(torch.equal(one, other) for one, other in zip(before, weights(model), strict=True))
    assert scaling.get_scale() == 2.0**15


def test_every_way_to_clip_in_place_keeps_to_it() -> None:
    ways = {
        "by the global norm": uc.GradientClipByGlobalNorm(LIMIT).clip_,
        "by norms": uc.GradientClipByNorm(LIMIT).clip_,
        "by value": lambda parameters: uc.clip_grad_value_(parameters, LIMIT),
    }
    model, *_, data, expected = start()
    for clip in ways.values():
        plain, scaled = copy.deepcopy(model), copy.deepcopy(model)
        loss_of(plain, data, expected).backward()
        clip(list(plain.parameters()))
        scaling = scaler()
        scaling.scale(loss_of(scaled, data, expected)).backward()
        scaling.unscale_(torch.optim.SGD(scaled.parameters()))
        clip(list(scaled.parameters()))
        for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)
