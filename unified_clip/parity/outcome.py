"""The outcome of one call: a result with its tensors, or a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors.types import Dense, Stage, digest

LEARNING_RATE = 0.5
"""The learning rate of SGD steps. It is a power of two, so that a step rounds once, fused or not."""


@dataclass(frozen=True)
class Failure:
    """The reason for a missing result, such as a crash or a timeout."""

    kind: Literal["crashed", "timed out", "out of memory", "missing", "unreadable"]
    detail: str


@dataclass(eq=False)
class ClipTensors:
    """The norm, the clipped gradients and the updated parameters of a call, exact or from a framework."""

    norm: Dense | None = None
    """The norm that the call returns. None if it returns none."""

    gradients: Sequence[Dense | None] | None = None
    """The clipped gradients. None for a call that only measures, or raises."""

    update: Sequence[Dense | None] | None = None
    """Parameters of ones after a step with these gradients: see `Adapter.sgd`. None if the case does not ask for it."""

    def at(self, stage: Stage) -> Sequence[Dense | None] | None:
        """Return the tensors to compare at a stage; None if there are none. For the coefficient: the gradients."""
        if stage == "norm":
            return None if self.norm is None else [self.norm]
        return self.update if stage == "update" else self.gradients

    @cached_property
    def digests(self) -> dict[Stage, str]:
        """Return the SHA-256 of each stage's tensors. The coefficient has none: it shows in the clipped gradients."""
        stages: tuple[Stage, ...] = ("norm", "tensors", "update")
        return {stage: digest(tensors) for stage in stages if (tensors := self.at(stage)) is not None}


@dataclass(eq=False)
class CallOutcome(ClipTensors):
    """The result of a call on a framework, as dense tensors, with its exception and warning."""

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
