"""What one call returned, or why there is no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors import types
from ..tensors.types import Dense

LEARNING_RATE = 0.5
"""Of the step that shows a parameter update. A power of two, so that a step rounds once, fused or not."""


@dataclass(frozen=True)
class Failure:
    """No result, and why."""

    kind: Literal["crashed", "timed out", "out of memory", "missing", "unreadable"]
    detail: str


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """What came of a call, tensors as dense ones."""

    norm: Dense | None = None
    gradients: list[Dense | None] | None = None
    update: list[Dense | None] | None = None
    """Parameters of ones after a step with these gradients: see `adapter.sgd`."""

    name: str = ""
    """The framework's own function; '' where it has none like it."""

    structure: str = ""
    warned: bool = False
    raised: Sequence[str] = ()
    """The exception's class and its bases."""

    message: str = ""
    fault: str = ""
    """What the call did to tensors that it should not have."""

    same_objects: Sequence[bool] = ()
    """Of a class: for each gradient whether the given object came back."""

    seconds: float = 0.0
    """That it took; of cases that share a graph, a share of it."""

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 by stage; the coefficient's shows in the tensors'."""
        return types.stage_digests(self.norm, self.gradients, self.update)
