"""Norms of distributed gradients: the total norm, and the norm of each tensor."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .._compute.checksums import digest
from .._compute.kernels import general_root
from .._core import validation
from .._core.distributed import Measures, PartialSums, SumsOf
from .._core.path import Path
from .._core.types import Leaf, Scalar, Tensor
from . import agreement
from .agreement import ELEMENTS, Compared, label, presence
from .consensus import Consensus, Sum, reject, send_rejection
from .groups import NormGroup, ProcessGroup, by_group
from .owners import Copies
from .placements import Placements

PARAMETERS, CHECK = "the number of parameters", "check_replicas"


class DistributedGradients(Placements):
    """The distributed gradients of a call. A subclass reads the placements of its framework's tensors."""

    stored_rows: Mapping[int, Callable[[], Any]] = {}
    _has_joined = False

    @abstractmethod
    def elements(self, index: int) -> int:
        """Return the number of elements of one gradient over all its shards."""

    @abstractmethod
    def owned_alone(self, index: int) -> Tensor:
        """Return this rank's elements in the norm of one gradient. Sum a `Partial` gradient over its ranks first."""

    def terms(self) -> list[Compared]:
        """Return the `Partial` gradients. The method `owned` does not return them."""
        return []

    def sum_terms(self) -> list[Tensor]:
        """Sum each gradient in `terms` over its ranks. All ranks have to call this method."""
        return []

    @property
    def numel(self) -> int | None:
        """The expected number of elements over all ranks, or None without `check_numel`."""
        if self._spec.check_numel is True:
            return sum(map(self.elements, range(len(self._leaves))))
        return self._spec.check_numel if self._spec.checks_numel else None

    @property
    def checks_replicas(self) -> bool:
        return self._spec.check_replicas

    def count_elements(self) -> int:
        copies = list(self._assumed_copies)
        owned = [value for index, value in enumerate(self.values) if self.owns(index)]
        self._assumed_copies = copies
        return sum(math.prod(value.shape) for value in owned)

    def labels(self) -> list[tuple[Leaf, str]] | None:
        """Return a (parameter, text) tuple for each parameter. The text has the name, the shape and the placements.

        Return None if ranks can have different parameters, or if a shape is unknown.
        """
        texts: dict[Hashable, tuple[Any, str]] = {}
        known = [(leaf, text) for leaf in self._parameters if (text := label(leaf, texts)) is not None]
        return known if self.parameters is not None and len(known) == len(self._parameters) else None

    def missing(self) -> list[Leaf]:
        positions = {leaf.position for leaf in self._leaves}
        return [leaf for leaf in self._parameters if leaf.position not in positions]

    def metadata(self) -> dict[str, Any]:
        world = self.world()
        return {"ranks": world.size, "rank": world.rank, "layout": dict(Counter(map(self.layout, self._gradients)))}

    def norm(
        self,
        path: Path,
        indices: Sequence[int],
        p: float,
        must_match: Mapping[str, Any],
        sums_of: SumsOf,
        *,
        function: str,
        is_first: bool,
    ) -> Scalar:
        self._has_joined = False
        try:
            owned = self.owned(indices)
        except Exception as error:
            if not is_first:  # the other ranks wait for this norm
                self.send_rejection("total", error)
            raise
        self._has_joined = True
        arguments = {**must_match, "norm_type": float(p), PARAMETERS: self.parameters}
        consensus, own = self._consensus(arguments, indices, sums_of, function, is_first), sums_of(owned)
        n, path.norm_dtype = _norm(own, consensus, p, lambda: self._with_terms(owned, sums_of), self.is_only_declared)
        if n == 0 and self._spec.declares_owners and not consensus.has_terms:  # n is equal on all ranks
            consensus.check_any_owned(owned, [self.values[index] for index in indices])
        self._has_joined = False
        return path.xp.asarray(n)

    @property
    def is_only_declared(self) -> bool:
        """Whether `ownership` alone decides which gradients this rank owns. False with `check_numel`."""
        return self._spec.declares_owners and not self._spec.checks_numel and not self._counts_by_placement

    def _with_terms(self, owned: Sequence[Tensor], sums_of: SumsOf) -> tuple[PartialSums, PartialSums]:
        own = self.owned_terms()
        sums = self.sum_terms()
        return sums_of([*owned, *(sums[at] for at in own)]), sums_of(sums)

    def _consensus(
        self, arguments: dict[str, Any], indices: Sequence[int], sums_of: SumsOf, function: str, is_first: bool
    ) -> Consensus:
        """For the first norm of a call, the ranks also compare all parameters and the number of elements."""
        numel = self.numel if is_first else None

        def checksum(gradients: Sequence[tuple[Leaf, Tensor]]) -> int:
            bits = sums_of([tensor for _, tensor in gradients]).checksum()
            return digest((bits, [self._format(leaf) for leaf, _ in gradients]))

        labels, everyone = self.labels() if is_first else None, Copies.on_all(self.group())
        return Consensus(
            self.group(),
            {**arguments, ELEMENTS: numel, CHECK: self.checks_replicas or None},
            remarks=lambda: self._remarks(function),
            compared=[
                *([] if labels is None else [agreement.layout(labels, everyone)]),
                *self.terms(),
                agreement.plain_gradients(self.copies(), everyone, checksum),
                *agreement.replicas_by_ranks(self.replicas(indices) if self.checks_replicas else [], checksum),
                *self.presence(indices, sums_of),
            ],
            numel=numel,
            counted=0 if numel is None else self.count_elements(),
            checks_replicas=self.checks_replicas,
        )

    def presence(self, indices: Sequence[int], sums_of: SumsOf) -> list[Compared]:
        """Return the gradients with copies, to check that their owner rank has them."""
        if self._spec.process_group is None or self._group.size == 1:
            return []
        keys = self.layout_keys
        known = [at for at in indices if keys[at] is not None or not self.is_sharded(self._gradients[at])]
        if isinstance(self._spec.ownership, Mapping):
            keys = [(key, id(self._spec.ownership_of(leaf))) for key, leaf in zip(keys, self._leaves, strict=True)]
        members: dict[Copies | None, list[int]] = {}
        one_by_key = {keys[at]: at for at in known}
        by_key = {key: members.setdefault(self._copies(at, check_all=False), []) for key, at in one_by_key.items()}
        for at in known if any(members) else ():  # without copies, the only key is None
            by_key[keys[at]].append(at)
        return [self._presence_of(copies, own, sums_of) for copies, own in members.items() if copies]

    def _presence_of(self, copies: Copies, indices: Sequence[int], sums_of: SumsOf) -> Compared:
        leaves, are_listed = self._leaves, self.parameters is not None  # whether all ranks list the same parameters
        identities = [
            leaves[at].position if are_listed else leaves[at].name or math.prod(self.values[at].shape) for at in indices
        ]

        def needed_place(at: int) -> str | None:
            leaf = leaves[indices[at]]
            owner = self._spec.ownership_of(leaf)
            is_tied = hasattr(owner, "counts_elsewhere") and owner.counts_elsewhere(leaf.parameter)
            if is_tied or sums_of([self.values[indices[at]]]).max_abs("float64") == 0:
                return None
            is_unique = are_listed or leaf.name is not None
            return leaf.place if is_unique else f"{leaf.place} (or another gradient of the same size)"

        return presence(copies, identities, needed_place)

    def _format(self, leaf: Leaf) -> tuple[str, int | None]:
        rows = self.stored_rows.get(leaf.position)
        return str(getattr(leaf.tensor, "dtype", "")), None if rows is None else digest(rows().tobytes())

    def _remarks(self, function: str) -> dict[str, str]:
        remarks, missing = {"function": function}, self.missing()
        if missing and self.numel is not None:
            places = ", ".join(leaf.place for leaf in missing[:3]) + ", ..." * (len(missing) > 3)
            remarks["parameters without a gradient"] = f"{len(missing)} ({places})"
        return remarks

    def tensor_norms(
        self, p: int, must_match: Mapping[str, Any], sums_of: SumsOf, *, known_only: bool = False, function: str = ""
    ) -> dict[int, float]:
        groups = self.norm_groups(known_only)
        indices = [group.gradient for group in groups]
        partial_sums = [sums_of([] if index is None else [self.owned_alone(index)]) for index in indices]
        norms: dict[int, float] = {}
        for exactly in (False, True):
            left = [at for at in range(len(groups)) if at not in norms]
            sums = {at: (partial_sums[at].power_sum(p, exactly), partial_sums[at].norm_dtype) for at in left}
            compared = None if exactly else {**must_match, "norm_type": f"{p} of each gradient"}
            _all_reduce(sums, groups, compared, function)
            norms.update((at, n) for at in left if (n := sums[at][0].root(p, sums[at][1])) is not None)
        return {index: norms[at] for at, index in enumerate(indices) if index is not None}

    def send_rejection(self, measures: Measures, error: Exception) -> None:
        if self._has_joined or not self.awaits_sums(measures):
            send_rejection(error, lambda: [self.group()] if measures == "total" else self._groups_of_norms())

    def _groups_of_norms(self) -> list[ProcessGroup]:
        norm_groups = self.norm_groups(known_only=True)
        return [group for group, _ in by_group(norm_groups, range(len(norm_groups)))]


