"""The cause of a difference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from .._kit.display import enumeration

CauseKind = Literal[
    # found in the tensors of a call, or in the numbers of a recorded call
    "16 bits", "another condition", "another eps of the clip", "another norm type", "another rule", "another threshold",

    "clipped twice", "coefficient", "float32", "given norm", "global for per group", "global for per slice",
    "global for per tensor", "inexact norm", "inf", "left out", "NaN", "need_clip", "not clipped",
    "norm after the clip", "not finite in one run", "not scaled",
    "overflow", "per group for global", "per tensor for global",
    "per tensor for per group", "per tensor for per slice", "rounding", "rounding that has grown",
    "rows", "scaled gradients", "signs", "swapped", "touched", "underflow", "zeros",
    # found in the calls and steps of two runs
    "another dtype", "another learning rate", "another optimizer", "another place of the optimizer's eps",
    "another number of steps", "another order of networks", "clip by hand", "clipping after the step",
    "clipping before unscaling", "gradient accumulation", "gradients are not cleared",
    "left-out clip", "one run is shorter", "other data or loss", "other gradients", "other initial weights",
    "parameters of another network", "repeated parameter", "several clips before a step", "shifted step",
    "skipped step", "squared rows", "tensors without a gradient", "the clip does not reach the step", "tied weights",
    "unexplained",
    "untransposed weight", "weight decay before the clip", "weights are not updated",
]  # fmt: skip


class Cause(NamedTuple):
    kind: CauseKind
    sentence: str

    def as_data(self) -> dict[str, str]:
        return {"mistake": self.kind, "text": self.sentence}

    @property
    def title(self) -> str:
        return f"{self.kind[:1].upper()}{self.kind[1:]}"

    def __str__(self) -> str:
        return f"{self.title}: {self.sentence}."


def names_text(names: Collection[str]) -> str:
    """Return a text such as "'a', 'b' and 'c'"."""
    return listed([*map(repr, names)])


def listed(texts: Sequence[str]) -> str:
    return enumeration(texts if len(texts) <= 4 else [*texts[:3], f"{len(texts) - 3} others"])


def instead(what: str, actual: float | Sequence[float], expected: float | Sequence[float], form: str = ".6g") -> str:
    """Return a text such as "as if eps were 0 instead of 1e-06"."""
    left, right = ([each] if isinstance(each, int | float) else each for each in (actual, expected))
    return f"as if {what} were {' instead of '.join(distinct_texts(left, right, form))}"


def distinct_texts(left: Sequence[float], right: Sequence[float], form: str = ".6g") -> tuple[str, str]:
    texts = ("", "")
    for each in (form, *(f".{digits}g" for digits in range(7, 18))):
        texts = (" and ".join(format(n, each) for n in left), " and ".join(format(n, each) for n in right))
        if texts[0] != texts[1]:
            break
    return texts
