"""A result that differs, with the case and the exact result: the input of `diagnose`."""

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
"""Relative difference up to which a norm may be the device path's. The coefficient follows from it."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A case, its exact result (`due`) and the result that differs (`found`)."""

    case: Case
    due: Expected
    found: CallOutcome

    @cached_property
    def given(self) -> list[Dense | None]:
        return [densify(gradient) for gradient in self.case.gradients]

    def sides(self) -> Iterator[tuple[int, Dense, Dense, Dense]]:
        """Yield the index of each gradient, with the gradient before the call, as expected, and after the call."""
        sides = zip(self.given, self.due.gradients or [], self.found.gradients or [], strict=False)
        for number, (given, due, found) in enumerate(sides):
            if given is not None and due is not None and found is not None:
                yield number, given, due, found

    @cached_property
    def traces(self) -> dict[int, ScalingTrace]:
        """By index, how each gradient was scaled. Empty for a call that only measures."""
        return {number: trace_scaling(*tensors) for number, *tensors in self.sides()}

    @cached_property
    def norm(self) -> float | None:
        """The returned norm, if the call returns one."""
        returned = self.found.norm
        return float(returned.values().reshape(())) if self.due.norm and returned and returned.array.size == 1 else None

    @property
    def norm_is_due(self) -> bool:
        """Whether the norm is correct, or none was returned."""
        norm, due = self.norm, self.due_norm
        return norm is None or due is None or norm == due or (math.isnan(norm) and math.isnan(due))

    @property
    def due_norm(self) -> float | None:
        return None if self.due.norm is None else float(self.due.norm.values())

    def named(self, numbers: Iterable[int]) -> str:
        """Return the names of gradients, at most three of them."""
        called = self.case.names or [f"gradient {number}" for number in range(len(self.given))]
        names = [repr(called[number]) for number in numbers]
        if len(names) > 4:
            names[3:] = [f"{len(names) - 3} others"]
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    # -- norms and coefficients, by the oracle

    @cached_property
    def counted(self) -> list[int]:
        """The indices of the gradients that the total norm counts."""
        needed = self.case.call_form.need_clip or [True] * len(self.given)
        return [n for n, (g, needs) in enumerate(zip(self.given, needed, strict=True)) if g is not None and needs]

    @property
    def count(self) -> int:
        """The number of elements that the total norm counts."""
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
        """Return the norm over some gradients, from the norms of each."""
        own = self.own_norms if order is None else self.norms_of_order(order)
        return self.rounded(combined([own[number] for number in numbers], order or self.order))

    def norms_by(self, order: float) -> list[float]:
        """Return the norms of this order by which gradients would be clipped: total, or per tensor."""
        if self.case.call.by_total_norm:
            return [self.together(self.counted, order)] * len(self.given)
        own = self.norms_of_order(order)
        return [self.rounded(own.get(number, 0.0)) for number in range(len(self.given))]

    def rounded(self, n: float) -> float:
        return nearest_float(n, self.dtype)

    @cached_property
    def n(self) -> float:
        """The total norm that clips: the returned one, if it may be the device path's."""
        given = self.case.call.passed_norm(self.case.arguments)
        if given is not None:
            return given
        measured = self.together(self.counted)
        is_near = self.norm is not None and relative_error(self.norm, measured) <= NEAR
        return self.norm if is_near and self.norm is not None else measured

    @cached_property
    def norms(self) -> list[float]:
        """The norm that clips each gradient. For slices, that of the whole gradient."""
        groups = self.case.call_form.groups
        if not self.case.call.by_total_norm:
            return [self.rounded(self.own_norms.get(number, 0.0)) for number in range(len(self.given))]
        if not groups:
            return [self.n] * len(self.given)
        return [self.together(n for n in self.counted if groups[n] == group) for group in groups]

    @cached_property
    def lone_norm(self) -> float:
        """The only norm that scales anything, if no norm is returned; else 0.

        Then one coefficient is the only evidence for a cause.
        """
        scaled = {self.norms[n] for n, trace in self.traces.items() if not (trace.is_given and trace.due_is_given)}
        return scaled.pop() if self.norm is None and len(scaled) == 1 else 0.0

    @cached_property
    def follows(self) -> bool:
        """Whether the gradients follow from the returned norm, so that only the norm is wrong."""
        if all(trace.is_due for trace in self.traces.values()):
            return True
        if self.case.call.by_value or "axes" in self.case.arguments:
            return False
        coefficients = self.coefficients(self.norms)
        return all(trace.allows(coefficients[number], EXACT) for number, trace in self.traces.items())

    def coefficients(
        self, norms: Sequence[float], *, eps: float | None = None, limit: float | None = None
    ) -> list[float]:
        """Return the coefficient of each gradient, from these norms."""
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
    """Return the norm of a list from the norms of its parts."""
    greatest = max(norms, default=0.0)
    if order == math.inf or greatest == 0 or not np.isfinite(norms).all():
        return math.nan if any(map(math.isnan, norms)) else greatest
    return float(greatest * np.float64(math.fsum((n / greatest) ** order for n in norms)) ** (1 / order))
