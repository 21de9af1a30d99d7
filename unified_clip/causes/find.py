"""Find the cause of a difference: test known causes on the numbers of a call.

Causes that show in the tensors come first. Then the norm and the coefficients are computed with each cause of
`hypotheses`. A cause fits if it gives the returned norm, and its coefficients explain every element: bit for bit, or
else within a few roundings. The correct call must not explain the numbers as well. If no cause fits, or two of
different kinds do, the cause is unknown.
"""

from __future__ import annotations

import numpy as np

from . import hypotheses, shown
from .observation import Cause, Observation
from .scaling import EXACT


def find(call: Observation) -> Cause | None:
    """Return the cause. None if nothing differs, or the cause is not known."""
    with np.errstate(all="ignore"):  # overflow is one of the causes
        if cause := shown.swapped(call) or shown.without_result(call):
            return cause
        forms = [[tensor and (tensor.dtype, tensor.shape) for tensor in side] for side in (call.expected, call.after)]
        if forms[0] != forms[1] or (call.norm_is_expected and not call.wrong):
            return None
        checks = (shown.beyond_range, shown.nan, shown.zeros, shown.not_clipped)
        cause = next(filter(None, (check(call) for check in checks)), None)
        return cause or (shown.bounds(call) if call.by == "value" else _by_hypotheses(call))


def _by_hypotheses(call: Observation) -> Cause | None:
    """Return the only kind of cause that fits."""
    for slack in call.slacks:
        if call.expected_fits(slack):
            break
        possible = list(hypotheses.all_of(call, slack))
        if fitting := [each for each in possible if call.fits(each, slack)]:
            alone = len({each.kind for each in fitting}) == 1 and fitting[0].kind
            return Cause(fitting[0].kind, fitting[0].sentence) if alone else None
        if any(call.explains(each, slack) for each in possible if each.room):
            return shown.touched(call)  # rounding hides whether it is this one, or the correct call
    computed = hypotheses.computed(call) if not call.expected_fits(call.slacks[0]) else ()
    last = next((each for each in computed if call.fits(each, EXACT)), None)
    return Cause(last.kind, last.sentence) if last else shown.touched(call)
