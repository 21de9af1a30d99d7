"""Lightning: what `test_torch_trainers.py` has no word for: logs, several optimizers, and modules that clip."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, XLAStrategy
from support.trainers.kits import KeepingLogger, Lightning, Module, loader
from support.trainers.kits import pl_trainer as trainer
from support.trainers.torch_training import DATA, RATE, clip_warnings, config, recorded

from unified_clip import ClipConfig
from unified_clip.integrations import lightning_callback
from unified_clip.integrations.lightning_callback import ClipCallback
from unified_clip.port.port_files import port

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*resuming from a checkpoint"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
]

ADAPTIVE = ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "warmup_steps": 3})

LIMIT = "gradient_clip_val=0.05"


@pytest.mark.parametrize(
    ("arguments", "algorithm", "tolerance"),
    [
        (LIMIT, "", 1e-6),
        (f"{LIMIT}, gradient_clip_algorithm='norm'", "", 1e-6),
        (f"{LIMIT}, gradient_clip_algorithm='value'", "", 0.0),
        (f"{LIMIT}, gradient_clip_algorithm=algorithm", "value", 0.0),
        (f"{LIMIT}, gradient_clip_algorithm=algorithm", "norm", 1e-6),
    ],
)
def test_the_suggestion_of_port_trains_as_lightnings_clip_does(
    tmp_path: Path, arguments: str, algorithm: str, tolerance: float
) -> None:
    source = f"import lightning.pytorch as pl\ntrainer = pl.Trainer({arguments})\n"
    (site,) = port(Path("train.py"), source.encode()).sites
    names: dict[str, Any] = {"algorithm": algorithm, "Trainer": lambda callbacks: trainer(tmp_path, *callbacks)}
    exec("\n".join(site.suggestion), names)
    native = eval(f"trainer(path, {arguments})", {"trainer": trainer, "path": tmp_path, "algorithm": algorithm})
    weights = [_trained(a_trainer) for a_trainer in (names["trainer"], native, trainer(tmp_path))]
    assert torch.allclose(weights[0], weights[1], rtol=tolerance, atol=tolerance)
    assert not torch.allclose(weights[0], weights[2], rtol=1e-3, atol=1e-3)


def _trained(a_trainer: pl.Trainer) -> torch.Tensor:
    torch.manual_seed(0)
    module = Module()
    a_trainer.fit(module, loader())
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize(("arguments", "count"), [({"log_every": 20}, 1), ({"log_every": 0}, 0), ({}, 4)])
def test_log_every_sets_how_often_it_logs(tmp_path: Path, arguments: dict[str, int], count: int) -> None:
    logged = KeepingLogger()
    a_trainer = trainer(tmp_path, ClipCallback(config(), **arguments), logger=logged, log_every_n_steps=5)
    a_trainer.fit(Module(), loader())
    assert sum("grad_norm" in line for line in logged.lines) == count


class ModuleWithTwoOptimizers(Module):
    def __init__(self) -> None:
        super().__init__("manual, callback")

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.loss(*batch))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=RATE) for layer in (self.hidden, self.output)]


def test_each_optimizer_has_its_own_norm_and_rate(tmp_path: Path) -> None:
    logged, clip = KeepingLogger(), ClipCallback(ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"]))
    a_trainer, module = trainer(tmp_path, clip, logger=logged, log_every_n_steps=5), ModuleWithTwoOptimizers()
    records = recorded(tmp_path / "run.jsonl", module, lambda: a_trainer.fit(module, loader()))
    names = [set(line["parameters"]) for line in records]
    assert names == [{"hidden.weight"}, {"output.weight"}] * DATA.STEPS
    for index in (0, 1):
        events = records[index::2]
        assert [line[f"optimizer{index}/grad_norm"] for line in logged.lines] == pytest.approx(
            [line["norm"] for line in events[4::5]]
        )
        rate = sum(line["clipped"] for line in events) / len(events)
        assert a_trainer.callback_metrics[f"optimizer{index}/clip_rate"] == pytest.approx(rate)
    assert "grad_norm" not in a_trainer.callback_metrics


class ModuleWithAlternatingOptimizers(ModuleWithTwoOptimizers):
    """In five batches, the first optimizer steps five times, and the second once."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        for optimizer in self.optimizers()[: 2 if index % 5 == 4 else 1]:
            optimizer.zero_grad()
            self.manual_backward(self.loss(*batch))
            optimizer.step()


