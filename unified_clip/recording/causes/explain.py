"""Explain a divergence of two runs by the causes of `docs/recording.md`.

Each check compares the numbers of the first divergent pair. Norms are recorded before clipping, so that they are
comparable there.
"""

from __future__ import annotations

from ...causes.observation import Cause
from . import gradients, rounding, sequence, settings
from .point import DivergencePoint


def explain(point: DivergencePoint) -> list[Cause]:
    """Return every cause that the numbers confirm; if there is none, rounding that has grown, if that fits."""
    pair = point.pairs[point.index] if point.index < len(point.pairs) else None
    if pair is None:
        exclusive = sequence.twice(point) or gradients.per_tensor(point) or sequence.one_is_shorter(point)
        return [exclusive] if exclusive else []
    # The first one counts: it can look like the later ones.
    exclusive = (
        gradients.not_finite_in_one(point, pair)
        or sequence.twice(point)
        or gradients.per_tensor(point)
        or gradients.before_clipping(point, pair)
        or sequence.after_the_step(point, pair)
        or settings.other_rule(point)
    )
    independent = [
        *settings.other_settings(point, pair),
        settings.one_has_no_effect(point, pair),
        rounding.of_the_coefficient(point, pair),
        rounding.of_a_sum(point),
    ]
    found = [cause for cause in (exclusive, *independent) if cause]
    rest = None if found else settings.by_hypotheses(point, pair) or rounding.grown(point)
    return [rest] if rest else found
