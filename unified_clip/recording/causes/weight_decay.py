"""Find weight decay that a run adds to the gradients before the clip, for example in the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from ...causes.cause import Cause, names_text
from ..divergence import DivergencePoint, numbers
from ..pairs.calls import CallPair, greatest_setting
from ..recorded_run import OptimizerStep
from ..rounding import PRODUCT, is_near

EXACT = 1e-3
"""The largest relative error of a weight decay that is computed from losses."""

LOSS_ERROR = 1e-6

FACTOR_ERROR = 0.01
"""The largest relative error of a weight decay that is computed from gradients."""

CLOSE = 1.5
"""Accept a weight decay only if both ends of the interval of possible decays are within this factor of it."""

Norms = Mapping[str, tuple[float, float, float]]
"""{weight: norms of the weight, and of its gradient with and without weight decay}."""


def before_the_clip(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.first.stage not in ("gradient", "norm"):
        return None
    weights = _weights(pair)
    if not weights or not all(is_near(a, b) for _, a, b in numbers(pair, "weight")):
        return None
    for run, other in point.both_ways():
        own, step = (
            next((step for step in each.optimizer_steps if step.step == pair.a.step), None) for each in (run, other)
        )
        decay = greatest_setting(step, "weight_decay") if step else 0.0
        if own is None or step is None or greatest_setting(own, "weight_decay"):
            continue
        gradients = {str(name): (a, b) if run is point.a else (b, a) for name, a, b in numbers(pair, "gradient")}
        norms = {name: (weight, *gradients.get(name, (math.nan, math.nan))) for name, weight in weights.items()}
        decays = (0.0, decay) if run is point.a else (decay, 0.0)
        if regularizer := _regularizer(own, step, decay, pair, norms):
            added, shown = regularizer
            return regularizer_cause((point.a.name, point.b.name), decays, run is point.a, added, *shown)
    return None


Evidence = tuple[Sequence[str], Sequence[str], str]
"""(weights with weight decay, weights for which this is unknown, evidence as text)."""


def _regularizer(
    own: OptimizerStep, step: OptimizerStep, decay: float, pair: CallPair, norms: Norms
) -> tuple[float, Evidence] | None:
    """Test `decay`, 2 * `decay` and `decay` / 2, because a port might forget that w**2 has the derivative 2 w."""
    fitting: Iterator[tuple[float, Evidence | None]]
    if decay:
        by_losses = ((each, _by_losses(own, step, each, pair, norms)) for each in (decay, 2 * decay, decay / 2))
        fitting = itertools.chain(by_losses, [(decay, _by_norms(decay, norms))])
    else:
        fitting = ((each, _by_norms(each, norms)) for each in _from_losses(own, step, pair, norms))
    return next(((factor, shown) for factor, shown in fitting if shown is not None), None)


def _by_losses(own: OptimizerStep, step: OptimizerStep, decay: float, pair: CallPair, norms: Norms) -> Evidence | None:
    if not _have_losses(own, step):
        return None
    loss, least = math.fsum(own.losses), math.fsum(step.losses)
    for names in _regularized(pair, norms):
        squares = {name: decay / 2 * norms[name][0] ** 2 for name in names}
        added = math.fsum(squares.values())
        error = EXACT * added + LOSS_ERROR * abs(loss)
        if abs(loss - least - added) <= error < added / 10:
            unknown = [name for name in _without_effect(decay, norms) if squares.get(name, 0.0) <= error]
            what = "loss is" if len(own.losses) == 1 else "losses are"
            return [name for name in names if name not in unknown], unknown, f"its {what} {added:.6g} larger"
    return None


def _have_losses(*steps: OptimizerStep) -> bool:
    return all(each.losses and each.backward_calls in (None, len(each.losses)) for each in steps)


def _regularized(pair: CallPair, norms: Norms) -> Iterator[Sequence[str]]:
    yield list(norms)
    yield [name for name in norms if len(pair.a.parameters[name].shape) > 1]
    yield _differing(norms)


def _from_losses(own: OptimizerStep, step: OptimizerStep, pair: CallPair, norms: Norms) -> Iterator[float]:
    """Yield only round weight decays, such as 0.01. Other numbers probably come from different data."""
    added = math.fsum(own.losses) - math.fsum(step.losses)
    error = max(EXACT, LOSS_ERROR * abs(math.fsum(own.losses)) / added) if added > 0 else 0.0
    for names in _regularized(pair, norms):
        squares = math.fsum(norms[name][0] ** 2 for name in names)
        if _have_losses(own, step) and squares and added > EXACT * abs(math.fsum(step.losses)):
            decay = 2 * added / squares
            rounded = (float(f"{decay:.1e}"), 2 * float(f"{decay / 2:.1e}"))
            yield from (each for each in rounded if math.isclose(each, decay, rel_tol=error))


def _by_norms(decay: float, norms: Norms) -> Evidence | None:
    """With weight decay c, the gradient is g + c w. So c is from (|g + c w| - |g|) / |w| to (|g + c w| + |g|) / |w|."""
    names = _differing(norms)
    unknown = _without_effect(decay, norms)
    if not names or {*names} & {*unknown} or any(map(math.isnan, (norm for each in norms.values() for norm in each))):
        return None
    least = max((long - short) / weight for weight, long, short in map(norms.__getitem__, names))
    most = min((long + short) / weight for weight, long, short in map(norms.__getitem__, names))
    if not (decay < CLOSE * least and least <= decay * (1 + EXACT) and decay <= most * (1 + EXACT) < CLOSE * decay):
        return None
    return names, unknown, f"according to the norms, the factor is between {least:.3g} and {most:.3g}"


def _differing(norms: Norms) -> list[str]:
    total = math.hypot(*(long for _, long, _ in norms.values()))
    return [name for name, (_, long, short) in norms.items() if abs(long - short) > PRODUCT * total]


def _without_effect(decay: float, norms: Norms) -> list[str]:
    return [name for name, (weight, _, short) in norms.items() if not decay * weight > PRODUCT * short]


def regularizer_cause(
    runs: tuple[str, str],
    decays: tuple[float | None, float | None],
    is_first: bool,
    decay: float,
    names: Sequence[str],
    unknown: Sequence[str],
    evidence: str,
) -> Cause:
    """If `is_first`, the first run adds the weight decay."""
    old, new = runs
    run, other = runs if is_first else runs[::-1]
    sentences = [
        f"{run} adds {decay:.6g} times the weight to the gradients of {names_text(names)} before the clip, as an L2 "
        f"regularizer in the loss does ({evidence}). {other} does not"
    ]
    if unknown:
        these, are = ("these weights", "are") if len(unknown) > 1 else ("this weight", "is")
        sentences.append(
            f"It is unknown whether {run} also adds weight decay to the gradients of {names_text(unknown)}, because "
            f"{these} {are} about 0 at this step. Check whether the loss of {run} has a regularizer of {these}"
        )
    if any(each is None or each > 0 for each in decays):
        sentences.append("An optimizer adds its weight decay after the clip")
    change = "remove this regularizer from the loss"
    if is_first:
        change = f"add {decay / 2:.6g} times the sum of the squares of these weights to the loss"
    if None in decays:
        change += f", and use the same weight decay in the optimizer as in {old}"
    elif decays[0] != decays[1]:
        change += f", and set the weight decay of the optimizer to {decays[0]:.6g}"
    sentences.append(f"In {new}, {change}")
    of_run, of_other = decays[not is_first], decays[is_first]
    if of_other and not of_run and not math.isclose(of_other, decay, rel_tol=FACTOR_ERROR):
        sentences.append(
            f"The optimizer of {other} has a weight decay of {of_other:.6g}. For example, a weight "
            "decay of 0.02 is like adding 0.01 times the sum of the squared weights to the loss"
        )
    return Cause("weight decay before the clip", ". ".join(sentences))


def _weights(pair: CallPair) -> dict[str, float]:
    weights = {}
    for name, other in pair.names.items():
        norms = (pair.a.parameters[name].weight, pair.b.parameters[other].weight)
        weights[name] = next((norm for norm in norms if norm is not None), math.nan)
    is_known = len(weights) == len(pair.a.parameters) and not any(map(math.isnan, weights.values()))
    return weights if is_known else {}
