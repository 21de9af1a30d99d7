"""Functions that processes of a `World` run: Paddle's distributed tensors, and models over several processes."""

from __future__ import annotations

import functools
import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import Partial, ProcessMesh, Replicate, Shard
from support.kits import FLOATING, PaddleKit
from support.processes.worlds import World, record_calls, worlds_of_any_size
from support.ranks import IN_HALVES, Gradient, dimensions, is_sum
from support.ranks import LAYOUTS as RANK_LAYOUTS

import unified_clip.paddle as uc
from unified_clip import ClipConfig


def start(rank: int, size: int, meeting: str) -> None:
    warnings.simplefilter("error")
    if size > 1:
        set_environment(rank, size, meeting)
        dist.init_parallel_env()


def set_environment(rank: int, size: int, meeting: str) -> None:
    """Set the variables that Paddle's launcher sets. The first process chooses a free port."""
    file = Path(meeting)
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file.with_suffix(".part").write_text(str(port))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.05)
    port = int(file.read_text())
    ends = [f"127.0.0.1:{port + number}" for number in range(size)]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(size),
        PADDLE_TRAINER_ENDPOINTS=",".join(ends),
        PADDLE_CURRENT_ENDPOINT=ends[rank],
        PADDLE_MASTER=ends[0],
        PADDLE_DISTRI_BACKEND="gloo",
    )


