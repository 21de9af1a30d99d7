"""Pair the clip calls of two recorded runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ...tensors.arrangement import have_same_elements, order_of, without_ones
from ..recorded_run import OptimizerStep, RecordedCall, RecordedRun
from ..rounding import PRODUCT, same
from .packed_parameters import by_stored_rows, packed
from .parameters import Names, match_by_norm, match_unambiguous, sorted_shape


def calls_by_step(run: RecordedRun) -> dict[int, list[RecordedCall]]:
    calls: dict[int, list[RecordedCall]] = {}
    for line in run.lines:
        calls.setdefault(line.step, []).append(line)
    return calls


@dataclass(frozen=True)
class CallPair:
    """Two clip calls: call N of a step in run A, and call N of the same step in run B."""

    a: RecordedCall
    b: RecordedCall
    names: Names
    rate: float = 0.0
    """The largest learning rate of optimizers such as Adam in this step."""

    gain: float = 0.0
    """lr / (1 - momentum) of optimizers such as SGD. A gradient g moves the weight by `gain` * g over all steps."""

    by_shape: bool = False

    @property
    def is_float64(self) -> bool:
        """Whether both norms are in float64. Otherwise, numbers are compared in float32."""
        return self.a.dtype == self.b.dtype == "float64"


def pair_calls(a: RecordedRun, b: RecordedRun, names: Names, rate: float | None = None) -> list[CallPair]:
    """Pair the calls in order, up to the first pair with different steps."""
    lines = zip(a.lines, b.lines, strict=False)
    of_one_step = itertools.takewhile(lambda both: both[0].step == both[1].step, lines)
    rates, gain = (_rates(a, b), _gain(a, b)) if rate is None else ({}, 0.0)
    pairs, by_norm = [], dict[str, str]()
    for both in of_one_step:
        matched = match_unambiguous(*both, {**names, **by_norm})
        by_norm |= match_by_norm(*both, matched)
        matched = {**matched, **{name: other for name, other in by_norm.items() if name in both[0].parameters}}
        by_shape = any(
            names.get(name) != other and (name != other or name.isdecimal()) for name, other in matched.items()
        )
        compared = packed(*by_stored_rows(*both, matched))
        pairs.append(CallPair(*compared, rates.get(both[0].step, rate or 0.0), gain, by_shape))
    return pairs


ADAPTIVE = ("ada", "rmsprop", "rprop", "lamb", "lars", "lion", "sign", "yogi", "novograd", "muon")
"""Names of optimizers whose steps do not depend on the size of the gradient."""

PROPORTIONAL = ("sgd", "momentum", "gradientdescent")
"""Names of optimizers whose steps are proportional to the gradient. ADAPTIVE has precedence."""


def _rates(a: RecordedRun, b: RecordedRun) -> dict[int, float]:
    rates: dict[int, float] = {}
    for step in (*a.optimizer_steps, *b.optimizer_steps):
        rate = greatest_setting(step, "lr") if _is_of(step, ADAPTIVE) else 0.0
        rates[step.step] = max(rates.get(step.step, 0.0), rate)
    return rates


def _gain(a: RecordedRun, b: RecordedRun) -> float:
    # the largest of all steps, because momentum also moves weights at later steps
    steps = [step for step in (*a.optimizer_steps, *b.optimizer_steps) if not _is_of(step, ADAPTIVE)]
    proportional = [step for step in steps if _is_of(step, PROPORTIONAL)]
    gains = (greatest_setting(each, "lr") / max(1 - greatest_setting(each, "momentum"), 1e-9) for each in proportional)
    return max(gains, default=0.0)


def greatest_setting(step: OptimizerStep, name: str) -> float:
    value = step.settings.get(name, 0.0)
    return float(max(value, default=0.0) if isinstance(value, tuple) else value)


def _is_of(step: OptimizerStep, kinds: Sequence[str]) -> bool:
    return any(kind in step.optimizer.lower() for kind in kinds)


def orders_of(pair: CallPair) -> dict[str, str]:
    """Compare the order of the elements of each weight between the runs.

    Return {weight: "same", "transposed", "reshaped", "rearranged" or "other"}. "rearranged" means the same elements in
    any remaining order. "other" means other elements.
    """
    orders: dict[str, str] = {}
    for name, other in pair.names.items():
        a, b = pair.a.parameters.get(name), pair.b.parameters.get(other)
        if not (a and b and a.fingerprints and b.fingerprints and a.weight):
            continue
        if sorted_shape(a.shape) == sorted_shape(b.shape):
            order = order_of(a.fingerprints, b.fingerprints, a.weight, (pair.a.framework, pair.b.framework))
            is_reshaped = order == "same" and a.shape != b.shape and len(without_ones(a.shape)) > 1
            is_rearranged = order == "other" and a.sums and b.sums and have_same_elements(a.sums, b.sums, a.weight)
            orders[name] = "reshaped" if is_reshaped else "rearranged" if is_rearranged else order
    return orders


# -- the order of the calls of a step

MIN_COMMON_FRACTION = 0.5
"""The smallest fraction of common gradients for which two calls can be paired."""

Likeness = Sequence[Sequence[float | None]]
"""A row for each call of one run, and a column for each call of the other run. None: cannot be paired."""


class MissingCalls(NamedTuple):
    step: int
    is_first: bool
    calls: Sequence[RecordedCall]
    partners: Sequence[RecordedCall]
    """The calls of the same run that are paired with calls of the other run."""

    later: frozenset[int]
    """The positions in `partners` of the calls after the first unpaired call."""


def align_calls(a: RecordedRun, b: RecordedRun, names: Names) -> tuple[RecordedRun, RecordedRun, MissingCalls | None]:
    """Sort the calls of each step, so that both calls of a pair have the same position. Unpaired calls come last."""
    by_step = [calls_by_step(run) for run in (a, b)]
    missing: MissingCalls | None = None
    for step in sorted(by_step[0].keys() & by_step[1].keys()):
        lines = by_step[0][step], by_step[1][step]
        if max(map(len, lines)) > 1 and (aligned := _align_step(*lines, names)) is not None:
            by_step[0][step], by_step[1][step], step_missing = aligned
            missing = missing or step_missing
    lines_a, lines_b = (list(itertools.chain.from_iterable(steps.values())) for steps in by_step)
    return a.model_copy(update={"lines": lines_a}), b.model_copy(update={"lines": lines_b}), missing


Aligned = tuple[list[RecordedCall], list[RecordedCall], MissingCalls | None]


def _align_step(a: list[RecordedCall], b: list[RecordedCall], names: Names) -> Aligned | None:
    is_first = len(a) < len(b)
    few, more = (a, b) if is_first or len(a) == len(b) else (b, a)
    shared_names: Mapping[str, str] = names if few is a else {new: old for old, new in names.items()}
    likeness = [[_likeness(call, other, shared_names) for other in more] for call in few]
    is_ordered = any(map(_share_gradients, (few, more)))
    if is_ordered and len(few) == len(more):
        return None
    partners = _partners_in_order(likeness) if is_ordered else _partners(likeness)
    if partners is None:
        return None
    rest = [index for index in range(len(more)) if index not in partners]
    paired = sorted(zip(partners, range(len(few)), strict=True), key=lambda both: both[few is a])
    calls, others = [more[index] for index in rest], [more[index] for index, _ in paired]
    if rest and _is_split(few, others, calls, shared_names):
        return None
    sorted_few, sorted_more = [few[number] for _, number in paired], [*others, *calls]
    lines = (sorted_few, sorted_more) if few is a else (sorted_more, sorted_few)
    later = frozenset(place for place, (index, _) in enumerate(paired) if rest and index > rest[0])
    return *lines, MissingCalls(few[0].step, is_first, calls, others, later) if rest else None


def partners_of(
    a: Sequence[RecordedCall], b: Sequence[RecordedCall], names: Names
) -> tuple[Sequence[int] | None, bool]:
    """Return (index in `b` for each call in `a`, whether the order of the calls matters)."""
    likeness = [[_likeness(call, other, names) for other in b] for call in a]
    is_ordered = any(map(_share_gradients, (a, b)))
    return (_partners_in_order if is_ordered else _partners)(likeness), is_ordered


def _likeness(call: RecordedCall, other: RecordedCall, names: Names) -> float | None:
    is_near = have_near_norms(call, other)
    share = _common_fraction(call, other, names)
    if share is None:  # no gradient was recorded
        share = float(is_near or (call.count is not None and call.count == other.count))
    elif not (_named(call, {}) and _named(other, {})):
        share = max(share, float(is_near))
    if share < MIN_COMMON_FRACTION:
        return None
    is_same = [call.rule == other.rule, same(call.threshold, other.threshold), call.order == other.order]
    return 4 * share + 2 * is_near + sum(is_same) + (call.call == other.call) / 2


def _common_fraction(call: RecordedCall, other: RecordedCall, names: Names) -> float | None:
    """Return the fraction of gradients that have the same name or shape in both calls."""
    if not call.parameters or not other.parameters:
        return None
    sides: list[Counter[object]] = [Counter(_named(call, names)), Counter(_named(other, {}))]
    if not all(sides):
        start = 1 if call.sparse or other.sparse else 0  # a call may get only the stored rows of a sparse gradient
        shapes = [[each.shape for each in line.parameters.values()] for line in (call, other)]
        sides = [Counter(sorted_shape(shape[start:] or shape) for shape in side) for side in shapes]
    return (sides[0] & sides[1]).total() / max(len(call.parameters), len(other.parameters))


def _named(call: RecordedCall, names: Names) -> list[str]:
    return [names.get(name, name) for name in call.parameters if not name.isdecimal()]


def have_near_norms(a: RecordedCall, b: RecordedCall) -> bool:
    norms = [sorted(each.known_norms()) for each in (a, b)]
    is_near = partial(math.isclose, rel_tol=PRODUCT)
    return len(norms[0]) == len(norms[1]) > 0 and all(map(is_near, *norms))


def _share_gradients(calls: Sequence[RecordedCall]) -> bool:
    for call, other in itertools.combinations(calls, 2):
        share = _common_fraction(call, other, {})
        is_named = bool(_named(call, {}) and _named(other, {}))
        if share is None or (share > 0 if is_named else share == 1):
            return True
    return False


def _is_split(
    few: Sequence[RecordedCall], others: Sequence[RecordedCall], missing: Sequence[RecordedCall], names: Names
) -> bool:
    own, paired, rest = (
        {name for call in calls for name in _named(call, known)}
        for calls, known in ((few, names), (others, {}), (missing, {}))
    )
    if own and rest:
        return bool((own & rest) - paired)
    counts = [[len(call.parameters) or call.count or 0 for call in calls] for calls in (few, others, missing)]
    if all(itertools.starmap(have_near_norms, zip(few, others, strict=True))):
        return False
    return not all(map(all, counts)) or any(n > m for n, m in zip(*counts[:2], strict=True))


def _partners(likeness: Likeness) -> list[int] | None:
    candidates = sorted(
        (-value, abs(number - index), number, index)
        for number, values in enumerate(likeness)
        for index, value in enumerate(values)
        if value is not None
    )
    partners: dict[int, int] = {}
    for *_, number, index in candidates:
        if number not in partners and index not in partners.values():
            partners[number] = index
    return [partners[number] for number in range(len(likeness))] if len(partners) == len(likeness) else None


def _partners_in_order(likeness: Likeness) -> list[int] | None:
    best: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}  # by index of the last paired call
    for values in likeness:
        longer: dict[int, tuple[float, list[int]]] = {}
        for index, value in enumerate(values):
            earlier = [each for last, each in best.items() if last < index]
            if value is not None and earlier:
                total, partners = max(earlier, key=lambda each: each[0])
                longer[index] = (total + value, [*partners, index])
        best = longer
    return max(best.values(), key=lambda each: each[0])[1] if best else None


RULES = {"global": "by the total norm", "each": "per tensor", "slices": "per slice", "value": "by value"}


def clip_text(call: RecordedCall) -> str:
    text = f"{call.call}, {RULES.get(call.rule or '', 'by an unknown rule')}"
    if isinstance(call.threshold, tuple):
        return f"{text} with the bounds {call.threshold[0]:.6g} and {call.threshold[1]:.6g}"
    return text if call.threshold is None else f"{text} with the threshold {call.threshold:.6g}"
