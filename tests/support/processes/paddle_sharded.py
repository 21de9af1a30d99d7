"""Functions that processes of a `World` run: Paddle's distributed tensors, and models over several processes."""

from __future__ import annotations

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
from support.processes.worlds import record_calls

import unified_clip
import unified_clip.numpy as np_uc
import unified_clip.paddle as uc
from unified_clip import ClipConfig
from unified_clip.recording import runs


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


# -- gradients with known values on every layout

PLACEMENTS: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    "rows": ("row", lambda axes: [Shard(0)]),
    "columns": ("row", lambda axes: [Shard(axes - 1)]),
    "replicated": ("row", lambda axes: [Replicate()]),
    "terms of a sum": ("row", lambda axes: [Partial()]),
    "copies of rows": ("rows", lambda axes: [Replicate(), Shard(0)]),
    "rows with copies": ("rows", lambda axes: [Shard(0), Replicate()]),
    "two dimensions": ("rows", lambda axes: [Shard(0), Shard(axes - 1)] if axes > 1 else [Replicate(), Shard(0)]),
    "sum and rows": ("rows", lambda axes: [Partial(), Shard(0)]),
}
"""Layouts: a mesh, and the placements for a tensor with a number of axes."""


def _tensor(array: np.ndarray) -> paddle.Tensor:
    if array.dtype.name == "bfloat16":  # NumPy arrays of this dtype are not supported by Paddle
        return paddle.to_tensor(array.astype(np.float32)).astype("bfloat16")
    return paddle.to_tensor(array)


