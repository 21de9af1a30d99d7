"""Describe the parameters whose gradients are only rounding noise, and so were not compared."""

from __future__ import annotations

from ..compare import RecordingComparison
from ..divergence import noise
from ..rounding import ROUNDING


def uncompared_noise(comparison: RecordingComparison) -> list[str]:
    """Return [a sentence] about the parameters whose gradients are rounding noise if `max_ulp` hides them, else []."""
    names = noise(comparison.pairs, comparison.max_ulp) if comparison.max_ulp >= ROUNDING else []
    if not names:
        return []
    listed = ", ".join(map(repr, names[:3])) + f" and {len(names) - 3} more" * (len(names) > 3)
    return [
        f"Not compared: differences of {listed}. These gradients, or parts of them, are rounding noise of at most "
        f"{ROUNDING} ULP of the total norm{_effect(comparison)}."
    ]


def _effect(comparison: RecordingComparison) -> str:
    """Return the end of a sentence about gradients of rounding noise: their effect with Adam.

    Return "" if both runs recorded the steps of their optimizers, and none is a kind of Adam.
    """
    runs = (comparison.a, comparison.b)
    optimizers = [str(step.optimizer).lower() for run in runs for step in run.optimizer_steps]
    if all(run.optimizer_steps for run in runs) and not any("adam" in each for each in optimizers):
        return ""
    return ", and move their weights: with Adam, by the learning rate"
