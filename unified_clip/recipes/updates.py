"""Find the update rule of an optimizer from the gradients, weights and updates of a run.

Each row of `rows()` computes the direction of every update from the gradients and weights so far. The learning rate
of a step is the number by which the directions explain the updates of all tensors. A row fits a run if it explains
every update up to rounding. Two runs have the same rule if some row fits both. Otherwise, they differ in the settings
in which their two most similar fitting rows differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..tensors.arithmetic import Float64s

MOST_ELEMENTS = 256
"""The number of compared elements of a tensor. They are spread over the tensor."""

ROUNDING = 64.0
"""By how many units in the last place of the tensor's largest update the arithmetic of an optimizer can be off."""

SAME_RATE = 1e-3
"""Rounding of the updates changes the rate by less."""

SAME_DECAY = 0.05
VISIBLE = 4.0
"""A decay is visible if it changes some element by this many times what rounding allows."""

RATE = "learning rate"
BIAS_CORRECTION, PLACE_OF_EPS = "bias correction", "eps is added"
DECAY, DECAY_OF = "weight decay", "decay added to"
BELONGS_TO = {PLACE_OF_EPS: BIAS_CORRECTION, DECAY_OF: DECAY}
"""These settings are only compared if both optimizers have the other one."""

Constant = TypeVar("Constant")

Tensors = Mapping[str, Float64s]
Sample = tuple[Float64s, Float64s, Float64s]
"""Some elements of all tensors in one step: of the gradients, the weights before the step, and the updates."""

History = Iterable[Sample]
"""For each step, the gradients, the weights before the step, and the updates of the step before."""


class Step(NamedTuple):
    """The tensors of one step of one run."""

    gradients: Tensors
    """The gradients that the optimizer gets."""

    weights: Tensors
    """The weights before the step."""

    updates: Tensors
    """The changes of the weights."""


class Direction(NamedTuple):
    """The update is `carried - rate * (gradient + decay * weight)`."""

    gradient: Float64s
    weight: Float64s | None
    """None if the row has no weight decay, or a fixed one, which `gradient` contains."""

    carried: Float64s | float = 0.0


class Row(NamedTuple):
    """An update rule with its settings. Settings that are switched off, such as a momentum of 0, are absent."""

    settings: Mapping[str, object]
    directions: Callable[[History], Iterator[Direction]]


class Recipe(NamedTuple):
    settings: Mapping[str, object]
    rates: Sequence[float]
    """The learning rate of each step. NaN if rounding hides it."""


# -- the rows


def _sgd(momentum: float, nesterov: bool, coupled: bool) -> Callable[[History], Iterator[Direction]]:
    def directions(history: History) -> Iterator[Direction]:
        sums = [np.zeros(()), np.zeros(())]
        for gradient, weight, _ in history:
            parts = (gradient, weight)
            sums = [momentum * total + part for total, part in zip(sums, parts, strict=True)]
            ahead = [part + momentum * total for total, part in zip(sums, parts, strict=True)]
            moved = ahead if nesterov else sums
            yield Direction(moved[0], moved[1] if coupled else weight)

    return directions


def _sgd_of_updates(momentum: float) -> Callable[[History], Iterator[Direction]]:
    def directions(history: History) -> Iterator[Direction]:
        for gradient, weight, before in history:
            yield Direction(gradient, weight, momentum * before)

    return directions


def _adam(
    betas: tuple[float, float], eps: float, place: str | None, decay: float | None
) -> Callable[[History], Iterator[Direction]]:
    """place: Where eps is added, or None for no bias correction.

    decay: The decay that is added to the gradient, or None if the decay changes the weight itself."""

    def directions(history: History) -> Iterator[Direction]:
        first, second = np.zeros(()), np.zeros(())
        for number, (gradient, weight, _) in enumerate(history, start=1):
            coupled = gradient if decay is None else gradient + decay * weight
            first = betas[0] * first + (1 - betas[0]) * coupled
            second = betas[1] * second + (1 - betas[1]) * coupled**2
            corrections = [1.0, 1.0] if place is None else [1 - beta**number for beta in betas]
            root = math.sqrt(corrections[1])
            is_before = place == "before the bias correction"
            divisor = (np.sqrt(second) + eps) / root if is_before else np.sqrt(second) / root + eps
            yield Direction(_quotient(first / corrections[0], divisor), weight if decay is None else None)

    return directions


