"""Clipping by the norm in plain NumPy with a deliberate mistake, which the parity engine has to name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.parity.cases import dense

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.arithmetic import nearest_float
from unified_clip.tensors.norms import exact_norm, norm_dtype
from unified_clip.tensors.types import Dense


@dataclass
class Mistake:
    eps: float | None = None
    threshold: float = 1.0
    """The factor of the threshold."""

    order: float = 2
    own_norms: bool = False
    total_norm: bool = False
    not_counted: int | None = None
    not_scaled: int | None = None
    float32: bool = False
    rounded_to: str = ""
    times: int = 1


def clip_with_mistake(case: Case, mistake: Mistake) -> CallOutcome:
    gradients: Sequence[Dense] = [g for g in case.gradients if isinstance(g, Dense)]
    eps = case.call.eps if mistake.eps is None else mistake.eps
    limit = case.call.threshold(case.arguments) * mistake.threshold
    by_total_norm = mistake.total_norm or (case.call.by_total_norm and not mistake.own_norms)
    norms = [mistaken_norm([g], mistake) for g in gradients]
    counted = [g for number, g in enumerate(gradients) if number != mistake.not_counted]
    total_norm = mistaken_norm(counted, mistake)
    gradients_out = []
    for number, gradient in enumerate(gradients):
        norm_used = total_norm if by_total_norm else norms[number]
        coef = min(1.0, limit / (norm_used + eps)) if norm_used + eps else 1.0
        times = 0 if number == mistake.not_scaled else mistake.times
        for _ in range(times):
            gradient = oracle.scaled(gradient, coef)
        gradients_out.append(gradient)
    returned_norm = dense(total_norm, norm_dtype(gradients)) if case.call.returns_norm else None
    return CallOutcome(returned_norm, gradients_out)


def mistaken_norm(gradients: Sequence[Dense], mistake: Mistake) -> float:
    if mistake.float32:
        squares = np.concatenate([g.values().reshape(-1) for g in gradients]).astype(np.float32) ** 2
        return float(np.sqrt(np.add.accumulate(squares)[-1]))
    n = exact_norm(gradients, mistake.order, norm_dtype(gradients))
    return nearest_float(n, mistake.rounded_to) if mistake.rounded_to else n
