"""Find the update rule of an optimizer from the gradients, weights and updates of a run.

Each row of `rows()` computes the direction of every update from the gradients and weights so far. The learning rate
of a step is the number by which the directions explain the updates of all tensors. A row fits a run if it explains
every update up to rounding. Two runs have the same rule if some row fits both. Otherwise, they differ in the settings
in which their two most similar fitting rows differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...tensors.arithmetic import Float64s
from .rules import DECAY, DECAY_OF, PLACE_OF_EPS, Direction, History, Row, rows, same_setting

ROUNDING = 64.0
"""By how many units in the last place of the tensor's largest update the arithmetic of an optimizer can be off."""

AT_ONCE = 2**18
"""The number of elements that are fitted at once, which limits memory."""

SAME_RATE = 1e-3
"""Rounding of the updates changes the rate by less."""

SAME_DECAY = 0.05
VISIBLE = 4.0
"""A decay is visible if it changes some element by this many times what rounding allows."""

RATE, UNDECAYED = "learning rate", "undecayed tensors"
BELONGS_TO = {PLACE_OF_EPS: PLACE_OF_EPS, DECAY_OF: DECAY, UNDECAYED: DECAY}
"""These settings are only compared if both optimizers have the other one."""

Tensors = Mapping[str, Float64s]


class Sample(NamedTuple):
    """All tensors of one step in one array each."""

    gradients: Float64s
    weights: Float64s
    """The weights before the step."""

    updates: Float64s | None
    allowed: Float64s
    """What rounding allows for each element of the updates."""


class Step(NamedTuple):
    """The tensors of one step of one run."""

    gradients: Tensors
    """The gradients that the optimizer gets."""

    weights: Tensors
    """The weights before the step."""

    updates: Tensors | None
    """The changes of the weights. None if they are unknown, as after the last step."""


class Recipe(NamedTuple):
    settings: Mapping[str, object]
    rates: Sequence[float]
    """The learning rate of each step. NaN if rounding hides it."""

    row: Row | None = None


# -- fitting


