"""Number and pair the optimizer steps of two runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..pairs.calls import calls_by_step, have_near_norms, partners_of
from ..pairs.packed_parameters import elements
from ..pairs.parameters import Names
from ..recorded_run import OptimizerStep, RecordedCall, RecordedRun
from ..rounding import is_near, same, single
from .clips_after_step import is_late
from .clips_of_step import is_empty, with_calls

Order = Sequence[int]
"""For each call or step of the first run, the index of the paired call or step of the second run."""

Iteration = tuple[Sequence[OptimizerStep], Sequence[RecordedCall]]

MOST_OPTIMIZERS = 6
"""The largest number of optimizers in one run that can correspond to one optimizer in the other run."""

OPTIMIZER_FIELDS = ("optimizer", "settings", "decayed", "undecayed", "rates", "repeated_rows")


def align_optimizers(a: RecordedRun, b: RecordedRun, names: Names) -> RecordedRun:
    lines, steps = list(b.lines), list(b.optimizer_steps)
    known: Order = ()
    if not (a.optimizer_steps and b.optimizer_steps) or is_late(a) or is_late(b):
        return b
    both = [_numbered_iterations(run, size) for run, size in zip((a, b), iteration_sizes(a, b), strict=True)]
    for left, right in zip(*both, strict=False):
        if len(left[0]) != len(right[0]):
            break
        are_clipped_first = all(map(is_clipped_first, (left, right)))
        if len(left[0]) < 2 or not left[1] or len(left[1]) != len(right[1]) or not are_clipped_first:
            continue
        order = _order_of_calls(left[1], right[1], known, names)
        if order is None:
            continue
        known = order
        start = next(index for index, line in enumerate(lines) if line is right[1][0])
        pairs = [(line, right[1][index]) for line, index in zip(left[1], order, strict=True)]
        calls = [partner.model_copy(update={"step": line.step}) for line, partner in pairs]
        lines[start : start + len(calls)] = calls
        first = right[0][0].step - 1
        steps[first : first + len(right[0])] = _in_order(right[0], _order_of_steps(left, right, order))
    return b.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def _numbered_iterations(run: RecordedRun, size: int) -> Iterator[Iteration]:
    steps = run.optimizer_steps
    numbers = [step.step for step in steps]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        return
    if not steps[0].backward_calls:
        yield from iterations_of(run, size)
        return
    starts = [0, *(index for index, step in enumerate(steps) if index and step.backward_calls != 0), len(steps)]
    by_step = calls_by_step(run)
    for start, end in itertools.pairwise(starts):
        yield steps[start:end], [line for step in steps[start:end] for line in by_step.get(step.step, ())]


def is_clipped_first(iteration: Iteration) -> bool:
    steps, lines = iteration
    counts = (sum(line.step <= step.step for line in lines) for step in steps)
    return all(count >= min(number, len(lines)) for number, count in enumerate(counts, start=1))


def _order_of_calls(
    left: Sequence[RecordedCall], right: Sequence[RecordedCall], known: Order, names: Names
) -> Order | None:
    """For each call in `left`, return the index of the paired call in `right`. None: calls cannot be paired."""
    for calls in (left, right):
        gradients = [name for call in calls for name in call.parameters if not name.isdecimal()]
        if len({*gradients}) < len(gradients):
            return None
    partners, is_ordered = partners_of(left, right, names)
    if not is_ordered or partners is None:
        return partners
    near = [[index for index, other in enumerate(right) if have_near_norms(call, other)] for call in left]
    by_norm = [indices[0] for indices in near if len(indices) == 1]
    if sorted(by_norm) == list(range(len(left))):
        return by_norm
    return known if len(known) == len(left) else partners


def _order_of_steps(left: Iteration, right: Iteration, calls: Order) -> Order:
    in_order = list(range(len(left[0])))
    owners = [_owners(each) for each in (left, right)]
    if not all(owners):
        return in_order
    partners: dict[int, set[int]] = {}
    for place, index in enumerate(calls):
        partners.setdefault(owners[0][place], set()).add(owners[1][index])
    if any(len(each) > 1 for each in partners.values()):
        return in_order
    order = [next(iter(partners.get(position, {-1}))) for position in in_order]
    if sorted(order) != in_order:
        return in_order
    if all(map(_is_direct, (left, right))):
        return order
    return min((in_order, order), key=lambda each: _other_settings(left[0], [right[0][index] for index in each]))


def _is_direct(iteration: Iteration) -> bool:
    steps, lines = iteration
    return {step.step for step in steps} == {line.step for line in lines}


def _owners(iteration: Iteration) -> list[int]:
    """For each clip call, return the index of the optimizer step that uses the gradients, or [] if this is unknown."""
    steps, lines = iteration
    if _is_direct(iteration):
        return [line.step - steps[0].step for line in lines]
    return list(range(len(steps))) if len(lines) == len(steps) else []


def _other_settings(left: Sequence[OptimizerStep], right: Sequence[OptimizerStep]) -> int:
    def settings(step: OptimizerStep) -> Mapping[str, object]:
        return {"optimizer": step.optimizer.rpartition(".")[2].lower(), **step.settings}

    pairs = [(settings(old), settings(new)) for old, new in zip(left, right, strict=True)]
    return sum(not same(old[name], new[name]) for old, new in pairs for name in old.keys() & new.keys())


def _in_order(steps: Sequence[OptimizerStep], order: Order) -> list[OptimizerStep]:
    moved = [{name: getattr(steps[index], name) for name in OPTIMIZER_FIELDS} for index in order]
    return [step.model_copy(update=fields) for step, fields in zip(steps, moved, strict=True)]


# -- the number of optimizer steps in an iteration


def clipped_size(iteration: Iteration) -> float:
    _, lines = iteration
    if any(line.parameters for line in lines):
        return sum(map(elements, lines))
    return float(sum(math.nan if line.count is None else line.count for line in lines))


def iteration_sizes(a: RecordedRun, b: RecordedRun) -> tuple[int, int]:
    runs = (a, b)
    counts, known = [len(run.optimizer_steps) for run in runs], [_steps_per_backward(run) for run in runs]
    options: list[list[int]] = []
    for run, size, other in zip(runs, known, known[::-1], strict=True):
        others = [] if other is None else [other]
        equal = others if counts[0] == counts[1] else []
        options.append([size] if size is not None else [*equal, 1, _steps_per_clip(run), *others])
    pairs = [(left, right) for left in options[0] for right in options[1]]
    even = [sizes for sizes in pairs if math.ceil(counts[0] / sizes[0]) == math.ceil(counts[1] / sizes[1])]
    multiples = range(2, MOST_OPTIMIZERS + 1)
    if even and not _clip_other_parameters(a, b, even[0]):
        return even[0]
    left, right = (even or pairs)[0]
    factors = [(count, count) for count in multiples] if even else []
    factors += [factor for count in multiples for factor in ((count, 1), (1, count))]
    for factor, other in factors:
        if _are_whole_iterations(a, b, left * factor, right * other, may_differ=factor != other):
            return left * factor, right * other
    if even:
        return even[0]
    return next((sizes for sizes in pairs if not _clip_other_parameters(a, b, sizes)), pairs[0])


def _clip_other_parameters(a: RecordedRun, b: RecordedRun, sizes: tuple[int, int]) -> bool:
    firsts = [clipped_size(next(iterations_of(run, size))) for run, size in zip((a, b), sizes, strict=True)]
    return 0.0 not in firsts and firsts[0] != firsts[1] and not any(map(math.isnan, firsts))


def _are_whole_iterations(a: RecordedRun, b: RecordedRun, *sizes: int, may_differ: bool) -> bool:
    """Return whether each iteration can have sizes[0] optimizer steps in `a` and sizes[1] in `b`."""
    left, right = (
        [each for each in iterations_of(run, size) if len(each[0]) == size]
        for run, size in zip((a, b), sizes, strict=True)
    )
    if not (left and right):
        return False
    calls = left[0][1], right[0][1]
    if not any(line.parameters for line in (*calls[0], *calls[1])):
        norms = [sorted(norm for line in side for norm in line.known_norms()) for side in calls]
        return len(norms[0]) == len(norms[1]) > 0 and all(map(is_near, *norms))
    if not all(map(_are_of_different_networks, calls)):
        return False
    if all(clipped_size(x) == clipped_size(y) for x, y in zip(left, right, strict=False)):
        return True
    lists = [[sorted(map(_shapes, _calls_of_steps(each))) for each in side] for side in (left, right)]
    is_regular = len(left) == len(right) > 1 and all(each == side[0] for side in lists for each in side)
    return may_differ and sizes[0] != sizes[1] and is_regular


def _shapes(calls: Sequence[RecordedCall]) -> list[str]:
    return [str((name, each.shape)) for call in calls for name, each in call.parameters.items()]


def _calls_of_steps(iteration: Iteration) -> list[list[RecordedCall]]:
    steps, lines = iteration
    return [[line for line in lines if line.step == step.step] for step in steps]


def _are_of_different_networks(calls: Sequence[RecordedCall]) -> bool:
    lists = [[(name, each.shape, each.weight) for name, each in line.parameters.items()] for line in calls]
    return all(lists) and all(x != y for x, y in itertools.combinations(lists, 2))


def _steps_per_backward(run: RecordedRun) -> int | None:
    steps = run.optimizer_steps
    begins = [later.step != step.step and later.backward_calls != 0 for step, later in itertools.pairwise(steps)]
    has_passes = bool(steps[0].backward_calls)
    if not has_passes and len({step.step for step in steps}) == len(steps):
        return None
    return _constant([True, *begins])


def _steps_per_clip(run: RecordedRun) -> int:
    by_step = calls_by_step(run)
    return _constant([step.step in by_step for step in run.optimizer_steps])


def _constant(begins: Sequence[bool]) -> int:
    starts = [index for index, is_start in enumerate(begins) if is_start]
    lengths = [end - start for start, end in itertools.pairwise([*starts, len(begins)])]
    longest = max(lengths, default=1)
    is_constant = starts[:1] == [0] and all(length == longest for length in lengths[:-1])
    return longest if is_constant else 1


def iterations_of(run: RecordedRun, size: int) -> Iterator[Iteration]:
    by_step = calls_by_step(run)
    for start in range(0, len(run.optimizer_steps), size):
        steps = run.optimizer_steps[start : start + size]
        numbers = dict.fromkeys(step.step for step in steps)
        yield steps, [line for number in numbers for line in by_step.get(number, ())]


# -- runs with different numbers of optimizers


def join_steps(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Join the optimizer steps of a training iteration into one step."""
    if not (a.optimizer_steps and b.optimizer_steps) or is_late(a) or is_late(b):
        return a, b
    sizes = iteration_sizes(a, b)
    both = [list(iterations_of(run, size)) for run, size in zip((a, b), sizes, strict=True)]
    if sizes == (1, 1) or not all(map(is_clipped_first, itertools.chain(*both))):
        return a, b
    known = (_steps_per_backward(run) or size for run, size in zip((a, b), sizes, strict=True))
    are_together = itertools.starmap(_are_clipped_together, zip(*both, strict=False))
    if sizes[0] == sizes[1] and tuple(known) == sizes and not any(are_together):
        return a, b
    left, right = _joined(a, both[0]), _joined(b, both[1])
    steps = zip(left.optimizer_steps, right.optimizer_steps, strict=False)
    is_summed = any(len(x.losses) != len(y.losses) for x, y in steps)
    return (_with_summed_losses(left), _with_summed_losses(right)) if is_summed else (left, right)


