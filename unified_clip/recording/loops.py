"""A loop that clips one gradient per call equals one call that clips each: fold it into such a call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .rounding import same
from .runs import RecordedCall, RecordedRun


def fold(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Fold the loops of each run where the other run has one call for all gradients of a step.

    A run that counted every call as a step takes the steps of the other, if its calls are exactly as many as the
    gradients there.
    """
    a, b = _in_steps_of(b, a), _in_steps_of(a, b)
    ours, theirs = ({step: list(lines) for step, lines in _by_step(run.lines)} for run in (a, b))
    for step in ours.keys() & theirs.keys():
        ours[step], theirs[step] = _fold_step(ours[step], theirs[step])
    return _with_lines(a, ours), _with_lines(b, theirs)


def _by_step(lines: Sequence[RecordedCall]) -> Any:
    return itertools.groupby(lines, key=lambda line: line.step)


def _with_lines(run: RecordedRun, steps: dict[int, list[RecordedCall]]) -> RecordedRun:
    return run.model_copy(update={"lines": list(itertools.chain.from_iterable(steps.values()))})


def _in_steps_of(other: RecordedRun, run: RecordedRun) -> RecordedRun:
    counts = [_gradients(line) for line in other.lines]
    counted_by_calls = [line.step for line in run.lines] == list(range(1, len(run.lines) + 1))
    if not (counted_by_calls and all(count > 1 for count in counts) and sum(counts) == len(run.lines)):
        return run
    steps = [line.step for line, count in zip(other.lines, counts, strict=True) for _ in range(count)]
    if len({line.step for line in other.lines}) < len(counts) or not all(map(_is_single, run.lines)):
        return run
    lines = [line.model_copy(update={"step": step}) for line, step in zip(run.lines, steps, strict=True)]
    return run.model_copy(update={"lines": lines})


def _fold_step(ours: list[RecordedCall], theirs: list[RecordedCall]) -> tuple[list[RecordedCall], list[RecordedCall]]:
    """Fold the calls of one step."""
    folded: tuple[list[RecordedCall], list[RecordedCall]] = ([], [])
    rest = (list(ours), list(theirs))
    while all(rest):
        for lines, others in (rest, rest[::-1]):
            if _gradients(lines[0]) > 1 and _is_single(others[0]):
                most = _gradients(lines[0]) if len(lines) > 1 else len(others)
                count = _count_alike(others[:most])
                others[:count] = [_merge(others[:count])]
        for lines, taken in zip(rest, folded, strict=True):
            taken.append(lines.pop(0))
    return folded[0] + rest[0], folded[1] + rest[1]


def _gradients(line: RecordedCall) -> int:
    """Return how many gradients a call clips per tensor; 0 for another rule, or if that is unknown."""
    if line.rule == "value":
        return len(line.parameters)
    return len(line.norms()) if line.rule == "each" else 0


def _is_single(line: RecordedCall) -> bool:
    """Return whether a call clips one gradient, as far as is known."""
    return _gradients(line) == 1 or (line.rule == "global" and len(line.parameters) == 1)


def _count_alike(lines: Sequence[RecordedCall]) -> int:
    """Return how many calls, from the first, clip different single gradients in the same way."""
    names: set[str] = set()
    for count, line in enumerate(lines):
        named = {name for name in line.parameters if not name.isdecimal()}
        if not _is_single(line) or not same(_settings(line), _settings(lines[0])) or named & names:
            return count
        names |= named
    return len(lines)


def _settings(line: RecordedCall) -> tuple[object, ...]:
    return line.call, line.rule, line.threshold, line.norm_type, line.eps, line.dtype, line.watched


def _merge(lines: Sequence[RecordedCall]) -> RecordedCall:
    if len(lines) == 1:
        return lines[0]
    parameters = {
        str(position) if name.isdecimal() else name: each
        for position, line in enumerate(lines)
        for name, each in line.parameters.items()
    }
    changes: dict[str, Any] = {
        "parameters": parameters,
        "clipped": any(line.clipped for line in lines),
        "gradients": None,
    }
    for key in ("nan", "inf", "seconds"):
        values = [getattr(line, key) for line in lines]
        changes[key] = None if None in values else sum(values)
    if lines[0].rule != "value":
        changes |= {"rule": "each", "norm": [norm for line in lines for norm in line.norms()]}
        changes |= {"coef": [coef for line in lines for coef in line.coefs()]}
    return lines[0].model_copy(update=changes)
