"""Compare the observed result of a clip call with hypotheses about the cause of a wrong result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

from ..tensors.arithmetic import nearest_float
from ..tensors.norms import exact_norm, norm_dtype
from ..tensors.types import Dense, Gradient, densify
from .cause import Cause, CauseKind, names_text
from .scaling import CLOSE, EXACT, Scaling, coefficient, combined_norm, scaling

By = Literal["global", "per tensor", "per group", "per slice", "value"]

NORM_TOLERANCE = 1e-6
"""A returned norm with at most this relative error is treated as correct."""

CLEAR_FACTOR = 8
"""A difference of up to CLEAR_FACTOR times the allowed error is treated as rounding."""


NAMES = "{names}"
"""Placeholder in `Hypothesis.sentence` for the names of the gradients in `Hypothesis.about`."""

MOST_SENTENCES = 3
"""The cause is unknown if the hypotheses that explain a call have more than this number of different sentences."""


class Hypothesis(NamedTuple):
    kind: CauseKind | Literal[""] = ""
    """The kind of the cause, or '' for rounding, which is not reported."""

    sentence: str = ""
    norms: Sequence[float] = ()
    """The norm from which each gradient's coefficient is computed. If empty, the correct norms are used."""

    returned: Sequence[float] | None = None
    """The norms that the call might return. The default None means `norms[0]`. An empty sequence means the correct
    norm."""

    eps: float | None = None
    threshold: float | None = None
    tolerance: float = 0.0
    """The relative error of the predicted coefficients."""

    coefs: Sequence[float] = ()
    """The coefficient of each gradient. If empty, the coefficients are computed from `norms`."""

    about: Sequence[int] = ()
    """The indices of the affected gradients. If empty, the cause affects all gradients."""

    is_rare: bool = False
    """Whether to ignore this hypothesis if another hypothesis explains the call."""


def common_cause(fitting: Sequence[Hypothesis], call: Observation) -> Cause | None:
    """Return the common cause of the hypotheses, or None if their kinds differ or the kind is ''."""
    fitting = [each for each in fitting if not each.is_rare] or fitting
    first, kinds = fitting[0], {each.kind for each in fitting}
    if len(kinds) > 1 or not first.kind:
        return None
    others = [each.sentence for each in fitting if bool(each.norms) != bool(first.norms)]
    is_either = first.kind == "another eps of the clip" and first.eps and others
    if first.kind == "16 bits":  # if bfloat16 and float16 fit, the first dtype is named
        dtype = first.sentence.split()[-1]
        ways = [each.sentence.removeprefix("as if ") for each in fitting if each.sentence.endswith(dtype)]
        return Cause(first.kind, f"as if {', or if '.join(dict.fromkeys(ways))}")
    if first.kind in ("another norm type", "left out", "not scaled", "repeated parameter"):
        by_set = {frozenset(each.about) or each.sentence: each for each in reversed(fitting)}
        unique = list(reversed(by_set.values()))
        sentences = list(dict.fromkeys(call.sentence_of(each, unique) for each in unique))
        return Cause(first.kind, ", or ".join(sentences)) if len(sentences) <= MOST_SENTENCES else None
    return Cause(first.kind, f"{first.sentence}, or {others[0]}" if is_either else first.sentence)