def distributed(array: np.ndarray, mesh: ProcessMesh, placements: Sequence[Any]) -> paddle.Tensor:
    """Return an array, which every process has, as a distributed tensor with Paddle's shard sizes.

    Paddle itself fails if a shard is empty. For partial sums, the first process has the whole
    array, and other processes have zeros.
    """
    shape = list(array.shape)
    (position,) = np.argwhere(np.array(mesh.process_ids).reshape(mesh.shape) == dist.get_rank())
    for place, size, placement in zip(position.tolist(), mesh.shape, placements, strict=True):
        if placement.is_partial() and place:
            array = np.zeros_like(array)
        if placement.is_shard():
            length = array.shape[axis := placement.get_dim()]
            shard_length = -(-length // size)
            array = array.take(range(place * shard_length, min((place + 1) * shard_length, length)), axis)
    local = _tensor(np.ascontiguousarray(array))
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
    """Return parameters with these gradients. The layout "mixed" has several meshes of all processes, and plain
    tensors."""
    kinds = ["rows", "copies of rows", "two dimensions", "plain", "replicated"] if layout == "mixed" else [layout]
    params = []
    for number, array in enumerate(arrays):
        kind = kinds[number % len(kinds)]
        gradient = _tensor(array)
        if kind != "plain":
            mesh, placements = PLACEMENTS[kind]
            gradient = distributed(array, mesh_of(mesh), placements(array.ndim))
        params.append(parameter_with(gradient))
    return params


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


def clip_layout(
    arrays: Sequence[np.ndarray], layout: str, p: float, threshold: float, **options: Any
) -> tuple[float, str, list[np.ndarray], list[str]]:
    """Return the norm, its type, the clipped gradients (gathered), and the collectives of the clip."""
    params = parameters(arrays, layout)
    with record_collectives() as calls:
        norm = uc.clip_grad_norm_(params, threshold, p, check_numel=True, **options)
    kind = f"{type(norm).__name__} {norm.dtype} {norm.shape == [] and not norm.is_dist()}"
    return norm.item(), kind, [gathered(parameter.grad) for parameter in params], calls


# -- models after a backward pass


class Perceptron(paddle.nn.Layer):
    """A model that is tensor-parallel over all processes, or over one of two dimensions. The other dimension splits the
    inputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        paddle.seed(0)
        mesh, replicated = mesh_of(kind), [] if kind == "row" else [Replicate()]
        self.first, self.second = paddle.nn.Linear(5, 8), paddle.nn.Linear(8, 3)
        for layer, axes in ((self.first, (1, 0)), (self.second, (0, None))):
            for name, axis in zip(("weight", "bias"), axes, strict=True):
                placement = Replicate() if axis is None else Shard(axis)
                setattr(layer, name, dist.shard_tensor(getattr(layer, name), mesh, [*replicated, placement]))
        inputs = np.random.default_rng(7).standard_normal((8, 5)).astype("float32")
        rows = Replicate() if kind == "row" else Shard(0)
        self.inputs = dist.shard_tensor(paddle.to_tensor(inputs), mesh, [rows, *replicated])

    def backward(self) -> None:
        (self.second(paddle.tanh(self.first(self.inputs))) * 40).square().sum().backward()


def clip_perceptron(kind: str, threshold: float) -> tuple[float, list[np.ndarray], list[np.ndarray], list[str]]:
    """Return the norm, the gradients before and after, and the collectives of the clip.

    kind: "beside" adds a plain tensor. With "rows", gradients are partial sums. Each partial sum is clipped, so their
        sum may differ from the clipped sum in the last bit. That is why this function compares the local values.
    """
    model = Perceptron("rows" if kind == "rows" else "row")
    model.backward()
    params = model.parameters()
    if kind == "beside":
        params.append(parameter_with(paddle.to_tensor([3.0, 4.0])))
    before = [gathered(parameter.grad) for parameter in params]
    local_gradients = [_local_value(parameter.grad).numpy().copy() for parameter in params]
    with record_collectives() as calls:
        norm = uc.clip_grad_norm_(params, threshold, check_numel=True)
    np_uc.clip_grads_with_norm_(local_gradients, threshold, norm.item())
    for parameter, expected in zip(params, local_gradients, strict=True):
        np.testing.assert_array_equal(_local_value(parameter.grad).numpy(), expected)
    return norm.item(), before, [] if kind == "rows" else [gathered(parameter.grad) for parameter in params], calls


def _local_value(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor._local_value() if tensor.is_dist() else tensor


def step_perceptron(name: str, *thresholds: float) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Return the gradients before and after the optimizer's clip, and the collectives of the clip."""
    model = Perceptron("row")
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


def call_functional(function: str, arrays: Sequence[np.ndarray], layout: str, *args: Any, **kwargs: Any) -> Any:
    gradients = [parameter.grad for parameter in parameters(arrays, layout)]
    argument = gradients[0] if function in ("clip_by_norm", "clip_by_value") else gradients
    return _describe(getattr(uc, function)(argument, *args, **kwargs))


def _describe(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return [_describe(item) for item in result]
    return f"{gathered(result).tolist()} {result.placements if result.is_dist() else None}"


def clip_in_place(function: str, arrays: Sequence[np.ndarray], layout: str, *args: Any) -> list[np.ndarray]:
    params = parameters(arrays, layout)
    getattr(uc, function)(params, *args)
    return [gathered(parameter.grad) for parameter in params]


def norm_on_this_rank(layout: str) -> float:
    """Return the norm of one gradient with `process_group=None`, which declares it as complete on this rank."""
    (parameter,) = parameters([np.array([[3.0], [4.0]], np.float32)], layout)
    return float(uc.global_norm([parameter.grad], process_group=None))


def clip_by_value_config(arrays: Sequence[np.ndarray], layout: str) -> list[np.ndarray]:
    params = parameters(arrays, layout)
    ClipConfig(rule="value", threshold=0.5).clipper().clip_(params)
    return [gathered(parameter.grad) for parameter in params]


def norm_without_gradients(ranks: Sequence[int], arrays: Sequence[np.ndarray], with_plain: bool) -> float:
    params = parameters(arrays, "rows")
    if dist.get_rank() in ranks:
        for parameter in params:
            parameter.clear_gradient(False)
    if with_plain:
        params.insert(0, parameter_with(paddle.to_tensor([3.0, 4.0])))
    return float(uc.clip_grad_norm_(params, 1.0))


def clip_with_value_on_rank(
    rank: int, value: float, arrays: Sequence[np.ndarray], p: float, raises: bool
) -> tuple[float, bool]:
    """Return the norm if one process has a value in its shard, and whether the first gradient became NaN.

    If the clip raises, check that the shard is unchanged.
    """
    params = parameters(arrays, "rows")
    local = params[-1].grad._local_value()
    if dist.get_rank() == rank:
        local[0] = value
    before = local.numpy().copy()
    try:
        norm = uc.clip_grad_norm_(params, 1.0, p, error_if_nonfinite=raises)
    except RuntimeError:
        np.testing.assert_array_equal(params[-1].grad._local_value().numpy(), before)
        raise
    return norm.item(), bool(np.isnan(params[0].grad._local_value().numpy()).all())


def norm_beside_unequal_copies(arrays: Sequence[np.ndarray], ownership: Any) -> float:
    params = [*parameters(arrays, "rows"), parameter_with(paddle.to_tensor([float(dist.get_rank())]))]
    return float(uc.clip_grad_norm_(params, 1.0, ownership=ownership))


def norm_where_one_rejects(arrays: Sequence[np.ndarray], p: float) -> tuple[str, float]:
    (sharded,) = parameters(arrays, "rows")
    own = paddle.ones([2], "int32" if dist.get_rank() == 1 else "float32")
    try:
        uc.get_total_norm([sharded.grad, own], p)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", float(uc.get_total_norm([sharded.grad]))
    raise AssertionError("integers are no gradients")


def clip_in_another_order(arrays: Sequence[np.ndarray]) -> None:
    uc.clip_grad_norm_(parameters(arrays, "rows")[:: -1 if dist.get_rank() == 1 else 1], 1.0)


def clip_by_threshold_of_rank(thresholds: Sequence[float], arrays: Sequence[np.ndarray]) -> None:
    uc.clip_grad_norm_(parameters(arrays, "rows"), thresholds[dist.get_rank()])


def clip_fewer_on_rank(rank: int, arrays: Sequence[np.ndarray]) -> None:
    params = parameters(arrays, "rows")
    uc.clip_grad_norm_(params[1:] if dist.get_rank() == rank else params, 1.0)


def end_before_the_clip(rank: int, arrays: Sequence[np.ndarray]) -> None:
    params = parameters(arrays, "rows")
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


def clip_on_halves(arrays: Sequence[np.ndarray], threshold: float, by_one_norm: bool) -> list[np.ndarray | None]:
    """Clip two gradients, each on a mesh of two of four processes, by the total norm or by their own norms.

    All processes list both gradients, as in a pipeline. Return the local values, or None for the other half.
    """
    param_grads, halves = [], ([0, 1], [2, 3])
    for ranks in () if by_one_norm else halves:
        dist.new_group(ranks)
        dist.barrier()  # two groups that are created at the same time do not always connect
    for array, ranks in zip(arrays, halves, strict=True):
        gradient = dist.shard_tensor(_tensor(array), ProcessMesh(ranks, ["dp"]), [Shard(0)])
        param_grads.append((paddle.base.framework.EagerParamBase.from_tensor(gradient), gradient))
    if by_one_norm:
        options = _group_options("all", "distinct", sum(array.size for array in arrays))
        clipped, _ = uc.clip_by_global_norm([gradient for _, gradient in param_grads], threshold, **options)
    else:
        clipped = [gradient for _, gradient in uc.GradientClipByNorm(threshold)(param_grads)]
    assert [gradient.shape for gradient in clipped] == [list(array.shape) for array in arrays]
    return [
        _local_value(gradient).numpy() if dist.get_rank() in gradient.process_mesh.process_ids else None
        for gradient in clipped
    ]


def norm_of_plain(
    arrays: Sequence[np.ndarray], group: str, ownership: Any = None, check_numel: Any = None
) -> tuple[float, list[str]]:
    params = [parameter_with(paddle.to_tensor(array)) for array in arrays]
    with record_collectives() as calls:
        return float(uc.clip_grad_norm_(params, 1.0, **_group_options(group, ownership, check_numel))), calls


def replicas(kind: str, drifted: int | None) -> float:
    """Clip two parameters with `check_replicas`. The second one differs in the last bit on rank `drifted`."""
    named_params = []
    for number in range(2):
        own = np.full((2, 2), 1.0 + number, np.float32)
        if number and dist.get_rank() == drifted:
            own[1, 1] = np.nextafter(own[1, 1], np.float32(9))
        gradient = paddle.to_tensor(own)
        if kind != "plain" and kind != "attributes":
            placements = [Replicate()] if kind == "copies" else [Shard(0)]
            gradient = paddle.Tensor(
                gradient, dims=[2 if kind == "copies" else 4, 2], process_mesh=mesh_of("row"), placements=placements
            )
        named_params.append((f"layer{number}", parameter_with(gradient)))
    options: dict[str, Any] = {}
    if kind in ("plain", "attributes"):
        options = {"process_group": dist.get_group(0), "ownership": "replicated" if kind == "plain" else None}
    if kind == "attributes":
        shard = parameter_with(paddle.ones([2]))
        shard.is_distributed = True
        named_params.append(("shard", shard))
    return float(uc.clip_grad_norm_(named_params, 1.0, check_replicas=True, **options))


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
    sharded, plain = parameters(arrays[:1], "rows")[0], parameter_with(paddle.to_tensor(arrays[1]))
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


def norm_by_attributes(check_numel: bool | None) -> float:
    """Return the norm of a shard and a copy. The attribute `is_distributed` distinguishes them."""
    shard, copy = parameter_with(paddle.to_tensor([3.0 + dist.get_rank()])), parameter_with(paddle.to_tensor([12.0]))
    shard.is_distributed = True
    return float(uc.clip_grad_norm_([shard, copy], 1.0, process_group=dist.get_group(0), check_numel=check_numel))


def record_plain(directory: str, ownership: str) -> list[Any]:
    parameter = parameter_with(paddle.to_tensor([3.0 + dist.get_rank() * (ownership == "distinct")]))
    path = Path(directory) / f"{dist.get_rank()}.jsonl"
    with unified_clip.record(path, norms=True):
        uc.clip_grad_norm_([parameter], 1.0, process_group=dist.get_group(0), ownership=ownership)
    (line,) = runs.read(path).lines
    return [line.norm, [line_parameter.norm for line_parameter in line.parameters.values()], line.layout]


def clip_plain_beside_distributed() -> list[float]:
    params = [*parameters([np.array([[3.0], [4.0]], np.float32)], "rows"), parameter_with(paddle.to_tensor([8.0]))]
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
