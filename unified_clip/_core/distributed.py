"""Distributed gradients: the caller's declaration, and the interface of their shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from .exact import Accumulator
from .path import Path
from .types import Leaf, Scalar, Tensor

REPLICATED, DISTINCT = "replicated", "distinct"

Measures = Literal["total", "each"]
"""What a call measures over ranks: the total norm, or the norm of each gradient."""


@dataclass(frozen=True)
class DistributedSpec:
    """The caller's declaration of how gradients are distributed over ranks; see `clip_grad_norm_`."""

    process_group: Any = "auto"
    ownership: Any = None
    check_numel: bool | int | None = None

    def __post_init__(self) -> None:
        for owner in self.owners:
            if owner not in (None, REPLICATED, DISTINCT) and not callable(owner):
                raise ValueError(
                    f"ownership is {self.ownership!r}. Pass {REPLICATED!r}, {DISTINCT!r}, a function of a parameter or "
                    "None, or a dict from patterns of names to them, such as {'*.experts.*': 'distinct'}"
                )
        if not isinstance(self.check_numel, int | None):
            raise TypeError(f"check_numel is {self.check_numel!r}. Pass a bool, a whole number, or None")
        if self.process_group is None and self.ownership is not None:
            raise ValueError(
                f"ownership is {self.ownership!r}, but process_group is None, which means this process alone. Pass a "
                "group (before init_process_group, WORLD of PyTorch is None), or leave ownership out"
            )

    @property
    def owners(self) -> list[Any]:
        """The ownership of each pattern, or that of all parameters."""
        return list(self.ownership.values()) if isinstance(self.ownership, Mapping) else [self.ownership]

    def ownership_of(self, leaf: Leaf) -> Any:
        """Return the ownership of the first pattern that matches a gradient's name; None if none does."""
        if not isinstance(self.ownership, Mapping):
            return self.ownership
        if leaf.name is None:
            raise ValueError(
                f"ownership has patterns of names, and {leaf.place} has no name. Pass model.named_parameters(), or "
                "(name, gradient) tuples"
            )
        return next((owner for pattern, owner in self.ownership.items() if fnmatchcase(leaf.name, pattern)), None)

    def check_patterns(self, leaves: Sequence[Leaf]) -> None:
        """Raise ValueError for a parameter without a name, or a pattern behind others that match all of its parameters.

        A pattern may match no parameter: other ranks may have them.
        """
        if not isinstance(self.ownership, Mapping):
            return
        for leaf in leaves:
            self.ownership_of(leaf)
        patterns = list(self.ownership)
        for at, pattern in enumerate(patterns):
            names = [str(leaf.name) for leaf in leaves if fnmatchcase(str(leaf.name), pattern)]
            earlier = [each for each in patterns[:at] if any(fnmatchcase(name, each) for name in names)]
            if names and all(any(fnmatchcase(name, each) for each in earlier) for name in names):
                raise ValueError(
                    f"the pattern {pattern!r} of ownership decides for no parameter: {earlier[0]!r} comes first and "
                    f"matches {names[0]!r}, too. Put {pattern!r} before it"
                )

    def __deepcopy__(self, memo: object) -> DistributedSpec:
        """Return itself: a copy has the same process group and parameters."""
        return self

    @property
    def is_given(self) -> bool:
        """Return whether the caller declared a process group or an ownership, or asked for a count of elements."""
        is_counted = self.check_numel is not None and self.check_numel is not False
        return self.process_group not in (None, "auto") or self.ownership is not None or is_counted

    def expected_numel(self, count: Callable[[], int]) -> int | None:
        """Return the expected number of counted elements: the caller's, or that of `count`. None without a check."""
        if self.check_numel is None or self.check_numel is False:
            return None
        return count() if self.check_numel is True else int(self.check_numel)

    def comparable(self, parameters: Sequence[Any]) -> int | None:
        """Return the number of parameters; None if it may differ between ranks."""
        return len(parameters) if all(owner in (None, REPLICATED) for owner in self.owners) else None


INFERRED = DistributedSpec()
"""The caller declares nothing: gradients are complete on this rank, or carry their placements."""


def declared(process_group: Any, ownership: Any = None, check_numel: bool | int | None = None) -> DistributedSpec:
    """Return the declaration of a call."""
    if isinstance(process_group, str) and process_group == "auto" and ownership is None and check_numel is None:
        return INFERRED
    return DistributedSpec(process_group, ownership, check_numel)


class PartialSums(Protocol):
    """Sums over local tensors, on the host, before the root of a norm."""

    norm_dtype: str

    def power_sum(self, p: int, exactly: bool) -> Accumulator: ...

    def max_abs(self, dtype: str) -> float:
        """Return the largest magnitude, rounded to a dtype; NaN if there is a NaN."""

    def checksum(self) -> int:
        """Return 64 bits that depend on the bits of all values in their order."""

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        """Return the sum of (|g| / top)**p as two numbers, whose sum it is."""


Measure = Callable[[Sequence[Tensor]], PartialSums]


class Shards(Protocol):
    """The gradients of one call, of which this rank has shards. `_distributed.norm` implements it."""

    values: list[Tensor]
    """The local tensor of each gradient, in the gradient's own memory; sparse ones are coalesced afterwards."""

    def norm(
        self,
        path: Path,
        indices: Sequence[int],
        p: float,
        must_match: Mapping[str, Any],
        measure: Measure,
        *,
        function: str,
        is_first: bool,
    ) -> Scalar:
        """Return the p-norm over the complete gradients, and set the `norm_dtype` of a path over the local tensors.

        Ranks compare `must_match` in the same all-reduce. `is_first`: the first norm of a call, over all gradients.
        """

    def nonfinite_elsewhere(self, path: Path) -> list[tuple[str, int, int]]:
        """Return the other ranks with NaN or inf, and their counts, after a `norm` on this path."""

    def tensor_norms(
        self, p: int, must_match: Mapping[str, Any], measure: Measure, *, known_only: bool, function: str
    ) -> dict[int, float]:
        """Return the norm of each gradient by its index. `known_only`: leave out norms that cannot be computed."""

    def check_by_value(self) -> None:
        """Raise ValueError if elements cannot be clipped one by one."""

    def metadata(self) -> dict[str, Any]:
        """Return `ranks` (world size), `rank` and `layout` (gradients per placement) for a clip event."""

    def restored(self, index: int, value: Tensor) -> Any:
        """Return a local value as a gradient with the placements of the original."""

    def send_rejection(self, measures: Measures, error: Exception) -> None:
        """Let the ranks that wait for this one raise too. `measures`: what the call measures."""


class Awaited(threading.local):
    """The current call of this thread, if other ranks wait for this one."""

    send_rejection: Callable[[Exception], None] | None = None


AWAITED = Awaited()
