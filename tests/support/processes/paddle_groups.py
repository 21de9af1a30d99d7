"""What processes of a `World` run: norms over some of Paddle's processes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import ProcessMesh, Replicate, Shard
from support.processes import paddle_sharded
from support.processes.paddle_sharded import distributed, mesh_of, parameter_with

import unified_clip.paddle as uc

HALVES = [0, 1], [2, 3]


class Clip(NamedTuple):
    norm: float
    after: list[np.ndarray]
    """The local values of the gradients after the clip."""

    ranks: list[list[int]]
    """The ranks of each all-reduce."""


def start(rank: int, size: int, meeting: str) -> None:
    paddle_sharded.start(rank, size, meeting)
    groups()


@functools.cache
def groups() -> list[Any]:
    """The process groups of the halves. Two groups that are made at the same time do not always connect."""
    made = []
    for ranks in HALVES:
        made.append(dist.new_group(ranks))
        dist.barrier()
    return made


def half() -> int:
    return dist.get_rank() // 2


GROUPS: dict[str, Any] = {
    "a group": lambda: groups()[half()],
    "a mesh": lambda: ProcessMesh(HALVES[half()], ["x"]),
}


def model(on: str, rank: int) -> list[np.ndarray]:
    """The gradients of a model on all processes ("all"), or of one on two of four."""
    random = np.random.default_rng(0 if on == "all" else rank // 2)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (4, 6), (2, 2))]
    return [*arrays, np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)]


def parameters(on: str) -> list[Any]:
    """Sharded over the processes of a half, of which the other half has copies, or another model."""
    row, rows = ProcessMesh(HALVES[half()], ["x"]), mesh_of("rows")
    found = []
    for number, array in enumerate(model(on, dist.get_rank())):
        placement = Replicate() if number == 2 else Shard(0)
        placed = (rows, [Replicate(), placement]) if on == "all" else (row, [placement])
        found.append(parameter_with(distributed(array, *placed)))
    return found


def clipped(on: str, group: str, p: float, each: bool) -> Clip:
    """Clip by one norm, or `each` gradient by its own."""
    given, ranks, own = parameters(on), [], dist.all_reduce

    def all_reduce(tensor: Any, op: Any, group: Any) -> Any:
        ranks.append(group.ranks)
        return own(tensor, op, group)

    dist.all_reduce = all_reduce
    try:
        process_group = GROUPS[group]()
        if each:
            uc.GradientClipByNorm(1.5, process_group=process_group).clip_(given)
        norm = 0.0 if each else uc.clip_grad_norm_(given, 1.5, p, process_group=process_group, check_numel=True).item()
    finally:
        dist.all_reduce = own
    return Clip(norm, [parameter.grad._local_value().numpy() for parameter in given], ranks)


def local(array: np.ndarray, number: int, rank: int) -> np.ndarray:
    """What a process has of a gradient of `parameters`."""
    length = -(-len(array) // 2)
    return array if number == 2 else array[rank % 2 * length :][:length]


def norm_over_a_half_that_lacks_rows() -> float:
    """Of gradients that all four processes have in rows."""
    (given,) = paddle_sharded.parameters([np.ones((8, 2), np.float32)], "rows")
    return float(uc.clip_grad_norm_([given], 1.0, process_group=groups()[half()]))


def norm_of_plain(ownership: Any, differs: bool) -> float:
    own = paddle.to_tensor([3.0, 4.0]) * (1 + (differs and dist.get_rank() % 2))
    return float(uc.clip_grad_norm_([parameter_with(own)], 1.0, process_group=groups()[half()], ownership=ownership))


def norm_over_another_half() -> float:
    return float(uc.clip_grad_norm_([parameter_with(paddle.ones([2]))], 1.0, process_group=groups()[1 - half()]))


def norm_over_a_mesh_without_a_group() -> float:
    mesh = ProcessMesh([dist.get_rank() % 2, dist.get_rank() % 2 + 2], ["x"])
    return float(uc.clip_grad_norm_([parameter_with(paddle.ones([2]))], 1.0, process_group=mesh))


def rejected_in_a_half() -> tuple[str, float]:
    """What is raised where the first process rejects its threshold, and the norm of the next call."""
    given, error = parameters("half"), ""
    try:
        limit = float("nan") if dist.get_rank() == 0 else float("inf")
        uc.clip_grad_norm_(given, limit, process_group=groups()[half()])
    except ValueError as raised:
        error = str(raised)
    return error, float(uc.clip_grad_norm_(given, float("inf"), process_group=groups()[half()]))