@pytest.mark.parametrize(("log_every", "logged"), [(1, DATA.STEPS // 5), (3, 1), (4, 1)])
def test_each_optimizer_logs_by_its_own_steps(tmp_path: Path, log_every: int, logged: int) -> None:
    clip = ClipCallback(ClipConfig(rule="global_norm", threshold=1.0), log_every=log_every)
    module, counts = ModuleWithAlternatingOptimizers(), {0: 0, 1: 0}

    def log_dict(metrics: dict[str, float]) -> None:
        counts[int(min(metrics)[len("optimizer")])] += 1

    module.log_dict = log_dict
    trainer(tmp_path, clip).fit(module, loader())
    assert counts == {0: DATA.STEPS // log_every, 1: logged}


class ModuleWithoutSecondLoss(Module):
    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor | None:
        return None if index == 1 else self.loss(*batch)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_a_loss_is_not_clipped(tmp_path: Path, fused: bool) -> None:
    module = ModuleWithoutSecondLoss(fused=fused)
    assert len(Lightning.fit(tmp_path, model=module, scaled="by the trainer", max_steps=4).records) == 3


def test_a_module_with_an_attached_clip_can_be_copied(tmp_path: Path) -> None:
    module = Module("attached", config())
    Lightning.fit(tmp_path, way="attached", model=module, max_steps=2)
    module.trainer = None
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert module.handle.is_attached
        assert not copied.handle.is_attached
        assert copied.handle.step == 2


class ClippingModule(Module):
    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=1.0)


def test_a_module_that_clips_too_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ClippingModule defines configure_gradient_clipping"):
        trainer(tmp_path, ClipCallback(config())).fit(ClippingModule(), loader())


@pytest.mark.parametrize("strategy", [DeepSpeedStrategy, XLAStrategy])
def test_strategies_that_hide_the_gradients_are_rejected(
    tmp_path: Path, strategy: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_trainer = trainer(tmp_path)
    monkeypatch.setattr(pl.Trainer, "strategy", object.__new__(type("Own", (strategy,), {})))
    with pytest.raises(RuntimeError, match=f"{strategy.__name__} does not expose the gradients"):
        ClipCallback(config()).setup(a_trainer, Module(), "fit")


def test_the_trainers_own_clip_is_not_checked_for_evaluation(tmp_path: Path) -> None:
    ClipCallback(config()).setup(trainer(tmp_path, gradient_clip_val=0.5), Module(), "validate")


@pytest.fixture
def older_name(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", pl)
    monkeypatch.delitem(sys.modules, lightning_callback.__name__)
    return importlib.import_module(lightning_callback.__name__)


def test_the_package_may_have_its_older_name(older_name: Any) -> None:
    assert older_name is not lightning_callback
    assert issubclass(older_name.ClipCallback, pl.Callback)


# -- several optimizers and checkpoints

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
        self.trainer = trainer(folder, self.clip, *callbacks, max_epochs=epochs)
        self.messages = self.fit(**options)

    def fit(self, **options: Any) -> list[str]:
        batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(5, 2)), batch_size=1)
        return clip_warnings(lambda: self.trainer.fit(self.module, batches, **options))

    def save(self, path: Path) -> Path:
        self.trainer.save_checkpoint(path)
        return path

    @property
    def means(self) -> dict[int, tuple[float, int]]:
        states = {index: clip["adaptive"][""]["state"] for index, clip in self.clip.state_dict()["clips"].items()}
        return {index: (state["steps"], round(state["mean"])) for index, state in states.items()}


def test_each_optimizer_continues_from_its_own_state(tmp_path: Path) -> None:
    second = Fit(tmp_path, (1,))
    assert (second.means, second.messages) == ({1: (5.0, 141)}, [])
    both = Fit(tmp_path, (0, 1), 2, ckpt_path=second.save(tmp_path / "second.ckpt"))
    assert both.means == {0: (5.0, 1), 1: (10.0, 141)}
    (message,) = both.messages
    assert "no state of the adaptive threshold for optimizer 0" in message
    first = Fit(tmp_path, (0,), 3, ckpt_path=both.save(tmp_path / "both.ckpt"))
    assert (first.means, first.messages) == ({0: (10.0, 1), 1: (10.0, 141)}, [])  # the state of optimizer 1 is kept


def test_a_training_without_a_checkpoint_gives_no_warning(tmp_path: Path) -> None:
    training = Fit(tmp_path, (0, 1))
    training.trainer.fit_loop.max_epochs = 2
    assert training.messages == training.fit() == []
    assert training.means == {0: (5.0, 1), 1: (5.0, 141)}  # as in Lightning, a second `fit` has new optimizers


def test_a_checkpoint_before_the_first_step_has_the_states_of_the_checkpoint_before(tmp_path: Path) -> None:
    class Save(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "early.ckpt")

    saved = Fit(tmp_path, (0, 1)).save(tmp_path / "saved.ckpt")
    Fit(tmp_path, (0, 1), 2, Save(), ckpt_path=saved)
    clips = [torch.load(path, weights_only=False)["callbacks"] for path in (saved, tmp_path / "early.ckpt")]
    assert clips[0] == clips[1]
    assert clips[0]["ClipCallback"]["clips"].keys() == {0, 1}


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
