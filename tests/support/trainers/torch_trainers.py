"""Functions that processes of a `World` run: trainers of other packages, whose models FSDP shards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from lightning.pytorch.strategies import ModelParallelStrategy
from support.processes import torch_sharded
from support.trainers.kits import Module, WithLoss, hf_trainer, loader, pl_trainer
from support.trainers.torch_training import RATE, Model, batches, config, recorded
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from unified_clip.integrations import lightning_callback, transformers_callback

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


def train(using: Accelerator, model: torch.nn.Module, **declared: Any) -> list[float]:
    model, optimizer = using.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    handle, norms = config().attach_to(optimizer, model, **declared), []
    for inputs, targets in batches():
        optimizer.zero_grad()
        using.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        norms.append(handle.last.norm)
    return norms


def accelerate(directory: str) -> Records:
    model = Model()
    with accelerator() as using:
        by_fsdp(using, 2)
        return recorded(own_file(directory), model, lambda: train(using, model, check_numel=True))


def accelerate_by_fsdp1(is_stated: bool) -> list[float]:
    options = {"process_group": dist.group.WORLD, "ownership": "distinct"} if is_stated else {}
    with accelerator() as using, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        by_fsdp(using, 1)
        model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), use_orig_params=True)
        return train(using, model, **options)


# -- Transformers


def transformers(directory: str) -> Records:
    clip = transformers_callback.ClipCallback(config(), check_numel=True)
    with accelerator():
        trainer = hf_trainer(Path(directory), WithLoss(), clip, copies=dist.get_world_size(), logging_strategy="no")
        by_fsdp(trainer.accelerator, 2)
        trainer.is_fsdp_enabled = True
        return recorded(own_file(directory), trainer.model, trainer.train)


# -- Lightning


class Sharded(Module):
    def configure_model(self) -> None:
        for part in (self.hidden, self.output, self):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])


def lightning(directory: str) -> Records:
    module, size = Sharded(), dist.get_world_size()
    strategy = ModelParallelStrategy(data_parallel_size=size, tensor_parallel_size=1)
    clip = lightning_callback.ClipCallback(config(), check_numel=True)
    options = {"devices": size, "strategy": strategy, "use_distributed_sampler": False}
    trainer = pl_trainer(Path(directory), clip, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.")
        warnings.filterwarnings("ignore", ".*does not have many workers")
        return recorded(own_file(directory), module, lambda: trainer.fit(module, loader()))
