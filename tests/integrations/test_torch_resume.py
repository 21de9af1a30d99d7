"""PyTorch: the state of a clip in checkpoints, with several optimizers, and in each order of the calls."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

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


def messages_of(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        call()
    return [str(each.message) for each in caught if each.category is ClipWarning]


def test_a_schedule_continues_from_the_optimizers_checkpoint() -> None:
    saved = optimizer_with(FALLING, 3)[0].state_dict()
    optimizer, handle = optimizer_with(FALLING)
    assert messages_of(lambda: optimizer.load_state_dict(saved)) == []
    assert handle.step == 3
    optimizer.param_groups[0]["params"][0].grad = torch.tensor([30.0, 40.0])
    optimizer.step()
    assert handle.last.parts[""].threshold == 1.0
    (message,) = messages_of(lambda: optimizer.load_state_dict(optimizer_with(None, 3)[0].state_dict()))
    assert "The checkpoint does not contain the step number" in message
    assert handle.step == 4


def test_attaching_after_the_checkpoint_is_loaded_gives_a_warning() -> None:
    optimizer, _ = optimizer_with(None)
    optimizer.load_state_dict(optimizer_with(ADAPTIVE, 3)[0].state_dict())
    (message,) = messages_of(lambda: ADAPTIVE.attach_to(optimizer))
    assert "call attach_to() before load_state_dict() of the optimizer" in message
    assert messages_of(lambda: ADAPTIVE.attach_to(optimizer_with(None)[0])) == []
    assert messages_of(lambda: FALLING.attach_to(optimizer_with(None, 1)[0])) == []


@pytest.mark.parametrize("config", [FIXED, FALLING], ids=["fixed", "schedule"])
def test_a_state_of_an_adaptive_threshold_that_another_configuration_drops_gives_a_warning(config: ClipConfig) -> None:
    saved = optimizer_with(ADAPTIVE, 3)[0].state_dict()
    optimizer, handle = optimizer_with(config)
    (message,) = messages_of(lambda: optimizer.load_state_dict(saved))
    assert "has the state of an adaptive threshold, but the attached configuration has no adaptive threshold" in message
    assert handle.step == 3
    steps = optimizer_with(FALLING, 3)[0].state_dict()
    assert messages_of(lambda: optimizer.load_state_dict(steps)) == []
    assert "unified_clip" in saved
    assert "unified_clip" in steps


def test_steps_without_a_state_of_the_adaptive_threshold_give_a_warning() -> None:
    optimizer, handle = optimizer_with(ADAPTIVE)
    saved = optimizer_with(FALLING, 3)[0].state_dict()
    (message,) = messages_of(lambda: optimizer.load_state_dict(saved))
    assert "no state of the adaptive threshold" in message
    assert handle.step == 3


def test_a_new_optimizer_with_a_state_before_its_first_step_gives_no_warning() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adagrad([weight])
    assert optimizer.state
    assert messages_of(lambda: ADAPTIVE.attach_to(optimizer).detach()) == []
    weight.grad = torch.ones(2)
    optimizer.step()
    assert len(messages_of(lambda: ADAPTIVE.attach_to(optimizer))) == 1


# -- several optimizers in Lightning

pl = pytest.importorskip("lightning.pytorch")

from unified_clip.integrations.lightning_callback import ClipCallback  # noqa: E402

LIGHTNING = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*resuming from a checkpoint",
    "ignore:.*isinstance.treespec, LeafSpec.:FutureWarning",
    "ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning",
)
FACTORS = (1.0, 100.0)
"""The factors of each optimizer's gradients. The norms are FACTORS times the root of 2."""


class Turns(pl.LightningModule):  # type: ignore[misc,name-defined]
    """A module with two optimizers. `turns` has the indices of the optimizers that make steps."""

    def __init__(self, turns: tuple[int, ...]) -> None:
        super().__init__()
        self.automatic_optimization, self.turns = False, turns
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 1, bias=False) for _ in FACTORS)

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        for turn in self.turns:
            optimizer = self.optimizers()[turn]
            optimizer.zero_grad()
            self.manual_backward(self.layers[turn](batch[0]).sum() * FACTORS[turn])
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=1e-4) for layer in self.layers]


