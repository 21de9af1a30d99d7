"""Lightning: a callback that clips in the place of `gradient_clip_val`."""

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
from unified_clip.port.rewrite import port

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
]


class Module(pl.LightningModule):
    """`Model` with the names that it has by itself."""

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


class Unlike16(MixedPrecision):
    """Lightning's own way to scale, without the half precision, whose bits are others."""

    def forward_context(self) -> Any:
        return torch.enable_grad()


def scaled() -> Unlike16:
    return Unlike16("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3))


class Logged(pl.loggers.logger.DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append({**metrics, "step": step})


def trainer(path: Path, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": path,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **given | changes)


def loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(rows(), batch_size=DATA.BATCH)


def records_of(path: Path, made: pl.Trainer, module: Module, **arguments: Any) -> list[dict[str, Any]]:
    return recorded(path, module, lambda: made.fit(module, loader(), **arguments))


# -- the same as a plain loop


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", [None, scaled])
def test_records_are_those_of_a_plain_loop(tmp_path: Path, precision: Any, fused: bool) -> None:
    plugins = [precision()] if precision else None
    made = trainer(tmp_path, ClipCallback(config()), plugins=plugins)
    records = records_of(tmp_path / "run.jsonl", made, Module(fused=fused))
    assert records == plain_records(tmp_path / "plain.jsonl")


class WithHook(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = super().configure_optimizers()
        self.handle = config().attach_to(optimizer, self)
        return optimizer


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", [None, scaled])
def test_a_hook_in_the_optimizer_makes_the_same_records(tmp_path: Path, precision: Any, fused: bool) -> None:
    plugins = [precision()] if precision else None
    records = records_of(tmp_path / "run.jsonl", trainer(tmp_path, plugins=plugins), WithHook(fused=fused))
    assert records == plain_records(tmp_path / "plain.jsonl")


class Manual(Module):
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
def test_the_lines_that_port_suggests_train_as_lightnings_own_clip_does(
    tmp_path: Path, arguments: str, algorithm: str, tolerance: float
) -> None:
    source = f"import lightning.pytorch as pl\ntrainer = pl.Trainer({arguments})\n"
    (site,) = port(Path("train.py"), source.encode()).sites
    names: dict[str, Any] = {"algorithm": algorithm, "Trainer": lambda callbacks: trainer(tmp_path, *callbacks)}
    exec("\n".join(site.suggestion), names)
    native = eval(f"trainer(path, {arguments})", {"trainer": trainer, "path": tmp_path, "algorithm": algorithm})
    weights = [_trained(made) for made in (names["trainer"], native, trainer(tmp_path))]
    assert torch.allclose(weights[0], weights[1], rtol=tolerance, atol=tolerance)
    assert not torch.allclose(weights[0], weights[2], rtol=1e-3, atol=1e-3)


def _trained(made: pl.Trainer) -> torch.Tensor:
    torch.manual_seed(0)
    module = Module()
    made.fit(module, loader())
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_manual_optimization_is_clipped_too(tmp_path: Path) -> None:
    records = records_of(tmp_path / "run.jsonl", trainer(tmp_path, ClipCallback(config())), Manual())
    assert records == plain_records(tmp_path / "plain.jsonl")


class ManualWithHook(Manual):
    def on_train_start(self) -> None:
        config().attach_to(self.optimizers(), self)


def test_a_configuration_is_attached_to_the_optimizer_inside_lightnings(tmp_path: Path) -> None:
    records = records_of(tmp_path / "run.jsonl", trainer(tmp_path), ManualWithHook())
    assert records == plain_records(tmp_path / "plain.jsonl")


def test_accumulated_gradients_are_clipped_once(tmp_path: Path) -> None:
    clip = ClipCallback(config())
    made = trainer(tmp_path, clip, accumulate_grad_batches=4)
    assert len(records_of(tmp_path / "run.jsonl", made, Module())) == DATA.STEPS / 4
    assert clip.last.step == DATA.STEPS / 4 - 1


# -- what it logs


def test_what_happened_is_logged_under_its_names(tmp_path: Path) -> None:
    logged, clip = Logged(), ClipCallback(config(threshold=1.0))
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
def test_it_logs_as_often_as_log_every_or_the_trainer_says(
    tmp_path: Path, arguments: dict[str, int], count: int
) -> None:
    logged = Logged()
    made = trainer(tmp_path, ClipCallback(config(), **arguments), logger=logged, log_every_n_steps=5)
    made.fit(Module(), loader())
    assert sum("grad_norm" in line for line in logged.lines) == count


class TwoOptimizers(Manual):
    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(Model.loss(self, *batch))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(each.parameters(), lr=RATE) for each in (self.hidden, self.output)]


def test_each_optimizer_has_a_norm_and_a_rate_of_its_own(tmp_path: Path) -> None:
    logged, clip = Logged(), ClipCallback(ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"]))
    made, module = trainer(tmp_path, clip, logger=logged, log_every_n_steps=5), TwoOptimizers()
    records = records_of(tmp_path / "run.jsonl", made, module)
    names = [set(line["parameters"]) for line in records]
    assert names == [{"hidden.weight"}, {"output.weight"}] * DATA.STEPS
    for index in (0, 1):
        own = records[index::2]
        assert [line[f"optimizer{index}/grad_norm"] for line in logged.lines] == pytest.approx(
            [line["norm"] for line in own[4::5]]
        )
        rate = sum(line["clipped"] for line in own) / len(own)
        assert made.callback_metrics[f"optimizer{index}/clip_rate"] == pytest.approx(rate)
    assert "grad_norm" not in made.callback_metrics


class InTurns(TwoOptimizers):
    """In five batches the first optimizer makes five steps, the second one."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        for optimizer in self.optimizers()[: 2 if index % 5 == 4 else 1]:
            optimizer.zero_grad()
            self.manual_backward(Model.loss(self, *batch))
            optimizer.step()


@pytest.mark.parametrize(("log_every", "logged"), [(1, DATA.STEPS // 5), (3, 1), (4, 1)])
def test_each_of_several_optimizers_logs_by_its_own_steps(tmp_path: Path, log_every: int, logged: int) -> None:
    clip = ClipCallback(ClipConfig(rule="global_norm", threshold=1.0), log_every=log_every)
    module, counts = InTurns(), {0: 0, 1: 0}

    def log_dict(metrics: dict[str, float]) -> None:
        counts[int(min(metrics)[len("optimizer")])] += 1

    module.log_dict = log_dict
    trainer(tmp_path, clip).fit(module, loader())
    assert counts == {0: DATA.STEPS // log_every, 1: logged}


def test_names_can_be_given(tmp_path: Path) -> None:
    module = Module()
    clip = ClipCallback(
        ClipConfig(rule="global_norm", threshold=1.0, include=["w.*"]),
        {"w.1": module.hidden.weight, "b.1": module.hidden.bias, **_outputs(module)},
    )
    (first, *_) = records_of(tmp_path / "run.jsonl", trainer(tmp_path, clip, max_steps=1), module)
    assert set(first["parameters"]) == {"hidden.weight"}


def _outputs(module: Module) -> dict[str, torch.nn.Parameter]:
    return {"o.1": module.output.weight, "o.2": module.output.bias}


# -- mixed precision


class Overflows(Module):
    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return Model.loss(self, *batch) * (math.inf if index == 1 else 1)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("nonfinite", ["family", "raise", "skip", "zero"])
def test_a_step_that_the_scaler_leaves_out_is_no_error(tmp_path: Path, nonfinite: str, fused: bool) -> None:
    clip = ClipCallback(config(nonfinite=nonfinite))
    plugin = scaled()
    made = trainer(tmp_path, clip, plugins=[plugin], max_steps=3)
    records = records_of(tmp_path / "run.jsonl", made, Overflows(fused=fused))
    assert plugin.scaler.get_scale() == SCALE / 2
    assert [math.isfinite(line["norm"]) for line in records] == [True, True]
    assert clip.last.step == 2


class Forgetful(Module):
    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor | None:
        return None if index == 1 else Model.loss(self, *batch)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_a_loss_is_no_step_of_the_scalers(tmp_path: Path, fused: bool) -> None:
    made = trainer(tmp_path, ClipCallback(config()), plugins=[scaled()], max_steps=4)
    assert len(records_of(tmp_path / "run.jsonl", made, Forgetful(fused=fused))) == 3


# -- going on


def test_training_goes_on_from_a_checkpoint_as_it_would_have(tmp_path: Path) -> None:
    expected = records_of(tmp_path / "whole.jsonl", trainer(tmp_path, ClipCallback(config()), max_epochs=2), Module())
    first = trainer(tmp_path, ClipCallback(config()))
    first.fit(Module(), loader())
    first.save_checkpoint(tmp_path / "first.ckpt")
    second = trainer(tmp_path, ClipCallback(config()), max_epochs=2)
    records = records_of(tmp_path / "second.jsonl", second, Module(), ckpt_path=tmp_path / "first.ckpt")
    for parameter in records[0]["parameters"].values():
        assert parameter.pop("fingerprints")  # each recording has that of the first weights
    assert [{**line, "step": line["step"] + DATA.STEPS} for line in records] == expected[DATA.STEPS :]


COPIES = [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))]


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.filterwarnings("ignore:.*not attached to a `Trainer`", "ignore:The .lr_scheduler_step.")
def test_a_copy_begins_anew(tmp_path: Path, copies: Any) -> None:
    clip = ClipCallback(config(), log_every=3)
    module = Module()
    module.clip = clip
    trainer(tmp_path, clip, max_steps=2).fit(module, loader())
    module.trainer = None
    for index, copied in enumerate([copies(clip), copies(module).clip]):
        with pytest.raises(RuntimeError, match="nothing has been clipped"):
            _ = copied.last
        assert copied._log_every == 3
        records = records_of(tmp_path / f"run{index}.jsonl", trainer(tmp_path, copied), Module())
        assert records == plain_records(tmp_path / f"plain{index}.jsonl")


def test_what_is_stated_is_that_of_the_clip(tmp_path: Path) -> None:
    clip = ClipCallback(config(), process_group=None, check_numel=1)
    with pytest.raises(ValueError, match="gradient elements together, and check_numel expects 1"):
        trainer(tmp_path, clip).fit(Module(), loader())


@pytest.mark.parametrize("copies", COPIES)
def test_a_module_that_holds_a_handle_can_be_copied(tmp_path: Path, copies: Any) -> None:
    module = WithHook()
    trainer(tmp_path, max_steps=2).fit(module, loader())
    module.trainer = None
    copied = copies(module)
    assert module.handle.is_attached
    assert not copied.handle.is_attached
    assert copied.handle.step == 2


# -- what is refused


def test_a_trainer_that_clips_too_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, ClipCallback(config()), gradient_clip_val=0.5)
    with pytest.raises(ValueError, match=r"gradient_clip_val=0\.5\. Gradients would be clipped twice\. Remove"):
        made.fit(Module(), loader())


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    module = Module()
    before = module.output.weight.detach().clone()
    made = trainer(tmp_path, ClipCallback(config()), ClipCallback(ClipConfig(rule="value", threshold=1.0)))
    with pytest.raises(ValueError, match=r"two ClipCallbacks, which would clip gradients twice\. Remove one"):
        made.fit(module, loader())
    assert torch.equal(module.output.weight, before)


def test_an_optimizer_that_clips_too_is_refused(tmp_path: Path) -> None:
    for module in (WithHook(), ManualWithHook()):
        before = module.output.weight.detach().clone()
        with pytest.raises(ValueError, match=r"attached to this SGD already\. Gradients would be clipped twice"):
            trainer(tmp_path, ClipCallback(config())).fit(module, loader())
        assert torch.equal(module.output.weight, before)


class ClipsByItself(Module):
    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=1.0)


def test_a_module_that_clips_too_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ClipsByItself defines configure_gradient_clipping"):
        trainer(tmp_path, ClipCallback(config())).fit(ClipsByItself(), loader())


@pytest.mark.parametrize("strategy", [DeepSpeedStrategy, XLAStrategy])
def test_gradients_out_of_reach_are_refused(tmp_path: Path, strategy: type, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    monkeypatch.setattr(pl.Trainer, "strategy", object.__new__(type("Own", (strategy,), {})))
    with pytest.raises(RuntimeError, match=f"{strategy.__name__} does not expose the gradients"):
        ClipCallback(config()).setup(made, Module(), "fit")


def test_evaluation_needs_no_gradients(tmp_path: Path) -> None:
    ClipCallback(config()).setup(trainer(tmp_path, gradient_clip_val=0.5), Module(), "validate")


@pytest.fixture
def older_name(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as it is where only `pytorch_lightning` is installed."""
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", pl)
    monkeypatch.delitem(sys.modules, lightning_callback.__name__)
    return importlib.import_module(lightning_callback.__name__)


def test_the_package_may_have_its_older_name(older_name: Any) -> None:
    assert older_name is not lightning_callback
    assert issubclass(older_name.ClipCallback, pl.Callback)
