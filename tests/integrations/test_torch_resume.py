"""PyTorch: the state of a clip in checkpoints, with several optimizers, and in each order of the calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.trainers.torch_training import clip_warnings

from unified_clip import ClipConfig, ClipWarning

ADAPTIVE = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "warmup_steps": 3})
FALLING = ClipConfig(
    rule="global_norm", threshold={"schedule": "piecewise", "values": [4.0, 1.0], "boundaries": [2]}, eps=0.0
)
FIXED = ClipConfig(rule="global_norm", threshold=1.0)


def optimizer_with(config: ClipConfig | None, steps: int = 0) -> tuple[torch.optim.Optimizer, Any]:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    handle = config and config.attach_to(optimizer)
    for _ in range(steps):
        weight.grad = torch.tensor([30.0, 40.0])
        optimizer.step()
    return optimizer, handle


def test_a_schedule_continues_from_the_optimizers_checkpoint() -> None:
    saved = optimizer_with(FALLING, 3)[0].state_dict()
    optimizer, handle = optimizer_with(FALLING)
    assert clip_warnings(lambda: optimizer.load_state_dict(saved)) == []
    assert handle.step == 3
    optimizer.param_groups[0]["params"][0].grad = torch.tensor([30.0, 40.0])
    optimizer.step()
    assert handle.last.parts[""].threshold == 1.0
    (message,) = clip_warnings(lambda: optimizer.load_state_dict(optimizer_with(None, 3)[0].state_dict()))
    assert "The checkpoint does not contain the step number" in message
    assert handle.step == 4


def test_attaching_after_the_checkpoint_is_loaded_gives_a_warning() -> None:
    optimizer, _ = optimizer_with(None)
    optimizer.load_state_dict(optimizer_with(ADAPTIVE, 3)[0].state_dict())
    (message,) = clip_warnings(lambda: ADAPTIVE.attach_to(optimizer))
    assert "call attach_to() before load_state_dict() of the optimizer" in message
    assert clip_warnings(lambda: ADAPTIVE.attach_to(optimizer_with(None)[0])) == []
    assert clip_warnings(lambda: FALLING.attach_to(optimizer_with(None, 1)[0])) == []


@pytest.mark.parametrize("config", [FIXED, FALLING], ids=["fixed", "schedule"])
def test_a_state_of_an_adaptive_threshold_that_another_configuration_drops_gives_a_warning(config: ClipConfig) -> None:
    saved = optimizer_with(ADAPTIVE, 3)[0].state_dict()
    optimizer, handle = optimizer_with(config)
    (message,) = clip_warnings(lambda: optimizer.load_state_dict(saved))
    assert "has the state of an adaptive threshold, but the attached configuration has no adaptive threshold" in message
    assert handle.step == 3
    steps = optimizer_with(FALLING, 3)[0].state_dict()
    assert clip_warnings(lambda: optimizer.load_state_dict(steps)) == []
    assert "unified_clip" in saved
    assert "unified_clip" in steps


def test_steps_without_a_state_of_the_adaptive_threshold_give_a_warning() -> None:
    optimizer, handle = optimizer_with(ADAPTIVE)
    saved = optimizer_with(FALLING, 3)[0].state_dict()
    (message,) = clip_warnings(lambda: optimizer.load_state_dict(saved))
    assert "no state of the adaptive threshold" in message
    assert handle.step == 3


def test_a_new_optimizer_with_a_state_before_its_first_step_gives_no_warning() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adagrad([weight])
    assert optimizer.state
    assert clip_warnings(lambda: ADAPTIVE.attach_to(optimizer).detach()) == []
    weight.grad = torch.ones(2)
    optimizer.step()
    assert len(clip_warnings(lambda: ADAPTIVE.attach_to(optimizer))) == 1


CONFIG = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}, threshold=3.0)


@pytest.mark.parametrize("is_saved", [True, False])
def test_pytorchs_checkpoint_functions_make_no_step_of_the_threshold(is_saved: bool) -> None:
    """These functions make a step with gradients of 0 if the optimizer has no state."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = CONFIG.attach_to(optimizer)
    model.weight.grad = torch.tensor([[0.0, 2.0, 0.0]])
    optimizer.step()
    optimizer.zero_grad()
    state = handle.state_dict()
    saved = get_optimizer_state_dict(model, optimizer)
    if not is_saved:
        with pytest.warns(ClipWarning, match="The checkpoint has no state of the adaptive threshold"):
            set_optimizer_state_dict(model, optimizer, saved)
    assert handle.state_dict() == state
    assert state["step"] == 1
    model.weight.grad = torch.tensor([[0.0, 4.0, 0.0]])
    optimizer.step()
    assert handle.state_dict()["adaptive"][""]["state"]["mean"] == 3.0


def test_optimizers_with_fixed_thresholds_have_the_checkpoints_of_pytorch() -> None:
    optimizer, _ = optimizer_with(None)
    before = optimizer.state_dict()
    with ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer):
        assert optimizer.state_dict() == before
    with CONFIG.attach_to(optimizer):
        assert optimizer.state_dict().keys() == {*before, "unified_clip"}
    assert optimizer.state_dict() == before
