"""Why two recorded runs part: mistakes that ports make, each checked against the numbers at the first difference.

Norms are given as they are before clipping, so those of the first step at which runs part are still comparable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .compare import Difference, Finding, Names, Pair, differences, numbers, threshold
from .rounding import GROWTH, ROUNDING, distance, same
from .runs import Line, Recording, root_of_squares

NEAR = 4
"""Units in the last place up to which norms count as equal here: sums and frameworks round."""

EXACT = 1e-13
"""How far, relatively, a coefficient in float64 may be from its formula."""

DESCENT = 0.1
"""How far, relatively, multiples of squared gradients may differ: they are differences of squared float32 norms."""

PRODUCT = 1e-5
"""How far, relatively, the norm of clipped float32 gradients may be from what their coefficient says."""

CLIPS = {
    "global": "all gradients by one norm",
    "each": "each gradient by its own norm",
    "slices": "each slice by its own norm",
    "value": "each number between two bounds",
}
"""What rules do."""

SIZES = {"weight": "the greatest norm of this weight so far", "gradient": "the total norm", "norm": "the total norm"}
"""By what stage, the size at which its numbers are rounded."""

EPS = (0.0, 1e-6)
"""Of Paddle's and TensorFlow's names, and of PyTorch's."""


@dataclass(frozen=True)
class Place:
    """Where two runs part."""

    a: Recording
    b: Recording
    pairs: list[Pair]
    index: int
    """Of the pair; past the last where one run has a call that the other lacks."""

    first: Difference

    @property
    def pair(self) -> Pair | None:
        return self.pairs[self.index] if self.index < len(self.pairs) else None

    def both_ways(self) -> Iterator[tuple[Recording, Recording]]:
        yield self.a, self.b
        yield self.b, self.a

    def gradients(self) -> list[tuple[str, float, float]]:
        """The norm of each gradient in both runs."""
        if self.pair is None:
            return []
        found = list(numbers(self.pair, "gradient"))
        if not found and self.pair.a.rule == "each":
            found = list(numbers(self.pair, "norm"))
        return [(name or "the gradient", a, b) for name, a, b in found]


def explain(place: Place) -> list[Finding]:
    """What the numbers confirm: one mistake in what is clipped, and any in how; else rounding that has grown."""
    what = (finding for check in WHAT if (finding := check(place)) is not None)
    how = (finding for check in HOW if (finding := check(place)) is not None)
    found = [*itertools.islice(what, 1), *how]
    return found or [finding for finding in [_grown_rounding(place)] if finding is not None]


