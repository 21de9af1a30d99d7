"""Functions for the argument `ownership` of `clip_grad_norm_`.

The owner rank of a gradient element includes the element in the norm. Use these functions if the placements of the
gradients do not determine the owner ranks. Each function returns a predicate. The clip calls this predicate for each
parameter or gradient. True means that this rank owns the gradient.

Exactly one rank of the process group must own each element. To check the number of elements, pass `check_numel`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._distributed.groups import KeptByIdentity, Ranks

__all__ = ["fsdp1_ownership", "megatron_ownership", "mesh_ownership"]

Elsewhere = Iterable[Any] | Callable[[Any], bool]
"""Parameters that an earlier pipeline stage owns: a list, or a function that returns True for these parameters."""


class mesh_ownership:  # noqa: N801  # used as a function; a class, because the core reads its mesh
    """Decide whether this rank owns a parameter that is on a part of a device mesh, or on no mesh.

    The mesh of a parameter can have fewer dimensions than `root`. Along a dimension that is only in `root`, the ranks
    have copies of the parameter, and the rank at index 0 owns it. But along a
    dimension in `distinct`, every rank owns its parameters.

    Args:
        root: The device mesh of all ranks that have the model. The dimensions of the mesh must have names.
        distinct: The names of dimensions along which no two ranks have the same parameter, such as "pp" for pipeline
            stages: a string or a list.
        also_elsewhere: Parameters that an earlier pipeline stage owns and this rank shares, such as a tied embedding.
            Pass a list, or a function that gets a parameter and returns True for these parameters.
            `fully_shard` replaces parameters, so call `fully_shard` before you create the list. Before you clip, sum
            the gradients of the copies.

    Raises:
        TypeError: `root` is not a device mesh of PyTorch. `also_elsewhere` is a tensor, a model, a string or a list of
            names. The function `also_elsewhere` does not return a boolean.
        ValueError: `root` has no dimension names, or `distinct` contains a name that is not a dimension of `root`.
            `root` does not include this rank. A parameter is on a rank outside `root`, or on several but not all ranks
            along a dimension of `root`. The clip does not include a parameter of the list `also_elsewhere`.

    Example:
        Two pipeline stages, with FSDP2 on `mesh["dp"]`. The last stage has a copy of the first stage's embedding::

            mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("pp", "dp"))
            tied = [] if mesh.get_local_rank("pp") == 0 else [stage.head.weight]
            owner = mesh_ownership(mesh, distinct="pp", also_elsewhere=tied)
            clip_grad_norm_(stage.parameters(), 1.0, ownership=owner)
    """

    def __init__(self, root: Any, distinct: str | Sequence[str] = (), also_elsewhere: Elsewhere = ()) -> None:
        is_model = hasattr(also_elsewhere, "named_parameters")  # a model can be called, too
        if is_model or hasattr(also_elsewhere, "shape") or isinstance(also_elsewhere, str):
            raise TypeError(
                f"also_elsewhere has the type {type(also_elsewhere).__qualname__}. Pass a list of parameters, or a "
                "function that gets a parameter and returns True or False"
            )
        self._rule = also_elsewhere if callable(also_elsewhere) else None
        self._parameters = () if callable(also_elsewhere) else tuple(also_elsewhere)
        for number, parameter in enumerate(self._parameters):
            if isinstance(parameter, str | tuple):
                kind = type(parameter).__qualname__
                raise TypeError(f"also_elsewhere[{number}] has the type {kind}. Pass parameters, not names")
        if not hasattr(root, "mesh_dim_names"):
            raise TypeError(
                f"root has the type {type(root).__qualname__}. Pass a DeviceMesh of PyTorch. Or, instead of "
                "mesh_ownership, pass a function that gets a parameter and returns True if this rank owns it"
            )
        names = tuple(root.mesh_dim_names or ())
        unknown = sorted(set([distinct] if isinstance(distinct, str) else distinct) - set(names))
        if not names:
            raise ValueError("The mesh has no dimension names. Pass mesh_dim_names to init_device_mesh")
        if unknown:
            raise ValueError(
                f"`distinct` contains {unknown}, which are not dimensions of the mesh. Choose from {list(names)}"
            )
        self.mesh, self._names = root, names
        self._distinct = {names.index(name) for name in ([distinct] if isinstance(distinct, str) else distinct)}
        ranks = np.asarray(root.mesh)
        self._shape, self.mesh_ranks = ranks.shape, Ranks(ranks)
        self._counts: KeptByIdentity[bool] = KeptByIdentity()
        self._copies: KeptByIdentity[Ranks] = KeptByIdentity()
        rank = root.get_rank()
        if rank not in self.mesh_ranks:
            problem = f"Rank {rank} is not on the mesh of the ranks {sorted(self.mesh_ranks)}"
            raise ValueError(f"{problem}. Pass a mesh with this rank")
        self._here = self._coordinates([rank])
        self._counts_plain = self._counts_on(np.array([rank]))

    def __call__(self, parameter: Any) -> bool:
        own = getattr(parameter, "device_mesh", None)
        counts = self._counts_plain
        if own is not None:
            counts = self._counts.get(own, lambda _: self._counts_on(np.asarray(own.mesh).reshape(-1)))
        return not self.counts_elsewhere(parameter) and counts

    def counts_elsewhere(self, parameter: Any) -> bool:
        if self._rule is None:
            return any(parameter is listed for listed in self._parameters)
        answer = self._rule(parameter)
        if getattr(answer, "shape", ()) or answer not in (True, False):
            raise TypeError(
                f"also_elsewhere returned {answer!r:.60}. Return True if an earlier stage also has the parameter, and "
                "False otherwise"
            )
        return bool(answer)

    def check_present(self, tensors: Iterable[Any]) -> None:
        present = set(map(id, tensors))
        for number, parameter in enumerate(self._parameters):
            if id(parameter) not in present:
                raise ValueError(
                    f"also_elsewhere[{number}], of shape {list(getattr(parameter, 'shape', ()))}, is not a parameter "
                    "of this call. If this call does not clip the parameter, remove the "
                    "parameter from the list. If fully_shard replaced the parameter, create the list after "
                    "fully_shard, or pass a function: also_elsewhere=lambda parameter: parameter is model.head.weight"
                )

    def ranks_with_copies(self, mesh: Ranks, ranks: Ranks) -> Ranks:
        """Return `ranks`, and all ranks outside `mesh` that have copies of the local tensors on `ranks`."""
        return self._copies.get(ranks, lambda _: self._everywhere(mesh, ranks))

    def _everywhere(self, mesh: Ranks, ranks: Ranks) -> Ranks:
        copied = self._copied_dimensions(np.asarray(list(mesh)))
        places = np.stack(self._coordinates(np.asarray(list(ranks))), axis=1)
        places[:, copied] = 0
        numbers = np.ravel_multi_index(tuple(places.T), self._shape)
        for dim in copied:
            stride = math.prod(self._shape[dim + 1 :])
            numbers = (numbers + stride * np.arange(self._shape[dim])[:, None]).reshape(-1)
        return Ranks(self.mesh_ranks.at(numbers))

    def _counts_on(self, ranks: npt.NDArray[Any]) -> bool:
        return not any(self._here[dim].any() for dim in self._copied_dimensions(ranks))

    def _copied_dimensions(self, ranks: npt.NDArray[Any]) -> list[int]:
        """Return the dimensions of `self.mesh` along which a parameter is copied."""
        if not self.mesh_ranks.has(ranks).all():
            raise ValueError(
                f"A parameter is on the ranks {ranks.tolist()}, but the mesh has the ranks {sorted(self.mesh_ranks)}. "
                "Pass the mesh of all ranks that have the model"
            )
        along = [at for at, places in enumerate(self._coordinates(ranks)) if places.min() < places.max()]
        if len(ranks) < math.prod(self._shape[at] for at in along):
            raise ValueError(
                f"A parameter is on the ranks {ranks.tolist()}, but not on all ranks along the mesh "
                f"dimension{'s' * (len(along) > 1)} {' and '.join(self._names[at] for at in along)}. Cannot infer "
                "which parameters the other ranks have. "
                f"Pass a mesh with a dimension that has exactly the ranks {ranks.tolist()}"
            )
        return [dim for dim in range(len(self._shape)) if dim not in (*along, *self._distinct)]

    def _coordinates(self, ranks: Any) -> tuple[npt.NDArray[np.intp], ...]:
        return np.unravel_index(self.mesh_ranks.places(ranks), self._shape)


def fsdp1_ownership(model: Any) -> Callable[[Any], bool]:
    """Return a function that decides whether this rank owns a parameter of an FSDP1 model.

    Every rank owns its shards. Modules with `NO_SHARD`, ignored modules and modules outside FSDP1 have no shards. The
    first rank of the model's process group owns their parameters.

    Call this function after FSDP1 has wrapped the model. Then pass the parameters and
    `process_group=model.process_group` to the clip function. Do the same with `HYBRID_SHARD`.

    Args:
        model: The model that `FullyShardedDataParallel` returned, or a module that contains such models.

    Raises:
        TypeError: `model` has no FSDP1 module.
        ValueError: Nested FSDP1 modules are on different ranks. The model has tensor-parallel parameters. The clip
            function gets a tensor that is not a parameter of `model`.

    Example:
        On each rank, after `init_process_group`::

            model = FullyShardedDataParallel(net, ignored_modules=[net.router])
            model(inputs).sum().backward()
            owner = fsdp1_ownership(model)
            clip_grad_norm_(model.parameters(), 1.0, process_group=model.process_group, ownership=owner)
    """
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    wrapped = [module for module in getattr(model, "modules", tuple)() if isinstance(module, wrapper)]
    if not wrapped:
        raise TypeError(
            f"model has the type {type(model).__qualname__}, and contains no FSDP1 module. Pass the model that "
            "FullyShardedDataParallel returned"
        )
    group = wrapped[0].process_group
    ranks, is_first = _ranks_of(group), group.rank() == 0
    counts = {id(parameter): (parameter, is_first) for parameter in model.parameters()}
    for handle in [module._handle for module in wrapped if module._handle is not None]:
        own = _ranks_of(handle.process_group)
        if not own >= ranks or (handle.uses_sharded_strategy and own != ranks):
            raise ValueError(
                f"A nested FSDP1 module is on the ranks {sorted(own)}, and the model is on {sorted(ranks)}. Cannot "
                "infer which rank owns each parameter. Pass your own function as ownership: it gets a "
                "parameter and returns True if this rank owns the parameter"
            )
        if any(spec is not None for spec in handle.flat_param._param_extensions):
            raise ValueError(
                "The model has tensor-parallel parameters in FSDP1, which lack the placements of other shards. Use "
                "fully_shard of PyTorch in place of FSDP1, and mesh_ownership. Or pass your own function as ownership"
            )
        for parameter in handle.flat_param._params if handle._use_orig_params else [handle.flat_param]:
            counts[id(parameter)] = parameter, is_first or handle.uses_sharded_strategy

    def owns(parameter: Any) -> bool:
        if id(parameter) not in counts:
            raise ValueError(
                f"A tensor of shape {list(getattr(parameter, 'shape', ()))} is not a parameter of the model that you "
                "passed to fsdp1_ownership. Pass the parameters of that model, not gradients"
            )
        return bool(counts[id(parameter)][1])

    return owns


def _ranks_of(group: Any) -> set[int]:
    return set(sys.modules["torch.distributed"].get_process_group_ranks(group))


def megatron_ownership(
    tensor_rank: int,
    expert_tensor_rank: int | None = None,
    *,
    data_rank: int | None = None,
    expert_data_rank: int | None = None,
) -> Callable[[Any], bool]:
    """Return a function that decides whether this rank owns a parameter of a Megatron model.

    The function reads these attributes of a parameter:

    - `tensor_model_parallel`: If True, every tensor-parallel rank owns its shard. Otherwise, tensor-parallel rank 0
      owns the parameter.
    - `allreduce`: If False, the parameter belongs to an expert. Then `expert_tensor_rank` replaces `tensor_rank`, and
      `expert_data_rank` replaces `data_rank`.
    - `shared`: If True, the parameter is the last pipeline stage's copy of the embedding. No rank owns this copy.

    Args:
        tensor_rank: The index of this rank in its tensor-parallel group.
        expert_tensor_rank: The index of this rank in its expert-tensor-parallel group. The default is `tensor_rank`.
        data_rank: The index of this rank in its data-parallel group. Pass `data_rank` if data-parallel ranks of the
            process group have copies of the gradients. Data-parallel rank 0 then owns the parameters. With the
            distributed optimizer, which shards the gradients, do not pass `data_rank`.
        expert_data_rank: The index of this rank in its expert-data-parallel group. With `data_rank`, a model with
            experts needs this index, too.

    Raises:
        ValueError: You passed only one of `data_rank` and `expert_data_rank`, and the clip contains an expert's
            parameter.

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
        if is_expert and (data_rank is None) != (expert_data_rank is None):
            raise ValueError(
                "megatron_ownership has only one of data_rank and expert_data_rank, but a parameter belongs to an "
                "expert (allreduce is False). Pass both, or neither if you use the distributed optimizer"
            )
        if expert_data_rank if is_expert else data_rank:
            return False
        rank = expert_tensor_rank if is_expert and expert_tensor_rank is not None else tensor_rank
        return bool(getattr(parameter, "tensor_model_parallel", False)) or rank == 0

    return counts
