"""A result that differs, beside what is due: what a cause is tried on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...tensors.arithmetic import nearest_float
from ...tensors.types import Dense, densify
from ..outcome import CallOutcome
from ..suite.cases import Case
from ..suite.public_calls import Call
from . import oracle
from .oracle import Expected
from .traces import EXACT, ScalingTrace, trace_scaling
from .verdict import relative_error

NEAR = 1e-6
"""A norm that differs less, relatively, can be that of the device path: the coefficient follows from it."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One case, what is due and what was found."""

    case: Case
    due: Expected
    found: CallOutcome

    @cached_property
    def given(self) -> list[Dense | None]:
        return [densify(gradient) for gradient in self.case.gradients]

    def sides(self) -> Iterator[tuple[int, Dense, Dense, Dense]]:
        """The number of each gradient, and how it was given, is due and was found."""
        sides = zip(self.given, self.due.gradients or [], self.found.gradients or [], strict=False)
        for number, (given, due, found) in enumerate(sides):
            if given is not None and due is not None and found is not None:
                yield number, given, due, found

    @cached_property
    def traces(self) -> dict[int, ScalingTrace]:
        """What each gradient shows, by its number; none for a call that only measures."""
        return {number: trace_scaling(*tensors) for number, *tensors in self.sides()}

    @cached_property
    def norm(self) -> float | None:
        """The norm that was returned, where one is due."""
        returned = self.found.norm
        return float(returned.values().reshape(())) if self.due.norm and returned and returned.array.size == 1 else None

    @property
    def norm_is_due(self) -> bool:
        """Whether the norm is right, or none was returned."""
        norm, due = self.norm, self.due_norm
        return norm is None or due is None or norm == due or (math.isnan(norm) and math.isnan(due))

    @property
    def due_norm(self) -> float | None:
        return None if self.due.norm is None else float(self.due.norm.values())

    def named(self, numbers: Iterable[int]) -> str:
        """What gradients are called, the first three of them."""
        called = self.case.names or [f"gradient {number}" for number in range(len(self.given))]
        names = [repr(called[number]) for number in numbers]
        if len(names) > 4:
            names[3:] = [f"{len(names) - 3} others"]
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    # -- norms and coefficients, as the oracle has them

    @cached_property
    def counted(self) -> list[int]:
        """The numbers of the gradients that a norm over all of them counts."""
        needed = self.case.call_form.need_clip or [True] * len(self.given)
        return [n for n, (g, needs) in enumerate(zip(self.given, needed, strict=True)) if g is not None and needs]

    @property
    def count(self) -> int:
        """How many numbers are counted."""
        return sum(gradient.array.size for n in self.counted if (gradient := self.given[n]) is not None)

    @property
    def order(self) -> float:
        return float(self.case.arguments.get("norm_type", 2))

    @cached_property
    def dtype(self) -> str:
        """Of the norm."""
        return oracle.norm_dtype([g for g in self.given if g is not None])

    @cached_property
    def own_norms(self) -> dict[int, float]:
        """The norm of each gradient in float64."""
        return self.norms_of_order(self.order)

    def norms_of_order(self, order: float) -> dict[int, float]:
        return {n: oracle.norm([g], order, "float64") for n, g in enumerate(self.given) if g is not None}

    def together(self, numbers: Iterable[int], order: float | None = None) -> float:
        """The norm over some of the gradients, put together of their own ones."""
        own = self.own_norms if order is None else self.norms_of_order(order)
        return self.rounded(combined([own[number] for number in numbers], order or self.order))

    def norms_by(self, order: float) -> list[float]:
        """The norms by which gradients would be clipped if they were of this order: of all, or of each."""
        if self.case.call.by_total_norm:
            return [self.together(self.counted, order)] * len(self.given)
        own = self.norms_of_order(order)
        return [self.rounded(own.get(number, 0.0)) for number in range(len(self.given))]

    def rounded(self, n: float) -> float:
        return nearest_float(n, self.dtype)

    @cached_property
    def n(self) -> float:
        """The norm by which all are clipped: that which was returned, where it can be that of the device path."""
        given = self.case.call.passed_norm(self.case.arguments)
        if given is not None:
            return given
        measured = self.together(self.counted)
        is_near = self.norm is not None and relative_error(self.norm, measured) <= NEAR
        return self.norm if is_near and self.norm is not None else measured

    @cached_property
    def norms(self) -> list[float]:
        """The norm by which each gradient is clipped; that of the whole where it is by slices."""
        groups = self.case.call_form.groups
        if not self.case.call.by_total_norm:
            return [self.rounded(self.own_norms.get(number, 0.0)) for number in range(len(self.given))]
        if not groups:
            return [self.n] * len(self.given)
        return [self.together(n for n in self.counted if groups[n] == group) for group in groups]

    @cached_property
    def lone_norm(self) -> float:
        """The only norm by which anything is scaled, or should be, where none is returned; else 0.

        Then one coefficient is all there is to tell a cause by.
        """
        scaled = {self.norms[n] for n, trace in self.traces.items() if not (trace.is_given and trace.due_is_given)}
        return scaled.pop() if self.norm is None and len(scaled) == 1 else 0.0

    @cached_property
    def follows(self) -> bool:
        """Whether all is right but for the norm that was returned: gradients are what it makes of them."""
        if all(trace.is_due for trace in self.traces.values()):
            return True
        if self.case.call.by_value or "axes" in self.case.arguments:
            return False
        coefficients = self.coefficients(self.norms)
        return all(trace.allows(coefficients[number], EXACT) for number, trace in self.traces.items())

    def coefficients(
        self, norms: Sequence[float], *, eps: float | None = None, limit: float | None = None
    ) -> list[float]:
        """What the rule makes of norms, one for each gradient."""
        call = self.case.call if eps is None else dataclasses.replace(self.case.call, eps=eps)
        threshold = call.threshold(self.case.arguments) if limit is None else limit
        found = {n: _coefficient(call, n, threshold) for n in set(norms)}
        return [found[n] if number in self.counted_set else 1.0 for number, n in enumerate(norms)]

    @cached_property
    def counted_set(self) -> frozenset[int]:
        return frozenset(self.counted)


def _coefficient(call: Call, n: float, limit: float) -> float:
    return 0.0 if n == limit == 0 else oracle.coefficient(call, n, limit)


def combined(norms: Sequence[float], order: float) -> float:
    """The norm of a list from those of its parts."""
    greatest = max(norms, default=0.0)
    if order == math.inf or greatest == 0 or not np.isfinite(norms).all():
        return math.nan if any(map(math.isnan, norms)) else greatest
    return float(greatest * np.float64(math.fsum((n / greatest) ** order for n in norms)) ** (1 / order))