def _with_summed_losses(run: RecordedRun) -> RecordedRun:
    losses = [(single(math.fsum(step.losses)),) if step.losses else () for step in run.optimizer_steps]
    steps = (step.model_copy(update={"losses": each}) for step, each in zip(run.optimizer_steps, losses, strict=True))
    return run.model_copy(update={"optimizer_steps": tuple(steps)})


def _are_clipped_together(left: Iteration, right: Iteration) -> bool:
    counts = [len(lines) for _, lines in (left, right)]
    if max(counts) < len(left[0]) and min(counts):
        return True
    return counts[0] != counts[1] and clipped_size(left) == clipped_size(right)


def _joined(run: RecordedRun, iterations: Sequence[Iteration]) -> RecordedRun:
    count, done = len(run.optimizer_steps), len(iterations)
    is_numbered = [step.step for step in run.optimizer_steps] == list(range(1, count + 1))
    steps: list[OptimizerStep] = []
    numbers: dict[int, int] = {}
    for index, (parts, _) in enumerate(iterations, start=1):
        number = index if is_numbered else parts[0].step
        numbers |= {part.step: number for part in parts}
        steps.append(_join(parts).model_copy(update={"step": number}))
    after = done - count if is_numbered else 0
    lines = [line.model_copy(update={"step": numbers.get(line.step, line.step + after)}) for line in run.lines]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def _join(steps: Sequence[OptimizerStep]) -> OptimizerStep:
    if len(steps) == 1:
        return steps[0]
    names = [name for name in steps[0].settings if all(name in step.settings for step in steps)]
    changed = [step.changed for step in steps if step.changed is not None]
    rows = [step.repeated_rows for step in steps if step.repeated_rows is not None]
    changes: dict[str, Any] = {
        "optimizer": " and ".join(dict.fromkeys(step.optimizer for step in steps)),
        "settings": {name: _of_steps([step.settings[name] for step in steps]) for name in names},
        "cleared": None,
        "backward_calls": steps[0].backward_calls if not any(step.backward_calls for step in steps[1:]) else None,
        "changed": sum(changed) if changed else None,
        "changed_after_clip": None,
        "norm_at_step": None,
        "decayed": None,
        "undecayed": (),
        "empty_clips": sum(step.empty_clips for step in steps),
        "hooks": sum(step.hooks for step in steps),
        "repeated_rows": sum(rows) if rows else None,
        "losses": tuple(loss for step in steps for loss in step.losses),
        "calls": steps[-1].calls,
    }
    return steps[0].model_copy(update=changes)