def record_collectives() -> AbstractContextManager[list[str]]:
    return record_calls(dist, ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reshard"))


def mesh_of(kind: str) -> ProcessMesh:
    ranks = np.arange(dist.get_world_size())
    if kind == "row":
        return ProcessMesh(ranks, ["dp"])
    return ProcessMesh(ranks.reshape(max(len(ranks) // 2, 1), -1), ["dp", "mp"])


# -- for `support.ranks`


class RankKit(PaddleKit):
    def holder(self, gradient: Any) -> Any:
        return parameter_with(gradient)


KIT, DTYPES, SIZES = RankKit(), FLOATING, (2, 4)
LAYOUTS = {name: each for name, each in RANK_LAYOUTS.items() if each[0] not in ("dp", "tp")}
LAYOUTS = {name: each for name, each in LAYOUTS.items() if "M" not in each[1] and name != "sum over both"}
DECLARED = {"", "WORLD", *IN_HALVES, "replicated", "distinct", "function"}


def fitting(array: np.ndarray, layout: str) -> np.ndarray:
    """Return a similar array that can have the layout. Paddle shards no axis twice, sums no 16-bit numbers, and drops
    terms of 0-d sums."""
    array = array.astype(np.float32) if is_sum(layout) and array.dtype.itemsize == 2 else array
    array = array.reshape(1) if array.ndim == 0 and {*"SP"} & {*LAYOUTS[layout][1]} else array
    return array[:, None] if array.ndim == 1 and layout == "two dimensions" else array


size, process = dist.get_world_size, dist.get_rank


def tensor(part: np.ndarray, gradient: Gradient) -> Any:
    local = KIT.from_array(part)
    name, _ = LAYOUTS[gradient.layout]
    if not name:
        return local
    kinds = {"R": Replicate(), "P": Partial()}
    axes = dimensions(gradient.layout).values()
    placements = [kinds.get(each) or Shard(int(each[1:]) % gradient.array.ndim) for each in axes]
    mesh = ProcessMesh(half().ranks, ["own"]) if name == "own" else mesh_of("rows" if name == "halves" else name)
    return paddle.Tensor(local, dims=list(gradient.array.shape), process_mesh=mesh, placements=placements)


def part(tensor: Any) -> np.ndarray:
    return KIT.array(_local_value(tensor))


def is_plain(tensor: Any) -> bool:
    return not tensor.is_dist()


def remove_gradient(parameter: Any) -> None:
    parameter.clear_gradient(False)


@functools.cache
def halves() -> list[Any]:
    """Return the process groups of both halves. Groups that are created at the same time do not always connect."""
    groups = []
    for ranks in np.split(np.arange(size()), 2):
        groups.append(dist.new_group(ranks.tolist()))
        dist.barrier()
    return groups


def half() -> Any:
    return halves()[2 * process() // size()]


def keywords(declared: str) -> dict[str, Any]:
    if declared in IN_HALVES:
        return {"process_group": half() if declared == "half" else ProcessMesh(half().ranks, ["own"])}
    world = {"process_group": dist.get_group(0)}
    if declared == "function":
        return {**world, "ownership": lambda parameter: process() == 0}
    return {} if not declared else world if declared == "WORLD" else {**world, "ownership": declared}


def worlds() -> AbstractContextManager[Callable[[int], World]]:
    return worlds_of_any_size(start)


# -- gradients with known values on every layout


def distributed(array: np.ndarray, mesh: ProcessMesh, placements: Sequence[Any]) -> paddle.Tensor:
    """Return an array, which every process has, as a distributed tensor with Paddle's shard sizes."""
    shape = list(array.shape)
    (position,) = np.argwhere(np.array(mesh.process_ids).reshape(mesh.shape) == dist.get_rank())
    for place, size, placement in zip(position.tolist(), mesh.shape, placements, strict=True):
        if placement.is_shard():
            length = array.shape[axis := placement.get_dim()]
            shard_length = -(-length // size)
            array = array.take(range(place * shard_length, min((place + 1) * shard_length, length)), axis)
    local = KIT.from_array(np.ascontiguousarray(array))
    return paddle.Tensor(local, dims=shape, process_mesh=mesh, placements=list(placements))


def parameter_with(gradient: paddle.Tensor) -> Any:
    zeros = paddle.zeros_like(_local_value(gradient))
    if gradient.is_dist():
        zeros = paddle.Tensor(
            zeros, dims=gradient.shape, process_mesh=gradient.process_mesh, placements=gradient.placements
        )
    parameter = paddle.base.framework.EagerParamBase.from_tensor(zeros, trainable=True)
    parameter.grad_ = gradient
    return parameter


def parameters(arrays: Sequence[np.ndarray], layout: str) -> list[Any]:
    """Return parameters with these gradients, in a layout of `support.ranks`. The layout "mixed" has several meshes of
    all processes, and plain tensors."""
    mixed = ["FSDP", "HSDP", "two dimensions", "plain", "copies"]
    kinds = mixed if layout == "mixed" else [layout]
    gradients = [
        Gradient(fitting(array, kinds[number % len(kinds)]), kinds[number % len(kinds)])
        for number, array in enumerate(arrays)
    ]
    return [parameter_with(tensor(gradient.on(process(), size()), gradient)) for gradient in gradients]


def gathered(tensor: paddle.Tensor) -> np.ndarray:
    """Return the unsharded tensor. NumPy joins the shards, because Paddle cannot reshard every layout."""
    if not tensor.is_dist():
        return tensor.numpy().copy()
    local = tensor._local_value().numpy()
    size = dist.get_world_size()
    everywhere: list[Any] = [(local, dist.get_rank())]
    if size > 1:
        everywhere = []
        dist.all_gather_object(everywhere, (local, dist.get_rank()))
    by_rank = {rank: shard for shard, rank in everywhere}
    shards = np.empty(tensor.process_mesh.shape, object)
    for position, rank in zip(np.ndindex(*shards.shape), tensor.process_mesh.process_ids, strict=True):
        shards[position] = by_rank[rank]
    for dimension in reversed(range(shards.ndim)):  # from the last dimension of the mesh to the first
        placement = tensor.placements[dimension]
        joined = np.empty(shards.shape[:-1], object)
        for position in np.ndindex(*joined.shape):
            column = list(shards[position])
            if placement.is_shard():
                joined[position] = np.concatenate(column, axis=placement.get_dim())
            else:
                joined[position] = sum(column[1:], column[0]) if placement.is_partial() else column[0]
        shards = joined
    full: np.ndarray = shards[()]
    return full


# -- models after a backward pass


class Perceptron(paddle.nn.Layer):
    """A model that is tensor-parallel over all processes."""

    def __init__(self) -> None:
        super().__init__()
        paddle.seed(0)
        self.first, self.second = paddle.nn.Linear(5, 8), paddle.nn.Linear(8, 3)
        for layer, axes in ((self.first, (1, 0)), (self.second, (0, None))):
            for name, axis in zip(("weight", "bias"), axes, strict=True):
                placement = Replicate() if axis is None else Shard(axis)
                setattr(layer, name, dist.shard_tensor(getattr(layer, name), mesh_of("row"), [placement]))
        inputs = np.random.default_rng(7).standard_normal((8, 5)).astype("float32")
        self.inputs = dist.shard_tensor(paddle.to_tensor(inputs), mesh_of("row"), [Replicate()])

    def backward(self) -> None:
        (self.second(paddle.tanh(self.first(self.inputs))) * 40).square().sum().backward()


def _local_value(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor._local_value() if tensor.is_dist() else tensor


def step_perceptron(name: str, *thresholds: float) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Return the gradients before and after the optimizer's clip, and the collectives of the clip."""
    model = Perceptron()
    model.backward()
    clip = watch_clip(getattr(uc, name)(*thresholds))
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    optimizer.step()
    return [gathered(gradient) for gradient in clip.before], [gathered(gradient) for gradient in clip.after], clip.calls


def watch_clip(clip: Any) -> Any:
    """Return a clip that records its parameters, its gradients before and after, and its collectives."""
    kind = type(clip)

    class WatchedClip(kind):  # type: ignore[misc, valid-type]
        def __call__(self, pairs: Any) -> Any:
            self.parameters = [parameter for parameter, _ in pairs]
            self.before = [gradient.clone().detach() for _, gradient in pairs]
            with record_collectives() as self.calls:
                clipped = super().__call__(pairs)
            self.after = [gradient for _, gradient in clipped]
            return clipped

    clip.__class__ = WatchedClip
    return clip


# -- errors, and declared ownership


def norm_on_this_rank(layout: str) -> float:
    """Return the norm of one gradient with `process_group=None`, which declares it as complete on this rank."""
    (parameter,) = parameters([np.array([[3.0], [4.0]], np.float32)], layout)
    return float(uc.global_norm([parameter.grad], process_group=None))


def clip_by_value(by_config: bool) -> None:
    """Clip terms of a sum, which cannot be clipped by value."""
    params = parameters([np.ones((4, 2), np.float32)], "terms of a sum")
    if by_config:
        ClipConfig(rule="value", threshold=0.5).clipper().clip_(params)
    else:
        uc.clip_grad_value_(params, 0.5)


def norm_without_gradients(ranks: Sequence[int], arrays: Sequence[np.ndarray], with_plain: bool) -> float:
    params = parameters(arrays, "FSDP")
    if dist.get_rank() in ranks:
        for parameter in params:
            parameter.clear_gradient(False)
    if with_plain:
        params.insert(0, parameter_with(paddle.to_tensor([3.0, 4.0])))
    return float(uc.clip_grad_norm_(params, 1.0))


def norm_beside_unequal_copies(arrays: Sequence[np.ndarray], ownership: Any) -> float:
    params = [*parameters(arrays, "FSDP"), parameter_with(paddle.to_tensor([float(dist.get_rank())]))]
    return float(uc.clip_grad_norm_(params, 1.0, ownership=ownership))


def end_before_the_second_clip(rank: int) -> None:
    params = parameters([np.ones((4, 2), np.float32)], "FSDP")
    uc.clip_grad_norm_(params, 1.0)  # so that both have connected
    if dist.get_rank() == rank:
        os._exit(3)
    uc.clip_grad_norm_(params, 1.0)


def _group_options(group: str, ownership: Any, check_numel: Any) -> dict[str, Any]:
    return {
        "process_group": dist.get_group(0) if group == "all" else group,
        "ownership": ownership,
        "check_numel": check_numel,
    }


def norm_on_halves(arrays: Sequence[np.ndarray], group: str = "auto", ownership: Any = None) -> float:
    """Return the norm of two gradients, one on the mesh of each half of the processes."""
    ranks = np.arange(dist.get_world_size())
    ranks_of_half, number = (
        (ranks[: len(ranks) // 2], 0) if dist.get_rank() < len(ranks) // 2 else (ranks[len(ranks) // 2 :], 1)
    )
    parameter = parameter_with(distributed(arrays[number], ProcessMesh(ranks_of_half, ["dp"]), [Shard(0)]))
    return float(uc.clip_grad_norm_([parameter], 1.0, **_group_options(group, ownership, None)))


def norm_of_plain(
    arrays: Sequence[np.ndarray], group: str, ownership: Any = None, check_numel: Any = None
) -> tuple[float, list[str]]:
    params = [parameter_with(KIT.from_array(array)) for array in arrays]
    with record_collectives() as calls:
        return float(uc.clip_grad_norm_(params, 1.0, **_group_options(group, ownership, check_numel))), calls


def replicas_by_attributes(drifted: int | None) -> float:
    """Clip a copy beside a shard. The attribute `is_distributed` distinguishes them."""
    own = np.array([3.0, 4.0 + (dist.get_rank() == drifted)], np.float32)
    named = [("layer", parameter_with(paddle.to_tensor(own))), ("shard", parameter_with(paddle.zeros([2])))]
    named[1][1].is_distributed = True
    return float(uc.clip_grad_norm_(named, 1.0, check_replicas=True, process_group=dist.get_group(0)))


def norm_of_a_mean() -> float:
    mean = Partial(dist.ReduceType.kRedAvg)
    gradient = paddle.Tensor(paddle.to_tensor([3.0]), dims=[1], process_mesh=mesh_of("row"), placements=[mean])
    return float(uc.get_total_norm([gradient]))


def norm_in_group_of_the_first() -> float:
    group = dist.new_group([0])
    parameter = parameter_with(paddle.to_tensor([3.0]))
    return float(uc.clip_grad_norm_([parameter], 1.0, process_group=group, ownership="distinct"))


def clip_param_grads(arrays: Sequence[np.ndarray]) -> list[list[float] | None]:
    """Clip `param_grads`. One process has no gradient for the first parameter, which is distributed."""
    sharded, plain = parameters(arrays[:1], "FSDP")[0], parameter_with(paddle.to_tensor(arrays[1]))
    gradient = None if dist.get_rank() else sharded.grad
    clipped = uc.GradientClipByGlobalNorm(1.0)([(sharded, gradient), (plain, plain.grad)])
    return [None if gradient is None else _local_value(gradient).numpy().ravel().tolist() for _, gradient in clipped]


def clip_plain_by_own_norm(function: str, attributes: bool) -> None:
    parameter = parameter_with(paddle.to_tensor([3.0]))
    parameter.is_distributed = attributes
    if function == "clip_by_norm":
        uc.clip_by_norm(parameter.grad, 1.0, process_group=dist.get_group(0))
    else:
        uc.GradientClipByNorm(1.0, process_group=dist.get_group(0)).clip_([parameter])


def clip_plain_beside_distributed() -> list[float]:
    params = [*parameters([np.array([[3.0], [4.0]], np.float32)], "FSDP"), parameter_with(paddle.to_tensor([8.0]))]
    uc.GradientClipByNorm(2.0, process_group=dist.get_group(0)).clip_(params)
    kept: list[float] = params[1].grad.tolist()
    return kept


def differentiate_clip(layout: str) -> list[float]:
    arrays = [np.full((8, 4), 2.0, np.float32), np.full((4, 4), 1.0, np.float32)]
    gradients = [parameter.grad for parameter in parameters(arrays, layout)]
    for gradient in gradients:
        gradient.stop_gradient = False
    clipped, _ = uc.clip_by_global_norm(gradients, 1.0)
    sum(gradient.sum() for gradient in clipped).backward()
    return [float(gathered(gradient.grad).sum()) for gradient in gradients]


def clip_data_parallel() -> tuple[list[str], bool]:
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(3, 2))
    (model(paddle.full([2, 3], float(dist.get_rank() + 1))) * 10).sum().backward()
    with record_collectives() as calls:
        norm = uc.clip_grad_norm_(model.parameters(), 1.0)
    return calls, float(norm) > 1.0


# -- groups that do not fit


def norm_over(group: str) -> float:
    """Return a norm over a group that lacks rows, over the other half, or over a mesh without a group."""
    if group == "half":
        (parameter,) = parameters([np.ones((8, 2), np.float32)], "FSDP")
        return float(uc.clip_grad_norm_([parameter], 1.0, process_group=half()))
    plain: Any = {"another half": lambda: halves()[1 - 2 * process() // size()],
                  "no group": lambda: ProcessMesh([process() % 2, process() % 2 + 2], ["x"])}  # fmt: skip
    return float(uc.clip_grad_norm_([parameter_with(paddle.ones([2]))], 1.0, process_group=plain[group]()))
