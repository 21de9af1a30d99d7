"""Hypotheses about gradients that are left out, counted twice or not scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from ..tensors.arithmetic import FORMATS
from .cause import CauseKind
from .observation import NAMES, Hypothesis, Observation
from .sums import IN_FLOAT32, rounding_noise

MOST_AXES = 4

CHANCE = 0.05
"""Sets of gradients are tested only if the probability that a wrong set fits by chance is below this number."""

Indices = Sequence[int]


def not_scaled(call: Observation) -> Iterator[Hypothesis]:
    wrong = {number: call.scalings[number] for number in call.wrong}
    lost = {n: 1.0 if each.is_unchanged else 0.0 for n, each in wrong.items() if each.is_unchanged or each.is_zero}
    if not lost:
        return
    norms = [call.norm_over(number for number in call.counted if number not in lost)] * len(call.before)
    is_visible = _is_visible(call, norms[0])
    properties = [name for name, same in _properties(call) if [*same] == [*lost]]
    for names in [call.names_of(lost), *properties] if len(lost) == 1 else [*properties, call.names_of(lost)]:
        what = f"the call returned {names} unchanged" if all(lost.values()) else f"the call returned zeros for {names}"
        coefs = [lost.get(number, coef) for number, coef in enumerate(call.expected_coefs)]
        sentence = f"{what}, although the norm includes {names}" if is_visible else what
        is_rare = len(lost) == len(call.counted) and all(lost.values())  # probably, the function clips nothing
        yield Hypothesis("not scaled", sentence, coefs=coefs, about=[*lost], is_rare=is_rare)
        if call.by == "global" and len(lost) < len(call.counted) and is_visible:
            coefs = [lost.get(number, coef) for number, coef in enumerate(call.coefficients(Hypothesis(norms=norms)))]
            sentence = f"{what}, and the norm leaves out {names}"
            yield Hypothesis("left out", sentence, norms, coefs=coefs, about=[*lost])


def not_counted(call: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield hypotheses that the norm leaves out gradients, or counts a gradient twice."""
    counted, left_out = list(call.counted), partial(without, call)
    yield from _singles(call, slack, left_out, "left out of the norm")
    is_precise = len(counted) * _tolerance(call, slack) < CHANCE
    if is_precise:
        yield from _singles(call, slack, partial(twice, call), "counted twice in the norm")
    for name, left in _properties(call):
        yield left_out(left, f"as if {name} were left out of the norm")
    for which, left in (("first", counted[1:]), ("last", counted[:-1])) if counted[1:] else ():
        yield left_out(left, f"as if the norm included only the {which} gradient")
    ends = (("last", lambda size: counted[-size:]), ("first", lambda size: counted[:size]))
    for which, cut in ends if is_precise else ():
        yield from _ends(call, slack, which, cut)
    if beside := [number for number in call.own if number not in call.counted]:
        sentence = f"as if the norm included {call.names_of(beside)} by mistake"
        yield Hypothesis("need_clip", sentence, [call.norm_over(call.own)] * len(call.before))


def _tolerance(call: Observation, slack: float) -> float:
    of_results = max((2.0 ** -FORMATS[each.dtype].precision for each in call.scalings.values()), default=0.0)
    return slack + (of_results if call.norm_is_expected else 0.0)


def without(call: Observation, left: Indices, sentence: str) -> Hypothesis:
    n = call.norm_over(set(call.counted) - set(left))
    kind: CauseKind | Literal[""] = "left out" if _is_visible(call, n) else ""
    return Hypothesis(kind, sentence, [n] * len(call.before), about=left)


def twice(call: Observation, repeated: Indices, sentence: str) -> Hypothesis:
    n = call.norm_over([*call.counted, *repeated])
    kind: CauseKind | Literal[""] = "repeated parameter" if _is_visible(call, n) else ""
    return Hypothesis(kind, sentence, [n] * len(call.before), about=repeated)


def _is_visible(call: Observation, norm: float) -> bool:
    expected = call.norm_over(call.counted)
    return abs(norm - expected) > rounding_noise(call.elements) * expected


def _explains(call: Observation, hypothesis: Hypothesis, slack: float) -> bool:
    return any(call.explains(hypothesis._replace(returned=returned), slack) for returned in (None, ()))


def _singles(
    call: Observation, slack: float, make: Callable[[Indices, str], Hypothesis], what: str
) -> Iterator[Hypothesis]:
    singles = (make([number], f"as if {NAMES} were {what}") for number in call.counted)
    yield from (each for each in singles if _explains(call, each, slack))


def _ends(call: Observation, slack: float, which: str, cut: Callable[[int], Indices]) -> Iterator[Hypothesis]:
    sizes = range(2, len(call.counted) - 1)
    if fitting := [size for size in sizes if _explains(call, without(call, cut(size), ""), slack)]:
        number = f"{fitting[0]}" if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
        sentence = f"as if the {which} {number} gradients were left out of the norm"
        yield from (without(call, cut(size), sentence) for size in fitting)


def _properties(call: Observation) -> Iterator[tuple[str, Indices]]:
    """Yield a description and the indices of each group of gradients, such as all gradients of one dtype."""
    axes = {number: len(gradient.shape) for number, gradient in call.counted.items()}
    tests: dict[str, Callable[[int], bool]] = {"all gradients": lambda number: True}
    for count in range(MOST_AXES):
        words = "1 axis" if count == 1 else f"{count} axes"
        tests[f"all gradients with {words}"] = lambda number, count=count: axes[number] == count  # type: ignore[misc]
        tests[f"all gradients with at most {words}"] = lambda number, count=count: axes[number] <= count  # type: ignore[misc]
        tests[f"all gradients with more than {words}"] = lambda number, count=count: axes[number] > count  # type: ignore[misc]
    dtypes = dict.fromkeys(gradient.dtype for gradient in call.counted.values())
    for dtype in dtypes if len(dtypes) > 1 else ():
        tests[f"all gradients of {dtype}"] = lambda number, dtype=dtype: call.counted[number].dtype == dtype  # type: ignore[misc]
    for name, test in tests.items():
        if left := [number for number in call.counted if test(number)]:
            yield name, left


def repeated(call: Observation) -> Iterator[Hypothesis]:
    if max(call.times, default=1) < 2 or call.passed_norm is not None:
        return
    about = [number for number, times in enumerate(call.times) if times > 1]
    names = call.names_of(about)
    norms = [call.norm_over(number for number in call.counted for _ in range(call.times[number]))] * len(call.before)
    coefs = [coef**times for coef, times in zip(call.coefficients(Hypothesis(norms=norms)), call.times, strict=True)]
    sentence = f"as if the norm included {names} as often as the list contains {names}"
    yield Hypothesis("repeated parameter", sentence, norms, about=about)
    sentence = f"as if {names} were included in the norm and scaled as often as the list contains {names}"
    yield Hypothesis("repeated parameter", sentence, norms, coefs=coefs, tolerance=IN_FLOAT32, about=about)
