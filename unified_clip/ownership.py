"""Who counts which gradient, where tensors do not tell: functions for `ownership` of `clip_grad_norm_`.

Each takes a parameter (or a gradient, where only those are given) and tells whether this process counts what it holds
of it. In the group that adds up, every element has to be counted by exactly one process; `check_numel` finds out
whether it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["megatron_ownership", "mesh_ownership", "stage_ownership"]


class mesh_ownership:  # noqa: N801  # used as a function; a class so that it tells its mesh
    """For parameters on parts of one device mesh, plain ones included.

    What a parameter's own mesh leaves out of `root` has copies of it, of which the first one counts; but for the
    dimensions that are `distinct`, along which the others have other parameters.

    Args:
        root: The device mesh of all processes that hold the model, with names for its dimensions.
        distinct: Names of dimensions along which parameters differ: the stages of a pipeline.

    Raises:
        TypeError: `root` is no device mesh of PyTorch.
        ValueError: `root` has no names or not these, or this process is not on it, or a parameter is on a mesh with
            other processes, or with a part only of those along a dimension.

    Example:
        With a two-stage pipeline of FSDP2 modules, each on `mesh["dp"]`::

            mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("pp", "dp"))
            clip_grad_norm_(stage.parameters(), 1.0, ownership=mesh_ownership(mesh, distinct=("pp",)))
    """

    def __init__(self, root: Any, distinct: Sequence[str] = ()) -> None:
        if not hasattr(root, "mesh_dim_names"):
            raise TypeError(
                f"root is a {type(root).__qualname__}; pass a DeviceMesh of PyTorch, or a function of a parameter: "
                "whether this process counts it"
            )
        names = tuple(root.mesh_dim_names or ())
        unknown = sorted(set([distinct] if isinstance(distinct, str) else distinct) - set(names))
        if not names or unknown:
            raise ValueError(
                f"the mesh has the dimensions {list(names)}"
                + (f", and distinct names {unknown}" if unknown else "; give them names with mesh_dim_names")
            )
        self.mesh, self._names = root, names
        self._distinct = {names.index(name) for name in ([distinct] if isinstance(distinct, str) else distinct)}
        self._places = {int(root.mesh[tuple(at)]): tuple(at) for at in (root.mesh >= 0).nonzero().tolist()}
        self.mesh_ranks = frozenset(self._places)
        rank = root.get_rank()
        if rank not in self._places:
            raise ValueError(f"this process, rank {rank}, is not on the mesh, which has {sorted(self._places)}")
        self._here = self._places[rank]

    def __call__(self, parameter: Any) -> bool:
        own = getattr(parameter, "device_mesh", None)
        ranks = [self.mesh.get_rank()] if own is None else own.mesh.flatten().tolist()
        if not set(ranks) <= set(self._places):
            raise ValueError(f"a parameter is on the ranks {ranks}, and the mesh has {sorted(self._places)}")
        places = [self._places[rank] for rank in ranks]
        along = [at for at in range(len(self._here)) if len({place[at] for place in places}) > 1]
        if len(places) < math.prod(self.mesh.mesh.shape[at] for at in along):
            raise ValueError(
                f"a parameter is on the ranks {ranks}, which are a part only of the mesh along "
                f"{' and '.join(self._names[at] for at in along)}: it does not tell what the others there have; give "
                "the mesh a dimension for it"
            )
        return not any(self._here[at] for at in range(len(self._here)) if at not in (*along, *self._distinct))


def megatron_ownership(tensor_rank: int, expert_tensor_rank: int | None = None) -> Any:
    """For plain parameters with Megatron's attributes, added up over tensor- and pipeline-parallel processes.

    A parameter with `tensor_model_parallel` is one part of several, and counts; without, every tensor-parallel process
    has a copy, and the first counts. Experts (`allreduce` is False) go by the expert-parallel layout. What is `shared`
    (embeddings that the last stage of a pipeline has once more) does not count.

    Args:
        tensor_rank: This process's rank in its tensor-parallel group.
        expert_tensor_rank: The same for experts; None where they have no other layout.

    Example:
        >>> from types import SimpleNamespace
        >>> counts = megatron_ownership(tensor_rank=1)
        >>> counts(SimpleNamespace(tensor_model_parallel=True)), counts(SimpleNamespace())
        (True, False)
    """

    def counts(parameter: Any) -> bool:
        if getattr(parameter, "shared", False):
            return False
        is_expert = not getattr(parameter, "allreduce", True)
        rank = tensor_rank if not is_expert or expert_tensor_rank is None else expert_tensor_rank
        return bool(getattr(parameter, "tensor_model_parallel", False)) or rank == 0

    return counts


def stage_ownership(data_rank: int, also_elsewhere: Sequence[Any] = ()) -> Any:
    """For plain parameters of the stages of a pipeline, each of which has copies in data parallel.

    Args:
        data_rank: This process's rank among those that have the same stage: the first counts.
        also_elsewhere: Parameters of this stage that an earlier one has too (a tied embedding), which counts them.

    Example:
        >>> weight, tied = object(), object()
        >>> counts = stage_ownership(data_rank=0, also_elsewhere=[tied])
        >>> counts(weight), counts(tied)
        (True, False)
    """
    elsewhere = set(map(id, also_elsewhere))
    return lambda parameter: data_rank == 0 and id(parameter) not in elsewhere
