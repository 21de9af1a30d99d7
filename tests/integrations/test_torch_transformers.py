"""Transformers: a callback that clips instead of `max_grad_norm`."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from support.tiers import is_at_least
from support.trainers.torch_training import DATA, RATE, SCALE, Model, batches, config, plain_records, recorded
from support.trainers.transformers_trainer import InOrder
from transformers import Trainer, TrainerCallback, TrainingArguments

from unified_clip import ClipConfig, ClipWarning
from unified_clip.integrations.transformers_callback import ClipCallback

pytestmark = pytest.mark.usefixtures("accelerate_state")


class ModelWithLoss(Model):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        outputs = super().forward(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, targets), "outputs": outputs}


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"inputs": x, "targets": y} for inputs, targets in batches() for x, y in zip(inputs, targets, strict=True)]


class LogCallback(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, float], **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def trainer(path: Path, *callbacks: TrainerCallback, fused: bool = False, **changes: Any) -> Trainer:
    arguments = {
        "output_dir": str(path / "out"),
        "per_device_train_batch_size": DATA.BATCH,
        "max_steps": DATA.STEPS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    } | changes
    model = ModelWithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=fused)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    return InOrder(
        model,
        TrainingArguments(**arguments),
        train_dataset=rows(),
        callbacks=list(callbacks),
        optimizers=(optimizer, schedule),
    )


def with_scaler(a_trainer: Trainer) -> torch.amp.GradScaler:
    """Set a gradient scaler, which Accelerate does not create on a CPU."""
    a_trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
    return a_trainer.accelerator.scaler


@pytest.mark.parametrize("scaled", ["", "as the trainer leaves them", "unscaled by the trainer"])
@pytest.mark.parametrize("fused", [False, True])
def test_clips_match_a_plain_training_loop(
    tmp_path: Path, scaled: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config()), fused=fused)
    if scaled:
        with_scaler(a_trainer)
    if scaled == "unscaled by the trainer":  # as with fp16, when the trainer measures its own norm

        def unscale(accelerator: Accelerator, optimizer: None = None) -> None:
            for optimizer_ in accelerator._optimizers:
                accelerator.scaler.unscale_(optimizer_.optimizer)

        monkeypatch.setattr(Accelerator, "unscale_gradients", unscale)
    records = recorded(tmp_path / "run.jsonl", a_trainer.model, a_trainer.train)
    assert records == plain_records(tmp_path / "plain.jsonl")


def test_an_attached_clip_matches_a_plain_training_loop(tmp_path: Path) -> None:
    a_trainer = trainer(tmp_path)
    config().attach_to(a_trainer.optimizer, a_trainer.model)
    assert recorded(tmp_path / "run.jsonl", a_trainer.model, a_trainer.train) == plain_records(tmp_path / "plain.jsonl")


def test_the_log_history_and_later_callbacks_have_the_outcome(tmp_path: Path) -> None:
    seen, clip = LogCallback(), ClipCallback(config(exclude=[], threshold=2.0))
    a_trainer = trainer(tmp_path, clip, seen, max_steps=12)
    a_trainer.train()
    history = [line for line in a_trainer.state.log_history if "loss" in line]
    assert [{**line, "step": 0} for line in history] == [{**line, "step": 0} for line in seen.logs if "loss" in line]
    for line in history:
        assert line["grad_norm_clipped"] == pytest.approx(min(line["grad_norm"], 2.0), rel=1e-5)
        assert line["clip_coef"] == pytest.approx(line["grad_norm_clipped"] / line["grad_norm"], rel=1e-5)
    assert history[0]["clip_rate"] == 1.0
    assert history[-1]["clip_rate"] == clip.rate < 1
    assert history[-1]["clip_coef"] == clip.last.coef
    assert "clip_coef" not in a_trainer.state.log_history[-1], "the summary is of no step"


@pytest.mark.skipif(not hasattr(Trainer, "_get_grad_norm"), reason="this release logs no norm without max_grad_norm")
def test_the_norm_that_the_trainer_logs_is_of_all_parameters(tmp_path: Path) -> None:
    clip = ClipCallback(config(exclude=["hidden.*", "*.bias"]))
    a_trainer = trainer(tmp_path, clip, max_steps=1)
    a_trainer.train()
    assert a_trainer.state.log_history[0]["grad_norm"] > 1.1 * clip.last.norm


@pytest.mark.parametrize("nonfinite", ["family", "raise", "skip", "zero"])
def test_a_step_that_the_scaler_skips_is_not_clipped(tmp_path: Path, nonfinite: str) -> None:
    clip = ClipCallback(config(nonfinite=nonfinite))
    a_trainer = trainer(tmp_path, clip, max_steps=1)
    scaler = with_scaler(a_trainer)
    a_trainer.model.register_forward_hook(lambda module, args, outputs: {"loss": outputs["loss"] * math.inf})
    a_trainer.train()
    assert torch.equal(a_trainer.model.output.bias, torch.zeros(1))
    assert scaler.get_scale() == SCALE / 2
    with pytest.raises(RuntimeError, match="nothing has been clipped"):
        _ = clip.last


@pytest.mark.parametrize(("nonfinite", "momentum"), [("skip", False), ("zero", True)])
def test_nonfinite_gradients_leave_the_parameters_unchanged(tmp_path: Path, nonfinite: str, momentum: bool) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config(nonfinite=nonfinite, exclude=[])), max_steps=1)
    before = [parameter.detach().clone() for parameter in a_trainer.model.parameters()]
    a_trainer.optimizer.param_groups[0]["momentum"] = 0.9
    a_trainer.model.register_forward_hook(lambda module, args, outputs: {"loss": outputs["loss"] * math.inf})
    a_trainer.train()
    assert all(torch.equal(initial, final) for initial, final in zip(before, a_trainer.model.parameters(), strict=True))
    assert any(state.get("momentum_buffer") is not None for state in a_trainer.optimizer.state.values()) == momentum


@pytest.mark.nightly
def test_training_resumed_from_a_checkpoint_matches_an_uninterrupted_run(tmp_path: Path) -> None:
    uninterrupted = trainer(tmp_path, ClipCallback(config()))
    expected = recorded(tmp_path / "whole.jsonl", uninterrupted.model, uninterrupted.train)
    first = trainer(tmp_path, ClipCallback(config()), max_steps=7, save_strategy="steps", save_steps=7)
    first.train()
    second = trainer(tmp_path, ClipCallback(config()))
    records = recorded(
        tmp_path / "second.jsonl",
        second.model,
        lambda: second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-7")),
    )
    for weight in records[0]["parameters"].values():
        weight.pop("sums", None)  # only the first call of a recording has them
    assert [{**line, "step": line["step"] + 7} for line in records] == expected[7:]


ADAPTIVE = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "warmup_steps": 2})


def test_a_second_training_starts_with_a_new_state(tmp_path: Path) -> None:
    clip, new_clip = ClipCallback(ADAPTIVE), ClipCallback(ADAPTIVE)
    trainer(tmp_path, clip, max_steps=4).train()
    for callback in (clip, new_clip):
        trainer(tmp_path, callback, max_steps=1).train()
    assert clip.state_dict() == new_clip.state_dict()
    assert (clip.last.norm, clip.last.coef, clip.rate) == (new_clip.last.norm, 1.0, new_clip.rate)


def test_a_loaded_state_is_kept_when_training_begins(tmp_path: Path) -> None:
    first, second = ClipCallback(ADAPTIVE), ClipCallback(ADAPTIVE)
    trainer(tmp_path, first, max_steps=4).train()
    second.load_state_dict(first.state_dict())
    trainer(tmp_path, second, max_steps=1).train()
    assert second.state_dict()["adaptive"][""]["state"]["steps"] == 5.0


@pytest.mark.parametrize("threshold", [1.0, 7.0])
def test_restored_callbacks_keep_the_configuration_and_ownership_that_were_passed(
    tmp_path: Path, threshold: float
) -> None:
    if not is_at_least("torch", "2.6"):
        pytest.skip("with older releases of PyTorch, Transformers warns or refuses to resume")
    declared, steps = {"process_group": None, "check_numel": 37}, {"save_strategy": "steps", "save_steps": 2}
    saved = ClipConfig(rule="global_norm", threshold=1.0)
    trainer(tmp_path, ClipCallback(saved, **declared), max_steps=2, **steps).train()
    clip = ClipCallback(saved.model_copy(update={"threshold": threshold}), **declared)
    resumed = trainer(tmp_path, clip, max_steps=3, restore_callback_states_from_checkpoint=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    messages = [str(item.message) for item in caught if item.category is ClipWarning]
    assert len(messages) == (threshold != 1.0)
    assert all("has another configuration than your ClipCallback" in message for message in messages)
    assert (clip.last.step, clip.last.parts[""].threshold) == (2, threshold)
    (restored,) = [item for item in resumed.callback_handler.callbacks if isinstance(item, ClipCallback)]
    assert vars(restored) is vars(clip)


def test_a_trainer_that_clips_too_is_rejected(tmp_path: Path) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config()), max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"max_grad_norm=1\. Gradients would be clipped twice\. Pass max_grad_norm=0"):
        a_trainer.train()
    assert a_trainer.state.global_step == 0


def test_two_clip_callbacks_are_rejected(tmp_path: Path) -> None:
    second = ClipCallback(ClipConfig(rule="value", threshold=1.0))
    a_trainer = trainer(tmp_path, ClipCallback(config()), second)
    with pytest.raises(ValueError, match=r"two ClipCallbacks, which would clip gradients twice\. Remove one"):
        a_trainer.train()
    assert a_trainer.state.global_step == 0
    a_trainer.remove_callback(second)
    a_trainer.train()
    assert a_trainer.state.global_step == DATA.STEPS


def test_an_optimizer_that_clips_too_is_rejected(tmp_path: Path) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config()))
    config().attach_to(a_trainer.optimizer, a_trainer.model)
    with pytest.raises(ValueError, match=r"attached to this SGD already\. Gradients would be clipped twice"):
        a_trainer.train()
    assert a_trainer.state.global_step == 0


def test_max_grad_norm_may_be_none(tmp_path: Path) -> None:
    clip = ClipCallback(ClipConfig(rule="none"))
    a_trainer = trainer(tmp_path, clip)
    a_trainer.args.max_grad_norm = None
    clip.on_train_begin(a_trainer.args, a_trainer.state, a_trainer.control, optimizer=a_trainer.optimizer)


@pytest.mark.nightly
@pytest.mark.parametrize("copy_callback", [copy.deepcopy, lambda clip: pickle.loads(pickle.dumps(clip))])
def test_a_copied_callback_starts_with_a_new_state(tmp_path: Path, copy_callback: Any) -> None:
    clip = ClipCallback(config())
    trainer(tmp_path, clip, max_steps=2).train()
    copied = copy_callback(clip)
    with pytest.raises(RuntimeError, match="nothing has been clipped"):
        _ = copied.last
    a_trainer = trainer(tmp_path, copied)
    assert recorded(tmp_path / "run.jsonl", a_trainer.model, a_trainer.train) == plain_records(tmp_path / "plain.jsonl")


def test_the_callback_passes_the_declared_ownership(tmp_path: Path) -> None:
    clip = ClipCallback(config(), process_group=None, check_numel=1)
    with pytest.raises(ValueError, match="gradient elements together, and check_numel expects 1"):
        trainer(tmp_path, clip).train()


@pytest.mark.nightly
@pytest.mark.parametrize("distributed_type", ["DEEPSPEED", "XLA"])
def test_backends_that_hide_the_gradients_are_rejected(tmp_path: Path, distributed_type: str) -> None:
    clip = ClipCallback(ClipConfig(rule="none"))
    a_trainer = trainer(tmp_path, clip)
    PartialState._shared_state["distributed_type"] = DistributedType[distributed_type]  # Accelerate reads it from there
    with pytest.raises(RuntimeError, match=f"{distributed_type} does not expose the gradients"):
        clip.on_train_begin(a_trainer.args, a_trainer.state, a_trainer.control, optimizer=a_trainer.optimizer)