def _rmsprop(alpha: float, eps: float, in_root: bool, initial: float) -> Callable[[History], Iterator[Direction]]:
    """An alpha of 1 adds up the squares, as Adagrad does."""

    def directions(history: History) -> Iterator[Direction]:
        squares: Float64s = np.full((), initial)
        for gradient, weight, _ in history:
            squares = alpha * squares + (1 - alpha if alpha < 1 else 1.0) * gradient**2
            yield Direction(_quotient(gradient, np.sqrt(squares + eps) if in_root else np.sqrt(squares) + eps), weight)

    return directions


def _quotient(numerator: Float64s, divisor: Float64s) -> Float64s:
    return np.divide(numerator, divisor, out=np.zeros_like(numerator), where=divisor != 0)


# -- the constants that people use; those of recorded settings are tried, too

MOMENTA = (0.9, 0.99, 0.95, 0.8, 0.5)
BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.5, 0.999), (0.5, 0.9), (0.0, 0.99), (0.0, 0.9))
EPSILONS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-10)
DECAYS = (0.01, 0.1, 0.05, 0.001, 1e-4, 5e-4)
ALPHAS = (0.99, 0.9, 0.95)
PLACES = ("after the bias correction", "before the bias correction", None)


def rows(recorded: Iterable[Mapping[str, object]] = ()) -> Iterator[Row]:
    """Return the rows with the usual constants, and with those of `recorded` settings of optimizers."""
    known = [*recorded]

    def constants(usual: Sequence[Constant], name: str) -> list[Constant]:
        found = [settings.get(name) for settings in known]
        of_kind: list[Any] = [each for each in found if each and type(each) is type(usual[0])]
        return list(dict.fromkeys([*usual, *of_kind]))

    for momentum in (0.0, *constants(MOMENTA, "momentum")):
        of_momentum = {"momentum": momentum} if momentum else {}
        for nesterov in (False, True) if momentum else (False,):
            settings = {"optimizer": "SGD", **of_momentum, **({"nesterov": True} if nesterov else {})}
            of_gradient = {DECAY_OF: "the gradient"} if momentum else {}  # otherwise, both are the same
            yield Row(settings | of_gradient, _sgd(momentum, nesterov, coupled=True))
            if momentum:
                yield Row({**settings, DECAY_OF: "the weight"}, _sgd(momentum, nesterov, coupled=False))
        if momentum:
            settings = {"optimizer": "SGD", **of_momentum, "learning rates in the momentum": True}
            yield Row(settings, _sgd_of_updates(momentum))
    epsilons, decays = constants(EPSILONS, "eps"), constants(DECAYS, "weight_decay")
    alphas = (*constants(ALPHAS, "alpha"), 1.0)
    for alpha, eps, in_root, initial in itertools.product(alphas, epsilons, (False, True), (0.0, 1.0)):
        settings = {"optimizer": "Adagrad"} if alpha == 1 else {"optimizer": "RMSprop", "alpha": alpha}
        settings |= {"eps": eps, **({"eps in the square root": True} if in_root else {})}
        yield Row(settings | ({"initial squares": initial} if initial else {}), _rmsprop(alpha, eps, in_root, initial))
    for betas, place, eps in itertools.product(constants(BETAS, "betas"), PLACES, epsilons):
        correction = {BIAS_CORRECTION: "as in Adam", PLACE_OF_EPS: place} if place else {}
        settings = {"optimizer": "Adam", "betas": betas, "eps": eps, **correction}
        yield Row({**settings, DECAY_OF: "the weight"}, _adam(betas, eps, place, None))
        for decay in decays:
            yield Row({**settings, DECAY: decay, DECAY_OF: "the gradient"}, _adam(betas, eps, place, decay))