class Fit:
    def __init__(self, folder: Path, turns: tuple[int, ...], epochs: int = 1, *callbacks: Any, **options: Any) -> None:
        self.clip, self.module = ClipCallback(ADAPTIVE, log_every=0), Turns(turns)
        self.trainer = pl.Trainer(
            default_root_dir=folder, max_epochs=epochs, callbacks=[self.clip, *callbacks], logger=False,
            accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        self.messages = self.fit(**options)

    def fit(self, **options: Any) -> list[str]:
        batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(5, 2)), batch_size=1)
        return messages_of(lambda: self.trainer.fit(self.module, batches, **options))

    def save(self, path: Path) -> Path:
        self.trainer.save_checkpoint(path)
        return path

    @property
    def means(self) -> dict[int, tuple[float, int]]:
        states = {index: clip["adaptive"][""]["state"] for index, clip in self.clip.state_dict()["clips"].items()}
        return {index: (state["steps"], round(state["mean"])) for index, state in states.items()}


@LIGHTNING
def test_each_optimizer_continues_from_its_own_state(tmp_path: Path) -> None:
    second = Fit(tmp_path, (1,))
    assert (second.means, second.messages) == ({1: (5.0, 141)}, [])
    both = Fit(tmp_path, (0, 1), 2, ckpt_path=second.save(tmp_path / "second.ckpt"))
    assert both.means == {0: (5.0, 1), 1: (10.0, 141)}
    (message,) = both.messages
    assert "no state of the adaptive threshold for optimizer 0" in message
    first = Fit(tmp_path, (0,), 3, ckpt_path=both.save(tmp_path / "both.ckpt"))
    assert (first.means, first.messages) == ({0: (10.0, 1), 1: (10.0, 141)}, [])  # the state of optimizer 1 is kept


@LIGHTNING
def test_a_training_without_a_checkpoint_gives_no_warning(tmp_path: Path) -> None:
    training = Fit(tmp_path, (0, 1))
    training.trainer.fit_loop.max_epochs = 2
    assert training.messages == training.fit() == []
    assert training.means == {0: (5.0, 1), 1: (5.0, 141)}  # as in Lightning, a second `fit` has new optimizers


@LIGHTNING
def test_a_checkpoint_before_the_first_step_has_the_states_of_the_checkpoint_before(tmp_path: Path) -> None:
    class Save(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "early.ckpt")

    saved = Fit(tmp_path, (0, 1)).save(tmp_path / "saved.ckpt")
    Fit(tmp_path, (0, 1), 2, Save(), ckpt_path=saved)
    clips = [torch.load(path, weights_only=False)["callbacks"] for path in (saved, tmp_path / "early.ckpt")]
    assert clips[0] == clips[1]
    assert clips[0]["ClipCallback"]["clips"].keys() == {0, 1}


@LIGHTNING
def test_a_training_that_is_restored_while_it_runs_saves_its_later_states(tmp_path: Path) -> None:
    class Restore(pl.Callback):  # type: ignore[misc,name-defined]
        """A callback that restores a checkpoint during training, as Lightning's LearningRateFinder does at
        milestones."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "now.ckpt")
                trainer._checkpoint_connector.restore(tmp_path / "now.ckpt")

    plain = Fit(tmp_path, (0,)).save(tmp_path / "plain.ckpt")
    restored = Fit(tmp_path, (0,), 1, Restore())
    assert restored.messages == []
    paths = (plain, restored.save(tmp_path / "restored.ckpt"))
    states = [torch.load(path, weights_only=False)["callbacks"]["ClipCallback"] for path in paths]
    assert (tmp_path / "now.ckpt").exists()
    assert states[0] == states[1]


def test_a_list_of_states_of_an_earlier_release_is_loaded() -> None:
    clip = ClipCallback(ADAPTIVE)
    state = ADAPTIVE.clipper().state_dict()
    clip.load_state_dict({"clips": [state, state]})
    assert clip.state_dict() == {"clips": {0: state, 1: state}}
