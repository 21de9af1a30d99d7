"""Advise what to compare first if the weights agree and the gradients differ."""

from __future__ import annotations

import math

from ...causes.cause import joined, names_text
from ..divergence import DivergencePoint, numbers
from ..pairs.calls import CallPair, greatest_setting
from ..rounding import PRODUCT, ROUNDING, distance, single
from ..rounding_noise import noise_floor, total_norm

TINY = 1e-10


def largest_difference(pair: CallPair) -> float:
    return max((distance(a, b).relative for a, b in _beyond_noise(pair)), default=0.0)


def largest_share(pair: CallPair) -> float:
    total = max(map(total_norm, (pair.a, pair.b)))
    return max((abs(a - b) / total for a, b in _beyond_noise(pair)), default=0.0)


def _beyond_noise(pair: CallPair) -> list[tuple[float, float]]:
    floor = max(noise_floor(pair.a), noise_floor(pair.b))
    return [(a, b) for _, a, b in numbers(pair, "gradient") if abs(a - b) > floor]


def hint(point: DivergencePoint, pair: CallPair) -> str:
    some, is_explained = _only_some(point, pair)
    return some if is_explained else joined(some, _decayed(point, pair) or _by_size(point, pair))


def _by_size(point: DivergencePoint, pair: CallPair) -> str:
    most = largest_difference(pair)
    if 0 < most < 0.02 and any({*each.names} & {*pair.names} for each in point.pairs[: point.index]):
        return (
            "At earlier steps, these gradients agree. So first compare unclipped tensors that change during the "
            "training, such as target networks, running statistics and the weights of other networks"
        )
    if 0 < most < 0.02:
        return (
            f"The norms of the gradients differ by at most {100 * most:.2g} %. Different data or dropout usually "
            "cause larger differences, so compare the formulas first, such as GELU and the eps of normalization layers"
        )
    # if a matrix is 0, such as the last layer of some models, the loss may depend on no data
    is_zero = any(each.weight == 0 and len(each.shape) > 1 for each in pair.a.parameters.values())
    if most < 0.05 or is_zero or not losses_agree(point, pair):
        return ""
    return (
        "The losses of this step agree, so compare the backward pass first. Possible causes are detach(), "
        "stop_gradient, and zero_grad() between the backward passes of a step"
    )


def _only_some(point: DivergencePoint, pair: CallPair) -> tuple[str, bool]:
    """Return (hint, whether the hint explains the difference)."""
    factors = {name or "": b / a if a else math.nan for name, a, b in _differing(pair)}
    if not factors or 2 * len(factors) > len(list(numbers(pair, "gradient"))):
        return "", False
    text = f"Only the gradients of {names_text([*factors])} differ"
    factor = float(f"{next(iter(factors.values())):.2g}")
    if not all(math.isclose(each, factor, rel_tol=1e-4) for each in factors.values()):
        return text, False
    advice = "Look for code that multiplies these gradients before the clip"
    return f"{text}: in {point.b.name}, these gradients are {factor:g} times as large. {advice}", True


def _decayed(point: DivergencePoint, pair: CallPair) -> str:
    zeros = [name for name, weight, _ in numbers(pair, "weight") if not weight]
    if not losses_agree(point, pair) or any(name in zeros for name, *_ in _differing(pair)):
        return ""
    steps = [next(each for each in run.optimizer_steps if each.step == pair.a.step) for run in (point.a, point.b)]
    has_decay = [bool(greatest_setting(each, "weight_decay")) for each in steps]
    if has_decay[0] == has_decay[1]:
        return ""
    run, other = (point.a, point.b) if has_decay[0] else (point.b, point.a)
    return (
        f"The losses of this step agree, and only the optimizer of {run.name} has weight decay. Check first whether "
        f"{other.name} adds weight decay to its gradients before the clip"
    )


def _differing(pair: CallPair) -> list[tuple[str | None, float, float]]:
    norms = list(numbers(pair, "gradient"))
    total = math.hypot(*(a for _, a, _ in norms))
    return [(name, a, b) for name, a, b in norms if abs(a - b) > PRODUCT * total]


def losses_agree(point: DivergencePoint, pair: CallPair) -> bool:
    steps = [[each for each in run.optimizer_steps if each.step == pair.a.step] for run in (point.a, point.b)]
    sides = [[loss for each in of_run for loss in each.losses] for of_run in steps]
    if not pair.is_float64:
        sides = [list(map(single, losses)) for losses in sides]
    is_known = len(sides[0]) == len(sides[1]) > 0
    return is_known and all(distance(a, b).ulps <= ROUNDING for a, b in zip(*sides, strict=True))
