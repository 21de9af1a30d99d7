"""The update rules of optimizers. Each computes the directions of a run's updates from its gradients and weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...tensors.arithmetic import Float64s

BIAS_CORRECTION, PLACE_OF_EPS = "bias correction", "eps is added"
DECAY, DECAY_OF = "weight decay", "decay added to"

Constant = TypeVar("Constant")

History = Iterable[tuple[Float64s, Float64s, Float64s]]
"""For each step, the gradients, the weights before the step, and the updates of the step before."""


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


def _nesterov_of_updates(momentum: float) -> Callable[[History], Iterator[Direction]]:
    """The velocity is v = momentum * v - rate * g, and the update momentum * v - rate * g.

    So the update before gives the velocity before."""

    def directions(history: History) -> Iterator[Direction]:
        velocity: Float64s | float = 0.0
        for gradient, weight, before in history:
            velocity = momentum * velocity - (momentum**2 * velocity - before) / (1 + momentum)
            yield Direction((1 + momentum) * gradient, weight, momentum**2 * velocity)

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
INITIAL_SQUARES = (0.0, 1.0, 0.1)
IN_ROOT = "in the square root"
OF_ROOT = ("to the square root", IN_ROOT)
PLACES = ("after the bias correction", "before the bias correction", None)


EQUAL = 1e-5
"""Settings with a smaller relative difference are equal, because some frameworks store them as float32."""


def same_setting(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_setting, a, b))
    are_numbers = isinstance(a, float | int) and isinstance(b, float | int)
    return math.isclose(a, b, rel_tol=EQUAL) if are_numbers else a == b  # type: ignore[arg-type]


def rows(recorded: Iterable[Mapping[str, object]] = ()) -> Iterator[Row]:
    """Return the rows with the usual constants, and with those of `recorded` settings of optimizers."""
    known = [*recorded]

    def constants(usual: Sequence[Constant], name: str) -> list[Constant]:
        found = [settings.get(name) for settings in known]
        of_kind: list[Any] = [each for each in found if each and type(each) is type(usual[0])]
        new = [each for each in of_kind if not any(same_setting(each, other) for other in usual)]
        return list(dict.fromkeys([*usual, *new]))

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
            yield Row({**settings, "nesterov": True}, _nesterov_of_updates(momentum))
    epsilons, decays = constants(EPSILONS, "eps"), constants(DECAYS, "weight_decay")
    alphas, initials = (*constants(ALPHAS, "alpha"), 1.0), constants(INITIAL_SQUARES, "initial_accumulator_value")
    for alpha, eps, place, initial in itertools.product(alphas, (*epsilons, 0.0), OF_ROOT, initials):
        if not eps and place == IN_ROOT:  # this is the same as outside of the root
            continue
        settings = {"optimizer": "Adagrad"} if alpha == 1 else {"optimizer": "RMSprop", "alpha": alpha}
        settings |= {"eps": eps, PLACE_OF_EPS: place, "initial squares": initial}
        yield Row(settings, _rmsprop(alpha, eps, place == IN_ROOT, initial))
    for betas, corrected, eps in itertools.product(constants(BETAS, "betas"), PLACES, epsilons):
        if not (betas[0] or corrected):  # this is RMSprop
            continue
        correction = {BIAS_CORRECTION: "as in Adam", PLACE_OF_EPS: corrected} if corrected else {}
        settings = {"optimizer": "Adam", "betas": betas, "eps": eps, **correction}
        yield Row({**settings, DECAY_OF: "the weight"}, _adam(betas, eps, corrected, None))
        for decay in decays:
            yield Row({**settings, DECAY: decay, DECAY_OF: "the gradient"}, _adam(betas, eps, corrected, decay))