def _all_reduce(
    sums: dict[int, Sum], norm_groups: Sequence[NormGroup], must_match: Mapping[str, Any] | None, function: str
) -> None:
    """Replace this rank's sums by the sums over all ranks. The keys of `sums` are indices in `norm_groups`.

    After an error in one process group, send the error to all later groups. Their ranks would otherwise wait forever.
    """
    difference: ValueError | None = None
    for group, positions in by_group(norm_groups, list(sums)):
        if difference is not None:
            reject(difference, group)
            continue
        consensus = _consensus_of([norm_groups[at] for at in positions], group, must_match or {}, function)
        try:
            if must_match is not None:
                consensus.compare()
        except ValueError as error:
            difference = error
        else:
            sums.update(zip(positions, consensus.power_sums([sums[at] for at in positions]), strict=True))
    if difference is not None:
        raise difference


def _consensus_of(
    members: Sequence[NormGroup], group: ProcessGroup, must_match: Mapping[str, Any], function: str
) -> Consensus:
    labels = [(member.leaf, member.label) for member in members if member.label is not None]
    layout = [agreement.layout(labels, Copies.on_all(group))] if len(labels) == len(members) else []
    arguments = {**must_match, PARAMETERS: len(members)}
    return Consensus(group, arguments, lambda: {"function": function}, layout)


