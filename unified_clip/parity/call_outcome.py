"""The outcome of one call: a result with its tensors, or a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors.types import Dense, Stage, digest

LEARNING_RATE = 0.5
"""The learning rate of SGD steps. It is a power of two, so that each step rounds only once."""

FailureKind = Literal["crashed", "timed out", "out of memory", "missing", "unreadable", "not run"]

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
    """The clipped gradients, or None if the call only measures the norm or raises an error."""

    update: Sequence[Dense | None] | None = None
    """The parameters after an SGD step, if the case has `update = true`. Before the step, all parameters are 1."""

    def at(self, stage: Stage) -> Sequence[Dense | None] | None:
        """Return the tensors of a stage. For the stage "coefficient", return the clipped gradients."""
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
    """The name of the framework's function, or '' for a call of unified_clip."""

    structure: str = ""
    """The type of the returned container, such as "list of tuple", or '' if the type is not compared."""

    warned: bool = False
    raised: Sequence[str] = ()
    """The names of the exception's class and base classes, or () if there was no exception."""

    message: str = ""
    """The class and the first line of the exception."""

    fault: str = ""
    """A wrong side effect, such as "changed its input gradients", or '' if there is none."""

    changed_inputs: bool = False
    """Whether a function of the user changed gradients that should stay unchanged."""

    exact_norm: bool = False
    """Whether compiled kernels computed the norm inside a graph. If True, the norm must be exact."""

    same_objects: Sequence[bool] = ()
    """For each gradient, whether the clip class returned the same object."""

    seconds: float = 0.0
    """The duration of the call. If several cases share a graph, this is the mean duration."""
