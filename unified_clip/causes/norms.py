"""Hypotheses about another norm: of other gradients, of another order, or combined in another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ..tensors.arithmetic import FORMATS
from ..tensors.norms import exact_norm
from ..tensors.types import Sparse
from .cause import CauseKind, instead
from .observation import CLEAR_FACTOR, IN_FLOAT32, By, Hypothesis, Measure, Observation, near
from .settings import COMMON_EPS

CLIPPED_BY: Mapping[By, str] = {
    "global": "the total norm",
    "per tensor": "its own norm",
    "per group": "the norm of its group",
    "per slice": "the norm of each slice",
}
KINDS: Mapping[tuple[By, By], CauseKind] = {
    ("per tensor", "global"): "per tensor for global",
    ("per tensor", "per group"): "per tensor for per group",
    ("per tensor", "per slice"): "per tensor for per slice",
    ("global", "per tensor"): "global for per tensor",
    ("global", "per group"): "global for per group",
    ("global", "per slice"): "global for per slice",
}

COMBINED: Mapping[str, Callable[[Sequence[float]], float]] = {
    "the sum of the tensors' norms": math.fsum,
    "the largest norm of a tensor": max,
    "the mean of the tensors' norms": lambda norms: math.fsum(norms) / len(norms),
    "the root mean square of the tensors' norms": lambda norms: math.hypot(*norms) / math.sqrt(len(norms)),
    "the norm divided by the square root of 2": lambda norms: math.hypot(*norms) / math.sqrt(2),
    "half the sum of the squares": lambda norms: math.hypot(*norms) ** 2 / 2,
    "the norm times the square root of 2": lambda norms: math.hypot(*norms) * math.sqrt(2),
}

MOST_AXES = 4

OF_COUNT = "gradients at one end of the list were left out"
"""The form of hypotheses that differ in how many gradients are left out."""

CHANCE = 0.05
"""Sets of gradients are tested only if the probability that a wrong set fits by chance is below this number."""


def other_norms(call: Observation) -> Iterator[Hypothesis]:
    yield from _by_other_groups(call)
    if call.by == "per slice":
        return
    if call.passed_norm is not None:
        sentence = "as if the function measured the norm instead of using the passed norm"
        yield Hypothesis("given norm", sentence, call.norms_by("global"))
    for p in (1.0, 2.0, math.inf):
        if p != call.p:
            norms = call.norms_by(call.by, partial(call.norm_over, own=call.own_norms(p), p=p))
            yield Hypothesis("another norm type", instead("norm_type", p, call.p), norms)
    squares = [near(n * n, call.norm_dtype) for n in call.norms_by(call.by)]
    yield Hypothesis("another norm type", "as if the call used the square of the norm instead of the norm", squares)
    yield from _combined(call)
    if sparse := {i: each.values for i, each in enumerate(call.before) if isinstance(each, Sparse)}:
        rows = {number: exact_norm([values], call.p, "float64") for number, values in sparse.items()}
        norms = call.norms_by(call.by, partial(call.norm_over, own={**call.own, **rows}))
        if norms != call.norms:
            yield Hypothesis("rows", "as if repeated rows were not summed before the norm was measured", norms)
    if call.by == "global":
        yield from _of_other_gradients(call)
        yield from _repeated(call)
        square = near(call.total_norm**2, call.norm_dtype)
        sentence = "as if the square of the norm were returned in place of the norm"
        yield Hypothesis("another norm type", sentence, returned=[square])


def _by_other_groups(call: Observation) -> Iterator[Hypothesis]:
    noise = CLEAR_FACTOR * call.noise
    for (by, instead_of), kind in KINDS.items():
        norms = call.norms_by(by)
        differs = any(norms[number] != call.norms[number] for number in call.counted)
        if call.by != instead_of or not (differs or (by, instead_of) == ("per tensor", "per slice")):
            continue
        sentence = f"as if each gradient were clipped by {CLIPPED_BY[by]} instead of {CLIPPED_BY[call.by]}"
        for eps in dict.fromkeys((call.eps, *COMMON_EPS)):
            is_visible = abs(eps - call.eps) > noise * min(filter(None, norms), default=math.inf)
            with_eps = f", and as if eps were {eps:g} instead of {call.eps:g}" if is_visible else ""
            returned = [call.total_norm, norms[max(call.counted)]]
            yield Hypothesis(kind, sentence + with_eps, norms, returned, eps, key=sentence, form=sentence)


def _combined(call: Observation) -> Iterator[Hypothesis]:
    if call.by not in ("global", "per group") or call.passed_norm is not None:
        return
    measures: dict[str, Measure] = {
        what: lambda numbers, combine=combine: combine([call.own[number] for number in numbers])  # type: ignore[misc]
        for what, combine in COMBINED.items()
    }
    if call.p == 2:
        measures["the root mean square of all elements"] = lambda numbers: (
            math.hypot(*(call.own[number] for number in numbers))
            / math.sqrt(sum(call.counted[number].array.size for number in numbers) or 1)
        )
    for what, measure in measures.items():
        norms = [near(n, call.norm_dtype) for n in call.norms_by(call.by, measure)]
        yield Hypothesis("another norm type", f"as if the call used {what} instead of the norm", norms)


# -- gradients that are left out, counted twice or not scaled


def _of_other_gradients(call: Observation) -> Iterator[Hypothesis]:
    """Yield hypotheses that the norm leaves out gradients, or counts a gradient twice."""
    counted, size = list(call.counted), len(call.before)
    narrow = max((2.0 ** -FORMATS[each.dtype].precision for each in call.scalings.values()), default=0.0)
    is_precise = len(counted) * max(IN_FLOAT32, narrow if call.norm_is_expected else 0.0) < CHANCE
    for number in range(size):
        name = call.described(number)
        for key in (name, f"{number - size}"):
            yield _without(call, [number], f"as if {name} were left out of the norm", key)
            if is_precise and not call.is_special[1]:
                sentence = f"as if {name} were counted twice in the norm"
                yield _measured(call, "repeated parameter", [*counted, number], [number], sentence, f"2 {key}")
    for name, left in _properties(call):
        yield _without(call, left, f"as if {name} were left out of the norm")
    for which, left in (("first", counted[1:]), ("last", counted[:-1])) if counted[1:] else ():
        yield _without(call, left, f"as if the norm included only the {which} gradient")
    for count in range(2, len(counted) - 1) if is_precise else ():
        for which, left in (("last", counted[-count:]), ("first", counted[:count])):
            sentence = f"as if the {which} {count} gradients were left out of the norm"
            yield _without(call, left, sentence)._replace(form=OF_COUNT)
    if beside := [number for number in call.own if number not in call.counted]:
        sentence, norms = (
            f"as if the norm included {call.names_of(beside)} by mistake",
            [call.norm_over(call.own)] * size,
        )
        yield Hypothesis("need_clip", sentence, norms, key="need_clip")


def _without(call: Observation, left: Sequence[int], sentence: str, key: str = "") -> Hypothesis:
    counted = [number for number in call.counted if number not in left]
    return _measured(call, "left out", counted, left, sentence, key)


def _measured(
    call: Observation, kind: CauseKind, numbers: Sequence[int], about: Sequence[int], sentence: str, key: str
) -> Hypothesis:
    n, expected = call.norm_over(number for number in numbers if number in call.counted), call.norm_over(call.counted)
    is_visible = abs(n - expected) > call.noise * expected
    return Hypothesis(kind if is_visible else "", sentence, [n] * len(call.before), about=about, key=key)


def _properties(call: Observation) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a description and the indices of each group of gradients, such as all gradients of one dtype."""
    axes = {number: len(gradient.shape) for number, gradient in call.counted.items()}
    yield "all gradients", [*axes]
    for count in range(MOST_AXES):
        words = "1 axis" if count == 1 else f"{count} axes"
        for text, allowed in (("", [count]), ("at most ", range(count + 1)), ("more than ", range(count + 1, 99))):
            if left := [number for number in axes if axes[number] in allowed]:
                yield f"all gradients with {text}{words}" if count or text else "all 0-d gradients", left
    dtypes = dict.fromkeys(gradient.dtype for gradient in call.counted.values())
    for dtype in dtypes if len(dtypes) > 1 else ():
        yield f"all gradients of {dtype}", [number for number in axes if call.counted[number].dtype == dtype]


