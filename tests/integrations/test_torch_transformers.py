"""Transformers: what `test_torch_trainers.py` has no word for, such as the trainer's logs and restored callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from support.tiers import is_at_least
from support.trainers.kits import Transformers, WithLoss, hf_trainer
from support.trainers.torch_training import clip_warnings, config
from transformers import Trainer, TrainerCallback

from unified_clip import ClipConfig
from unified_clip.integrations.transformers_callback import ClipCallback

pytestmark = pytest.mark.usefixtures("accelerate_state")


class LogCallback(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, float], **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def test_the_log_history_and_later_callbacks_have_the_outcome(tmp_path: Path) -> None:
    seen = LogCallback()
    *history, summary = Transformers.fit(tmp_path, callbacks=[seen], max_steps=12).logs
    assert [{**line, "step": 0} for line in history] == [{**line, "step": 0} for line in seen.logs if "loss" in line]
    assert all("clip_coef" in line for line in history)
    assert "clip_coef" not in summary, "the summary is of no step"


@pytest.mark.skipif(not hasattr(Trainer, "_get_grad_norm"), reason="this release logs no norm without max_grad_norm")
def test_the_norm_that_the_trainer_logs_is_of_all_parameters(tmp_path: Path) -> None:
    fit = Transformers.fit(tmp_path, config(exclude=["hidden.*", "*.bias"]), max_steps=1)
    assert fit.logs[0]["grad_norm"] > 1.1 * fit.clip.last.norm


@pytest.mark.parametrize("nonfinite", ["skip", "zero"])
def test_nonfinite_gradients_leave_the_parameters_unchanged(tmp_path: Path, nonfinite: str) -> None:
    model, clip = WithLoss(), config(nonfinite=nonfinite, exclude=[])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit = Transformers.fit(tmp_path, clip, model=model, overflow_at=0, max_steps=1, momentum=0.9)
    assert all(torch.equal(initial, final) for initial, final in zip(before, model.parameters(), strict=True))
    assert fit.clip.last.skipped == (nonfinite == "skip")


ADAPTIVE = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "warmup_steps": 2})


def test_a_second_training_starts_with_a_new_state_and_a_loaded_state_is_kept(tmp_path: Path) -> None:
    clip, new_clip, loaded = (ClipCallback(ADAPTIVE) for _ in range(3))
    Transformers.fit(tmp_path, clip, max_steps=4)
    loaded.load_state_dict(clip.state_dict())
    for callback in (clip, new_clip, loaded):
        Transformers.fit(tmp_path, callback, max_steps=1)
    assert clip.state_dict() == new_clip.state_dict()
    assert (clip.last.norm, clip.last.coef, clip.rate) == (new_clip.last.norm, 1.0, new_clip.rate)
    assert loaded.state_dict()["adaptive"][""]["state"]["steps"] == 5.0


@pytest.mark.parametrize("threshold", [1.0, 7.0])
def test_restored_callbacks_keep_the_configuration_and_ownership_that_were_passed(
    tmp_path: Path, threshold: float
) -> None:
    if not is_at_least("torch", "2.6"):
        pytest.skip("with older releases of PyTorch, Transformers warns or refuses to resume")
    declared, saved = {"process_group": None, "check_numel": 37}, ClipConfig(rule="global_norm", threshold=1.0)
    Transformers.fit(tmp_path, saved, declared=declared, save=tmp_path / "saved", max_steps=2)
    clip = ClipCallback(saved.model_copy(update={"threshold": threshold}), **declared)
    options = {"restore_callback_states_from_checkpoint": True, "resume": tmp_path / "saved"}
    messages = clip_warnings(lambda: Transformers.fit(tmp_path, clip, max_steps=3, **options))
    assert len(messages) == (threshold != 1.0)
    assert all("has another configuration than your ClipCallback" in message for message in messages)
    assert (clip.last.step, clip.last.parts[""].threshold) == (2, threshold)


@pytest.mark.parametrize("kind", ["DEEPSPEED", "XLA", "none"])
def test_backends_that_hide_the_gradients_are_rejected_and_max_grad_norm_may_be_none(tmp_path: Path, kind: str) -> None:
    clip, trainer = ClipCallback(ClipConfig(rule="none")), hf_trainer(tmp_path, WithLoss())
    trainer.args.max_grad_norm = None
    arguments = trainer.args, trainer.state, trainer.control
    optimizer = torch.optim.SGD(trainer.model.parameters())
    if kind == "none":
        clip.on_train_begin(*arguments, optimizer=optimizer)
        return
    PartialState._shared_state["distributed_type"] = DistributedType[kind]  # Accelerate reads it from there
    with pytest.raises(RuntimeError, match=f"{kind} does not expose the gradients"):
        clip.on_train_begin(*arguments, optimizer=optimizer)
