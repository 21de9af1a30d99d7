"""One clip call, and whether a hypothesis predicts its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np

from ..recorder.clips import coefficient, combined_norm
from ..tensors.arithmetic import FORMATS, Float64s, rounded
from ..tensors.norms import exact_norm, norm_dtype
from ..tensors.types import Dense, Gradient, Sparse, densify
from .cause import CauseKind, listed
from .scaling import EXACT, Scaling, scaling, tolerance_of

By = Literal["global", "per tensor", "per group", "per slice", "value"]

Measure = Callable[[Sequence[int]], float]
"""Takes indices of gradients. Returns a norm of these gradients."""

NORM_TOLERANCE = 1e-6
"""A norm with at most this relative error is correct."""

IN_FLOAT32 = 2.0**-22
"""The largest relative error of a coefficient in float32."""

CLEAR_FACTOR = 8
"""A difference of up to CLEAR_FACTOR times the allowed error is rounding."""

NARROW = ("bfloat16", "float16")

SLACK = 1e-5
"""The relative difference up to which a prediction agrees with another case of a function."""


def rounding_noise(elements: int) -> float:
    """Estimate the largest relative error of a float32 norm."""
    return 2.0**-24 * (1 + math.sqrt(elements))


def near(value: float, dtype: str) -> float:
    return float(rounded(np.asarray(value), dtype))


class Hypothesis(NamedTuple):
    """A variation of the specified computation, and its results for one call."""

    kind: CauseKind | Literal[""] = ""
    """The kind '' means rounding, which is not reported."""

    sentence: str = ""
    norms: Sequence[float] = ()
    """For each gradient, the norm that determines its coefficient. If empty, the correct norms are used."""

    returned: Sequence[float] | None = None
    """The norms that the call might return. None means `norms[0]` or the correct norm."""

    eps: float | None = None
    threshold: float | None = None
    coefs: Sequence[float] = ()
    """If empty, the coefficients are computed from the norms, eps and the threshold."""

    elements: Mapping[int, Float64s] | None = None
    """The clipped gradients, if no coefficients describe them."""

    tolerance: float = 0.0
    """The allowed relative error of the coefficients."""

    about: Sequence[int] = ()
    """The indices of the affected gradients. If empty, all gradients are affected."""

    key: str = ""
    """Two hypotheses with one key are the same variation in two calls. The default is the sentence."""

    form: str = ""
    """Two hypotheses with one form differ only in a number. The first one is the simplest."""

    is_rare: bool = False
    """Ignore this hypothesis if another one explains the call."""


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

    def names_of(self, numbers: Iterable[int]) -> str:
        return listed(list(map(self._name_of, numbers)))

    def _name_of(self, number: int) -> str:
        name = f"gradient {number}"
        return repr(self.names[number]) if number < len(self.names) and self.names[number] != name else name

    def described(self, number: int) -> str:
        """Add its shape to a gradient without a name: it can be why a function leaves out the gradient."""
        name, gradient = self._name_of(number), self.before[number]
        if gradient is None or name != f"gradient {number}":
            return name
        return f"{name} of shape {list(gradient.shape)}"

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

    # -- what distinguishes one call of a function from another

    @cached_property
    def has_one_form(self) -> bool:
        forms = [[each and (each.dtype, each.shape) for each in side] for side in (self.expected, self.after)]
        return forms[0] == forms[1]

    @cached_property
    def is_regular(self) -> bool:
        """Whether results of other calls may explain this call."""
        numbers = [n for n in (self.norm, self.expected_norm) if n is not None]
        are_finite = all(np.isfinite(tensor.values()).all() for _, *tensors in self.sides() for tensor in tensors)
        is_by_norm = self.by in ("global", "per tensor", "per group") and bool(self.counted)
        return self.has_one_form and is_by_norm and are_finite and all(map(math.isfinite, numbers))

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """float64 counts as float32, because most causes affect both alike."""
        return frozenset("float32" if each.dtype == "float64" else each.dtype for each in self.counted.values())

    @cached_property
    def slack(self) -> float:
        return max([SLACK, *(2.0 ** (3 - FORMATS[dtype].precision) for dtype in self.dtypes if dtype in NARROW)])

    @property
    def settings(self) -> tuple[object, ...]:
        return self.by, self.p, self.eps, self.passed_norm is None

    @cached_property
    def is_special(self) -> tuple[bool, bool]:
        """Frameworks have separate code for sparse gradients and for repeated gradients."""
        return any(isinstance(each, Sparse) for each in self.before), max(self.times, default=1) > 1

    # -- norms and coefficients

    @cached_property
    def counted(self) -> Mapping[int, Dense]:
        return {i: each for i, each in self._dense.items() if not self.need_clip or self.need_clip[i]}

    @cached_property
    def _dense(self) -> Mapping[int, Dense]:
        return {i: gradient for i, gradient in enumerate(map(densify, self.before)) if gradient is not None}

    @cached_property
    def elements(self) -> int:
        return sum(gradient.array.size for gradient in self.counted.values())

    @property
    def noise(self) -> float:
        return rounding_noise(self.elements)

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
        return near(combined_norm(norms, p or self.p), self.norm_dtype)

    def norms_by(self, by: By, measure: Measure | None = None) -> Sequence[float]:
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

    def explains(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether the hypothesis predicts the norm and the gradients, up to the relative error `slack`."""
        if hypothesis.elements is not None:
            is_near = self.norm_fits(self._returned(hypothesis), self.tolerance)
            return is_near and self._are_near(hypothesis.elements, self.after)
        if not self.norm_fits(self._returned(hypothesis), min(slack, SLACK)):
            return False
        coefs = self.coefficients(hypothesis) if self.scalings else ()
        tolerance = max(slack, hypothesis.tolerance)
        return all(each.allows(coefs[number], tolerance) for number, each in self.scalings.items())

    def _are_near(self, elements: Mapping[int, Float64s], tensors: Sequence[Dense | None]) -> bool:
        pairs = ((tensors[number], predicted) for number, predicted in elements.items())
        return all(
            (np.abs(tensor.values() - predicted) <= self.tolerance * np.abs(predicted)).all()
            for tensor, predicted in pairs
            if tensor is not None
        )

    def _returned(self, hypothesis: Hypothesis) -> Sequence[float]:
        if hypothesis.returned is None:
            return [*hypothesis.norms[:1], self.total_norm]
        return hypothesis.returned

    @cached_property
    def tolerance(self) -> float:
        """The allowed relative error of an element that several operations in the gradients' dtype compute."""
        return max([2 * self.noise, *(tolerance_of(each.dtype) for each in self.scalings.values())])

    def fits(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether the hypothesis predicts the results, but the correct computation does not."""
        if hypothesis.elements is not None and self._are_near(hypothesis.elements, self.expected):
            return False
        if self.shows_norm(hypothesis, slack) or not (
            self.gradients_match_norm or self.is_rounding(hypothesis.tolerance)
        ):
            return self.explains(hypothesis, slack)
        return False

    def shows(self, hypothesis: Hypothesis, slack: float) -> bool:
        """Return whether these results are evidence. Unchanged gradients are none: rules that clip less fit, too."""
        is_changed = any(not self.scalings[number].is_unchanged for number in self.wrong)
        return is_changed or self.shows_norm(hypothesis, slack)

    def shows_norm(self, hypothesis: Hypothesis, slack: float) -> bool:
        # `total_norm` is the returned norm if it is nearly correct
        correct = {self.expected_norm, self.total_norm} - {*hypothesis.norms[:1]} | {self.expected_norm}
        by_norm = [n for n in self._returned(hypothesis) if n not in correct]
        return not self.norm_is_expected and bool(by_norm) and self.norm_fits(by_norm, slack)

    def is_visible(self, hypothesis: Hypothesis) -> bool:
        """Return whether the predicted results clearly differ from the correct results."""
        if hypothesis.elements is not None:
            return not self._are_near(hypothesis.elements, self.expected)
        pairs = zip(self.coefficients(hypothesis), self.expected_coefs, strict=False)
        if self.scalings and any(abs(coef - right) > 4 * self.slack * right for coef, right in pairs):
            return True
        returned, expected = self._returned(hypothesis), self.expected_norm
        if expected is None or self.norm is None:
            return False
        return all(abs(n - expected) > 4 * self.slack * expected for n in returned)

    def is_rounding(self, slack: float) -> bool:
        """Return whether the results differ from the correct results only by rounding."""
        slack *= CLEAR_FACTOR
        return self.norm_fits([self.expected_norm], slack) and all(
            each.distance <= slack for each in self.scalings.values()
        )

    def norm_fits(self, norms: Sequence[float | None], slack: float) -> bool:
        norm, present = self.norm, [n for n in norms if n is not None]
        return norm is None or any(
            n == norm or abs(n - norm) <= slack * n < math.inf or (math.isnan(n) and math.isnan(norm)) for n in present
        )

    @cached_property
    def gradients_match_norm(self) -> bool:
        """Whether the gradients are clipped by the correct norm."""
        if not self.wrong or self.by in ("value", "per slice"):
            return not self.wrong
        return all(each.allows(self.expected_coefs[number], EXACT) for number, each in self.scalings.items())
