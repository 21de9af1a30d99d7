"""Transformers: a callback that clips in the place of `max_grad_norm`."""

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
from support.trainers.torch_training import DATA, RATE, SCALE, Model, batches, config, plain_records, recorded
from transformers import Trainer, TrainerCallback, TrainingArguments

from unified_clip import ClipConfig, ClipWarning
from unified_clip.integrations.transformers_callback import ClipCallback

pytestmark = pytest.mark.usefixtures("accelerate_state")


class WithLoss(Model):
    """As the trainer calls models."""

    def forward(self, inputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        outputs = super().forward(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, wanted), "outputs": outputs}


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"inputs": x, "wanted": y} for inputs, wanted in batches() for x, y in zip(inputs, wanted, strict=True)]


class Seen(TrainerCallback):
    """What callbacks after ours are told."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, float], **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def trainer(path: Path, *callbacks: TrainerCallback, fused: bool = False, **changes: Any) -> Trainer:
    given = {
        "output_dir": str(path / "out"),
        "per_device_train_batch_size": DATA.BATCH,
        "max_steps": DATA.STEPS,
        "train_sampling_strategy": "sequential",
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
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=fused)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    return Trainer(
        model,
        TrainingArguments(**given),
        train_dataset=rows(),
        callbacks=list(callbacks),
        optimizers=(optimizer, schedule),
    )


def with_scaler(made: Trainer) -> torch.amp.GradScaler:
    """On a CPU Accelerate makes no scaler: it is given one."""
    made.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
    return made.accelerator.scaler


@pytest.mark.parametrize("scaled", ["", "as the trainer leaves them", "unscaled by the trainer"])
@pytest.mark.parametrize("fused", [False, True])
def test_records_are_those_of_a_plain_loop(
    tmp_path: Path, scaled: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path, ClipCallback(config()), fused=fused)
    if scaled:
        with_scaler(made)
    if scaled == "unscaled by the trainer":  # as with fp16, when it measures its own norm

        def unscale(accelerator: Accelerator, optimizer: None = None) -> None:
            for each in accelerator._optimizers:
                accelerator.scaler.unscale_(each.optimizer)

        monkeypatch.setattr(Accelerator, "unscale_gradients", unscale)
    records = recorded(tmp_path / "run.jsonl", made.model, made.train)
    assert records == plain_records(tmp_path / "plain.jsonl")


def test_a_hook_in_the_optimizer_makes_the_same_records(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    config().attach_to(made.optimizer, made.model)
    assert recorded(tmp_path / "run.jsonl", made.model, made.train) == plain_records(tmp_path / "plain.jsonl")


def test_what_happened_is_in_the_history_and_told_to_later_callbacks(tmp_path: Path) -> None:
    seen, clip = Seen(), ClipCallback(config(exclude=[], threshold=2.0))
    made = trainer(tmp_path, clip, seen, max_steps=12)
    made.train()
    history = [line for line in made.state.log_history if "loss" in line]
    assert [{**line, "step": 0} for line in history] == [{**line, "step": 0} for line in seen.logs if "loss" in line]
    for line in history:
        assert line["grad_norm_clipped"] == pytest.approx(min(line["grad_norm"], 2.0), rel=1e-5)
        assert line["clip_coef"] == pytest.approx(line["grad_norm_clipped"] / line["grad_norm"], rel=1e-5)
    assert history[0]["clip_rate"] == 1.0
    assert history[-1]["clip_rate"] == clip.rate < 1
    assert history[-1]["clip_coef"] == clip.last.coef
    assert "clip_coef" not in made.state.log_history[-1], "the summary is of no step"


def test_the_trainers_own_norm_stays_that_of_all_parameters(tmp_path: Path) -> None:
    clip = ClipCallback(config(exclude=["hidden.*", "*.bias"]))
    made = trainer(tmp_path, clip, max_steps=1)
    made.train()
    assert made.state.log_history[0]["grad_norm"] > 1.1 * clip.last.norm


@pytest.mark.parametrize("nonfinite", ["family", "raise", "skip", "zero"])
def test_a_step_that_the_scaler_leaves_out_is_no_error(tmp_path: Path, nonfinite: str) -> None:
    clip = ClipCallback(config(nonfinite=nonfinite))
    made = trainer(tmp_path, clip, max_steps=1)
    scaler = with_scaler(made)
    made.model.register_forward_hook(lambda module, args, found: {"loss": found["loss"] * math.inf})
    made.train()
    assert torch.equal(made.model.output.bias, torch.zeros(1))
    assert scaler.get_scale() == SCALE / 2
    with pytest.raises(RuntimeError, match="nothing has been clipped"):
        _ = clip.last


@pytest.mark.parametrize(("nonfinite", "momentum"), [("skip", False), ("zero", True)])
def test_gradients_that_are_not_finite_move_nothing(tmp_path: Path, nonfinite: str, momentum: bool) -> None:
    made = trainer(tmp_path, ClipCallback(config(nonfinite=nonfinite, exclude=[])), max_steps=1)
    before = [each.detach().clone() for each in made.model.parameters()]
    made.optimizer.param_groups[0]["momentum"] = 0.9
    made.model.register_forward_hook(lambda module, args, found: {"loss": found["loss"] * math.inf})
    made.train()
    assert all(torch.equal(one, other) for one, other in zip(before, made.model.parameters(), strict=True))
    assert any(state.get("momentum_buffer") is not None for state in made.optimizer.state.values()) == momentum


@pytest.mark.nightly
def test_training_goes_on_from_a_checkpoint_as_it_would_have(tmp_path: Path) -> None:
    whole = trainer(tmp_path, ClipCallback(config()))
    expected = recorded(tmp_path / "whole.jsonl", whole.model, whole.train)
    first = trainer(tmp_path, ClipCallback(config()), max_steps=7, save_strategy="steps", save_steps=7)
    first.train()
    second = trainer(tmp_path, ClipCallback(config()))
    records = recorded(
        tmp_path / "second.jsonl",
        second.model,
        lambda: second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-7")),
    )
    for weight in records[0]["parameters"].values():
        del weight["fingerprints"]  # only the first call of a recording has it
    assert [{**line, "step": line["step"] + 7} for line in records] == expected[7:]


ADAPTIVE = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "warmup_steps": 2})


def test_a_second_training_begins_anew(tmp_path: Path) -> None:
    clip, other = ClipCallback(ADAPTIVE), ClipCallback(ADAPTIVE)
    trainer(tmp_path, clip, max_steps=4).train()
    for each in (clip, other):
        trainer(tmp_path, each, max_steps=1).train()
    assert clip.state_dict() == other.state_dict()
    assert (clip.last.norm, clip.last.coef, clip.rate) == (other.last.norm, 1.0, other.rate)


def test_a_state_that_you_load_is_kept_when_training_begins(tmp_path: Path) -> None:
    first, second = ClipCallback(ADAPTIVE), ClipCallback(ADAPTIVE)
    trainer(tmp_path, first, max_steps=4).train()
    second.load_state_dict(first.state_dict())
    trainer(tmp_path, second, max_steps=1).train()
    assert second.state_dict()["adaptive"][""]["state"]["steps"] == 5.0


@pytest.mark.parametrize("threshold", [1.0, 7.0])
def test_restored_callbacks_keep_the_configuration_and_the_ranks_that_were_passed(
    tmp_path: Path, threshold: float
) -> None:
    declared, steps = {"process_group": None, "check_numel": 37}, {"save_strategy": "steps", "save_steps": 2}
    saved = ClipConfig(rule="global_norm", threshold=1.0)
    trainer(tmp_path, ClipCallback(saved, **declared), max_steps=2, **steps).train()
    clip = ClipCallback(saved.model_copy(update={"threshold": threshold}), **declared)
    resumed = trainer(tmp_path, clip, max_steps=3, restore_callback_states_from_checkpoint=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    messages = [str(each.message) for each in caught if each.category is ClipWarning]
    assert len(messages) == (threshold != 1.0)
    assert all("is from a ClipCallback with another configuration" in message for message in messages)
    assert (clip.last.step, clip.last.parts[""].threshold) == (2, threshold)
    (used,) = [each for each in resumed.callback_handler.callbacks if isinstance(each, ClipCallback)]
    assert vars(used) is vars(clip)


def test_a_trainer_that_clips_too_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, ClipCallback(config()), max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"max_grad_norm=1\. Gradients would be clipped twice\. Pass max_grad_norm=0"):
        made.train()
    assert made.state.global_step == 0


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    second = ClipCallback(ClipConfig(rule="value", threshold=1.0))
    made = trainer(tmp_path, ClipCallback(config()), second)
    with pytest.raises(ValueError, match=r"two ClipCallbacks, which would clip gradients twice\. Remove one"):
        made.train()
    assert made.state.global_step == 0
    made.remove_callback(second)
    made.train()
    assert made.state.global_step == DATA.STEPS


def test_an_optimizer_that_clips_too_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, ClipCallback(config()))
    config().attach_to(made.optimizer, made.model)
    with pytest.raises(ValueError, match=r"attached to this SGD already\. Gradients would be clipped twice"):
        made.train()
    assert made.state.global_step == 0


def test_no_limit_of_the_trainers_is_as_good_as_zero(tmp_path: Path) -> None:
    clip = ClipCallback(ClipConfig(rule="none"))
    made = trainer(tmp_path, clip)
    made.args.max_grad_norm = None
    clip.on_train_begin(made.args, made.state, made.control, optimizer=made.optimizer)


@pytest.mark.nightly
@pytest.mark.parametrize("copies", [copy.deepcopy, lambda clip: pickle.loads(pickle.dumps(clip))])
def test_a_copy_begins_anew(tmp_path: Path, copies: Any) -> None:
    clip = ClipCallback(config())
    trainer(tmp_path, clip, max_steps=2).train()
    copied = copies(clip)
    with pytest.raises(RuntimeError, match="nothing has been clipped"):
        _ = copied.last
    made = trainer(tmp_path, copied)
    assert recorded(tmp_path / "run.jsonl", made.model, made.train) == plain_records(tmp_path / "plain.jsonl")


def test_what_is_stated_is_that_of_the_clip(tmp_path: Path) -> None:
    clip = ClipCallback(config(), process_group=None, check_numel=1)
    with pytest.raises(ValueError, match="gradient elements together, and check_numel expects 1"):
        trainer(tmp_path, clip).train()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["DEEPSPEED", "XLA"])
def test_gradients_out_of_reach_are_refused(tmp_path: Path, kind: str) -> None:
    clip = ClipCallback(ClipConfig(rule="none"))
    made = trainer(tmp_path, clip)
    PartialState._shared_state["distributed_type"] = DistributedType[kind]  # where it stands in a real run
    with pytest.raises(RuntimeError, match=f"{kind} does not expose the gradients"):
        clip.on_train_begin(made.args, made.state, made.control, optimizer=made.optimizer)
