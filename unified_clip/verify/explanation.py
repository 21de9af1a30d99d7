"""Explain the differences of two training steps: by the recipes of both runs, and by what only full tensors show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..causes.cause import names_text
from ..recipes.compare import UPDATES, compare_recipes
from ..recipes.finding import Finding
from ..recipes.run import Run
from ..recording.rounding import ROUNDING
from ..tensors.arithmetic import FORMATS
from .step_comparison import StepComparison
from .step_pairing import StepPairing, coarsest_ulp

BY_ELIMINATION = {"other data or loss", "other gradients", "other initial weights", "another optimizer"}
"""These kinds only say where the runs differ."""

FACTS = {"another eps of the clip", "another dtype"}
"""Settings that count as a difference only if they change a number."""

NARROW = 0.1
"""Updates have one factor if the middle half of their elements have it, up to this fraction of its distance from 1."""


def explain(
    pairing: StepPairing,
    runs: tuple[Run, Run],
    rows: Sequence[StepComparison],
    max_ulp: float,
) -> list[Finding]:
    limit = max(max_ulp, ROUNDING)
    beyond = next((row for row in rows if row.beyond_rounding(limit)), None)
    recipes = compare_recipes(*runs, pairing.names)
    found, dtypes = list(recipes.findings), _dtypes(pairing)
    if beyond is not None and {each.kind for each in found} <= BY_ELIMINATION:
        coarse = coarsest_ulp({dtype for each in pairing.dtypes.values() for dtype in each})
        if dtypes and rows[0].greatest() <= ROUNDING * coarse:
            return dtypes
        # what differs at an earlier step explains what differs later
        found = [each for each in found if each.step <= beyond.step]
        measured = [each for each in found if each.field != UPDATES]
        found = measured or list(_of_updates(beyond, pairing, runs, limit)) or found
        found = found or list(_of_norms(beyond, limit)) or list(recipes.tolerated)
    is_different = any(row.differing(max_ulp) for row in rows)
    if not found and is_different and (beyond is not None or not dtypes):
        found = [_rest(rows, beyond, recipes.unexplained, max_ulp)]
    return [*dtypes, *found]


def _dtypes(pairing: StepPairing) -> list[Finding]:
    for name, (old, new) in pairing.dtypes.items():
        if old != new and FORMATS.keys() >= {old, new}:
            sentence = f"{name!r} is {old} in the old step and {new} in the new step, which changes the last digits"
            return [Finding(1, "another dtype", "dtype", sentence, "", old, new)]
    return []


def _of_updates(row: StepComparison, pairing: StepPairing, runs: tuple[Run, Run], limit: float) -> Iterator[Finding]:
    """Find tensors without a gradient, and a factor of all updates that is too near to 1 for the recipes."""
    tensors = pairing.without_gradient()
    names = [each.parameter for each in row.parameters.update if each.ulps > limit]
    if names and tensors.issuperset(names):
        sentence = f"the tensors that differ have no gradient, so optimizers do not change them: {names_text(names)}"
        fix = (
            "For BatchNorm, compare eps, momentum and the moving variance. PyTorch's momentum is 1 minus Keras's "
            "momentum. PyTorch divides the variance of a batch by n - 1, and Keras by n"
        )
        yield Finding(row.step, "tensors without a gradient", "tensors without a gradient", sentence, fix)
        return
    if row.beyond_rounding(limit) != ["update"]:
        return
    both = [(each.old.ravel(), each.new.ravel()) for each in pairing.updates(row.step) if each.name not in tensors]
    old, new = (np.concatenate(each) for each in zip(*both, strict=True))
    large = np.abs(old) > np.abs(old).max(initial=0.0) / 10
    if not large.any():
        return
    low, factor, high = np.quantile(new[large] / old[large], (0.25, 0.5, 0.75)).tolist()
    if high - low < NARROW * abs(factor - 1):
        a, b = (run.name for run in runs)
        sentence = f"at step {row.step}, the updates of {b} are {factor:.6g} times as large as those of {a}"
        fix = f"Divide the learning rate of {b} by this factor"
        values = 1, float(f"{factor:.6g}")
        yield Finding(row.step, "another learning rate", "size of the updates", sentence, fix, *values)


def _of_norms(row: StepComparison, limit: float) -> Iterator[Finding]:
    """In float64, rounding is far below what the recipes compare."""
    if "norm" in row.beyond_rounding(limit):
        most = max(each.relative for each in row.numbers if each.stage == "norm")
        sentence = f"the norms of the gradients differ before the clip, by up to {most:.2g}. Rounding is smaller"
        fix = (
            "Other data would change the gradients more. Compare the constants of both models, such as the eps of "
            "normalization layers, and formulas such as GELU by tanh or erf"
        )
        yield Finding(row.step, "other gradients", "gradients before the clip", sentence, fix)


def _rest(
    rows: Sequence[StepComparison], beyond: StepComparison | None, unexplained: Sequence[str], max_ulp: float
) -> Finding:
    if beyond is None:
        first = next(row for row in rows if row.differing(max_ulp))
        most = max(row.greatest() for row in rows)
        sentence = f"the recipes are the same, and rounding explains all differences (at most {most:.3g} ULP)"
        fix = "To tolerate them, pass the --max-ulp that docs/verify.md#rounding lists for your optimizer"
        return Finding(first.step, "rounding", "last digits", sentence, fix)
    stage = beyond.beyond_rounding(max(max_ulp, ROUNDING))[0]
    sentence = (
        f"from step {beyond.step} on, the differences are larger than the rounding of most optimizers (at most "
        f"{beyond.greatest():.3g} ULP in this step), and no known difference explains them"
    )
    if unexplained:
        sentence += f". No rule explains the updates of {' and '.join(unexplained)}"
    fix = (
        "Compare the states of the optimizers, and code that changes gradients or weights. For Adam, rounding can be "
        "larger: docs/verify.md#rounding"
    )
    return Finding(beyond.step, "unexplained", stage, sentence, fix)
