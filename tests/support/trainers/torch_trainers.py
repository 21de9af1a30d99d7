"""Functions that processes of a `World` run: trainers of other packages, whose models FSDP shards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from lightning.pytorch.strategies import ModelParallelStrategy
from support.processes import torch_sharded
from support.trainers.torch_training import DATA, RATE, Model, batches, config, recorded, rows
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import Trainer, TrainingArguments

from unified_clip.config.clipper import Clipper
from unified_clip.integrations import lightning_callback, transformers_callback
from unified_clip.integrations.accelerate_clip import clip_

Records = list[dict[str, Any]]


def start(rank: int, size: int, meeting: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(NODE_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")  # no rank connects to this port
    torch_sharded.start(rank, size, meeting)


def own_file(directory: str) -> Path:
    return Path(directory) / f"{dist.get_rank()}.jsonl"


# -- Accelerate


@contextmanager
def accelerator() -> Iterator[Accelerator]:
    try:
        yield Accelerator(cpu=True)
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()


def by_fsdp(using: Accelerator, version: int) -> None:
    """Make Accelerate shard models on the CPU, which it does not do by default."""
    PartialState._shared_state["distributed_type"] = using.state.distributed_type = DistributedType.FSDP
    using.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, cpu_ram_efficient_loading=False, auto_wrap_policy="size_based_wrap", min_num_params=1
    )


def train(using: Accelerator, model: torch.nn.Module, clip: Clipper) -> list[float]:
    model, optimizer = using.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    norms = []
    for inputs, targets in batches():
        optimizer.zero_grad()
        using.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        norms.append(clip_(using, clip, model.named_parameters()).item())
        optimizer.step()
    return norms


def accelerate(directory: str) -> Records:
    model, clip = Model(), config().clipper(check_numel=True)
    with accelerator() as using:
        by_fsdp(using, 2)
        return recorded(own_file(directory), model, lambda: train(using, model, clip))


def accelerate_by_fsdp1(is_stated: bool) -> list[float]:
    options = {"process_group": dist.group.WORLD, "ownership": "distinct"} if is_stated else {}
    with accelerator() as using, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        by_fsdp(using, 1)
        model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), use_orig_params=True)
        return train(using, model, config().clipper(**options))


# -- Transformers


class WithLoss(Model):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        outputs = super().forward(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, targets), "outputs": outputs}


def dealt() -> list[dict[str, torch.Tensor]]:
    """Return each batch once per process. The trainer distributes them over the processes."""
    size = dist.get_world_size()
    copies = [(inputs, targets) for inputs, targets in batches() for _ in range(size)]
    return [{"inputs": x, "targets": y} for inputs, targets in copies for x, y in zip(inputs, targets, strict=True)]


def transformers(directory: str) -> Records:
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=DATA.BATCH,
        max_steps=DATA.STEPS,
        train_sampling_strategy="sequential",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    clip = transformers_callback.ClipCallback(config(), check_numel=True)
    with accelerator():
        trainer = Trainer(WithLoss(), arguments, train_dataset=dealt(), callbacks=[clip])
        by_fsdp(trainer.accelerator, 2)
        trainer.is_fsdp_enabled = True
        return recorded(own_file(directory), trainer.model, trainer.train)


# -- Lightning


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        model = Model()
        self.hidden, self.output = model.hidden, model.output

    def configure_model(self) -> None:
        for part in (self.hidden, self.output, self):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Model.forward(self, inputs)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return Model.loss(self, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def lightning(directory: str) -> Records:
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=ModelParallelStrategy(data_parallel_size=dist.get_world_size(), tensor_parallel_size=1),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
        use_distributed_sampler=False,
        callbacks=[lightning_callback.ClipCallback(config(), check_numel=True)],
    )
    loader = torch.utils.data.DataLoader(rows(), batch_size=DATA.BATCH)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.")
        warnings.filterwarnings("ignore", ".*does not have many workers")
        return recorded(own_file(directory), module, lambda: trainer.fit(module, loader))
