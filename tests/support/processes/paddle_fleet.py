"""Functions that processes of a `World` run: models of Paddle's fleet over several processes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from support.processes.paddle_sharded import parameter_with, record_collectives, set_environment, watch_clip

import unified_clip
import unified_clip.paddle as uc
from unified_clip import ClipConfig
from unified_clip.recording import runs

DEGREES = ("mp_degree", "pp_degree", "sharding_degree", "dp_degree")


def start(rank: int, size: int, meeting: str, **degrees: int) -> None:
    """Start `fleet`. Missing degrees are 1."""
    set_environment(rank, size, meeting)
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {name: degrees.get(name, 1) for name in DEGREES}
    new_group = dist.new_group
    with (
        warnings.catch_warnings(),
        mock.patch.object(dist, "new_group", lambda *a, **k: _after_barrier(new_group(*a, **k))),
    ):
        warnings.simplefilter("ignore")  # of groups that this process is not in
        fleet.init(is_collective=True, strategy=strategy)
    _complete_gloo()
    warnings.simplefilter("error")


def _after_barrier(group: Any) -> Any:
    """Return a new group when all processes have created it. Groups that are created at the same time do not always
    connect."""
    dist.barrier()
    return group


def _complete_gloo() -> None:
    """Define operations that `fleet`'s layers call, and that Paddle has only on GPUs, by those of the CPU."""
    group = paddle.base.core.ProcessGroup
    group.all_reduce_on_calc_stream = lambda self, tensor, operation: self.all_reduce(tensor, operation, True).wait()
    paddle._C_ops.c_identity = lambda tensor, *_: tensor.clone()


class Parallel(paddle.nn.Layer):
    """A model of fleet's layers. Its weights are shards of the same weights that one process would have."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__()
        layers = fleet.meta_parallel
        self.words = layers.VocabParallelEmbedding(12, 6)
        self.wide = layers.ColumnParallelLinear(6, 8, gather_output=False, has_bias=True)
        self.narrow = layers.RowParallelLinear(8, 6, input_is_parallel=True)
        self.norm, self.last = paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 1)
        self.to(dtype=dtype)
        random = np.random.default_rng(11)
        hcg = fleet.get_hybrid_communicate_group()
        for parameter in self.parameters():
            shape = list(parameter.shape)
            if parameter.is_distributed:
                shape[parameter.split_axis] *= hcg.get_model_parallel_world_size()
            array = random.standard_normal(shape).astype(dtype)
            if parameter.is_distributed:
                shards = np.split(array, hcg.get_model_parallel_world_size(), parameter.split_axis)
                array = shards[hcg.get_model_parallel_rank()]
            parameter.set_value(paddle.to_tensor(array))

    def backward(self) -> None:
        words = paddle.to_tensor(np.arange(12).reshape(3, 4))
        hidden = self.narrow(paddle.tanh(self.wide(self.words(words))))
        (self.last(self.norm(hidden)) * 3).square().sum().backward()


ShardedGradients = list[tuple[np.ndarray, int | None]]
"""Gradients, and the axis along which tensor-parallel processes shard each."""


def step_optimizer(
    name: str, threshold: float, dtype: str = "float32"
) -> tuple[ShardedGradients, list[np.ndarray], list[str]]:
    """Return the gradients before and after the clip in fleet's optimizer, and the collectives of the clip."""
    model = Parallel(dtype)
    model.backward()
    clip = watch_clip(getattr(uc, name)(threshold))
    inner = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about features of GPUs
        optimizer = fleet.distributed_optimizer(inner)
    optimizer.step()
    axes = [parameter.split_axis if parameter.is_distributed else None for parameter in clip.parameters]
    before = [(gradient.numpy(), axis) for gradient, axis in zip(clip.before, axes, strict=True)]
    return before, [gradient.numpy() for gradient in clip.after], clip.calls


def clip_model(
    group: str, threshold: float, check: bool | None
) -> tuple[float, ShardedGradients, list[np.ndarray], list[str]]:
    model = Parallel()
    model.backward()
    params = model.parameters()
    before = [
        (parameter.grad.numpy().copy(), parameter.split_axis if parameter.is_distributed else None)
        for parameter in params
    ]
    hcg = fleet.get_hybrid_communicate_group()
    groups = {"model": hcg.get_model_parallel_group(), "data": hcg.get_data_parallel_group()}
    with record_collectives() as calls:
        norm = uc.clip_grad_norm_(params, threshold, process_group=groups.get(group, group), check_numel=check)
    return float(norm), before, [parameter.grad.numpy() for parameter in params], calls


def norm_of_gradients(name: str, group: str | None) -> tuple[float, list[np.ndarray]]:
    model = Parallel()
    model.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    args = (gradients, 1.0) if name == "clip_by_global_norm" else (gradients,)
    result = getattr(uc, name)(*args, process_group=group)
    return float(result[1] if isinstance(result, tuple) else result), [gradient.numpy() for gradient in gradients]


def clip_in_place(name: str) -> None:
    model = Parallel()
    model.backward()
    if name == "GradientClipByNorm":
        uc.GradientClipByNorm(0.5).clip_(model.parameters())
    else:
        getattr(uc, name)(model.parameters(), 0.5)


def record_clip(directory: str) -> tuple[ShardedGradients, float, dict[str, float]]:
    model = Parallel()
    model.backward()
    path = Path(directory) / f"{dist.get_rank()}.jsonl"
    before = [
        (parameter.grad.numpy().copy(), parameter.split_axis if parameter.is_distributed else None)
        for parameter in model.parameters()
    ]
    with unified_clip.record(path, norms=True, names=model):
        uc.clip_grad_norm_(model.parameters(), 1.0)
    (line,) = runs.read(path).lines
    return before, line.norm, {name: line_parameter.norm for name, line_parameter in line.parameters.items()}


def norms_by_config(threshold: float) -> tuple[float, float]:
    model = Parallel()
    model.backward()
    norm = float(uc.clip_grad_norm_(model.parameters(), float("inf")))
    clip = ClipConfig(rule="global_norm", threshold=threshold).as_paddle(names=model)
    inner = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    fleet.distributed_optimizer(inner).step()
    return clip.last.norm, norm


def clip_stages(frozen: bool) -> tuple[list[np.ndarray], list[str]]:
    """Clip a parameter of each stage of a pipeline, and an embedding that both stages have.

    frozen: The first stage has no gradients, so its optimizer clips an empty list.
    """
    stage = fleet.get_hybrid_communicate_group().get_stage_id()
    own, tied = (parameter_with(paddle.full([4], value)) for value in (3.0 + stage, 7.0))
    tied.is_firstly_shared = stage == 0
    clip = uc.GradientClipByGlobalNorm(1.0)
    with record_collectives() as calls:
        clipped = clip([] if frozen and stage == 0 else [(parameter, parameter.grad) for parameter in (own, tied)])
    return [gradient.numpy() for _, gradient in clipped], calls
