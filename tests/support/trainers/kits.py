"""Lightning, Transformers and Accelerate train the model of `examples/`, each by one function with the same options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import transformers
from accelerate import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from support.trainers.torch_training import DATA, RATE, SCALE, Model, batches, config, recorded, rows

from unified_clip import ClipConfig
from unified_clip.integrations import lightning_callback, transformers_callback


class Fit(NamedTuple):
    records: list[dict[str, Any]]
    """The lines of a recording for the clips."""

    clip: Any
    scaler: torch.amp.GradScaler | None = None
    logs: list[dict[str, float]] = []  # noqa: RUF012


class Trained(Model):
    """The model of the examples. The loss of one batch may be infinite."""

    batch, overflow_at = 0, None

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.batch += 1
        return super().loss(inputs, targets) * (math.inf if self.batch - 1 == self.overflow_at else 1)


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, **options)


def scaler() -> torch.amp.GradScaler:
    """Return a gradient scaler on the CPU, where the trainers create none."""
    return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)


# -- Lightning


class Module(Trained, pl.LightningModule):  # type: ignore[misc]  # mypy skips Lightning
    def __init__(self, way: str = "callback", clip: ClipConfig | None = None, **optimizer: Any) -> None:
        super().__init__()
        self.automatic_optimization, self._way = not way.startswith("manual"), way
        self._clip, self._of_optimizer = clip, optimizer

    def training_step(self, batch: list[torch.Tensor], index: int) -> Any:
        loss = self.loss(*batch)
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = sgd(self, **self._of_optimizer)
        if self._way == "attached":
            self.handle = self._clip.attach_to(optimizer, self)
        return optimizer

    def on_train_start(self) -> None:
        if self._way == "manual, attached":
            self.handle = self._clip.attach_to(self.optimizers(), self)


class ScaledFloat32(MixedPrecision):  # type: ignore[misc]
    """Lightning's loss scaling, without half precision, which would change the bits."""

    def forward_context(self) -> Any:
        return torch.enable_grad()


class KeepingLogger(pl.loggers.logger.DummyLogger):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append({**metrics, "step": step})


def pl_trainer(folder: Path, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    return pl.Trainer(callbacks=list(callbacks), **defaults | changes)


def loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(rows(), batch_size=DATA.BATCH)


class Lightning:
    WAYS = ("callback", "attached", "manual, callback", "manual, attached")
    SCALED = ("", "by the trainer")
    ACCUMULATE, OWN_LIMIT = "accumulate_grad_batches", "gradient_clip_val"
    Callback, Model, RESUMED = lightning_callback.ClipCallback, Module, ({},)

    @staticmethod
    def fit(
        folder: Path, clip: Any = None, way: str = "callback", *, model: Any = None, fused: bool = False,
        scaled: str = "", overflow_at: int | None = None, epochs: int = 1, save: Path | None = None,
        resume: Path | None = None, callbacks: Any = (), declared: Mapping[str, Any] = {}, **changes: Any,
    ) -> Fit:  # fmt: skip
        clip = config() if clip is None else clip
        if "callback" in way and isinstance(clip, ClipConfig):
            clip = lightning_callback.ClipCallback(clip, **declared)
        module = model or Module(way, clip, fused=fused)
        module.overflow_at = overflow_at
        plugins = [ScaledFloat32("16-mixed", "cpu", scaler())] if scaled else []
        callbacks, logger = [*callbacks, *([clip] if "callback" in way else [])], KeepingLogger()
        trainer = pl_trainer(folder, *callbacks, max_epochs=epochs, plugins=plugins, logger=logger, **changes)
        records = recorded(
            folder / "run.jsonl", module, lambda: trainer.fit(module, loader(), ckpt_path=resume and resume / "lit")
        )
        if save:
            trainer.save_checkpoint(save / "lit")
        return Fit(records, clip, plugins[0].scaler if plugins else None, logger.lines)


# -- Transformers


class WithLoss(Trained):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(inputs) if targets is None else {"loss": self.loss(inputs, targets)}


class InOrder(transformers.Trainer):  # type: ignore[misc]  # of type Any
    """A trainer that reads the rows in their order. Only Transformers 5 has an argument for it."""

    def _get_train_sampler(self, *args: Any) -> torch.utils.data.SequentialSampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def hf_rows(copies: int = 1) -> list[dict[str, torch.Tensor]]:
    """Return the rows, with each batch once per process."""
    every = [batch for batch in batches() for _ in range(copies)]
    return [{"inputs": x, "targets": y} for inputs, targets in every for x, y in zip(inputs, targets, strict=True)]


def hf_trainer(folder: Path, model: Any, *callbacks: Any, copies: int = 1, **changes: Any) -> transformers.Trainer:
    optimizers = {"optimizers": changes.pop("optimizers")} if "optimizers" in changes else {}
    arguments = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": DATA.BATCH, "max_steps": DATA.STEPS,
        "learning_rate": RATE, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "dataloader_pin_memory": False,
    } | changes  # fmt: skip
    arguments = transformers.TrainingArguments(**arguments)
    return InOrder(model, arguments, train_dataset=hf_rows(copies), callbacks=list(callbacks), **optimizers)