def _of_steps(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    return tuple(each for value in values for each in (value if isinstance(value, tuple) else (value,)))


# -- the numbers of steps


def number_calls(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Remove calls without gradients, and give each clip call the number of its optimizer step."""
    a, b = _without_partial_steps(a), _without_partial_steps(b)
    if not (a.optimizer_steps and b.optimizer_steps):
        return (_numbered(a), b) if _splits_calls(a, b) else (a, _numbered(b)) if _splits_calls(b, a) else (a, b)
    if _counts_calls(a) and _counts_calls(b):
        a, b = _numbered(a), _numbered(b)
    a, b = (with_calls(run, [not is_empty(line) for line in run.lines]) for run in (a, b))
    return a, b


def _splits_calls(run: RecordedRun, other: RecordedRun) -> bool:
    """Return whether all calls of an optimizer step clip the gradients of one call of `other`, which has no steps."""
    count = run.optimizer_steps[0].calls if run.optimizer_steps else 0
    if count < 2 or not other.lines or not (_counts_calls(run) and _counts_calls(other)):
        return False
    return sum(map(elements, run.lines[:count])) == elements(other.lines[0])


def _without_partial_steps(run: RecordedRun) -> RecordedRun:
    """If the last optimizer steps were not recorded, for example because of `torch.compile`, remove all steps."""
    ends = [0, *(step.calls for step in run.optimizer_steps)]
    most = max((later - end for end, later in itertools.pairwise(ends)), default=0)
    is_partial = len(run.lines) - ends[-1] > max(1, most)
    return run.model_copy(update={"optimizer_steps": ()}) if is_partial else run


def _counts_calls(run: RecordedRun) -> bool:
    """Return whether each clip call was counted as a step."""
    steps = [line.step for line in run.lines]
    if not all(later - step in (0, 1) for step, later in zip([0, *steps], steps, strict=False)):
        return False
    return all(
        not later.watched and (line.call, line.seconds) == (later.call, later.seconds)
        for line, later in itertools.pairwise(run.lines)
        if line.step == later.step
    )


def _numbered(run: RecordedRun) -> RecordedRun:
    """Number the optimizer steps from 1, and give each clip call the number of its step."""
    offset, done, lines = 0 if is_late(run) else 1, 0, []
    for index, line in enumerate(run.lines):
        while done < len(run.optimizer_steps) and run.optimizer_steps[done].calls <= index:
            done += 1
        lines.append(line.model_copy(update={"step": done + offset}))
    steps = [each.model_copy(update={"step": number}) for number, each in enumerate(run.optimizer_steps, start=1)]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})
