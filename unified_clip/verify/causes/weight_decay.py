from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...causes.cause import Cause
from ...recording.causes.weight_decay import regularizer_cause
from ...recording.pairs.calls import greatest_setting
from ...recording.rounding import PRODUCT
from ..cause_limits import RELATIVE_TOLERANCE
from ..normalize import NormalizedRecording
from ..step_pairing import StepPairing


def decay_before_clip(pairing: StepPairing, recordings: Sequence[NormalizedRecording]) -> Cause | None:
    pairs = pairing.gradients_before(1, recordings)
    factors: dict[str, float] = {}
    unknown = []
    if len(pairs) < len(list(pairing.gradients(1, recordings))):
        return None
    total = math.hypot(*(float(np.linalg.norm(pair.old)) for pair in pairs))
    for pair in pairs:
        difference, weight = pair.old - pair.new, pairing.initial[0].get(pair.name)
        if float(np.linalg.norm(difference)) <= PRODUCT * total:
            unknown += [pair.name] if weight is None or not weight.any() else []
            continue
        if weight is None or not weight.any():
            return None
        factors[pair.name] = float((difference * weight).sum() / (weight * weight).sum())
        if not np.abs(difference - factors[pair.name] * weight).max() <= RELATIVE_TOLERANCE * np.abs(difference).max():
            return None
    decay = next(iter(factors.values()), 0.0)
    if not decay or not all(math.isclose(each, decay, rel_tol=RELATIVE_TOLERANCE) for each in factors.values()):
        return None
    old, new = (str(recording.run.script) for recording in recordings)
    decays = [[greatest_setting(step, "weight_decay") for step in each.optimizer_steps_at(1)] for each in recordings]
    known = (max(decays[0], default=None), max(decays[1], default=None))
    evidence = "the gradients differ by this multiple of the weights"
    return regularizer_cause((old, new), known, decay > 0, abs(decay), list(factors), unknown, evidence)
