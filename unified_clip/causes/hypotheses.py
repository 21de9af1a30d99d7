"""Known causes of a difference, each with the norm and the coefficients that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ..tensors.arithmetic import FORMATS, nearest_float
from ..tensors.norms import exact_norm
from ..tensors.types import Dense, Sparse
from .observation import By, Hypothesis, Observation, instead

Float32s = npt.NDArray[np.float32]

Add = Callable[[Sequence[Float32s]], Float32s]

SUMS: list[tuple[str, Add]] = [
    ("one after the other", lambda squares: np.array([np.add.accumulate(each)[-1] for each in squares])),
    ("one after the other", lambda squares: _of_norms(np.array([np.add.accumulate(each)[-1] for each in squares]))),
    ("by blocks", lambda squares: np.array([np.sum(each) for each in squares])),
    ("by blocks", lambda squares: _of_norms(np.array([np.sum(each) for each in squares]))),
    ("one after the other", lambda squares: np.concatenate(squares)),
]
"""Ways to accumulate in float32: the terms that they add one after the other, from the squares of each gradient."""


def _of_norms(sums: Float32s) -> Float32s:
    return sums if len(sums) == 1 else np.sqrt(sums) ** 2


EPS = (0.0, 1e-6, 1e-12, 1e-8, 1e-7, 1e-5)
"""Values of eps in common use."""

NARROW = ("bfloat16", "float16")
"""The coarser dtype first: most of its numbers are also numbers of the other."""

IN_FLOAT32 = 2.0**-22
"""Relative error of a coefficient that is computed in float32."""

SCALED = 1e-3
"""Least relative difference of a factor from 1: a smaller one is rounding."""

CLIPPED_BY = {
    "global": "the total norm",
    "per tensor": "its own norm",
    "per group": "the norm of its group",
    "per slice": "the norm of each slice",
}


def _rounding_noise(call: Observation) -> float:
    """Return the usual largest relative error of a norm in float32: roundings go both ways. The root is one of them."""
    return 2.0**-24 * (1 + math.sqrt(call.elements))


def all_of(call: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield every possible cause, the simplest first."""
    if call.by == "per slice":
        yield from _other_norms(call)
        return
    yield from _other_eps(call)
    if call.by != "per group":
        yield from _in_float32(call)
    yield from _in_16_bits(call)
    yield from _lost(call)
    if call.by == "global":
        yield from _not_counted(call, slack)
    yield from _other_norms(call)
    if call.by != "per group" and not call.are_norms:
        yield from _other_orders(call)
        yield from _unsummed_rows(call)
    yield from _twice(call)


def _other_eps(call: Observation) -> Iterator[Hypothesis]:
    room = _rounding_noise(call) * _lone_norm(call)
    for eps in EPS:
        if eps != call.eps:
            kind = "" if abs(eps - call.eps) <= room else "another eps"
            yield Hypothesis(kind, instead("eps", eps, call.eps), eps=eps)


def _lone_norm(call: Observation) -> float:
    """Return the only norm that scales anything if no norm is returned, else 0: one coefficient is all evidence."""
    scaled = {call.norms[i] for i, each in call.scalings.items() if not (each.is_given and each.due_is_given)}
    return scaled.pop() if call.norm is None and len(scaled) == 1 else 0.0


def _other_norms(call: Observation) -> Iterator[Hypothesis]:
    """Yield clips by a wrong norm: per tensor, total, or measured."""
    others: tuple[By, ...] = ("per tensor", "global")
    for by in others:
        norms = call.norms_by(by)
        if by == call.by or not (_differ(call, norms) or (by, call.by) == ("per tensor", "per slice")):
            continue
        sentence = f"as when each gradient is clipped by {CLIPPED_BY[by]} instead of {CLIPPED_BY[call.by]}"
        for eps in (call.eps, *EPS):
            for returned in ((), norms[-1:]):
                yield Hypothesis(f"{by} for {call.by}", sentence, norms, returned, eps)
    if call.passed_norm is not None:
        yield Hypothesis("given norm", "as when the norm is measured, where one is given", call.norms_by("global"))


def _differ(call: Observation, norms: Sequence[float]) -> bool:
    """Return whether gradients that are not zero have wrong norms."""
    return any(n and n != due for n, due in zip(norms, call.norms, strict=True))


