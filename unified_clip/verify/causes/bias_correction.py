"""Find out whether only one side corrects the bias of Adam's moments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...causes.cause import Cause, joined
from ...recording.optimizers.epsilon import after_correction, place_of
from ...recording.pairs.parameters import Names
from ...recording.recorded_run import OptimizerStep, Setting
from ...tensors.arithmetic import FORMATS, Float64s
from ..cause_limits import MISFIT_FACTOR, STORAGE_ULPS
from ..normalize import NormalizedRecording
from ..step_pairing import StepPairing, TensorPair, greatest_of

TOLERANCE = 0.01
"""Another mistake, such as another weight decay, can change the updates by this part of the difference."""


class Adam:
    def __init__(self, names: Names, *, corrects: bool) -> None:
        self._names, self._corrects = names, corrects
        self._moments: dict[str, list[Float64s]] = {}

    def updates(self, number: int, gradients: Mapping[str, Float64s], step: OptimizerStep) -> dict[str, Float64s]:
        """Return the updates without weight decay. If a setting is unknown, they are NaN."""
        eps = after_correction(step) if self._corrects and place_of(step) else step.settings["eps"]
        betas, updates = _betas(step), {}
        for name, gradient in gradients.items():
            old = self._moments.get(name, [np.zeros(())] * 2)
            now = [b * m + (1 - b) * g for b, m, g in zip(betas, old, (gradient, gradient**2), strict=True)]
            self._moments[name] = now
            with np.errstate(divide="ignore", invalid="ignore"):
                m, v = (m / (1 - b**number if self._corrects else 1) for m, b in zip(now, betas, strict=True))
                updates[name] = -self._rate(name, step) * m / (np.sqrt(v) + _number(eps))
        return updates

    def _rate(self, name: str, step: OptimizerStep) -> float:
        names = (each for each in (name, self._names[name]) if each in step.rates)
        return _number(step.rates.get(next(names, name), step.settings["lr"]))


def another_bias_correction(
    start: int, end: int, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    """Return a cause if missing bias correction explains the different updates of two or more steps from `start`."""
    old, new = (str(each.run.script) for each in recordings)
    advice = {
        new: f"In {new}, use the class BertAdam in docs/my-loss-curve-differs.md#adam-without-bias-correction",
        old: f"In {new}, use an Adam with bias correction, such as torch.optim.AdamW",
    }
    for name in advice if pairing.yields_each_step else ():
        sides = [Adam(pairing.names, corrects=name == each) for each in (old, new)]
        ratios = dict(_fitting_steps(start, end, pairing, recordings, sides))
        if len(ratios) > 1:  # at one step, another learning rate can have the same effect
            last = max(ratios)
            sentence = (
                f"at steps {start} to {last}, the updates differ as if only {name} corrected the bias of Adam's "
                f"moments. Without bias correction, updates are {ratios[start]:.4g} times as large at step {start}, "
                f"and {ratios[last]:.4g} times as large at step {last}"
            )
            return Cause("another optimizer", joined(sentence, advice[name]))
    return None


def _fitting_steps(
    start: int, end: int, pairing: StepPairing, recordings: Sequence[NormalizedRecording], sides: Sequence[Adam]
) -> Iterator[tuple[int, float]]:
    """Yield the steps from `start` on, until the updates of a step do not fit.

    Each step has the size of an update without bias correction, divided by its size with bias correction.
    """
    for number in range(1, end + 1):
        gradients, optimizers = list(pairing.gradients(number, recordings)), _optimizers(recordings, number)
        if not optimizers:
            return
        old, new = (
            side.updates(number, {pair.name: getattr(pair, name) for pair in gradients}, optimizer)
            for side, name, optimizer in zip(sides, ("old", "new"), optimizers, strict=True)
        )
        if number >= start:
            if not _explain(pairing.updates(number), old, new):
                return
            first, second = (1 - beta**number for beta in _betas(optimizers[0]))
            yield number, first / second**0.5


def _optimizers(recordings: Sequence[NormalizedRecording], number: int) -> list[OptimizerStep]:
    """Return a step of each optimizer, or [] if both are unknown. An unknown optimizer gets the other's settings."""
    sides = [each.optimizer_steps_at(number) for each in recordings]
    known = [[each for each in side if {"lr", "betas", "eps"} <= each.settings.keys()] for side in sides]
    is_unclear = any(len(side) > 1 for side in sides) or not any(known)
    return [] if is_unclear else [(own or other)[0] for own, other in (known, known[::-1])]


def _explain(updates: Iterable[TensorPair], old: Mapping[str, Float64s], new: Mapping[str, Float64s]) -> bool:
    is_large = False
    for pair in (each for each in updates if each.name in old):
        expected = new[pair.name] - old[pair.name]
        rounding = 2 * STORAGE_ULPS * 2.0 ** -FORMATS["float32"].precision * pair.ulp_scale * pair.scale
        if not (np.abs(pair.new - pair.old - expected) <= rounding + TOLERANCE * greatest_of(expected)).all():
            return False
        is_large |= greatest_of(expected) > MISFIT_FACTOR * rounding
    return is_large


def _betas(step: OptimizerStep) -> tuple[float, float]:
    betas = step.settings["betas"]
    return (betas[0], betas[1]) if isinstance(betas, tuple) and len(betas) == 2 else (math.nan, math.nan)


def _number(setting: Setting | None) -> float:
    return math.nan if setting is None or isinstance(setting, tuple) else float(setting)