def _not_finite_in_one(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None:
        return None
    for run, line, other in ((place.a, pair.a, pair.b), (place.b, pair.b, pair.a)):
        norms = line.norms() or [each.norm for each in line.parameters.values()]
        others = other.norms() or [each.norm for each in other.parameters.values()]
        if all(map(math.isfinite, norms)) or not all(map(math.isfinite, others)):
            continue
        where = [repr(name) for name, each in line.parameters.items() if not math.isfinite(each.norm)]
        counts = "" if line.nan is None else f": {line.nan} NaN and {line.inf} inf"
        return Finding(
            "not finite in one run",
            f"the gradients of {_name(run)} are not finite{counts}{f', in {_listing(where)}' if where else ''}; those "
            "of the other run are",
        )
    return None


def _per_tensor(place: Place) -> Finding | None:
    for run, other in place.both_ways():
        line, rest = _line(run, place.index), other.lines[place.index :]
        if line is None or line.rule != "global" or line.norm_type != 2 or not rest:
            continue
        total = line.norms()[0]
        norms, calls = _norms_that_make(total, rest)
        if len(norms) > 1 and _equal(root_of_squares(norms), total, PRODUCT):
            in_groups = any(each.rule == "global" and len(each.parameters) > 1 for each in rest[:calls])
            return Finding(
                "per group for global" if in_groups else "per tensor for global",
                f"{_name(other)} clips by {len(norms)} norms, {'in one call' if calls == 1 else f'in {calls} calls'}; "
                f"{_name(run)} clips all gradients by one norm. They are the same gradients: together the norms make "
                f"{root_of_squares(norms):.9g}, and the one norm is {total:.9g}",
            )
    return None


def _norms_that_make(total: float, lines: list[Line]) -> tuple[list[float], int]:
    """The norms of calls in a row until their root of squares is a total, and how many calls they are."""
    norms: list[float] = []
    made = 0.0
    for calls, line in enumerate(lines, start=1):
        if line.rule not in ("global", "each"):
            break
        norms += line.norms()
        made = root_of_squares([made, *line.norms()])
        if made >= total * (1 - PRODUCT):
            return norms, calls
    return [], 0


def _threshold(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or same(threshold(pair.a), threshold(pair.b)) or pair.a.rule != pair.b.rule:
        return None
    text = f"{_name(place.a)} clips at {pair.a.threshold}, {_name(place.b)} at {pair.b.threshold}"
    is_nan = any(isinstance(line.threshold, float) and math.isnan(line.threshold) for line in (pair.a, pair.b))
    if pair.a.rule == "value" or is_nan:  # no coefficient follows from NaN
        return Finding("another threshold", text)
    if not all(_explained(line) for line in (pair.a, pair.b)):
        return None
    if _same_norms(pair):
        return Finding("another threshold", f"{text}; the norms are equal, and each coefficient follows from its own")
    return Finding("another threshold", f"{text}; each coefficient follows from its own norm and threshold")


def _norm_type(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or same(pair.a.norm_type, pair.b.norm_type) or pair.a.rule != "global" or pair.b.rule != "global":
        return None
    low, high = sorted((pair.a, pair.b), key=lambda line: line.order)
    if not low.order > 0:  # a framework's own function may take other orders
        return None
    elements = sum(math.prod(length or 1 for length in each.shape) for each in low.parameters.values()) or math.inf
    exponent = 1 / low.order - 1 / high.order
    ratio = low.norms()[0] / high.norms()[0] if high.norms()[0] else 1.0
    # One list of n numbers has a ratio of norms of at most n**exponent, which may be too large for a float.
    if not (ratio >= 1 - PRODUCT and math.log(ratio) <= exponent * math.log(elements) + PRODUCT):
        return None
    return Finding(
        "another norm type",
        f"{_name(place.a)} takes the norm of order {pair.a.order:g}, {_name(place.b)} of order "
        f"{pair.b.order:g}: {pair.a.norms()[0]:.9g} and {pair.b.norms()[0]:.9g}, which the same gradients can have",
    )


def _rule(place: Place) -> Finding | None:
    rules = (str(place.first.a), str(place.first.b))
    if place.first.stage != "rule" or not all(rule in CLIPS for rule in rules):  # a call without gradients has none
        return None
    how = [CLIPS[rule] for rule in rules]
    return Finding("another rule", f"{_name(place.a)} clips {how[0]}, {_name(place.b)} {how[1]}")


def _ends(place: Place) -> Finding | None:
    for run, other in place.both_ways():
        last, extra = _line(run, place.index - 1), _line(other, place.index)
        if len(run.lines) == place.index and last and extra and extra.step > last.step:
            return Finding(
                "one run is shorter",
                f"{_name(run)} ends after {len(run.lines)} of the {len(other.lines)} calls of {_name(other)}",
            )
    return None


def _eps(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or not _same_norms(pair) or not any(a != b for _, a, b in numbers(pair, "coefficient")):
        return None
    found = [_eps_of(line) for line in (pair.a, pair.b)]
    if None in found or found[0] == found[1]:
        return None
    with_eps, without = (place.a, place.b) if found[0] else (place.b, place.a)
    return Finding(
        "missing eps",
        f"the norms are equal ({pair.a.norms()[0]:.9g}), and the coefficients are exactly those with eps = 1e-6 "
        f"({_name(with_eps)}) and with eps = 0 ({_name(without)}): PyTorch's names add it, Paddle's and TensorFlow's "
        "do not",
    )


def _eps_of(line: Line) -> float | None:
    """Which eps explains the coefficients; of a function that rounds on its way, only whether its own does."""
    return next((eps for eps in ([line.eps] if line.watched else EPS) if _explained(line, eps)), None)


def _missing(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or pair.a.order != pair.b.order:
        return None
    for run, other, line, fewer, names in (
        (place.a, place.b, pair.a, pair.b, pair.names),
        (place.b, place.a, pair.b, pair.a, {b: a for a, b in pair.names.items()}),
    ):
        missing = _left_out(line, fewer, names)
        if missing:
            return Finding(
                "a parameter is missing",
                f"{_name(other)} clips without {_listing(list(map(repr, missing)))}, which {_name(run)} has; the other "
                f"{len(fewer.parameters)} have equal norms",
            )
    return None


def _left_out(line: Line, fewer: Line, names: Names) -> list[str]:
    """The parameters without which a line's gradients are those of another; none if there are no such."""
    if not 0 < len(fewer.parameters) < len(line.parameters):
        return []
    rest = dict(line.parameters)
    by_name = any(name == other and not name.isdecimal() for name, other in names.items())
    for other, theirs in fewer.parameters.items():
        # Matched by shape and order, all behind the one that is missing are matched wrongly.
        same = (name for name in rest if names.get(name) == other or not by_name)
        name = next((name for name in same if _near(rest[name].norm, theirs.norm)), None)
        if name is None:
            return []
        del rest[name]
    return list(rest)


def _swapped(place: Place) -> Finding | None:
    moved = [(name, a, b) for name, a, b in place.gradients() if not _near(a, b)]
    if len(moved) < 2:
        return None
    rest = list(moved)
    found = []
    for name, a, _ in moved:
        match = next((each for each in rest if _near(a, each[2])), None)
        if match is None:
            return None
        rest.remove(match)
        found.append(f"{name!r} of {_name(place.a)} has the norm of {match[0]!r} of {_name(place.b)} ({a:.9g})")
    sentence = f"the norms are the same in another order: {_listing(found)}"
    pair = place.pair
    if pair and not any(name in pair.b.parameters for name, *_ in moved):
        sentence += "; they were matched by shape and order: say with --map which belong together, if it is another one"
    return Finding("swapped parameters", sentence)


def _after_the_step(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or place.first.stage != "weight":
        return None
    gradients = place.gradients()
    moved = [(name, a, b) for name, a, b in numbers(pair, "weight") if a != b]
    still = {name for name, a, b in gradients if a == 0}
    if not gradients or not all(_near(a, b) for _, a, b in gradients) or still & {name for name, *_ in moved}:
        return None
    if 2 * len(moved) <= len(gradients) - len(still) or _began_equal(place):  # a step moves all; other weights need not
        return None
    late = _late(place, pair)
    who = _name(late) if late else "one of the two (that whose weights are not those that the step began with)"
    name, a, b = moved[0]
    return Finding(
        "clipping after the step",
        f"all {len(gradients)} gradients are equal, so they come from the same weights, but at the time of the clip "
        f"the weights differ already ({name!r}: {a:.9g} and {b:.9g}): {who} clips after its optimizer has stepped, so "
        "the step is taken with gradients that are not clipped",
    )


def _began_equal(place: Place) -> bool:
    """Whether the weights were equal at a step before: who clips after the step shows it at the first."""
    return any(a == b and a for pair in place.pairs[: place.index] for _, a, b in numbers(pair, "weight"))


def _late(place: Place, pair: Pair) -> Recording | None:
    """Return the run that clips after its step, if the next step of the other decides which one it is.

    The late run has stepped by its gradients, and the other steps by clipped ones. Plain descent by both fits one of
    the two only. After other optimizers, all weights have to move the same way.
    """
    if place.index + 1 >= len(place.pairs) or len(pair.a.coefs()) != 1 or len(pair.b.coefs()) != 1:
        return None
    later = {name: (a, b) for name, a, b in numbers(place.pairs[place.index + 1], "weight")}
    squares = {name: a * a for name, a, _ in place.gradients() if a}
    weights = [(name, a, b) for name, a, b in numbers(pair, "weight") if name in later and name in squares]
    if len(weights) < 2:
        return None
    b_late = [(a, b, later[name][0], squares[name]) for name, a, b in weights]
    a_late = [(b, a, later[name][1], squares[name]) for name, a, b in weights]
    fits = [_is_descent(b_late, pair.a.coefs()[0]), _is_descent(a_late, pair.b.coefs()[0])]
    if not any(fits):
        fits = [all((after - now) * (moved - now) > 0 for now, moved, after, _ in each) for each in (b_late, a_late)]
    return None if fits[0] == fits[1] else place.b if fits[0] else place.a


def _is_descent(moves: list[tuple[float, float, float, float]], coef: float) -> bool:
    """Whether plain descent moves weights by the gradients, and to their next norm by clipped gradients.

    Then w^2 changes by -2*lr*wg + lr^2*g^2, and by -2*lr*c*wg + lr^2*c^2*g^2. What the second change has beside c
    times the first one is lr^2*c*(c - 1) times g^2: for every parameter the same multiple.
    """
    multiples = [(after**2 - now**2 - coef * (moved**2 - now**2)) / square for now, moved, after, square in moves]
    return multiples[0] < 0 and all(_equal(multiple, multiples[0], DESCENT) for multiple in multiples)


def _twice(place: Place) -> Finding | None:
    found = [(run, again) for run, _ in place.both_ways() if (again := _again(run, place.index)) is not None]
    if len(found) != 1:  # where both do, that is not how they differ
        return None
    run, (before, coef, after) = found[0]
    return Finding(
        "clipping twice",
        f"{_name(run)} clips the same gradients again: their norm was {before:.9g}, times the coefficient {coef:.9g} "
        f"it is {before * coef:.9g}, and the next call finds {after:.9g}",
    )


def _again(run: Recording, index: int) -> tuple[float, float, float] | None:
    """The norm and the coefficient of the call before, and this call's norm, if it finds what that one left."""
    line, before = _line(run, index), _line(run, index - 1)
    if line is None or before is None or not (before.rule == line.rule == "global" and before.clipped):
        return None
    pairs = [(before.norms()[0], line.norms()[0])]
    pairs += [
        (each.norm, line.parameters[name].norm) for name, each in before.parameters.items() if name in line.parameters
    ]
    coef = before.coefs()[0]
    same = all(_equal(norm * coef, again, PRODUCT) for norm, again in pairs)
    return (pairs[0][0], coef, pairs[0][1]) if same else None


def _scaled(place: Place) -> Finding | None:
    ratios = [b / a for _, a, b in place.gradients() if a and b]
    if len(ratios) < 2 or not all(_equal(ratio, ratios[0], PRODUCT) for ratio in ratios) or abs(ratios[0] - 1) < 1e-3:
        return None
    return Finding(
        "scaled gradients",
        f"every gradient of {_name(place.b)} is {ratios[0]:.6g} times that of {_name(place.a)}: a loss that is a sum "
        "in one run and a mean in the other, or a loss scale that is not divided out",
    )


def _rounding(place: Place) -> Finding | None:
    far, scaled = place.first.distance, place.first.scaled
    if far is None or scaled is None or scaled > ROUNDING or place.first.stage == "coefficient":
        return None
    beside = f" of it, and {scaled:.2g} ULP of {SIZES[place.first.stage]}" if scaled < far.ulps > ROUNDING else ""
    return Finding(
        "rounding",
        f"the first difference is {far.ulps:g} ULP{beside}: as much as two frameworks that sum in another order differ "
        f"by ({ROUNDING} ULP at most). Such differences grow from step to step; allow them with --max-ulp",
    )


def _grown_rounding(place: Place) -> Finding | None:
    """A difference that is more than rounding, and less than GROWTH times what the runs differed by before."""
    scaled = place.first.scaled
    if scaled is None or not ROUNDING < scaled < math.inf or place.first.stage == "coefficient":
        return None
    before, step = _greatest_before(place)
    if scaled > GROWTH * before:
        return None
    return Finding(
        "rounding that has grown",
        f"the difference is {scaled:.3g} ULP of {SIZES[place.first.stage]}, and step {step} had {before:.3g} already. "
        f"Rounding grows like this, by less than {GROWTH} times at once; so does a small difference between the "
        "optimizers. `unified-clip verify` compares the updates too",
    )


def _greatest_before(place: Place) -> tuple[float, int]:
    """The greatest difference of the steps before, in ULP of its size, and the step."""
    greatest, step = 0.0, 0
    for found in differences(place.pairs[: place.index], 0.0):
        for each in found:
            if each.scaled is not None and each.scaled > greatest:
                greatest, step = each.scaled, each.step
    return greatest, step


def _clipped(place: Place) -> Finding | None:
    if place.first.stage != "clipped" or place.pair is None:
        return None
    run, line = (place.b, place.pair.b) if place.first.a else (place.a, place.pair.a)
    other = place.a if run is place.b else place.b
    is_above = max(line.norms()) > line.threshold if isinstance(line.threshold, float) else False
    wrong, does = (run, "leaves them unchanged") if is_above else (other, "changes them")
    return Finding(
        "clipped in one run only",
        f"the norms of both are {'above' if is_above else 'below'} the threshold {line.threshold}, and {_name(wrong)} "
        f"{does}",
    )


WHAT = (_not_finite_in_one, _twice, _per_tensor, _missing, _swapped, _after_the_step, _scaled, _rule, _ends)
"""Mistakes in what is clipped, and when: where one is found, another may seem to be one too."""


def _own_rounding(place: Place) -> Finding | None:
    pair = place.pair
    if pair is None or place.first.stage != "coefficient" or pair.a.eps != pair.b.eps or not _same_norms(pair):
        return None
    if not same(threshold(pair.a), threshold(pair.b)) or not all(_explained(line) for line in (pair.a, pair.b)):
        return None
    lines = ((place.a, pair.a), (place.b, pair.b))
    own = [f"{line.call} of {_name(run)}" for run, line in lines if not _explained(line, off=EXACT)]
    return Finding(
        "rounding",
        f"the norms are equal ({pair.a.norms()[0]:.9g}), and both coefficients are those of the same formula, but for "
        f"the rounding of {' and '.join(own)}; allow it with --max-ulp",
    )


HOW = (_threshold, _norm_type, _eps, _clipped, _own_rounding, _rounding)


# -- what they share


def _line(run: Recording, index: int) -> Line | None:
    return run.lines[index] if 0 <= index < len(run.lines) else None


def _explained(line: Line, eps: float | None = None, off: float | None = None) -> bool:
    """Whether the coefficients are those of the line's norms and threshold, with its eps or another.

    `off`: how far they may be from that, relatively; by default as far as a function that is watched may round.
    """
    if not isinstance(line.threshold, float) or not line.coefs():
        return False
    added = line.eps or 0.0 if eps is None else eps
    off = off or (NEAR * 2.0**-23 if line.watched else EXACT)
    for norm, coef in zip(line.norms(), line.coefs(), strict=False):
        expected = 1.0 if norm + added <= line.threshold else line.threshold / (norm + added)
        if not _equal(expected, coef, off):
            return False
    return True


def _same_norms(pair: Pair) -> bool:
    found = list(numbers(pair, "norm"))
    return bool(found) and all(_near(a, b) for _, a, b in found)


def _near(a: float, b: float) -> bool:
    return distance(a, b).ulps <= NEAR


def _equal(a: float, b: float, relative: float) -> bool:
    return math.isclose(a, b, rel_tol=relative)


def _name(run: Recording) -> str:
    return run.name


def _listing(parts: list[str], most: int = 3) -> str:
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
