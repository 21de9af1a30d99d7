"""Explain a divergence of two runs by the mistakes of `docs/recording.md`.

Each check compares the numbers of the first divergent pair. Norms are recorded before clipping, so that they are
comparable there.
"""

from __future__ import annotations

import itertools

from . import gradients, rounding_error, sequence, settings
from .finding import DivergencePoint, Finding

EXCLUSIVE = (
    gradients.not_finite_in_one,
    sequence.twice,
    gradients.per_tensor,
    gradients.missing,
    gradients.swapped,
    sequence.after_the_step,
    gradients.scaled,
    settings.other_rule,
    sequence.one_is_shorter,
)
"""Mistakes of which the first one found counts: it can look like the later ones."""

INDEPENDENT = (
    settings.other_threshold,
    settings.other_norm_type,
    settings.other_eps,
    settings.one_has_no_effect,
    rounding_error.of_the_coefficient,
    rounding_error.of_a_sum,
)


def explain(point: DivergencePoint) -> list[Finding]:
    """Return every mistake that the numbers confirm; if there is none, rounding that has grown, if that fits."""
    exclusive = (finding for check in EXCLUSIVE if (finding := check(point)) is not None)
    independent = (finding for check in INDEPENDENT if (finding := check(point)) is not None)
    found = [*itertools.islice(exclusive, 1), *independent]
    return found or [finding for finding in [rounding_error.grown_rounding(point)] if finding is not None]