# -- fitting


def recipes(
    steps: Sequence[Step], recorded: Iterable[Mapping[str, object]] = (), *, unit: float = 2.0**-24
) -> list[Recipe]:
    """Return the recipes that explain all updates of a run, the simplest first.

    Args:
        steps: The steps of the run from its first one on, in float64. All steps have the same names.
        recorded: Settings of the run's optimizers, if they are known. Their constants are tried beside the usual ones.
        unit: The rounding error of the weights' dtype.

    Returns:
        The recipes that fit. An empty list means that no row explains the updates.
    """
    names = sorted(name for name, update in steps[0].updates.items() if update.size)
    if not names:
        return []
    samples = [_sampled(step, names) for step in steps]
    sizes = [len(_elements(steps[0].updates[name])) for name in names]
    with np.errstate(all="ignore"):  # no row explains infinite numbers and NaN
        found = [_fit(row, samples, sizes, unit) for row in rows(recorded)]
    return sorted((each for each in found if each), key=lambda recipe: len(recipe.settings))


def _sampled(step: Step, names: Sequence[str]) -> Sample:
    gradients, weights, updates = (np.concatenate([_elements(table[name]) for name in names]) for table in step)
    return gradients, weights, updates


def _elements(tensor: Float64s) -> Float64s:
    return tensor.ravel()[:: max(1, tensor.size // MOST_ELEMENTS)]


class StepFit(NamedTuple):
    rate: float
    decays: Float64s
    """For each tensor, or 0 if the update has none that is beyond rounding."""

    visible: Float64s
    """For each tensor, the smallest decay that is beyond rounding."""


def _fit(row: Row, samples: Sequence[Sample], sizes: Sequence[int], unit: float) -> Recipe | None:
    directions = row.directions(_history(samples))
    fits = []
    for sample in samples:
        fit = _fit_step(next(directions), sample, sizes, unit)
        if fit is None:
            return None
        fits.append(fit)
    decay = _decay(fits)
    settings = {key: value for key, value in row.settings.items() if key != DECAY_OF or decay or DECAY in row.settings}
    return Recipe({**settings, **decay}, [each.rate for each in fits])


def _history(samples: Sequence[Sample]) -> History:
    before: Float64s = np.zeros(())
    for gradients, weights, updates in samples:
        yield gradients, weights, before
        before = updates


def _fit_step(direction: Direction, sample: Sample, sizes: Sequence[int], unit: float) -> StepFit | None:
    """Return the rate, and the decay of each tensor, or None if they do not explain the updates.

    They minimize the squared differences, in units of what rounding allows for each element. Each decay belongs to one
    tensor, so it can be eliminated.

    sizes: The number of elements of each tensor.
    """
    starts = np.cumsum([0, *sizes[:-1]])

    def dot(a: Float64s, b: Float64s) -> Float64s:
        return np.add.reduceat(a * b, starts)

    _, weights, updates = sample
    largest = np.repeat(np.maximum.reduceat(np.abs(updates), starts), sizes)
    allowed = unit * (2 * (np.abs(weights) + np.abs(updates)) + ROUNDING * largest)
    allowed = np.where(allowed > 0, allowed, 1.0)
    gradient, target = direction.gradient / allowed, (updates - direction.carried) / allowed
    decayed = np.zeros_like(gradient) if direction.weight is None else direction.weight / allowed
    squares = dot(decayed, decayed)
    inverse = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    across = gradient - np.repeat(dot(gradient, decayed) * inverse, sizes) * decayed
    if not (bottom := float(across @ across)):
        return None if target.any() else StepFit(math.nan, np.zeros(len(sizes)), np.full(len(sizes), np.inf))
    rate = -float(across @ target) / bottom
    rest = target + rate * gradient
    fits = np.maximum.reduceat(np.abs(rest), starts) <= 1
    decays = np.where(fits, 0.0, -dot(rest, decayed) * inverse)
    rest = rest + np.repeat(decays, sizes) * decayed
    if not (np.abs(rest) <= 1).all():
        return None
    visible = VISIBLE / (abs(rate) * np.maximum.reduceat(np.abs(decayed), starts))
    return StepFit(rate, decays / rate if rate else decays, visible)


def _decay(fits: Sequence[StepFit]) -> dict[str, object]:
    """Return the settings of the weight decay. The step with the largest learning rate shows a decay best."""
    ordered = sorted(fits, key=lambda fit: -abs(np.nan_to_num(fit.rate)))
    known = [
        next((each for each in decays if each), 0.0) for decays in zip(*(fit.decays for fit in ordered), strict=True)
    ]
    visible = np.min([fit.visible for fit in fits], axis=0)
    decay = known[int(np.argmin(visible))] or max(known, key=abs)
    if not decay:
        return {}
    others = [
        each for each, limit in zip(known, visible, strict=True) if abs(each - decay) > max(limit, SAME_DECAY * decay)
    ]
    off, other = others.count(0.0), sorted({float(f"{each:.2g}") for each in others if each})
    shown = float(f"{decay:.2g}")
    return {DECAY: (shown, *other) if other else shown, **({"undecayed tensors": off} if off else {})}


# -- comparing


class Difference(NamedTuple):
    setting: str
    old: object
    """None if the setting is switched off."""

    new: object


def differences(old: Sequence[Recipe], new: Sequence[Recipe]) -> list[Difference]:
    """Return the settings in which the two most similar recipes of two runs differ, with the learning rate last.

    Other optimizers, and learning rates that differ by another factor in each step, count twice. Of recipes that are as
    similar, those with constant learning rates are simpler.
    """
    pairs = ((_settings_differ(a, b), a.rates, b.rates) for a, b in itertools.product(old, new))
    return min(pairs, key=_complexity, default=([], (), ()))[0]


def _complexity(pair: tuple[Sequence[Difference], Sequence[float], Sequence[float]]) -> tuple[int, int, int]:
    found, old, new = pair
    rates = [each.setting == RATE for each in found]
    factors = [b / a for a, b in zip(old, new, strict=False) if a and not math.isnan(a + b)]
    is_schedule = any(rates) and not all(math.isclose(each, factors[0], rel_tol=SAME_RATE) for each in factors)
    varying = sum(not all(math.isclose(each, run[0], rel_tol=SAME_RATE) for each in run[1:]) for run in (old, new))
    is_other = any(each.setting == "optimizer" for each in found)  # whose other settings are not compared
    return len(found) + is_schedule + is_other, len(found) - sum(rates), varying


def _settings_differ(old: Recipe, new: Recipe) -> list[Difference]:
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
    rates = Difference(RATE, _rates(old), _rates(new))
    same_rates = all(
        math.isclose(a, b, rel_tol=SAME_RATE) or math.isnan(a + b) for a, b in zip(old.rates, new.rates, strict=False)
    )
    return [each for each in pairs if not _is_same(each)] + ([] if same_rates else [rates])


def _is_same(pair: Difference) -> bool:
    is_measured = pair.setting == DECAY and isinstance(pair.old, float) and isinstance(pair.new, float)
    return pair.old == pair.new or (is_measured and math.isclose(pair.old, pair.new, rel_tol=SAME_DECAY))  # type: ignore[arg-type]


def _rates(recipe: Recipe) -> float | tuple[float, ...]:
    rates = [float(f"{each:.4g}") for each in recipe.rates]
    return rates[0] if len(set(rates)) == 1 else tuple(rates)
