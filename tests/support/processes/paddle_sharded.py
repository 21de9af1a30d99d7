"""What processes of a `World` run: Paddle's distributed tensors, and models over several processes."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import Partial, ProcessMesh, Replicate, Shard, fleet
from support.processes.worlds import calls_of

import unified_clip
import unified_clip.numpy as np_uc
import unified_clip.paddle as uc
from unified_clip import ClipConfig
from unified_clip.recording import runs

PARTS = ("mp_degree", "pp_degree", "sharding_degree", "dp_degree")


def start(rank: int, size: int, meeting: str) -> None:
    warnings.simplefilter("error")
    if size > 1:
        _environment(rank, size, meeting)
        dist.init_parallel_env()


def start_fleet(rank: int, size: int, meeting: str, **degrees: int) -> None:
    """With `fleet`; the degrees that are not given are 1."""
    _environment(rank, size, meeting)
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {name: degrees.get(name, 1) for name in PARTS}
    new_group = dist.new_group
    with warnings.catch_warnings(), mock.patch.object(dist, "new_group", lambda *a, **k: _alone(new_group(*a, **k))):
        warnings.simplefilter("ignore")  # of groups that this process is not in
        fleet.init(is_collective=True, strategy=strategy)
    _complete_gloo()
    warnings.simplefilter("error")


def _alone(group: Any) -> Any:
    """Wait until all processes have made a group. Two that are made at the same time do not always connect."""
    dist.barrier()
    return group


def _environment(rank: int, size: int, meeting: str) -> None:
    """What Paddle's launcher sets. The first process finds a port."""
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
    ends = [f"127.0.0.1:{port + each}" for each in range(size)]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(size),
        PADDLE_TRAINER_ENDPOINTS=",".join(ends),
        PADDLE_CURRENT_ENDPOINT=ends[rank],
        PADDLE_MASTER=ends[0],
        PADDLE_DISTRI_BACKEND="gloo",
    )


def _complete_gloo() -> None:
    """What `fleet`'s layers call and Paddle has on GPUs only, by what it has on the CPU."""
    group = paddle.base.core.ProcessGroup
    group.all_reduce_on_calc_stream = lambda self, tensor, how: self.all_reduce(tensor, how, True).wait()
    paddle._C_ops.c_identity = lambda tensor, *_: tensor.clone()


def counted() -> AbstractContextManager[list[str]]:
    """The collectives that are called meanwhile."""
    return calls_of(dist, ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reshard"))


def mesh_of(kind: str) -> ProcessMesh:
    """All processes in a row, or in two rows."""
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
    "two dimensions": ("rows", lambda axes: [Shard(0), Shard(axes - 1)] if axes > 1 else [Replicate(), Shard(0)]),
    "sum and rows": ("rows", lambda axes: [Partial(), Shard(0)]),
}
"""Kinds of layouts: a mesh, and placements for a tensor with so many axes."""


def _tensor(array: np.ndarray) -> paddle.Tensor:
    if array.dtype.name == "bfloat16":  # which Paddle takes no arrays of
        return paddle.to_tensor(array.astype(np.float32)).astype("bfloat16")
    return paddle.to_tensor(array)