def _unsummed_rows(call: Observation) -> Iterator[Hypothesis]:
    sparse = {i: gradient.values for i, gradient in enumerate(call.given) if isinstance(gradient, Sparse)}
    rows = {number: exact_norm([values], call.p, "float64") for number, values in sparse.items()}
    norms = call.norms_by(call.by, partial(call.together, own={**call.own, **rows}))
    if sparse and _differ(call, norms):
        sentence = "as when rows that are given more than once are not summed for the norm"
        yield Hypothesis("rows", sentence, norms)


def _lost(call: Observation) -> Iterator[Hypothesis]:
    """Yield mistakes by which some gradients are unchanged or zero, and the others clipped."""
    wrong = {number: call.scalings[number] for number in call.wrong}
    lost = {n: 1.0 if each.is_given else 0.0 for n, each in wrong.items() if each.is_given or each.is_zero}
    if not lost:
        return
    names = call.named(lost)
    what = f"{names} came back as given" if all(lost.values()) else f"zeros came back for {names}"

    def change(number: int, coef: float) -> float:
        return lost.get(number, coef)

    yield Hypothesis("not scaled", f"{what}, though the norm counts {names}", change=change)
    if call.by == "global":
        n = call.together(number for number in call.counted if number not in lost)
        norms = [n] * len(call.given)
        yield Hypothesis("left out", f"{what}, and the norm leaves out {names}", norms, change=change)


