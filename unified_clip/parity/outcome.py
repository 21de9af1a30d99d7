"""The outcome of one call: a result with its tensors, or a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..tensors.types import Dense, Stage, digest

LEARNING_RATE = 0.5
"""The learning rate of SGD steps. It is a power of two: multiplying by it is exact, so that a step rounds only once."""


FailureKind = Literal["crashed", "timed out", "out of memory", "missing", "unreadable", "not run"]


@dataclass(frozen=True)
class Failure:
    """The reason why a call has no result, for example because its worker crashed, hung or did not start."""

    kind: FailureKind
    detail: str


@dataclass(eq=False)
class ClipTensors:
    """The norm, the clipped gradients and the updated parameters of an exact result, or of a framework's result."""

    norm: Dense | None = None
    """The norm that the call returns, or None if the call returns no norm."""

    gradients: Sequence[Dense | None] | None = None
    """The clipped gradients. None for a call that only measures, or raises."""

    update: Sequence[Dense | None] | None = None
    """Parameters of value 1 after an SGD step with these gradients. None unless the case has `update = true`."""

    def at(self, stage: Stage) -> Sequence[Dense | None] | None:
        """Return the tensors to compare at a stage of the call. Return None if the stage has no tensors.

        The stage "coefficient" has the clipped gradients, from which the coefficient is measured.
        """
        if stage == "norm":
            return None if self.norm is None else [self.norm]
        return self.update if stage == "update" else self.gradients

    @cached_property
    def digests(self) -> dict[Stage, str]:
        """The SHA-256 of the tensors at each stage, except "coefficient", which has no tensors of its own."""
        stages: tuple[Stage, ...] = ("norm", "tensors", "update")
        return {stage: digest(tensors) for stage in stages if (tensors := self.at(stage)) is not None}


@dataclass(eq=False)
class CallOutcome(ClipTensors):
    """The result of a call on a framework, as dense tensors, with its exception and warning."""

    name: str = ""
    """The name of the framework's function. '' for a call of unified_clip, or if there is no function."""

    structure: str = ""
    """The type of the container that the call returned, such as "list of tuple". '' if it is not compared."""

    warned: bool = False
    """Whether the call emitted a ClipWarning."""

    raised: Sequence[str] = ()
    """The names of the exception's class and of its bases. Empty if the call raised nothing."""

    message: str = ""
    """The class and the first line of the exception."""

    fault: str = ""
    """A wrong side effect, such as "changed its input gradients". '' if there is none."""

    changed_inputs: bool = False
    """Whether a function of the user changed gradients that it must not change.

    A function that is not in place, or that raised an error, must change none.
    """

    exact_norm: bool = False
    """Whether the compiled kernels computed the norm inside a graph, so that it has to be exact."""

    same_objects: Sequence[bool] = ()
    """For a clip class: whether it returned each gradient as the same object."""

    seconds: float = 0.0
    """The duration of the call. If cases share a graph, each has the mean duration."""
