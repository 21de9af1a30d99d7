"""Functions that processes of a `World` run: norms over some of Paddle's processes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import ProcessMesh, Replicate, Shard
from support.processes import paddle_sharded
from support.processes.paddle_sharded import distributed, mesh_of, parameter_with
from support.processes.worlds import error_message

import unified_clip.paddle as uc

HALVES = [0, 1], [2, 3]


class Clip(NamedTuple):
    norm: float
    after: list[np.ndarray]
    ranks: list[list[int]]


def start(rank: int, size: int, meeting: str) -> None:
    paddle_sharded.start(rank, size, meeting)
    groups()


@functools.cache
def groups() -> list[Any]:
    """Return the process groups of the halves. Groups that are created at the same time do not always connect."""
    halves = []
    for ranks in HALVES:
        halves.append(dist.new_group(ranks))
        dist.barrier()
    return halves


def half() -> int:
    return dist.get_rank() // 2


GROUPS: dict[str, Any] = {
    "a group": lambda: groups()[half()],
    "a mesh": lambda: ProcessMesh(HALVES[half()], ["x"]),
}


def model(name: str, rank: int) -> list[np.ndarray]:
    """Return the gradients of one model on all processes ("all"), or of the model on this half of the processes."""
    random = np.random.default_rng(0 if name == "all" else rank // 2)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (4, 6), (2, 2))]
    return [*arrays, np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)]


def parameters(model_name: str) -> list[Any]:
    """Return parameters that are sharded over half of the processes. The other half has copies, or another model."""
    row, rows = ProcessMesh(HALVES[half()], ["x"]), mesh_of("rows")
    params = []
    for number, array in enumerate(model(model_name, dist.get_rank())):
        placement = Replicate() if number == 2 else Shard(0)
        placed = (rows, [Replicate(), placement]) if model_name == "all" else (row, [placement])
        params.append(parameter_with(distributed(array, *placed)))
    return params


def clip_model(model_name: str, group: str, p: float, by_own_norms: bool) -> Clip:
    params, reduced_ranks, own = parameters(model_name), [], dist.all_reduce

    def all_reduce(tensor: Any, op: Any, group: Any) -> Any:
        reduced_ranks.append(group.ranks)
        return own(tensor, op, group)

    dist.all_reduce = all_reduce
    try:
        process_group = GROUPS[group]()
        if by_own_norms:
            uc.GradientClipByNorm(1.5, process_group=process_group).clip_(params)
        norm = (
            0.0
            if by_own_norms
            else uc.clip_grad_norm_(params, 1.5, p, process_group=process_group, check_numel=True).item()
        )
    finally:
        dist.all_reduce = own
    return Clip(norm, [parameter.grad._local_value().numpy() for parameter in params], reduced_ranks)


def local_shard(array: np.ndarray, number: int, rank: int) -> np.ndarray:
    length = -(-len(array) // 2)
    return array if number == 2 else array[rank % 2 * length :][:length]


def norm_over_a_half_that_lacks_rows() -> float:
    (parameter,) = paddle_sharded.parameters([np.ones((8, 2), np.float32)], "FSDP")
    return float(uc.clip_grad_norm_([parameter], 1.0, process_group=groups()[half()]))


def norm_of_plain(ownership: Any, differs: bool) -> float:
    own = paddle.to_tensor([3.0, 4.0]) * (1 + (differs and dist.get_rank() % 2))
    return float(uc.clip_grad_norm_([parameter_with(own)], 1.0, process_group=groups()[half()], ownership=ownership))


def norm_over_another_half() -> float:
    return float(uc.clip_grad_norm_([parameter_with(paddle.ones([2]))], 1.0, process_group=groups()[1 - half()]))


def norm_over_a_mesh_without_a_group() -> float:
    mesh = ProcessMesh([dist.get_rank() % 2, dist.get_rank() % 2 + 2], ["x"])
    return float(uc.clip_grad_norm_([parameter_with(paddle.ones([2]))], 1.0, process_group=mesh))


def rejected_in_a_half() -> tuple[str, float]:
    params, threshold = parameters("half"), float("nan") if dist.get_rank() == 0 else float("inf")
    error = error_message(lambda: uc.clip_grad_norm_(params, threshold, process_group=groups()[half()]))
    return error, float(uc.clip_grad_norm_(params, float("inf"), process_group=groups()[half()]))