def distributed(array: np.ndarray, mesh: ProcessMesh, placements: Sequence[Any]) -> paddle.Tensor:
    """An array that every process has, as a distributed tensor, cut as Paddle cuts: which it cannot do where a process
    is left with nothing. Of a sum the first process holds everything."""
    shape = list(array.shape)
    (at,) = np.argwhere(np.array(mesh.process_ids).reshape(mesh.shape) == dist.get_rank())
    for here, size, placement in zip(at.tolist(), mesh.shape, placements, strict=True):
        if placement.is_partial() and here:
            array = np.zeros_like(array)
        if placement.is_shard():
            length = array.shape[axis := placement.get_dim()]
            part = -(-length // size)
            array = array.take(range(here * part, min((here + 1) * part, length)), axis)
    local = _tensor(np.ascontiguousarray(array))
    return paddle.Tensor(local, dims=shape, process_mesh=mesh, placements=list(placements))


def parameter_with(gradient: paddle.Tensor) -> Any:
    """A parameter on which this is the gradient, on the same processes."""
    zeros = paddle.zeros_like(_held(gradient))
    if gradient.is_dist():
        zeros = paddle.Tensor(
            zeros, dims=gradient.shape, process_mesh=gradient.process_mesh, placements=gradient.placements
        )
    found = paddle.base.framework.EagerParamBase.from_tensor(zeros, trainable=True)
    found.grad_ = gradient
    return found


def parameters(arrays: Sequence[np.ndarray], layout: str) -> list[Any]:
    """Parameters with these gradients. "mixed": on several meshes of all processes, and plain."""
    kinds = ["rows", "copies of rows", "two dimensions", "plain", "replicated"] if layout == "mixed" else [layout]
    found = []
    for number, array in enumerate(arrays):
        kind = kinds[number % len(kinds)]
        gradient = _tensor(array)
        if kind != "plain":
            mesh, placements = PLACEMENTS[kind]
            gradient = distributed(array, mesh_of(mesh), placements(array.ndim))
        found.append(parameter_with(gradient))
    return found


def gathered(tensor: paddle.Tensor) -> np.ndarray:
    """The whole of what processes hold, by NumPy: Paddle cannot reshard all of it."""
    if not tensor.is_dist():
        return tensor.numpy().copy()
    local = tensor._local_value().numpy()
    size = dist.get_world_size()
    everywhere: list[Any] = [(local, dist.get_rank())]
    if size > 1:
        everywhere = []
        dist.all_gather_object(everywhere, (local, dist.get_rank()))
    by_rank = {rank: part for part, rank in everywhere}
    parts = np.empty(tensor.process_mesh.shape, object)
    for at, rank in zip(np.ndindex(*parts.shape), tensor.process_mesh.process_ids, strict=True):
        parts[at] = by_rank[rank]
    for dimension in reversed(range(parts.ndim)):  # from the last dimension of the mesh to the first
        placement = tensor.placements[dimension]
        joined = np.empty(parts.shape[:-1], object)
        for at in np.ndindex(*joined.shape):
            column = list(parts[at])
            if placement.is_shard():
                joined[at] = np.concatenate(column, axis=placement.get_dim())
            else:
                joined[at] = sum(column[1:], column[0]) if placement.is_partial() else column[0]
        parts = joined
    whole: np.ndarray = parts[()]
    return whole


def clipped(
    arrays: Sequence[np.ndarray], layout: str, p: float, limit: float, **stated: Any
) -> tuple[float, str, list[np.ndarray], list[str]]:
    """The norm and its type, the gradients afterwards, gathered, and which collectives our call made."""
    given = parameters(arrays, layout)
    with counted() as calls:
        norm = uc.clip_grad_norm_(given, limit, p, check_numel=True, **stated)
    kind = f"{type(norm).__name__} {norm.dtype} {norm.shape == [] and not norm.is_dist()}"
    return norm.item(), kind, [gathered(each.grad) for each in given], calls


# -- models after a backward pass


class Perceptron(paddle.nn.Layer):
    """Tensor-parallel over a mesh of all processes, or of one dimension of two, of which the other has other inputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        paddle.seed(0)
        mesh, also = mesh_of(kind), [] if kind == "row" else [Replicate()]
        self.first, self.second = paddle.nn.Linear(5, 8), paddle.nn.Linear(8, 3)
        for layer, axes in ((self.first, (1, 0)), (self.second, (0, None))):
            for name, axis in zip(("weight", "bias"), axes, strict=True):
                cut = Replicate() if axis is None else Shard(axis)
                setattr(layer, name, dist.shard_tensor(getattr(layer, name), mesh, [*also, cut]))
        inputs = np.random.default_rng(7).standard_normal((8, 5)).astype("float32")
        rows = Replicate() if kind == "row" else Shard(0)
        self.inputs = dist.shard_tensor(paddle.to_tensor(inputs), mesh, [rows, *also])

    def backward(self) -> None:
        (self.second(paddle.tanh(self.first(self.inputs))) * 40).square().sum().backward()


def perceptron_clipped(kind: str, limit: float) -> tuple[float, list[np.ndarray], list[np.ndarray], list[str]]:
    """The norm, the gradients before and after, and our collectives; "beside": a plain tensor in the list too.

    Of terms of a sum each is clipped, which need not be the clipped sum to the last bit: these are those held here.
    """
    model = Perceptron("rows" if kind == "rows" else "row")
    model.backward()
    given = model.parameters()
    if kind == "beside":
        given.append(parameter_with(paddle.to_tensor([3.0, 4.0])))
    before = [gathered(each.grad) for each in given]
    held = [_held(each.grad).numpy().copy() for each in given]
    with counted() as calls:
        norm = uc.clip_grad_norm_(given, limit, check_numel=True)
    np_uc.clip_grads_with_norm_(held, limit, norm.item())
    for each, wanted in zip(given, held, strict=True):
        np.testing.assert_array_equal(_held(each.grad).numpy(), wanted)
    return norm.item(), before, [] if kind == "rows" else [gathered(each.grad) for each in given], calls


def _held(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor._local_value() if tensor.is_dist() else tensor


def perceptron_stepped(name: str, *limits: float) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Gradients as the optimizer has them, and what is left of them; and our collectives."""
    model = Perceptron("row")
    model.backward()
    clip = watched(getattr(uc, name)(*limits))
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    optimizer.step()
    return [gathered(each) for each in clip.before], [gathered(each) for each in clip.after], clip.calls


def watched(clip: Any) -> Any:
    """A clip that keeps what an optimizer gives to it, and gets back."""
    kind = type(clip)

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __call__(self, pairs: Any) -> Any:
            self.parameters = [parameter for parameter, _ in pairs]
            self.before = [gradient.clone().detach() for _, gradient in pairs]
            with counted() as self.calls:
                found = super().__call__(pairs)
            self.after = [gradient for _, gradient in found]
            return found

    clip.__class__ = Watched
    return clip


# -- faults and statements


def asked(function: str, arrays: Sequence[np.ndarray], layout: str, *args: Any, **kwargs: Any) -> Any:
    """What a functional name returns for distributed gradients: arrays, and numbers."""
    gradients = [parameter.grad for parameter in parameters(arrays, layout)]
    given = gradients[0] if function in ("clip_by_norm", "clip_by_value") else gradients
    return _plain(getattr(uc, function)(given, *args, **kwargs))


def _plain(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return [_plain(each) for each in found]
    return f"{gathered(found).tolist()} {found.placements if found.is_dist() else None}"


def in_place(function: str, arrays: Sequence[np.ndarray], layout: str, *args: Any) -> list[np.ndarray]:
    given = parameters(arrays, layout)
    getattr(uc, function)(given, *args)
    return [gathered(each.grad) for each in given]


def configured_by_value(arrays: Sequence[np.ndarray], layout: str) -> list[np.ndarray]:
    given = parameters(arrays, layout)
    ClipConfig(rule="value", threshold=0.5).clipper().clip_(given)
    return [gathered(each.grad) for each in given]


def without_gradients(ranks: Sequence[int], arrays: Sequence[np.ndarray], beside: bool) -> float:
    """The norm where some processes have parameters and no gradients; a plain one with a gradient beside them."""
    given = parameters(arrays, "rows")
    if dist.get_rank() in ranks:
        for each in given:
            each.clear_gradient(False)
    if beside:
        given.insert(0, parameter_with(paddle.to_tensor([3.0, 4.0])))
    return float(uc.clip_grad_norm_(given, 1.0))


def spoiled(rank: int, value: float, arrays: Sequence[np.ndarray], p: float, raises: bool) -> tuple[float, bool]:
    """The norm where one process has a value in its part; and whether that part was written, which it must not be."""
    given = parameters(arrays, "rows")
    local = given[-1].grad._local_value()
    if dist.get_rank() == rank:
        local[0] = value
    before = local.numpy().copy()
    try:
        norm = uc.clip_grad_norm_(given, 1.0, p, error_if_nonfinite=raises)
    except RuntimeError:
        np.testing.assert_array_equal(given[-1].grad._local_value().numpy(), before)
        raise
    return norm.item(), bool(np.isnan(given[0].grad._local_value().numpy()).all())


def beside_unequal(arrays: Sequence[np.ndarray], ownership: Any) -> float:
    """The norm, with a plain gradient that each process has with another number."""
    given = [*parameters(arrays, "rows"), parameter_with(paddle.to_tensor([float(dist.get_rank())]))]
    return float(uc.clip_grad_norm_(given, 1.0, ownership=ownership))


def rejecting(arrays: Sequence[np.ndarray], p: float) -> tuple[str, float]:
    """What is raised where one process has a tensor of integers, and the norm of the next call."""
    (cut,) = parameters(arrays, "rows")
    own = paddle.ones([2], "int32" if dist.get_rank() == 1 else "float32")
    try:
        uc.get_total_norm([cut.grad, own], p)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", float(uc.get_total_norm([cut.grad]))
    raise AssertionError("integers are no gradients")


def in_another_order(arrays: Sequence[np.ndarray]) -> None:
    uc.clip_grad_norm_(parameters(arrays, "rows")[:: -1 if dist.get_rank() == 1 else 1], 1.0)


def limited_by_rank(limits: Sequence[float], arrays: Sequence[np.ndarray]) -> None:
    uc.clip_grad_norm_(parameters(arrays, "rows"), limits[dist.get_rank()])


def of_fewer(rank: int, arrays: Sequence[np.ndarray]) -> None:
    given = parameters(arrays, "rows")
    uc.clip_grad_norm_(given[1:] if dist.get_rank() == rank else given, 1.0)


def ended(rank: int, arrays: Sequence[np.ndarray]) -> None:
    """One process ends before it clips."""
    given = parameters(arrays, "rows")
    if dist.get_rank() == rank:
        os._exit(3)
    uc.clip_grad_norm_(given, 1.0)


def _stated(group: str, ownership: Any, check_numel: Any) -> dict[str, Any]:
    return {
        "process_group": dist.get_group(0) if group == "all" else group,
        "ownership": ownership,
        "check_numel": check_numel,
    }


def on_first_half(arrays: Sequence[np.ndarray], group: str = "auto", ownership: Any = None) -> float:
    """The norm of gradients on a mesh of the first half of the processes, and of another on that of the others."""
    ranks = np.arange(dist.get_world_size())
    here, number = (ranks[: len(ranks) // 2], 0) if dist.get_rank() < len(ranks) // 2 else (ranks[len(ranks) // 2 :], 1)
    given = parameter_with(distributed(arrays[number], ProcessMesh(here, ["dp"]), [Shard(0)]))
    return float(uc.clip_grad_norm_([given], 1.0, **_stated(group, ownership, None)))


def clipped_on_halves(arrays: Sequence[np.ndarray], limit: float, together: bool) -> list[np.ndarray | None]:
    """Clipped by one norm, or each by its own, on a mesh of two of four processes; all know of both, as those of a
    pipeline do. What is here of them afterwards."""
    given, halves = [], ([0, 1], [2, 3])
    for ranks in () if together else halves:
        dist.new_group(ranks)
        dist.barrier()  # two groups that are made at the same time do not always connect
    for array, ranks in zip(arrays, halves, strict=True):
        gradient = dist.shard_tensor(_tensor(array), ProcessMesh(ranks, ["dp"]), [Shard(0)])
        given.append((paddle.base.framework.EagerParamBase.from_tensor(gradient), gradient))
    if together:
        stated = _stated("all", "distinct", sum(array.size for array in arrays))
        found, _ = uc.clip_by_global_norm([gradient for _, gradient in given], limit, **stated)
    else:
        found = [new for _, new in uc.GradientClipByNorm(limit)(given)]
    assert [new.shape for new in found] == [list(array.shape) for array in arrays]
    return [_held(new).numpy() if dist.get_rank() in new.process_mesh.process_ids else None for new in found]


def plain_stated(
    arrays: Sequence[np.ndarray], group: str, ownership: Any = None, check_numel: Any = None
) -> tuple[float, list[str]]:
    given = [parameter_with(paddle.to_tensor(array)) for array in arrays]
    with counted() as calls:
        return float(uc.clip_grad_norm_(given, 1.0, **_stated(group, ownership, check_numel))), calls


def replicas(kind: str, drifted: int | None) -> float:
    """A clip of two parameters that compares copies. A process' copy of the second one differs in the last bit."""
    given = []
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
        given.append((f"layer{number}", parameter_with(gradient)))
    stated: dict[str, Any] = {}
    if kind in ("plain", "attributes"):
        stated = {"process_group": dist.get_group(0), "ownership": "replicated" if kind == "plain" else None}
    if kind == "attributes":
        shard = parameter_with(paddle.ones([2]))
        shard.is_distributed = True
        given.append(("shard", shard))
    return float(uc.clip_grad_norm_(given, 1.0, check_replicas=True, **stated))


def of_a_mean() -> float:
    """The norm of terms of a mean."""
    mean = Partial(dist.ReduceType.kRedAvg)
    gradient = paddle.Tensor(paddle.to_tensor([3.0]), dims=[1], process_mesh=mesh_of("row"), placements=[mean])
    return float(uc.get_total_norm([gradient]))


def in_group_of_the_first() -> float:
    group = dist.new_group([0])
    given = parameter_with(paddle.to_tensor([3.0]))
    return float(uc.clip_grad_norm_([given], 1.0, process_group=group, ownership="distinct"))


def in_pairs(arrays: Sequence[np.ndarray]) -> list[list[float] | None]:
    """What a clip leaves of pairs, where one process has no gradient for the first parameter, which is distributed."""
    cut, plain = parameters(arrays[:1], "rows")[0], parameter_with(paddle.to_tensor(arrays[1]))
    gradient = None if dist.get_rank() else cut.grad
    found = uc.GradientClipByGlobalNorm(1.0)([(cut, gradient), (plain, plain.grad)])
    return [None if new is None else _held(new).numpy().ravel().tolist() for _, new in found]


def each_stated(function: str, attributes: bool) -> None:
    """Plain tensors, each by its own norm, and who holds their parts is not told."""
    given = parameter_with(paddle.to_tensor([3.0]))
    given.is_distributed = attributes
    if function == "clip_by_norm":
        uc.clip_by_norm(given.grad, 1.0, process_group=dist.get_group(0))
    else:
        uc.GradientClipByNorm(1.0, process_group=dist.get_group(0)).clip_([given])


def marked(check_numel: bool | None) -> float:
    """The norm of a part of a parameter, and of a copy, which their attributes tell."""
    part, copy = parameter_with(paddle.to_tensor([3.0 + dist.get_rank()])), parameter_with(paddle.to_tensor([12.0]))
    part.is_distributed = True
    return float(uc.clip_grad_norm_([part, copy], 1.0, process_group=dist.get_group(0), check_numel=check_numel))


def recorded_flat(directory: str, ownership: str) -> list[Any]:
    """What is recorded of a plain gradient: of parts, which do not tell each other's norms, or of copies."""
    given = parameter_with(paddle.to_tensor([3.0 + dist.get_rank() * (ownership == "distinct")]))
    path = Path(directory) / f"{dist.get_rank()}.jsonl"
    with unified_clip.record(path, norms=True):
        uc.clip_grad_norm_([given], 1.0, process_group=dist.get_group(0), ownership=ownership)
    (line,) = runs.read(path).lines
    return [line.norm, [each.norm for each in line.parameters.values()], line.layout]


def each_beside() -> list[float]:
    """What is left of a plain gradient beside a distributed one, each clipped by its own norm, in a stated group."""
    given = [*parameters([np.array([[3.0], [4.0]], np.float32)], "rows"), parameter_with(paddle.to_tensor([8.0]))]
    uc.GradientClipByNorm(2.0, process_group=dist.get_group(0)).clip_(given)
    kept: list[float] = given[1].grad.tolist()
    return kept


def with_derivative(layout: str) -> list[float]:
    arrays = [np.full((8, 4), 2.0, np.float32), np.full((4, 4), 1.0, np.float32)]
    given = [parameter.grad for parameter in parameters(arrays, layout)]
    for each in given:
        each.stop_gradient = False
    clipped, _ = uc.clip_by_global_norm(given, 1.0)
    sum(each.sum() for each in clipped).backward()
    return [float(gathered(each.grad).sum()) for each in given]


def data_parallel() -> tuple[list[str], bool]:
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(3, 2))
    (model(paddle.full([2, 3], float(dist.get_rank() + 1))) * 10).sum().backward()
    with counted() as calls:
        norm = uc.clip_grad_norm_(model.parameters(), 1.0)
    return calls, float(norm) > 1.0


# -- fleet


class Parallel(paddle.nn.Layer):
    """With fleet's layers; of the same weights as one process would have, of which each takes its part."""

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
        for each in self.parameters():
            shape = list(each.shape)
            if each.is_distributed:
                shape[each.split_axis] *= hcg.get_model_parallel_world_size()
            array = random.standard_normal(shape).astype(dtype)
            if each.is_distributed:
                parts = np.split(array, hcg.get_model_parallel_world_size(), each.split_axis)
                array = parts[hcg.get_model_parallel_rank()]
            each.set_value(paddle.to_tensor(array))

    def backward(self) -> None:
        words = paddle.to_tensor(np.arange(12).reshape(3, 4))
        hidden = self.narrow(paddle.tanh(self.wide(self.words(words))))
        (self.last(self.norm(hidden)) * 3).square().sum().backward()


Held = list[tuple[np.ndarray, int | None]]
"""Gradients, and along which axis tensor-parallel processes cut each."""


def fleet_stepped(name: str, limit: float, dtype: str = "float32") -> tuple[Held, list[np.ndarray], list[str]]:
    """What fleet's optimizer gives to a clip and gets back, and our collectives."""
    model = Parallel(dtype)
    model.backward()
    clip = watched(getattr(uc, name)(limit))
    inner = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what only GPUs have
        optimizer = fleet.distributed_optimizer(inner)
    optimizer.step()
    axes = [each.split_axis if each.is_distributed else None for each in clip.parameters]
    before = [(gradient.numpy(), axis) for gradient, axis in zip(clip.before, axes, strict=True)]
    return before, [gradient.numpy() for gradient in clip.after], clip.calls


def fleet_clipped(group: str, limit: float, check: bool | None) -> tuple[float, Held, list[np.ndarray], list[str]]:
    model = Parallel()
    model.backward()
    given = model.parameters()
    before = [(each.grad.numpy().copy(), each.split_axis if each.is_distributed else None) for each in given]
    hcg = fleet.get_hybrid_communicate_group()
    groups = {"model": hcg.get_model_parallel_group(), "data": hcg.get_data_parallel_group()}
    with counted() as calls:
        norm = uc.clip_grad_norm_(given, limit, process_group=groups.get(group, group), check_numel=check)
    return float(norm), before, [each.grad.numpy() for each in given], calls


def fleet_functional(name: str, group: str | None) -> tuple[float, list[np.ndarray]]:
    """The norm by a functional name, and the gradients."""
    model = Parallel()
    model.backward()
    gradients = [each.grad for each in model.parameters()]
    args = (gradients, 1.0) if name == "clip_by_global_norm" else (gradients,)
    found = getattr(uc, name)(*args, process_group=group)
    return float(found[1] if isinstance(found, tuple) else found), [gradient.numpy() for gradient in gradients]


def fleet_in_place(name: str) -> None:
    """Each gradient, or each element, by itself."""
    model = Parallel()
    model.backward()
    if name == "clip_grad_value_":
        uc.clip_grad_value_(model.parameters(), 0.5)
    else:
        uc.GradientClipByNorm(0.5).clip_(model.parameters())


def fleet_recorded(directory: str) -> tuple[Held, float, dict[str, float]]:
    """Gradients, and the norms that are recorded of a clip."""
    model = Parallel()
    model.backward()
    path = Path(directory) / f"{dist.get_rank()}.jsonl"
    before = [
        (each.grad.numpy().copy(), each.split_axis if each.is_distributed else None) for each in model.parameters()
    ]
    with unified_clip.record(path, norms=True, names=model):
        uc.clip_grad_norm_(model.parameters(), 1.0)
    (line,) = runs.read(path).lines
    return before, line.norm, {name: each.norm for name, each in line.parameters.items()}


def fleet_by_paddle(limit: float, dtype: str) -> list[float]:
    """What is left of one of each gradient's elements, by Paddle's clip."""
    model = Parallel(dtype)
    model.backward()
    before = [each.grad.numpy().copy() for each in model.parameters()]
    inner = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(limit))
    fleet.distributed_optimizer(inner).step()
    return [float((each.grad.numpy() / old).ravel()[0]) for each, old in zip(model.parameters(), before, strict=True)]


def fleet_by_config(limit: float) -> tuple[float, float]:
    """The norm that a configuration's clip has found, and that of a function."""
    model = Parallel()
    model.backward()
    norm = float(uc.clip_grad_norm_(model.parameters(), float("inf")))
    clip = ClipConfig(rule="global_norm", threshold=limit).as_paddle(names=model)
    inner = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    fleet.distributed_optimizer(inner).step()
    return clip.last.norm, norm


def stages(frozen: bool) -> tuple[list[np.ndarray], list[str]]:
    """What a clip leaves of a parameter of each stage of a pipeline, and of an embedding that both have. `frozen`: the
    first has no gradients, so that its optimizer has none to clip."""
    stage = fleet.get_hybrid_communicate_group().get_stage_id()
    own, tied = (parameter_with(paddle.full([4], value)) for value in (3.0 + stage, 7.0))
    tied.is_firstly_shared = stage == 0
    clip = uc.GradientClipByGlobalNorm(1.0)
    with counted() as calls:
        found = clip([] if frozen and stage == 0 else [(each, each.grad) for each in (own, tied)])
    return [gradient.numpy() for _, gradient in found], calls