class Transformers:
    WAYS, SCALED = ("callback", "attached"), ("", "by the trainer", "unscaled before")
    ACCUMULATE, OWN_LIMIT = "gradient_accumulation_steps", "max_grad_norm"
    Callback, Model = transformers_callback.ClipCallback, WithLoss
    RESUMED = ({}, {"restore_callback_states_from_checkpoint": True})

    @staticmethod
    def fit(
        folder: Path, clip: Any = None, way: str = "callback", *, model: Any = None, fused: bool = False,
        scaled: str = "", overflow_at: int | None = None, epochs: float = 1, save: Path | None = None,
        resume: Path | None = None, callbacks: Any = (), declared: Mapping[str, Any] = {}, momentum: float = 0.0,
        **changes: Any,
    ) -> Fit:  # fmt: skip
        clip, model = config() if clip is None else clip, model or WithLoss()
        model.overflow_at = overflow_at
        if way == "callback" and isinstance(clip, ClipConfig):
            clip = transformers_callback.ClipCallback(clip, **declared)
        optimizer = sgd(model, fused=fused, momentum=momentum)
        changes = {"max_steps": int(epochs * DATA.STEPS), "output_dir": str(save or folder / "out"), **changes}
        if save:
            changes |= {"save_strategy": "steps", "save_steps": changes["max_steps"]}
        optimizers = optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        callbacks = [*([clip] if way == "callback" else []), *callbacks]
        trainer = hf_trainer(folder, model, *callbacks, optimizers=optimizers, **changes)
        if way == "attached":
            clip = clip.attach_to(optimizer, model)
        if scaled:
            trainer.accelerator.scaler = scaler()
        if scaled == "unscaled before":  # as with fp16, when the trainer measures its own norm
            trainer.accelerator.unscale_gradients = lambda optimizer=None: [
                trainer.accelerator.scaler.unscale_(each.optimizer) for each in trainer.accelerator._optimizers
            ]
        checkpoint = str(next(resume.glob("checkpoint-*"))) if resume else None
        records = recorded(folder / "run.jsonl", model, lambda: trainer.train(resume_from_checkpoint=checkpoint))
        return Fit(records, clip, trainer.accelerator.scaler, trainer.state.log_history)


# -- Accelerate


class Accelerate:
    WAYS = ("attached", "attached before prepare")
    SCALED = ("", "by the trainer", "unscaled before")
    ACCUMULATE, Model, RESUMED = "gradient_accumulation_steps", Trained, ({},)

    @staticmethod
    def fit(
        folder: Path, clip: Any = None, way: str = "attached", *, model: Any = None, fused: bool = False,
        scaled: str = "", overflow_at: int | None = None, epochs: int = 1, save: Path | None = None,
        resume: Path | None = None, declared: Mapping[str, Any] = {}, **changes: Any,
    ) -> Fit:  # fmt: skip
        clip, model = config() if clip is None else clip, model or Trained()
        model.overflow_at = overflow_at
        using, optimizer = Accelerator(cpu=True, **changes), sgd(model, fused=fused)
        using.scaler = scaler() if scaled else None
        if way == "attached before prepare":
            clip = clip.attach_to(optimizer, model, **declared)
        model, optimizer = using.prepare(model, optimizer)
        if way == "attached":
            clip = clip.attach_to(optimizer, model, **declared)
        if resume:
            using.load_state(str(resume))

        def train() -> None:
            for inputs, expected in [*batches()] * (epochs - (resume is not None)):
                with using.accumulate(model):
                    optimizer.zero_grad()
                    using.backward(model.loss(inputs, expected))
                    if scaled == "unscaled before":
                        using.scaler.unscale_(optimizer.optimizer)
                    optimizer.step()

        records = recorded(folder / "run.jsonl", model, train)
        if save:
            using.save_state(str(save))
        return Fit(records, clip, using.scaler)