WithTerms = Callable[[], tuple[PartialSums, PartialSums]]


def _norm(
    own: PartialSums, consensus: Consensus, p: float, with_terms: WithTerms, is_only_declared: bool
) -> tuple[float, str]:
    """Return (p-norm over all ranks, dtype of the norm).

    is_only_declared: Whether `ownership` alone decides which gradients this rank owns.
    """
    if p in (1, 2):
        return _power_norm(own, consensus, int(p), with_terms, is_only_declared)
    top, dtype = consensus.max_abs(own, p)
    if consensus.has_terms:
        own, _ = with_terms()
        top, dtype = consensus.max_abs(own, p)
    if p == math.inf or top == 0 or not math.isfinite(top):
        return top, dtype
    return general_root(consensus.relative_sum(own.relative_sum(p, top)), p, top, dtype), dtype


def _power_norm(
    own: PartialSums, consensus: Consensus, p: int, with_terms: WithTerms, is_only_declared: bool
) -> tuple[float, str]:
    here = own.power_sum(p, False)
    total, dtype = consensus.power_sum(here, own.norm_dtype)
    if is_only_declared and 0 < here.total * consensus.group.size == total.total and consensus.group.size > 1:
        validation.warn_at_call(
            f"the {consensus.group.size} ranks own gradients with exactly the same norm, although ownership "
            "declares that ranks own different gradients. If these gradients are copies, as with "
            "DistributedDataParallel, the norm is too large: leave process_group and ownership out. To check the "
            "declaration, pass check_numel"
        )
    if consensus.has_terms:
        is_known = consensus.has_all_terms  # all ranks have the same sums
        own, terms = with_terms()
        if is_known:
            total, dtype = total + terms.power_sum(p, False), max(dtype, terms.norm_dtype)  # "float64" > "float32"
        else:
            total, dtype = consensus.power_sum(own.power_sum(p, False), own.norm_dtype)
    n = total.root(p, dtype)
    if n is None:
        total, dtype = consensus.power_sum(own.power_sum(p, True), own.norm_dtype)
        n = total.root(p, dtype)
    assert n is not None, "bug in unified_clip: the exact sum has a rounding error"
    return n, dtype
