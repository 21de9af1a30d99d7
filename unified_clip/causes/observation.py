"""A clip call with a wrong result, and tests of hypotheses about the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

from ..tensors.arithmetic import nearest_float
from ..tensors.norms import exact_norm, norm_dtype
from ..tensors.types import Dense, Gradient, densify
from .scaling import CLOSE, EXACT, Scaling, coefficient, combined_norm, scaling

By = Literal["global", "per tensor", "per group", "per slice", "value"]
"""What limits a gradient: the total norm, its own norm, the norm of its group, the norm of each slice, or two bounds.
"""

NORM_TOLERANCE = 1e-6
"""The largest relative difference between a returned norm and the exact norm that counts as rounding."""

CLEAR_FACTOR = 8
"""The allowed error of the correct call, divided by the allowed error of a cause."""


CauseKind = Literal[
    # found in the tensors of a call, or in the numbers of a recorded call
    "16 bits", "another condition", "another eps", "another norm type", "another rule", "another threshold",
    "clipped below the threshold",
    "clipped twice", "coefficient", "float32", "given norm", "global for per group", "global for per slice",
    "global for per tensor", "inexact norm", "inf", "left out", "NaN", "need_clip", "not clipped",
    "norm after the clip", "not finite in one run", "not scaled",
    "overflow", "per group for global", "per tensor for global",
    "per tensor for per group", "per tensor for per slice", "rounding", "rounding noise", "rounding that has grown",
    "rows", "scaled gradients", "signs", "swapped", "touched", "underflow", "zeros",
    # found in the calls and steps of two runs
    "another dtype", "another learning rate", "another optimizer", "another place of epsilon", "clip by hand",
    "clipping after the step", "clipping before unscaling", "gradient accumulation", "gradients are not cleared",
    "left-out clip", "one run is shorter", "other data or loss", "other gradients", "other initial weights",
    "repeated parameter", "several clips before a step", "shifted step", "skipped step", "squared rows",
    "tensors without a gradient", "the clip does not reach the step", "untransposed weight",
    "weight decay before the clip",
]  # fmt: skip


class Cause(NamedTuple):
    kind: CauseKind

    sentence: str

    def as_data(self) -> dict[str, str]:
        """Return {"mistake": kind, "text": sentence}, for the JSON report of a comparison."""
        return {"mistake": self.kind, "text": self.sentence}

    @property
    def title(self) -> str:
        return f"{self.kind[:1].upper()}{self.kind[1:]}"

    def __str__(self) -> str:
        return f"{self.title}: {self.sentence}."


def instead(what: str, actual: float | Sequence[float], expected: float | Sequence[float], form: str = ".6g") -> str:
    """Return a phrase about a wrong setting, such as "as with eps 0 instead of 1e-06".

    what: The name of the setting.
    actual: The value or values that explain the numbers.
    expected: The correct value or values.
    form: The format specification of the numbers. More digits are used if the texts would otherwise be equal.
    """
    left, right = ([each] if isinstance(each, int | float) else each for each in (actual, expected))
    return f"as with {what} {' instead of '.join(apart(left, right, form))}"


def apart(left: Sequence[float], right: Sequence[float], form: str = ".6g") -> tuple[str, str]:
    """Return both lists of numbers as texts. More digits are used if the texts would otherwise be equal."""
    texts = ("", "")
    for each in (form, *(f".{digits}g" for digits in range(7, 18))):
        texts = (" and ".join(format(n, each) for n in left), " and ".join(format(n, each) for n in right))
        if texts[0] != texts[1]:
            break
    return texts


class Hypothesis(NamedTuple):
    """A possible cause, and the settings, norms or coefficients that it predicts."""

    kind: CauseKind | Literal[""] = ""
    """The kind of the cause. Empty if rounding could explain the numbers, so that the cause stays unknown."""

    sentence: str = ""
    norms: Sequence[float] = ()
    """The norm by which each gradient is clipped. Empty for the correct norms."""

    returned: Sequence[float] | None = None
    """The norms that the call might return. Empty for the correct norm. None for the first of `norms`."""

    eps: float | None = None
    threshold: float | None = None
    tolerance: float = 0.0
    """The relative error that the cause itself adds to the coefficients."""

    coefs: Sequence[float] = ()
    """The coefficient of each gradient. Empty if the coefficients follow from the norms."""

    about: Sequence[int] = ()
    """The indices of the gradients that the hypothesis is about. Empty if it is about all gradients, or about none."""

    is_mean: bool = False
    """Whether `norms` might be multiples of the correct norms. Another threshold then gives the same coefficients."""


def common_cause(fitting: Sequence[Hypothesis]) -> Cause | None:
    """Return the common cause of hypotheses that explain the same numbers.

    Return None if the hypotheses are of several kinds, or if rounding alone could explain the numbers.
    """
    first, kinds = fitting[0], {each.kind for each in fitting}
    if len(kinds) > 1 or not first.kind:
        return None
    others = [each.sentence for each in fitting if bool(each.norms) != bool(first.norms)]
    is_either = first.kind == "another eps" and first.eps and others
    return Cause(first.kind, f"{first.sentence}, or {others[0]}" if is_either else first.sentence)


@dataclass(frozen=True, eq=False)
class Observation:
    """A clip call that differs from the correct call. Gradients are identified by their index."""

    before: Sequence[Gradient]
    expected: Sequence[Dense | None]
    after: Sequence[Dense | None]
    """The gradients before the call, the expected results, and the observed results. A call that only measures has no
    results.
    """

    by: By
    threshold: float = 0.0
    bounds: Sequence[float] = ()
    """The two bounds of a clip by value, which has no threshold."""

    eps: float = 0.0
    p: float = 2.0
    expected_norm: float | None = None
    norm: float | None = None
    """`expected_norm` and `norm` are the expected and the observed norm. Both are None if the call returns no norm."""

    passed_norm: float | None = None
    """The norm that the caller passes in place of the measured one."""

    names: Sequence[str] = ()
    groups: Sequence[object] = ()
    """The group of each gradient, for a clip by the norm of each group."""

    need_clip: Sequence[bool | int] = ()
    """Whether to clip each gradient. Empty if all gradients are clipped."""

    infinite_norm_gives_nan: bool = False
    are_norms: bool = False
    """Whether each gradient is replaced by a single number, its norm, because the recording has no gradients."""

    slacks: Sequence[float] = (EXACT, CLOSE)
    """The relative errors within which causes are tested, in this order."""

    def names_of(self, numbers: Iterable[int]) -> str:
        """Return the names of the gradients with these indices as text, such as "'a', 'b' and 'c'".

        The text lists at most three of more than four names. The names are 'gradient 0' and so on if the call has no
        names.
        """
        names = [repr(self.names[number]) if self.names else f"'gradient {number}'" for number in numbers]
        if len(names) > 4:
            names[3:] = [f"{len(names) - 3} others"]
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    def sides(self) -> Iterator[tuple[int, Dense, Dense, Dense]]:
        """Yield (index, gradient, expected result, observed result) for each gradient that has both results."""
        sides = zip(map(densify, self.before), self.expected, self.after, strict=False)
        for number, (before, expected, after) in enumerate(sides):
            if before is not None and expected is not None and after is not None:
                yield number, before, expected, after

    @cached_property
    def scalings(self) -> Mapping[int, Scaling]:
        return {number: scaling(*tensors) for number, *tensors in self.sides()}

    @cached_property
    def wrong(self) -> Sequence[int]:
        return [number for number, each in self.scalings.items() if not each.is_expected]

    @cached_property
    def norm_is_expected(self) -> bool:
        """Whether the returned norm is correct. True if no norm is returned, or if none is expected."""
        norm, expected = self.norm, self.expected_norm
        return norm is None or expected is None or norm == expected or (math.isnan(norm) and math.isnan(expected))

    # -- norms and coefficients

    @cached_property
    def counted(self) -> Mapping[int, Dense]:
        """The gradients that the call should clip, as dense tensors by index."""
        return {i: each for i, each in self._dense.items() if not self.need_clip or self.need_clip[i]}

    @cached_property
    def _dense(self) -> Mapping[int, Dense]:
        return {i: gradient for i, gradient in enumerate(map(densify, self.before)) if gradient is not None}

    @property
    def elements(self) -> int:
        return sum(gradient.array.size for gradient in self.counted.values())

    def own_norms(self, p: float) -> Mapping[int, float]:
        """Return the norm of each gradient in float64, by index."""
        return {number: exact_norm([gradient], p, "float64") for number, gradient in self._dense.items()}

    @cached_property
    def own(self) -> Mapping[int, float]:
        return self.own_norms(self.p)

    @cached_property
    def norm_dtype(self) -> str:
        return norm_dtype([*self._dense.values()])

    def norm_over(self, numbers: Iterable[int], own: Mapping[int, float] | None = None, p: float = 0.0) -> float:
        """Return the common norm of the gradients with these indices, rounded to `norm_dtype`.

        own: The norm of each gradient, by index, for the norm_type `p`. By default, the norms for the norm_type of the
            call.
        p: The norm_type. 0 stands for the norm_type of the call. For another p, also pass `own_norms(p)`.
        """
        norms = [(own or self.own)[number] for number in numbers]
        return nearest_float(combined_norm(norms, p or self.p), self.norm_dtype)

    def norms_by(self, by: By, measure: Callable[[Sequence[int]], float] | None = None) -> Sequence[float]:
        """Return the norm by which the rule `by` clips each gradient.

        For the rules "per slice" and "value", return the norm of the gradient itself.
        measure: A function that returns the norm over the gradients with some indices. By default, `norm_over`.
        """
        size, members = len(self.before), dict[object, list[int]]()
        groups = self.groups if by == "per group" else [0] * size if by == "global" else range(size)
        for number in self.counted:
            members.setdefault(groups[number], []).append(number)
        norms = {group: (measure or self.norm_over)(numbers) for group, numbers in members.items()}
        return [norms.get(group, 0.0) for group in groups]

    @cached_property
    def total_norm(self) -> float:
        """The total norm by which the call should clip.

        A norm that the caller passed comes first. Next comes the returned norm, if it is within `NORM_TOLERANCE` of the
        exact norm. The last choice is the exact norm.
        """
        if self.passed_norm is not None:
            return self.passed_norm
        measured = self.norm_over(self.counted)
        is_near = self.norm is not None and math.isclose(self.norm, measured, rel_tol=NORM_TOLERANCE)
        return self.norm if is_near and self.norm is not None else measured

    @cached_property
    def norms(self) -> Sequence[float]:
        """The norm by which each gradient should be clipped. For a clip per slice, the norm of the whole gradient."""
        return [self.total_norm] * len(self.before) if self.by == "global" else self.norms_by(self.by)

    def coefficients(self, hypothesis: Hypothesis) -> Sequence[float]:
        """Return the coefficient that a hypothesis predicts for each gradient."""
        if hypothesis.coefs:
            return hypothesis.coefs
        threshold = self.threshold if hypothesis.threshold is None else hypothesis.threshold
        eps = self.eps if hypothesis.eps is None else hypothesis.eps
        of_norm = partial(coefficient, infinite_norm_gives_nan=self.infinite_norm_gives_nan)
        norms = hypothesis.norms or self.norms
        coefs = {n: of_norm(n, threshold, eps) for n in set(norms)}
        return [coefs[n] if number in self.counted else 1.0 for number, n in enumerate(norms)]

    @cached_property
    def expected_coefs(self) -> Sequence[float]:
        """The correct coefficient of each gradient. Empty if no gradient has an expected and an observed result."""
        return self.coefficients(Hypothesis()) if self.scalings else ()

    # -- tests

    def fits(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether a hypothesis explains the numbers of the call, and the correct call does not.

        slack: The relative error up to which numbers count as equal.
        """
        by_norm = [n for n in self._returned(hypothesis) if n != self.expected_norm]
        is_shown_by_norm = not self.norm_is_expected and bool(by_norm) and self.norm_fits(by_norm, slack)
        if not is_shown_by_norm and (self.gradients_match_norm or self.expected_fits(hypothesis.tolerance)):
            return False
        return self.explains(hypothesis, slack)

    def fitting(self, possible: Sequence[Hypothesis], slack: float) -> list[Hypothesis]:
        """Return the hypotheses that fit.

        If an eps inside the root fits, an equally close eps outside the root is returned, too.
        """
        fitting = [each for each in possible if self.fits(each, slack)]
        if fitting and all(each.kind == "another eps" and each.norms for each in fitting):
            outside = [each for each in possible if each.kind == "another eps" and not each.norms]
            fitting = [each for each in outside if self.fits(each, max(slack, CLOSE))] + fitting
        return fitting

    def explains(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether a hypothesis explains the returned norm and the coefficient of each gradient.

        The correct call might explain the same numbers. A larger `hypothesis.tolerance` replaces `slack` for
        coefficients.
        """
        if not self.norm_fits(self._returned(hypothesis) or [self.total_norm], slack):
            return False
        coefs = enumerate(self.coefficients(hypothesis) if self.scalings else ())
        tolerance = max(slack, hypothesis.tolerance)
        return all(self.scalings[number].allows(coef, tolerance) for number, coef in coefs if number in self.scalings)

    def _returned(self, hypothesis: Hypothesis) -> Sequence[float]:
        return hypothesis.norms[:1] if hypothesis.returned is None else hypothesis.returned

    def expected_fits(self, slack: float) -> bool:
        """Return whether the correct call explains the numbers, within CLEAR_FACTOR times `slack`."""
        slack *= CLEAR_FACTOR
        return self.norm_fits([self.expected_norm], slack) and all(
            each.distance <= slack for each in self.scalings.values()
        )

    def norm_fits(self, norms: Sequence[float | None], slack: float) -> bool:
        norm = self.norm
        return norm is None or any(n is not None and abs(n - norm) <= slack * n for n in norms)

    @cached_property
    def gradients_match_norm(self) -> bool:
        """Whether every coefficient is correct for `norms`, even if the returned norm is wrong.

        For a clip by value or per slice, this is whether every result is correct bit for bit.
        """
        if not self.wrong or self.by in ("value", "per slice"):
            return not self.wrong
        return all(each.allows(self.expected_coefs[number], EXACT) for number, each in self.scalings.items())