def recipes(
    steps: Sequence[Step], recorded: Iterable[Mapping[str, object]] = (), *, unit: float = 2.0**-24
) -> list[Recipe]:
    """Return the recipes that explain all updates of a run, the simplest first.

    Args:
        steps: Samples of the steps of the run from its first one on, in float64. All steps have the same names.
        recorded: Settings of the run's optimizers, if they are known. Their constants are tried beside the usual ones.
        unit: The rounding error of the weights' dtype.

    Returns:
        The recipes that fit. An empty list means that no row explains the updates.
    """
    names = _names(steps)
    if not names or all(step.updates is None for step in steps):
        return []
    sizes = [steps[0].gradients[name].size for name in names]
    with np.errstate(all="ignore"):  # no row explains infinite numbers and NaN
        samples = [_sampled(step, names, unit) for step in steps]
        every, at_once = [*rows(recorded)], max(1, AT_ONCE // sum(sizes))
        parts = (every[start : start + at_once] for start in range(0, len(every), at_once))
        found = [recipe for part in parts for recipe in _fit(part, samples, names, sizes)]
    return sorted(found, key=lambda recipe: len(recipe.settings))


def effect(steps: Sequence[Step], recipe: Recipe, setting: str, value: object) -> float:
    """Return by which fraction of their norm another value of a setting changes the directions of a run's updates."""
    assert recipe.row is not None
    settings = {**recipe.row.settings, setting: value}
    known = [settings, {"weight_decay": settings.get(DECAY)}]
    other = next((row for row in rows(known) if row.settings == settings), None)
    if other is None:
        return math.inf
    samples = [_sampled(step, _names(steps)) for step in steps]
    both = zip(*(row.directions(_history(samples)) for row in (recipe.row, other)), strict=False)
    sides = [(own.gradient, changed.gradient) for (own, changed), _ in zip(both, steps, strict=False)]
    norms = [(float(np.linalg.norm(own)), float(np.linalg.norm(changed - own))) for own, changed in sides]
    return max((difference / norm for norm, difference in norms if norm), default=0.0)


def _names(steps: Sequence[Step]) -> list[str]:
    return sorted(name for name, gradient in steps[0].gradients.items() if gradient.size) if steps else []


def _sampled(step: Step, names: Sequence[str], unit: float = 0.0) -> Sample:
    def together(tensors: Tensors) -> Float64s:
        return np.concatenate([tensors[name].ravel() for name in names])

    gradients, weights = together(step.gradients), together(step.weights)
    if step.updates is None:
        return Sample(gradients, weights, None, np.ones(()))
    updates, largest = together(step.updates), [np.abs(step.updates[name]).max() for name in names]
    sizes = [step.updates[name].size for name in names]
    allowed = unit * (2 * (np.abs(weights) + np.abs(updates)) + ROUNDING * np.repeat(largest, sizes))
    return Sample(gradients, weights, updates, np.where(allowed > 0, allowed, 1.0))


class StepFit(NamedTuple):
    rate: float
    decays: Float64s
    """For each tensor, or 0 if the update has none that is beyond rounding."""

    visible: Float64s
    """For each tensor, the smallest decay that is beyond rounding."""


def _fit(
    every: Sequence[Row], samples: Sequence[Sample], names: Sequence[str], sizes: Sequence[int]
) -> Iterator[Recipe]:
    alive = [(row, row.directions(_history(samples)), list[StepFit]()) for row in every]
    hidden = StepFit(math.nan, np.zeros(len(sizes)), np.full(len(sizes), np.inf))
    for sample in samples:
        directions = [next(each) for _, each, _ in alive]
        is_known = sample.updates is not None and directions
        found = _fit_step(directions, sample, sizes, hidden) if is_known else [hidden] * len(alive)
        for (_, _, fits), fit in zip(alive, found, strict=True):
            fits += [fit] if fit else []
        alive = [each for each, fit in zip(alive, found, strict=True) if fit]
    for row, _, fits in alive:
        if (decays := _decays(fits)) is not None:
            decay = _decay_settings(names, *decays)
            is_decayed = bool(decay) or DECAY in row.settings
            settings = {key: value for key, value in row.settings.items() if key != DECAY_OF or is_decayed}
            yield Recipe({**settings, **decay}, [fit.rate for fit in fits], row)


def _history(samples: Sequence[Sample]) -> History:
    before: Float64s = np.zeros(())
    for gradients, weights, updates, _ in samples:
        yield gradients, weights, before
        before = np.array(np.nan) if updates is None else updates


def _fit_step(
    directions: Sequence[Direction], sample: Sample, sizes: Sequence[int], hidden: StepFit
) -> list[StepFit | None]:
    """Return the rate, and the decay of each tensor, or None for a direction for which they do not explain the updates.

    They minimize the squared differences, in units of what rounding allows for each element. Each decay belongs to one
    tensor, so it can be eliminated. All directions are fitted at once, because tensors can be short.

    sizes: The number of elements of each tensor.
    hidden: The result if rounding hides the rate.
    """
    _, _, updates, allowed = sample
    assert updates is not None
    starts, none = np.cumsum([0, *sizes[:-1]]), np.zeros_like(updates)

    def dot(a: Float64s, b: Float64s) -> Float64s:
        return np.add.reduceat(a * b, starts, axis=1)

    def largest(a: Float64s) -> Float64s:
        return np.maximum.reduceat(np.abs(a), starts, axis=1)

    def of_elements(a: Float64s) -> Float64s:
        return np.repeat(a, sizes, axis=1)

    gradient = np.stack([each.gradient for each in directions]) / allowed
    target = np.stack([updates - each.carried for each in directions]) / allowed
    decayed = np.stack([none if each.weight is None else each.weight for each in directions]) / allowed
    squares = dot(decayed, decayed)
    inverse = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    across = gradient - of_elements(dot(gradient, decayed) * inverse) * decayed
    bottom = (across * across).sum(axis=1)
    rates = -(across * target).sum(axis=1) / bottom
    rest = target + rates[:, None] * gradient
    decays = np.where(largest(rest) <= 1, 0.0, -dot(rest, decayed) * inverse)
    is_explained = (np.abs(rest + of_elements(decays) * decayed) <= 1).all(axis=1)
    visible = VISIBLE / (np.abs(rates)[:, None] * largest(decayed))
    fits: list[StepFit | None] = []
    for row, rate in enumerate(rates.tolist()):
        if not bottom[row]:
            fits.append(None if target[row].any() else hidden)
        else:
            fit = StepFit(rate, decays[row] / rate if rate else decays[row], visible[row])
            fits.append(fit if is_explained[row] else None)
    return fits


def _decays(fits: Sequence[StepFit]) -> tuple[Float64s, Float64s] | None:
    """Return the weight decay of each tensor, and the smallest one that is visible.

    None if no constant decay explains all steps.
    """
    decays, visible = (np.array([getattr(fit, name) for fit in fits]) for name in ("decays", "visible"))
    clearest = np.argmin(np.where(decays != 0, visible, np.inf), axis=0)
    known = np.take_along_axis(decays, clearest[None], axis=0)
    is_constant = np.abs(decays - known) <= np.maximum(visible, SAME_DECAY * np.abs(known))
    return (known[0], visible.min(axis=0)) if is_constant.all() and (known >= 0).all() else None


def _decay_settings(names: Sequence[str], known: Float64s, visible: Float64s) -> dict[str, object]:
    decay = float(known[np.argmin(visible)] or known.max())
    if not decay:
        return {}
    is_other = np.abs(known - decay) > np.maximum(visible, SAME_DECAY * decay)
    off = tuple(name for name, each, apart in zip(names, known, is_other, strict=True) if apart and not each)
    other = sorted({float(f"{each:.2g}") for each in known[is_other] if each})
    shown = float(f"{decay:.2g}")
    return {DECAY: (shown, *other) if other else shown, **({UNDECAYED: off} if off else {})}


# -- comparing


class Difference(NamedTuple):
    setting: str
    old: object
    """None if the setting is switched off."""

    new: object


def closest(old: Sequence[Recipe], new: Sequence[Recipe]) -> tuple[Recipe, Recipe]:
    """Return the two most similar recipes of two runs.

    Other optimizers, and learning rates that differ by another factor in each step, count twice. Of recipes that are as
    similar, those with constant learning rates are simpler.
    """
    best, fewest = (old[0], new[0]), None
    for pair in itertools.product(old, new):  # there can be thousands
        complexity = _complexity(pair)
        if fewest is None or complexity < fewest:
            best, fewest = pair, complexity
        if not any(complexity):
            break
    return best


def _complexity(pair: tuple[Recipe, Recipe]) -> tuple[int, ...]:
    found, (old, new) = differences(*pair), (each.rates for each in pair)
    rates = [each.setting == RATE for each in found]
    factors = [b / a for a, b in zip(old, new, strict=False) if a and not math.isnan(a + b)]
    is_schedule = any(rates) and not all(math.isclose(each, factors[0], rel_tol=SAME_RATE) for each in factors)
    varying = sum(not all(math.isclose(each, run[0], rel_tol=SAME_RATE) for each in run[1:]) for run in (old, new))
    is_other = any(each.setting == "optimizer" for each in found)  # whose other settings are not compared
    return len(found) + is_schedule + is_other, is_other, len(found) - sum(rates), varying


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Return the settings in which two recipes differ, with the learning rate last."""
    names = dict.fromkeys([*old.settings, *new.settings])
    if old.settings.get("optimizer") != new.settings.get("optimizer"):
        # the constants of different optimizers have nothing to do with each other
        names = dict.fromkeys(name for name in names if name in ("optimizer", DECAY))
    names = dict.fromkeys(
        name
        for name in names
        if (other := BELONGS_TO.get(name)) is None or (other in old.settings and other in new.settings)
    )
    pairs = [Difference(name, old.settings.get(name), new.settings.get(name)) for name in names]
    found = [each for each in pairs if not _is_same(each)]
    same_rates = all(
        math.isclose(a, b, rel_tol=SAME_RATE) or math.isnan(a + b) for a, b in zip(old.rates, new.rates, strict=False)
    )
    return found if same_rates else [*found, Difference(RATE, _rates(old), _rates(new))]


def _is_same(pair: Difference) -> bool:
    is_measured = pair.setting == DECAY and isinstance(pair.old, float) and isinstance(pair.new, float)
    if is_measured:
        return math.isclose(float(str(pair.old)), float(str(pair.new)), rel_tol=SAME_DECAY)
    return same_setting(pair.old, pair.new)


def _rates(recipe: Recipe) -> float | tuple[float, ...]:
    rates = [float(f"{each:.4g}") for each in recipe.rates]
    return rates[0] if len(set(rates)) == 1 else tuple(rates)
