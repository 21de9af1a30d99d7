"""Find square weight matrices that the new step should transpose, but does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ...causes.cause import Cause, names_text
from ..cause_limits import RELATIVE_TOLERANCE
from ..launch.outputs import ScriptRun
from ..step_pairing import StepPairing

MOST_RUNS = 4

Rerun = Callable[[Collection[str]], ScriptRun | None]
"""Transposes the named weights, and runs the first step of the new run again. The result is None if the run fails."""


def untransposed_square(pairing: StepPairing, rerun: Rerun) -> Cause | None:
    for names in _candidates(pairing):
        run = rerun([pairing.weight_name(name) or "" for name in names])
        if run is None or not run.yields:
            continue
        ratio = pairing.with_new(run).ratio(1)
        if ratio is not None and math.isclose(ratio, 1, rel_tol=RELATIVE_TOLERANCE):
            these = "these weights" if len(names) > 1 else "this weight"
            return Cause(
                "untransposed weight",
                f"the first updates of both steps agree if {names_text(names)} {'are' if len(names) > 1 else 'is'} "
                f"transposed for the new step. Transpose {these} when the new step loads the weights",
            )
    return None


def _candidates(pairing: StepPairing) -> Iterator[Sequence[str]]:
    names = [
        name
        for name, weight in pairing.initial[0].items()
        if weight.ndim == 2
        and weight.shape[0] == weight.shape[1]
        and pairing.axes.get(name) == (0, 1)
        and not np.array_equal(weight, weight.T)
        and pairing.weight_name(name)
    ]
    if names:
        yield names
    for name in names[: MOST_RUNS - 1] if len(names) > 1 else ():
        yield [name]
