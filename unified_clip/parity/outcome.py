"""The outcome of one call: its result, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors import types
from ..tensors.types import Dense, Stage

LEARNING_RATE = 0.5
"""Of the SGD step of a parameter update. A power of two, so that the step rounds once, fused or not."""


@dataclass(frozen=True)
class Failure:
    """Why there is no result."""

    kind: Literal["crashed", "timed out", "out of memory", "missing", "unreadable"]
    detail: str


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """The result of a call, with dense tensors."""

    norm: Dense | None = None
    gradients: list[Dense | None] | None = None
    update: list[Dense | None] | None = None
    """Parameters of ones after a step with these gradients: see `Adapter.sgd`."""

    name: str = ""
    """The framework's function; '' if it has none."""

    structure: str = ""
    warned: bool = False
    raised: Sequence[str] = ()
    """The class of the exception, and its bases."""

    message: str = ""
    fault: str = ""
    """A side effect on tensors that the call must not have; '' for none."""

    same_objects: Sequence[bool] = ()
    """For a class: whether each gradient came back as the same object."""

    seconds: float = 0.0
    """Duration. Cases that share a graph share its duration."""

    @cached_property
    def digests(self) -> dict[Stage, str]:
        """SHA-256 by stage. The tensors' digest includes the coefficient."""
        return types.stage_digests(self.norm, self.gradients, self.update)
