"""The outcome of one call: a result with its tensors, or a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors.types import Dense, Stage, digest

LEARNING_RATE = 0.5
"""A power of two, so that each SGD step rounds only once."""

FailureKind = Literal["crashed", "timed out", "out of memory", "missing", "unreadable", "not run", "not available"]

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|ResourceExhausted|RESOURCE_EXHAUSTED|n[o']t allocate memory"
)


@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    detail: str


@dataclass(eq=False)
class ClipTensors:
    norm: Dense | None = None
    gradients: Sequence[Dense | None] | None = None
    update: Sequence[Dense | None] | None = None

    def at(self, stage: Stage) -> Sequence[Dense | None] | None:
        """For the stage "coefficient", return the clipped gradients, from which the coefficients are computed."""
        if stage == "norm":
            return None if self.norm is None else [self.norm]
        return self.update if stage == "update" else self.gradients

    @cached_property
    def digests(self) -> dict[Stage, str]:
        stages: tuple[Stage, ...] = ("norm", "tensors", "update")
        return {stage: digest(tensors) for stage in stages if (tensors := self.at(stage)) is not None}


@dataclass(eq=False)
class CallOutcome(ClipTensors):
    name: str = ""
    structure: str = ""
    """The type of the returned container, such as "list of tuple", or '' if the type is not compared."""

    warned: bool = False
    raised: Sequence[str] = ()
    message: str = ""
    fault: str = ""
    """A wrong side effect, such as "changed its input gradients", or '' if there is none."""

    changed_inputs: bool = False
    """Whether the user's function wrongly changed its input gradients."""

    exact_norm: bool = False
    """Whether compiled kernels computed the norm inside a graph. If True, the norm must be exact."""

    same_objects: Sequence[bool] = ()
    seconds: float = 0.0
    """For cases that share a graph, the duration of the graph divided by the number of cases."""