def not_scaled(call: Observation) -> Iterator[Hypothesis]:
    wrong = {number: call.scalings[number] for number in call.wrong}
    sets = [(names, about) for names, about in _properties(call) if names != "all gradients"]
    for coef, what in ((1.0, "the call returned {} unchanged"), (0.0, "the call returned zeros for {}")):
        lost = [n for n, each in wrong.items() if (each.is_unchanged if coef else each.is_zero)]
        lost = [] if coef and len(lost) == len(call.counted) else lost  # such a function clips nothing
        named = [(call.names_of(lost), lost)] if lost else []
        for names, about in [*named, *sets] if len(lost) == 1 else [*sets, *named]:
            rest = [number for number in call.counted if number not in about]
            norms, is_rare = [call.norm_over(rest)] * len(call.before), bool(coef) and not rest
            is_visible = bool(_measured(call, "left out", rest, [], "", "").kind)
            sentence = what.format(names)
            if call.by == "global" and rest and is_visible:
                yield _unscaled(call, f"{sentence}, and the norm leaves out {names}", coef, about, norms)
            sentence += f", although the norm includes {names}" if is_visible else ""
            yield _unscaled(call, sentence, coef, about)._replace(is_rare=is_rare)


def _unscaled(
    call: Observation, sentence: str, coef: float, about: Sequence[int], norms: Sequence[float] = ()
) -> Hypothesis:
    others = call.coefficients(Hypothesis(norms=norms))
    coefs = [coef if number in about else each for number, each in enumerate(others)]
    return Hypothesis("left out" if norms else "not scaled", sentence, norms, coefs=coefs, about=about)


def _repeated(call: Observation) -> Iterator[Hypothesis]:
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
