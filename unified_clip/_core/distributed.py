"""The caller's settings for distributed gradients, and the interface of `Shards`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .exact import Accumulator
from .names import matches
from .path import Path
from .types import Leaf, Scalar, Tensor

REPLICATED, DISTINCT = "replicated", "distinct"

Measures = Literal["total", "each"]
""""total" measures the total norm, and "each" measures the norm of each gradient."""


@dataclass(frozen=True)
class DistributedSpec:
    process_group: Any = "auto"
    ownership: Any = None
    check_numel: bool | int | None = None
    check_replicas: bool = False

    def __post_init__(self) -> None:
        for owner in self.owners:
            if owner not in (None, REPLICATED, DISTINCT) and not callable(owner):
                raise ValueError(
                    f"ownership is {self.ownership!r}. Pass {REPLICATED!r}, {DISTINCT!r}, None, or a function that "
                    "takes a parameter. Or pass a dict with one of these values for each name pattern, as in "
                    "{'*.experts.*': 'distinct'}"
                )
        if not isinstance(self.check_numel, (int, type(None))):
            raise TypeError(f"check_numel is {self.check_numel!r}. Pass a bool, a whole number, or None")
        if not isinstance(self.check_replicas, bool):
            raise TypeError(f"check_replicas is {self.check_replicas!r}. Pass True or False")
        name = "ownership" if self.ownership is not None else "check_replicas" if self.check_replicas else None
        if self.process_group is None and name is not None:
            raise ValueError(
                f"{name} is {getattr(self, name)!r}, but process_group=None means this process alone. Pass a process "
                f"group, or leave {name} out. In PyTorch, call init_process_group before you pass group.WORLD"
            )

    @property
    def owners(self) -> list[Any]:
        return list(self.ownership.values()) if isinstance(self.ownership, Mapping) else [self.ownership]

    def ownership_of(self, leaf: Leaf) -> Any:
        if not isinstance(self.ownership, Mapping):
            return self.ownership
        if leaf.name is None:
            raise ValueError(
                f"ownership selects parameters by name, but {leaf.place} has no name. Pass model.named_parameters(), "
                "or (name, gradient) tuples"
            )
        return next((owner for pattern, owner in self.ownership.items() if matches(pattern, leaf.name)), None)

    def __deepcopy__(self, memo: object) -> DistributedSpec:
        """Return the same object, because a process group cannot be copied."""
        return self

    @property
    def is_given(self) -> bool:
        has_group = not (self.process_group is None or _is_auto(self.process_group))
        return has_group or self.ownership is not None or self.checks_numel or self.check_replicas

    @property
    def checks_numel(self) -> bool:
        return self.check_numel is not None and self.check_numel is not False

    @property
    def declares_owners(self) -> bool:
        """Whether ranks can have different parameters."""
        return any(owner not in (None, REPLICATED) for owner in self.owners)


def _is_auto(process_group: Any) -> bool:
    return isinstance(process_group, str) and process_group == "auto"  # comparing an array returns an array


INFERRED = DistributedSpec()
"""The settings of a call with default arguments."""


def declared(
    process_group: Any, ownership: Any = None, check_numel: bool | int | None = None, check_replicas: bool = False
) -> DistributedSpec:
    is_default = ownership is None and check_numel is None and check_replicas is False
    if is_default and _is_auto(process_group):
        return INFERRED
    return DistributedSpec(process_group, ownership, check_numel, check_replicas)


class PartialSums(Protocol):
    """Sums over the local tensors of this rank."""

    norm_dtype: str

    def power_sum(self, p: int, exactly: bool) -> Accumulator: ...

    def max_abs(self, dtype: str) -> float:
        """Round to `dtype`. Return NaN if any element is NaN."""

    def checksum(self) -> int:
        """Return a 64-bit checksum that depends on the order of the values."""

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        """Return the sum of (|g| / top)**p as two floats, because one float is not precise enough.

        top: The largest magnitude over all ranks.
        """


SumsOf = Callable[[Sequence[Tensor]], PartialSums]


class Shards(Protocol):
    values: list[Tensor]
    """The local tensors, which share memory with the gradients.

    `GradientList` replaces a sparse tensor by a dense tensor of the stored rows.
    """

    stored_rows: Mapping[int, Callable[[], Any]]
    """Maps the index of each sparse gradient to a function that returns the indices of its stored rows."""

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
        """Return the p-norm over the complete gradients, and set `path.norm_dtype`. All ranks have to call this
        method."""

    def tensor_norms(
        self, p: int, must_match: Mapping[str, Any], sums_of: SumsOf, *, known_only: bool, function: str
    ) -> dict[int, float]:
        """Return {index of a gradient: norm over all its shards}.

        All ranks have to call this method. If the ranks of a gradient are unknown, raise ValueError. With `known_only`,
        leave out this gradient instead.
        """

    def check_by_value(self) -> None:
        """Raise ValueError for gradients that cannot be clipped by value, such as `Partial` gradients."""

    def metadata(self) -> dict[str, Any]:
        """Return the fields `ranks` (world size), `rank` and `layout` of a clip event."""

    def restored(self, index: int, value: Tensor) -> Any:
        """Convert a new local value to a tensor with the placements of the gradient."""

    def send_rejection(self, measures: Measures, error: Exception) -> None:
        """Raise this error also on the ranks that wait for this rank."""


class Awaited(threading.local):
    send_rejection: Callable[[Exception], None] | None = None
    """Sends an error of the current clip call to the waiting ranks. None if no rank waits."""


AWAITED = Awaited()
