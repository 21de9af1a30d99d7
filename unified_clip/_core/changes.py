"""The changes that clipping makes to gradients. Each returns new tensors, or prepares writes into the gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from .path import Change, Path
from .types import Scalar, Tensor, Write


class Unchanged(NamedTuple):
    """The change that keeps all values, for a threshold of inf."""

    def is_identity(self, path: Path) -> bool:
        return True

    def results(self, path: Path) -> list[Tensor]:
        return path.unchanged()

    def writes(self, path: Path) -> list[Write]:
        return []


class Scaled(NamedTuple):
    """The change that multiplies gradients by a coefficient."""

    coef: Scalar

    def is_identity(self, path: Path) -> bool:
        return path.is_one(self.coef)

    def results(self, path: Path) -> list[Tensor]:
        return path.scale(self.coef)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_scale(self.coef)


class Clamped(NamedTuple):
    """The change that replaces elements below `low` by `low`, and elements above `high` by `high`."""

    low: Any
    high: Any

    def is_identity(self, path: Path) -> bool:
        return False

    def results(self, path: Path) -> list[Tensor]:
        return path.clamp(self.low, self.high)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_clamp(self.low, self.high)


class OrZero(NamedTuple):
    """The change that makes `change` if `condition` is true, and otherwise sets all elements to 0."""

    change: Change
    condition: Scalar

    def is_identity(self, path: Path) -> bool:
        return False

    def results(self, path: Path) -> list[Tensor]:
        return path.zeroed(self.change.results(path), self.condition)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_zeroed(self.change, self.condition)
