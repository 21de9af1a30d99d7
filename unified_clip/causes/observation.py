"""Compare the result of a clip call with hypotheses about the cause of a wrong result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

from ..recorder.clips import coefficient, combined_norm
from ..tensors.arithmetic import nearest_float
from ..tensors.norms import exact_norm, norm_dtype
from ..tensors.types import Dense, Gradient, densify
from .cause import Cause, CauseKind, names_text
from .scaling import CLOSE, EXACT, Scaling, scaling

By = Literal["global", "per tensor", "per group", "per slice", "value"]

NORM_TOLERANCE = 1e-6
"""A norm with at most this relative error is correct."""

CLEAR_FACTOR = 8
"""A difference of up to CLEAR_FACTOR times the allowed error is rounding."""


NAMES = "{names}"
"""Placeholder in `Hypothesis.sentence` for the names of the gradients in `about`."""

MOST_SENTENCES = 3
"""The largest number of distinct sentences in one cause. If more sentences fit, the cause is unknown."""


class Hypothesis(NamedTuple):
    kind: CauseKind | Literal[""] = ""
    """The kind '' means rounding, which is not reported."""

    sentence: str = ""
    norms: Sequence[float] = ()
    """For each gradient, the norm that determines its coefficient. If empty, the correct norms are used."""

    returned: Sequence[float] | None = None
    """The norms that the call might return. None means `norms[0]`. An empty list means the correct norm."""

    eps: float | None = None
    threshold: float | None = None
    tolerance: float = 0.0
    """The allowed relative error of the coefficients."""

    coefs: Sequence[float] = ()
    """If empty, the coefficients are computed from `norms`."""

    about: Sequence[int] = ()
    """The indices of the affected gradients. If empty, all gradients are affected."""

    is_rare: bool = False
    """Ignore this hypothesis if another one explains the call."""


def common_cause(fitting: Sequence[Hypothesis], call: Observation) -> Cause | None:
    fitting = [each for each in fitting if not each.is_rare] or fitting
    first, kinds = fitting[0], {each.kind for each in fitting}
    if len(kinds) > 1 or not first.kind:
        return None
    others = [each.sentence for each in fitting if bool(each.norms) != bool(first.norms)]
    is_either = first.kind == "another eps of the clip" and first.eps and others
    if first.kind == "16 bits":
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
    """A clip call with its gradients and results."""

    before: Sequence[Gradient]
    expected: Sequence[Dense | None]
    after: Sequence[Dense | None]
    """Empty if the call only measures the norm."""

    by: By
    threshold: float = 0.0
    bounds: Sequence[float] = ()
    """The bounds of a clip by value, which has no threshold."""

    eps: float = 0.0
    p: float = 2.0
    expected_norm: float | None = None
    norm: float | None = None
    """`expected_norm` and `norm` are None if the call returns no norm."""

    passed_norm: float | None = None
    """The norm that the caller passes, instead of a norm that the call computes."""

    names: Sequence[str] = ()
    groups: Sequence[object] = ()
    need_clip: Sequence[bool | int] = ()
    """If empty, all gradients are clipped."""

    times: Sequence[int] = ()
    """How often the list contains each gradient. If empty, each gradient occurs once."""

    infinite_norm_gives_nan: bool = False
    are_norms: bool = False
    """Whether each gradient is replaced by its norm, as in a recording."""

    slacks: Sequence[float] = (EXACT, CLOSE)

    def names_of(self, numbers: Iterable[int]) -> str:
        return names_text([self.names[number] if self.names else f"gradient {number}" for number in numbers])

    def sentence_of(self, hypothesis: Hypothesis, fitting: Sequence[Hypothesis] = ()) -> str:
        """Return the sentence with the names of gradients in place of NAMES."""
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
    def clearly_wrong(self) -> Sequence[int]:
        """`wrong`, without the gradients that differ only by rounding."""
        return [number for number in self.wrong if not self.scalings[number].is_close]

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
        """If `p` differs from `self.p`, pass `own_norms(p)` as `own`."""
        norms = [(own or self.own)[number] for number in numbers]
        return nearest_float(combined_norm(norms, p or self.p), self.norm_dtype)

    def norms_by(self, by: By, measure: Callable[[Sequence[int]], float] | None = None) -> Sequence[float]:
        """Treat "per slice" and "value" like "per tensor"."""
        size, members = len(self.before), dict[object, list[int]]()
        groups = self.groups if by == "per group" else [0] * size if by == "global" else range(size)
        for number in self.counted:
            members.setdefault(groups[number], []).append(number)
        norms = {group: (measure or self.norm_over)(numbers) for group, numbers in members.items()}
        return [norms.get(group, 0.0) for group in groups]

    @cached_property
    def total_norm(self) -> float:
        """The norm that determines the correct coefficient."""
        if self.passed_norm is not None:
            return self.passed_norm
        measured = self.norm_over(self.counted)
        is_near = self.norm is not None and math.isclose(self.norm, measured, rel_tol=NORM_TOLERANCE)
        return self.norm if is_near and self.norm is not None else measured

    @cached_property
    def norms(self) -> Sequence[float]:
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
        """The correct coefficients, or () if the clipped gradients are unknown."""
        return self.coefficients(Hypothesis()) if self.scalings else ()

    # -- tests

    def fits(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether the hypothesis explains the results, but the correct settings do not."""
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
        """Return whether the hypothesis explains the norm and the coefficients, up to the relative error `slack`."""
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
        """Whether the gradients are clipped by the correct norm."""
        if not self.wrong or self.by in ("value", "per slice"):
            return not self.wrong
        return all(each.allows(self.expected_coefs[number], EXACT) for number, each in self.scalings.items())
