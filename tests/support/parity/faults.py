"""Clipping by the norm in plain NumPy with a mistake on purpose: what the parity engine has to name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.parity.cases import dense

from unified_clip.parity.judge import oracle
from unified_clip.parity.outcome import CallOutcome
from unified_clip.parity.suite.cases import Case
from unified_clip.tensors.arithmetic import nearest_float
from unified_clip.tensors.norms import exact_norm, norm_dtype
from unified_clip.tensors.types import Dense


@dataclass
class Mistake:
    """How a port departs from the rule."""

    eps: float | None = None
    threshold: float = 1.0
    """A factor."""

    order: float = 2
    own_norms: bool = False
    total_norm: bool = False
    not_counted: int | None = None
    not_scaled: int | None = None
    float32: bool = False
    rounded_to: str = ""
    times: int = 1


def clipped(case: Case, mistake: Mistake) -> CallOutcome:
    """What such a port returns for a case."""
    gradients: Sequence[Dense] = [g for g in case.gradients if isinstance(g, Dense)]
    eps = case.call.eps if mistake.eps is None else mistake.eps
    limit = case.call.threshold(case.arguments) * mistake.threshold
    by_one = mistake.total_norm or (case.call.by_total_norm and not mistake.own_norms)
    norms = [norm([g], mistake) for g in gradients]
    counted = [g for number, g in enumerate(gradients) if number != mistake.not_counted]
    whole = norm(counted, mistake)
    found = []
    for number, gradient in enumerate(gradients):
        n = whole if by_one else norms[number]
        coef = min(1.0, limit / (n + eps)) if n + eps else 1.0
        times = 0 if number == mistake.not_scaled else mistake.times
        for _ in range(times):
            gradient = oracle.scaled(gradient, coef)
        found.append(gradient)
    returned = dense(whole, norm_dtype(gradients)) if case.call.returns_norm else None
    return CallOutcome(returned, found)


def norm(gradients: Sequence[Dense], mistake: Mistake) -> float:
    if mistake.float32:
        squares = np.concatenate([g.values().reshape(-1) for g in gradients]).astype(np.float32) ** 2
        return float(np.sqrt(np.add.accumulate(squares)[-1]))
    n = exact_norm(gradients, mistake.order, norm_dtype(gradients))
    return nearest_float(n, mistake.rounded_to) if mistake.rounded_to else n
