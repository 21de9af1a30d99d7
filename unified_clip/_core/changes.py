"""The changes that clipping makes to gradients: a product, a clamp or zeros."""

from __future__ import annotations

from typing import Any, NamedTuple

from .path import Change, Path
from .types import Scalar, Tensor, Write


class Unchanged(NamedTuple):
    def is_identity(self, path: Path) -> bool:
        return True

    def results(self, path: Path) -> list[Tensor]:
        return path.unchanged()

    def writes(self, path: Path) -> list[Write]:
        return []


class Scaled(NamedTuple):
    coef: Scalar

    def is_identity(self, path: Path) -> bool:
        return path.is_one(self.coef)

    def results(self, path: Path) -> list[Tensor]:
        return path.scale(self.coef)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_scale(self.coef)


class Clamped(NamedTuple):
    low: Any
    high: Any

    def is_identity(self, path: Path) -> bool:
        return False

    def results(self, path: Path) -> list[Tensor]:
        return path.clamp(self.low, self.high)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_clamp(self.low, self.high)


class OrZero(NamedTuple):
    change: Change
    condition: Scalar

    def is_identity(self, path: Path) -> bool:
        return False

    def results(self, path: Path) -> list[Tensor]:
        return path.zeroed(self.change.results(path), self.condition)

    def writes(self, path: Path) -> list[Write]:
        return path.prepare_zeroed(self.change, self.condition)