def _not_counted(call: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield norms that leave out one gradient, or all with a property in common, or count too many."""
    due = call.together(call.counted)

    def without(left: Sequence[int], who: str) -> Hypothesis:
        n = call.together(number for number in call.counted if number not in left)
        kind = "" if abs(n - due) <= _rounding_noise(call) * due else "left out"
        return Hypothesis(kind, f"as when {who} left out of the norm", [n] * len(call.given))

    singles = [number for number in call.counted if call.explains(without([number], ""), slack)]
    if singles:
        who = call.named(singles)
        yield without(singles[:1], f"{who} is" if len(singles) == 1 else f"one of {who} is")
    ranks = {number: len(gradient.shape) for number, gradient in call.counted.items()}
    dtypes = {number: gradient.dtype for number, gradient in call.counted.items()}
    for kinds in (ranks, dtypes):
        for kind in dict.fromkeys(kinds.values()):
            left = [number for number in call.counted if kinds[number] == kind]
            if 1 < len(left) < len(call.counted):
                yield without(left, f"{call.named(left)} are")
    if beside := [number for number in call.own if number not in call.counted]:
        n = call.together(call.own)
        sentence = f"as when the norm counts {call.named(beside)}, which it should not"
        yield Hypothesis("need_clip", sentence, [n] * len(call.given))


def _in_float32(call: Observation) -> Iterator[Hypothesis]:
    """Yield squares accumulated in float32, as ports and frameworks may do. unified_clip never does."""
    if call.p != 2 or call.passed_norm is not None or call.are_norms:
        return
    squares = {number: _squares(gradient) for number, gradient in call.counted.items()}
    for way, add in SUMS:
        norms = call.norms_by(call.by, partial(_norm, add, squares))
        sentence = f"as when the squares are added up in float32, {way}"
        yield Hypothesis("float32", sentence, norms, room=IN_FLOAT32)


def _squares(gradient: Dense) -> Float32s:
    """Return the squares of the elements, and a zero, so that the array is not empty."""
    numbers = np.append(gradient.values(), 0.0).astype(np.float32)
    squares: Float32s = numbers * numbers
    return squares


def _norm(add: Add, squares: Mapping[int, Float32s], numbers: Sequence[int]) -> float:
    return float(np.sqrt(np.add.accumulate(add([squares[number] for number in numbers]))[-1]))


def _in_16_bits(call: Observation) -> Iterator[Hypothesis]:
    """Yield a norm or a coefficient rounded to 16 bits."""
    for dtype in NARROW:
        norms, room = [nearest_float(n, dtype) for n in call.norms], 0.0
        if call.norm is not None and _is_rounded_to(dtype, call.norm, call.due_norm):
            norms, room = [call.norm] * len(norms), 2.0 ** -FORMATS[dtype].precision
        yield Hypothesis("16 bits", f"as when the norm is rounded to {dtype}", norms, room=room)
        yield Hypothesis("16 bits", f"as when the coefficient is rounded to {dtype}", change=_rounding_to(dtype))


def _is_rounded_to(dtype: str, norm: float, due: float | None) -> bool:
    """Return whether a norm is a number of 16 bits near the correct one, which is not."""
    if due is None or norm != nearest_float(norm, dtype):
        return False
    return 0 < abs(norm - due) <= 2.0 ** (3 - FORMATS[dtype].precision) * due


def _rounding_to(dtype: str) -> Callable[[int, float], float]:
    return lambda number, coef: nearest_float(coef, dtype)


def _twice(call: Observation) -> Iterator[Hypothesis]:
    """Yield gradients that are scaled twice, or clipped twice."""
    wrong = call.wrong
    if not wrong:
        return
    room = max(2.0 ** (1 - FORMATS[scaling.dtype].precision) for scaling in call.scalings.values())
    first = call.coefficients(Hypothesis())
    scaled = {number: first[number] * n for number, n in call.own.items()}
    again = call.coefficients(Hypothesis(norms=call.norms_by(call.by, partial(call.together, own=scaled))))
    who = "everything" if len(wrong) == len(call.counted) else call.named(wrong)
    sentence = f"as when the coefficient multiplies {who} twice"
    yield Hypothesis("clipped twice", sentence, room=room, change=lambda i, c: c * c if i in wrong else c)
    yield Hypothesis(
        "clipped twice", "as when everything is clipped twice", room=room, change=lambda i, c: c * again[i]
    )


def _other_orders(call: Observation) -> Iterator[Hypothesis]:
    """Yield norms of another order, or without the root."""
    for p in (1.0, 2.0, math.inf):
        if p != call.p:
            norms = call.norms_by(call.by, partial(call.together, own=call.own_norms(p), p=p))
            yield Hypothesis("another norm type", instead("norm_type", p, call.p), norms)
    squares = [nearest_float(n * n, call.norm_dtype) for n in call.norms_by(call.by)]
    yield Hypothesis("another norm type", "as with the norm's square", squares)


# -- tested if none of these fits


def computed(call: Observation) -> Iterator[Hypothesis]:
    """Yield causes whose size is computed from the numbers."""
    if call.by != "per slice":
        yield from _other_threshold(call)
        yield from _float32_error(call)
        yield from _scaled(call)


def _other_threshold(call: Observation) -> Iterator[Hypothesis]:
    """Yield the threshold that follows from the narrowest interval of coefficients."""
    clipped = {number: each for number, each in call.scalings.items() if number in call.counted and 0 < each.high < 1}
    if not clipped:
        return
    number, narrowest = min(clipped.items(), key=lambda each: each[1].high - each[1].low)
    threshold = (narrowest.low + narrowest.high) / 2 * (call.norms[number] + call.eps)
    sentence, kind = instead("a threshold of", threshold, call.threshold), "another threshold"
    if call.norm is None and len({call.norms[number] for number in clipped}) == 1:
        factor = call.limit / threshold if threshold else math.inf
        sentence, kind = f"{sentence}, or with a norm that is {factor:.6g} times as large", "coefficient"
    yield Hypothesis(kind, sentence, threshold=threshold, room=IN_FLOAT32)


def _float32_error(call: Observation) -> Iterator[Hypothesis]:
    """Yield any norm that squares accumulated in float32 can give."""
    norm, due = call.norm, call.due_norm
    if norm is None or due is None or call.p != 2:
        return
    size, bound = abs(norm - due) / due if due else math.inf, call.elements * 2.0**-25  # half the error of the sum
    if size <= bound:
        sentence = f"the norm is off by {size:.1e}, which adding up {call.elements} squares in float32 can do (up to "
        sentence += f"{bound:.1e}), and nothing else that was tried does"
        yield Hypothesis("float32", sentence, [norm] * len(call.given), room=IN_FLOAT32)


def _scaled(call: Observation) -> Iterator[Hypothesis]:
    """Yield the factor above 1 of all gradients, if none should be clipped: a clip makes no gradient larger."""
    if not call.scalings or not all(scaling.due_is_given for scaling in call.scalings.values()):
        return
    narrowest = min(call.scalings.values(), key=lambda scaling: scaling.high - scaling.low)
    factor = (narrowest.low + narrowest.high) / 2
    if 1 + SCALED <= factor < math.inf:
        kind, sentence = "scaled gradients", f"as when every gradient is {factor:.6g} times as large"
        returned = [call.n, call.n * factor]
        yield Hypothesis(kind, sentence, returned=returned, room=IN_FLOAT32, change=lambda i, c: c * factor)
