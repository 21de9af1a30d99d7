"""Lightning: a callback that clips instead of `gradient_clip_val`."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, XLAStrategy
from support.trainers.torch_training import DATA, RATE, SCALE, Model, config, plain_records, recorded, rows

from unified_clip import ClipConfig
from unified_clip.integrations import lightning_callback
from unified_clip.integrations.lightning_callback import ClipCallback
from unified_clip.port.port_files import port

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
]


class Module(pl.LightningModule):
    def __init__(self, **optimizer: Any) -> None:
        super().__init__()
        model = Model()
        self.hidden, self.output = model.hidden, model.output
        self._of_optimizer = optimizer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Model.forward(self, inputs)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor | None:
        return Model.loss(self, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, **self._of_optimizer)


class ScaledFloat32(MixedPrecision):
    """Lightning's loss scaling, without half precision, which would change the bits."""

    def forward_context(self) -> Any:
        return torch.enable_grad()


def scaled_precision() -> ScaledFloat32:
    return ScaledFloat32("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3))


class KeepingLogger(pl.loggers.logger.DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append({**metrics, "step": step})


def trainer(path: Path, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": path,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **defaults | changes)


def loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(rows(), batch_size=DATA.BATCH)


def records_of(path: Path, a_trainer: pl.Trainer, module: Module, **arguments: Any) -> list[dict[str, Any]]:
    return recorded(path, module, lambda: a_trainer.fit(module, loader(), **arguments))


# -- the same as a plain loop


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", [None, scaled_precision])
def test_clips_match_a_plain_training_loop(tmp_path: Path, precision: Any, fused: bool) -> None:
    plugins = [precision()] if precision else None
    a_trainer = trainer(tmp_path, ClipCallback(config()), plugins=plugins)
    records = records_of(tmp_path / "run.jsonl", a_trainer, Module(fused=fused))
    assert records == plain_records(tmp_path / "plain.jsonl")


class ModuleWithAttachedClip(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = super().configure_optimizers()
        self.handle = config().attach_to(optimizer, self)
        return optimizer


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", [None, scaled_precision])
def test_an_attached_clip_matches_a_plain_training_loop(tmp_path: Path, precision: Any, fused: bool) -> None:
    plugins = [precision()] if precision else None
    records = records_of(
        tmp_path / "run.jsonl", trainer(tmp_path, plugins=plugins), ModuleWithAttachedClip(fused=fused)
    )
    assert records == plain_records(tmp_path / "plain.jsonl")


class ManualModule(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(Model.loss(self, *batch))
        optimizer.step()


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


def test_manual_optimization_is_clipped_too(tmp_path: Path) -> None:
    records = records_of(tmp_path / "run.jsonl", trainer(tmp_path, ClipCallback(config())), ManualModule())
    assert records == plain_records(tmp_path / "plain.jsonl")


class ManualModuleWithAttachedClip(ManualModule):
    def on_train_start(self) -> None:
        config().attach_to(self.optimizers(), self)


def test_a_clip_attaches_to_the_optimizer_inside_lightnings(tmp_path: Path) -> None:
    records = records_of(tmp_path / "run.jsonl", trainer(tmp_path), ManualModuleWithAttachedClip())
    assert records == plain_records(tmp_path / "plain.jsonl")


def test_accumulated_gradients_are_clipped_once(tmp_path: Path) -> None:
    clip = ClipCallback(config())
    a_trainer = trainer(tmp_path, clip, accumulate_grad_batches=4)
    assert len(records_of(tmp_path / "run.jsonl", a_trainer, Module())) == DATA.STEPS / 4
    assert clip.last.step == DATA.STEPS / 4 - 1


# -- logging


def test_the_outcome_is_logged(tmp_path: Path) -> None:
    logged, clip = KeepingLogger(), ClipCallback(config(threshold=1.0))
    trainer(tmp_path, clip, logger=logged).fit(Module(), loader())
    lines = [line for line in logged.lines if "grad_norm" in line]
    assert len(lines) == DATA.STEPS
    for line in lines:
        assert line["grad_norm_clipped"] == pytest.approx(min(line["grad_norm"], 1.0), rel=1e-5)
        assert line["clip_coef"] == pytest.approx(line["grad_norm_clipped"] / line["grad_norm"], rel=1e-5)
    assert lines[-1]["clip_rate"] == pytest.approx(clip.rate)
    assert lines[0]["clip_rate"] == 1 > clip.rate
    assert lines[-1]["grad_norm"] == pytest.approx(clip.last.norm, rel=1e-7)


@pytest.mark.parametrize(("arguments", "count"), [({"log_every": 20}, 1), ({"log_every": 0}, 0), ({}, 4)])
def test_log_every_sets_how_often_it_logs(tmp_path: Path, arguments: dict[str, int], count: int) -> None:
    logged = KeepingLogger()
    a_trainer = trainer(tmp_path, ClipCallback(config(), **arguments), logger=logged, log_every_n_steps=5)
    a_trainer.fit(Module(), loader())
    assert sum("grad_norm" in line for line in logged.lines) == count


class ModuleWithTwoOptimizers(ManualModule):
    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(Model.loss(self, *batch))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=RATE) for layer in (self.hidden, self.output)]


def test_each_optimizer_has_its_own_norm_and_rate(tmp_path: Path) -> None:
    logged, clip = KeepingLogger(), ClipCallback(ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"]))
    a_trainer, module = trainer(tmp_path, clip, logger=logged, log_every_n_steps=5), ModuleWithTwoOptimizers()
    records = records_of(tmp_path / "run.jsonl", a_trainer, module)
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
            self.manual_backward(Model.loss(self, *batch))
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


def test_names_can_be_passed(tmp_path: Path) -> None:
    module = Module()
    clip = ClipCallback(
        ClipConfig(rule="global_norm", threshold=1.0, include=["w.*"]),
        {"w.1": module.hidden.weight, "b.1": module.hidden.bias, **_output_parameters(module)},
    )
    (first, *_) = records_of(tmp_path / "run.jsonl", trainer(tmp_path, clip, max_steps=1), module)
    assert set(first["parameters"]) == {"hidden.weight"}


def _output_parameters(module: Module) -> dict[str, torch.nn.Parameter]:
    return {"o.1": module.output.weight, "o.2": module.output.bias}


# -- mixed precision


class OverflowingModule(Module):
    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return Model.loss(self, *batch) * (math.inf if index == 1 else 1)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("nonfinite", ["family", "raise", "skip", "zero"])
def test_a_step_that_the_scaler_skips_is_not_clipped(tmp_path: Path, nonfinite: str, fused: bool) -> None:
    clip = ClipCallback(config(nonfinite=nonfinite))
    plugin = scaled_precision()
    a_trainer = trainer(tmp_path, clip, plugins=[plugin], max_steps=3)
    records = records_of(tmp_path / "run.jsonl", a_trainer, OverflowingModule(fused=fused))
    assert plugin.scaler.get_scale() == SCALE / 2
    assert [math.isfinite(line["norm"]) for line in records] == [True, True]
    assert clip.last.step == 2


class ModuleWithoutSecondLoss(Module):
    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor | None:
        return None if index == 1 else Model.loss(self, *batch)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_a_loss_is_not_clipped(tmp_path: Path, fused: bool) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config()), plugins=[scaled_precision()], max_steps=4)
    assert len(records_of(tmp_path / "run.jsonl", a_trainer, ModuleWithoutSecondLoss(fused=fused))) == 3


# -- checkpoints and copies


def test_training_resumed_from_a_checkpoint_matches_an_uninterrupted_run(tmp_path: Path) -> None:
    expected = records_of(tmp_path / "whole.jsonl", trainer(tmp_path, ClipCallback(config()), max_epochs=2), Module())
    first = trainer(tmp_path, ClipCallback(config()))
    first.fit(Module(), loader())
    first.save_checkpoint(tmp_path / "first.ckpt")
    second = trainer(tmp_path, ClipCallback(config()), max_epochs=2)
    records = records_of(tmp_path / "second.jsonl", second, Module(), ckpt_path=tmp_path / "first.ckpt")
    for parameter in records[0]["parameters"].values():
        parameter.pop("sums", None)  # only the first call of a recording has them
    assert [{**line, "step": line["step"] + DATA.STEPS} for line in records] == expected[DATA.STEPS :]


COPIES = [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("make_copy", COPIES)
@pytest.mark.filterwarnings("ignore:.*not attached to a `Trainer`", "ignore:The .lr_scheduler_step.")
def test_a_copied_callback_starts_with_a_new_state(tmp_path: Path, make_copy: Any) -> None:
    clip = ClipCallback(config(), log_every=3)
    module = Module()
    module.clip = clip
    trainer(tmp_path, clip, max_steps=2).fit(module, loader())
    module.trainer = None
    for index, copied in enumerate([make_copy(clip), make_copy(module).clip]):
        with pytest.raises(RuntimeError, match="nothing has been clipped"):
            _ = copied.last
        assert copied._log_every == 3
        records = records_of(tmp_path / f"run{index}.jsonl", trainer(tmp_path, copied), Module())
        assert records == plain_records(tmp_path / f"plain{index}.jsonl")


def test_the_callback_passes_the_declared_ownership(tmp_path: Path) -> None:
    clip = ClipCallback(config(), process_group=None, check_numel=1)
    with pytest.raises(ValueError, match="gradient elements together, and check_numel expects 1"):
        trainer(tmp_path, clip).fit(Module(), loader())


@pytest.mark.parametrize("make_copy", COPIES)
def test_a_module_with_an_attached_clip_can_be_copied(tmp_path: Path, make_copy: Any) -> None:
    module = ModuleWithAttachedClip()
    trainer(tmp_path, max_steps=2).fit(module, loader())
    module.trainer = None
    copied = make_copy(module)
    assert module.handle.is_attached
    assert not copied.handle.is_attached
    assert copied.handle.step == 2


# -- rejections


def test_a_trainer_that_clips_too_is_rejected(tmp_path: Path) -> None:
    a_trainer = trainer(tmp_path, ClipCallback(config()), gradient_clip_val=0.5)
    with pytest.raises(ValueError, match=r"gradient_clip_val=0\.5\. Gradients would be clipped twice\. Remove"):
        a_trainer.fit(Module(), loader())


def test_two_clip_callbacks_are_rejected(tmp_path: Path) -> None:
    module = Module()
    before = module.output.weight.detach().clone()
    a_trainer = trainer(tmp_path, ClipCallback(config()), ClipCallback(ClipConfig(rule="value", threshold=1.0)))
    with pytest.raises(ValueError, match=r"two ClipCallbacks, which would clip gradients twice\. Remove one"):
        a_trainer.fit(module, loader())
    assert torch.equal(module.output.weight, before)


def test_an_optimizer_that_clips_too_is_rejected(tmp_path: Path) -> None:
    for module in (ModuleWithAttachedClip(), ManualModuleWithAttachedClip()):
        before = module.output.weight.detach().clone()
        with pytest.raises(ValueError, match=r"attached to this SGD already\. Gradients would be clipped twice"):
            trainer(tmp_path, ClipCallback(config())).fit(module, loader())
        assert torch.equal(module.output.weight, before)


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
