"""Merge the clip calls of a loop, if the other run clips the same gradients in one call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import add
from typing import Any

from ..clip_event import any_clipped
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import same
from .calls import calls_by_step
from .packed_parameters import join_clips


def merge_loops(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    a, b = _with_steps_of(b, a), _with_steps_of(a, b)
    by_step = [calls_by_step(run) for run in (a, b)]
    for step in by_step[0].keys() & by_step[1].keys():
        calls, others = by_step[0][step], by_step[1][step]
        by_step[0][step], by_step[1][step] = _merge_step(join_clips(calls, others), join_clips(others, calls))
    lines_a, lines_b = (list(itertools.chain.from_iterable(steps.values())) for steps in by_step)
    return a.model_copy(update={"lines": lines_a}), b.model_copy(update={"lines": lines_b})


def _with_steps_of(other: RecordedRun, run: RecordedRun) -> RecordedRun:
    if not run.lines:
        return run
    counts = [_count_beside(line, run.lines[0]) for line in other.lines]
    counted_by_calls = [line.step for line in run.lines] == list(range(1, len(run.lines) + 1))
    if not (counted_by_calls and all(count > 1 for count in counts) and sum(counts) == len(run.lines)):
        return run
    steps = [line.step for line, count in zip(other.lines, counts, strict=True) for _ in range(count)]
    if len({line.step for line in other.lines}) < len(counts) or not all(map(_is_single, run.lines)):
        return run
    lines = [line.model_copy(update={"step": step}) for line, step in zip(run.lines, steps, strict=True)]
    return run.model_copy(update={"lines": lines})


def _merge_step(*rest: list[RecordedCall]) -> Iterator[list[RecordedCall]]:
    """Return the calls of each run after the merge. This function changes the lists in `rest`."""
    if _are_loops_over_other_parameters(*rest):
        return ([merge_calls(lines)] for lines in rest)
    merged: tuple[list[RecordedCall], list[RecordedCall]] = ([], [])
    while all(rest):
        for lines, others in (rest, rest[::-1]):
            tensors = _count_beside(lines[0], others[0])
            if tensors > 1 and _is_single(others[0]):
                most = tensors if len(lines) > 1 else len(others)
                count = count_mergeable(others[:most])
            else:
                count = _count_parts(others, tensors)
            others[:count] = [merge_calls(others[:count])] if count else []
        for lines, taken in zip(rest, merged, strict=True):
            taken.append(lines.pop(0))
    return map(add, merged, rest)


def _are_loops_over_other_parameters(a: list[RecordedCall], b: list[RecordedCall]) -> bool:
    names = [{name for line in lines for name in line.parameters} for lines in (a, b)]
    are_other = names[0] - names[1] and names[1] - names[0] and not any(map(str.isdecimal, names[0] | names[1]))
    return bool(are_other) and all(1 < len(lines) == count_mergeable(lines) for lines in (a, b)) and len(a) != len(b)


def _tensor_count(line: RecordedCall) -> int:
    if line.rule == "value":
        return len(line.parameters)
    return len(line.norms()) if line.rule == "each" else 0


def _count_beside(line: RecordedCall, other: RecordedCall) -> int:
    is_other_rule = line.rule == "global" and other.rule == "value"
    return _tensor_count(line) or (line.count or 0 if is_other_rule else 0)


def _is_single(line: RecordedCall) -> bool:
    return _tensor_count(line) == 1 or (line.rule == "global" and len(line.parameters) == 1)


def count_mergeable(lines: Sequence[RecordedCall], is_part: Callable[[RecordedCall], object] = _is_single) -> int:
    """Count the calls before the first call whose settings differ from lines[0], or that repeats a gradient."""
    names: set[str] = set()
    for count, line in enumerate(lines):
        named = {name for name in line.parameters if not name.isdecimal()}
        if not is_part(line) or not same(_settings(line), _settings(lines[0])) or named & names:
            return count
        names |= named
    return len(lines)


def _count_parts(lines: Sequence[RecordedCall], tensors: int) -> int:
    """Return how many of the first calls clip `tensors` gradients in total. Return 0 if no number does."""
    counts = list(itertools.accumulate(map(_tensor_count, lines)))
    count = counts.index(tensors) + 1 if tensors in counts else 0
    return count if count_mergeable(lines[:count], _tensor_count) == count else 0


def _settings(line: RecordedCall) -> tuple[object, ...]:
    return line.call, line.rule, line.threshold, line.norm_type, line.eps, line.dtype, line.watched


def merge_calls(lines: Sequence[RecordedCall]) -> RecordedCall:
    if len(lines) == 1:
        return lines[0]
    parameters = {
        str(position) if name.isdecimal() else name: each
        for position, (name, each) in enumerate(itertools.chain.from_iterable(x.parameters.items() for x in lines))
    }
    changes: dict[str, Any] = {
        "parameters": parameters,
        "clipped": any_clipped([line.clipped for line in lines]),
        "gradients": None,
        "after": None,
    }
    for key in ("nan", "inf", "seconds", "count", "sparse"):
        values = [getattr(line, key) for line in lines]
        changes[key] = None if None in values else sum(values)
    if lines[0].rule != "value":
        changes |= {"rule": "each", "norm": [norm for line in lines for norm in line.norms()]}
        changes |= {"coef": [coef for line in lines for coef in line.coefs()]}
        if any(line.used_norms() != line.norms() for line in lines):
            changes |= {"passed_norm": None, "returned_norm": None}
            changes |= {"stored_norm": [norm for line in lines for norm in line.used_norms()]}
    return lines[0].model_copy(update=changes)