@dataclass(frozen=True, eq=False)
class Observation:
    """A clip call with its settings, its gradients and its results. Methods identify a gradient by its index."""

    before: Sequence[Gradient]
    expected: Sequence[Dense | None]
    after: Sequence[Dense | None]
    """`before` contains the gradients before the call. `expected` and `after` contain the expected and the observed
    results. A call that only measures the norm has no results."""

    by: By
    threshold: float = 0.0
    bounds: Sequence[float] = ()
    """The two bounds of a clip by value. A clip by value has no threshold."""

    eps: float = 0.0
    p: float = 2.0
    expected_norm: float | None = None
    norm: float | None = None
    """`expected_norm` and `norm` are the expected and the observed norm. Both are None if the call returns no norm."""

    passed_norm: float | None = None
    """The norm that the caller passes, or None if the call computes the norm."""

    names: Sequence[str] = ()
    groups: Sequence[object] = ()
    need_clip: Sequence[bool | int] = ()
    """Whether each gradient is to be clipped. If empty, all gradients are clipped."""

    times: Sequence[int] = ()
    """How many times the list contains each gradient. If empty, each gradient occurs once."""

    infinite_norm_gives_nan: bool = False
    are_norms: bool = False
    """Whether `before` and `after` contain the norm of each gradient in place of the gradient, as in a recording."""

    slacks: Sequence[float] = (EXACT, CLOSE)

    def names_of(self, numbers: Iterable[int]) -> str:
        """Return the names of some gradients as text. A gradient without a name is called 'gradient 0' or similar."""
        return names_text([self.names[number] if self.names else f"gradient {number}" for number in numbers])

    def sentence_of(self, hypothesis: Hypothesis, fitting: Sequence[Hypothesis] = ()) -> str:
        """Return the sentence of a hypothesis, with the names of gradients in place of NAMES.

        If several hypotheses in `fitting` have the same sentence, the names of their gradients are listed together.
        """
        sentence = hypothesis.sentence
        if NAMES not in sentence:
            return sentence
        same = {number for each in fitting or [hypothesis] if each.sentence == sentence for number in each.about}
        return sentence.replace(NAMES, f"{'one of ' * (len(same) > 1)}{self.names_of(sorted(same))}")

    def sides(self) -> Iterator[tuple[int, Dense, Dense, Dense]]:
        """Yield (index, gradient, expected result, observed result) for each gradient with both results."""
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
        norm, expected = self.norm, self.expected_norm
        return norm is None or expected is None or norm == expected or (math.isnan(norm) and math.isnan(expected))

    # -- norms and coefficients

    @cached_property
    def counted(self) -> Mapping[int, Dense]:
        return {i: each for i, each in self._dense.items() if not self.need_clip or self.need_clip[i]}

    @cached_property
    def _dense(self) -> Mapping[int, Dense]:
        return {i: gradient for i, gradient in enumerate(map(densify, self.before)) if gradient is not None}

    @property
    def elements(self) -> int:
        return sum(gradient.array.size for gradient in self.counted.values())

    def own_norms(self, p: float) -> Mapping[int, float]:
        return {number: exact_norm([gradient], p, "float64") for number, gradient in self._dense.items()}

    @cached_property
    def own(self) -> Mapping[int, float]:
        return self.own_norms(self.p)

    @cached_property
    def norm_dtype(self) -> str:
        return norm_dtype([*self._dense.values()])

    def norm_over(self, numbers: Iterable[int], own: Mapping[int, float] | None = None, p: float = 0.0) -> float:
        """Return the norm over the gradients with these indices, rounded to `norm_dtype`.

        own: The norm of each gradient, by index, computed with the norm_type `p`. The default is `self.own`.
        p: The norm_type, or 0 for the norm_type of the call. If you pass another norm_type, also pass `own_norms(p)`.
        """
        norms = [(own or self.own)[number] for number in numbers]
        return nearest_float(combined_norm(norms, p or self.p), self.norm_dtype)

    def norms_by(self, by: By, measure: Callable[[Sequence[int]], float] | None = None) -> Sequence[float]:
        """Return the norm by which each gradient is clipped. For "per slice" and "value", return the norm of the
        gradient.

        measure: A function that takes indices and returns the norm of these gradients. The default is `norm_over`.
        """
        size, members = len(self.before), dict[object, list[int]]()
        groups = self.groups if by == "per group" else [0] * size if by == "global" else range(size)
        for number in self.counted:
            members.setdefault(groups[number], []).append(number)
        norms = {group: (measure or self.norm_over)(numbers) for group, numbers in members.items()}
        return [norms.get(group, 0.0) for group in groups]

    @cached_property
    def total_norm(self) -> float:
        """The norm that determines the correct coefficient: the passed norm, or the returned norm, or the exact norm.

        The returned norm is used only if its error is a rounding error.
        """
        if self.passed_norm is not None:
            return self.passed_norm
        measured = self.norm_over(self.counted)
        is_near = self.norm is not None and math.isclose(self.norm, measured, rel_tol=NORM_TOLERANCE)
        return self.norm if is_near and self.norm is not None else measured

    @cached_property
    def norms(self) -> Sequence[float]:
        """The norm by which each gradient is clipped. For a clip per slice, this is the norm of the whole gradient."""
        return [self.total_norm] * len(self.before) if self.by == "global" else self.norms_by(self.by)

    def coefficients(self, hypothesis: Hypothesis) -> Sequence[float]:
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
        """The correct coefficient of each gradient, or () for a call without results."""
        return self.coefficients(Hypothesis()) if self.scalings else ()

    # -- tests

    def fits(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether a hypothesis explains results that the correct settings do not explain.

        slack: The allowed relative error.
        """
        by_norm = [n for n in self._returned(hypothesis) if n != self.expected_norm]
        is_shown_by_norm = not self.norm_is_expected and bool(by_norm) and self.norm_fits(by_norm, slack)
        if not is_shown_by_norm and (self.gradients_match_norm or self.expected_fits(hypothesis.tolerance)):
            return False
        return self.explains(hypothesis, slack)

    def fitting(self, possible: Sequence[Hypothesis], slack: float) -> list[Hypothesis]:
        fitting = [each for each in possible if self.fits(each, slack)]
        if fitting and all(each.kind == "another eps of the clip" and each.norms for each in fitting):
            outside = [each for each in possible if each.kind == "another eps of the clip" and not each.norms]
            fitting = [each for each in outside if self.fits(each, max(slack, CLOSE))] + fitting
        return fitting

    def explains(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether a hypothesis explains the returned norm and the coefficient of each gradient.

        slack: The allowed relative error. For the coefficients, the larger of `slack` and `hypothesis.tolerance` is
            allowed.
        """
        if not self.norm_fits(self._returned(hypothesis) or [self.total_norm], slack):
            return False
        coefs = enumerate(self.coefficients(hypothesis) if self.scalings else ())
        tolerance = max(slack, hypothesis.tolerance)
        return all(self.scalings[number].allows(coef, tolerance) for number, coef in coefs if number in self.scalings)

    def _returned(self, hypothesis: Hypothesis) -> Sequence[float]:
        return hypothesis.norms[:1] if hypothesis.returned is None else hypothesis.returned

    def expected_fits(self, slack: float) -> bool:
        slack *= CLEAR_FACTOR
        return self.norm_fits([self.expected_norm], slack) and all(
            each.distance <= slack for each in self.scalings.values()
        )

    def norm_fits(self, norms: Sequence[float | None], slack: float) -> bool:
        norm, present = self.norm, [n for n in norms if n is not None]
        return norm is None or any(n == norm or abs(n - norm) <= slack * n < math.inf for n in present)

    @cached_property
    def gradients_match_norm(self) -> bool:
        """Whether each coefficient matches the correct norm. The returned norm is not compared.

        For a clip by value or per slice, every result must be correct bit for bit.
        """
        if not self.wrong or self.by in ("value", "per slice"):
            return not self.wrong
        return all(each.allows(self.expected_coefs[number], EXACT) for number, each in self.scalings.items())
