"""Match the calls and the parameters of two recorded runs."""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any

from ...tensors.arithmetic import Float64s
from ...tensors.arrangement import have_same_elements, order_of, without_ones
from ..clip_event import any_clipped
from ..recorded_run import OptimizerStep, Parameter, RecordedCall, RecordedRun
from ..rounding import same
from ..runs import RunError
from .packed_parameters import by_stored_rows, join_clips, packed

MOST_NEAR = 3

Names = Mapping[str, str]
"""Maps the names of parameters in one run to their names in the other run."""


def calls_by_step(run: RecordedRun) -> dict[int, list[RecordedCall]]:
    calls: dict[int, list[RecordedCall]] = {}
    for line in run.lines:
        calls.setdefault(line.step, []).append(line)
    return calls


@dataclass(frozen=True)
class CallPair:
    """A clip call of run a, and the matching clip call of run b. Both calls have the same position in the same step."""

    a: RecordedCall
    b: RecordedCall
    names: Names
    rate: float = 0.0
    """The greatest learning rate of an optimizer such as Adam in this step. For any other optimizer, the rate is 0."""

    gain: float = 0.0
    """The quotient lr / (1 - momentum) of an optimizer such as SGD. For any other optimizer, the gain is 0.

    With momentum, one gradient g moves the weight by `gain` * g in total.
    """

    by_shape: bool = False


def pair_calls(a: RecordedRun, b: RecordedRun, names: Names, rate: float | None = None) -> list[CallPair]:
    """Pair the calls of two runs in order. Stop at the first pair of calls with different steps.

    names: Maps names in `a` to names in `b`. `match_parameters` pairs all other parameters.
    rate: The learning rate of all steps. If `rate` is None, the recorded learning rates are used, or 0 without a
        record.
    """
    lines = zip(a.lines, b.lines, strict=False)
    of_one_step = itertools.takewhile(lambda both: both[0].step == both[1].step, lines)
    rates, gain = (_rates(a, b), _gain(a, b)) if rate is None else ({}, 0.0)
    return [
        CallPair(
            *packed(*by_stored_rows(*both, matched)),
            rates.get(both[0].step, rate or 0.0),
            gain,
            any(names.get(name) != other and (name != other or name.isdecimal()) for name, other in matched.items()),
        )
        for both in of_one_step
        for matched in [_match_unambiguous(*both, names)]
    ]


ADAPTIVE = ("ada", "rmsprop", "rprop", "lamb", "lars", "lion", "sign", "yogi", "novograd", "muon")
"""Texts in names of optimizers whose steps do not depend on the size of the gradient."""

PROPORTIONAL = ("sgd", "momentum", "gradientdescent")
"""Texts in names of optimizers whose steps are proportional to the gradient. ADAPTIVE is searched first."""


def _rates(a: RecordedRun, b: RecordedRun) -> dict[int, float]:
    """Return {step: greatest learning rate}. The learning rate is 0 for optimizers that are not in ADAPTIVE."""
    rates: dict[int, float] = {}
    for step in (*a.optimizer_steps, *b.optimizer_steps):
        rate = greatest_setting(step, "lr") if _is_of(step, ADAPTIVE) else 0.0
        rates[step.step] = max(rates.get(step.step, 0.0), rate)
    return rates


def _gain(a: RecordedRun, b: RecordedRun) -> float:
    # The maximum over all steps: momentum also moves weights at later steps.
    steps = [step for step in (*a.optimizer_steps, *b.optimizer_steps) if not _is_of(step, ADAPTIVE)]
    proportional = [step for step in steps if _is_of(step, PROPORTIONAL)]
    gains = (greatest_setting(each, "lr") / max(1 - greatest_setting(each, "momentum"), 1e-9) for each in proportional)
    return max(gains, default=0.0)


def greatest_setting(step: OptimizerStep, name: str) -> float:
    """Return the greatest value of a setting in all parameter groups, or 0 if the setting was not recorded."""
    value = step.settings.get(name, 0.0)
    return float(max(value, default=0.0) if isinstance(value, tuple) else value)


def _is_of(step: OptimizerStep, kinds: Sequence[str]) -> bool:
    return any(kind in step.optimizer.lower() for kind in kinds)


def _match_unambiguous(a: RecordedCall, b: RecordedCall, names: Names) -> Names:
    # Parameters are paired by shape only if both calls have equally many parameters of the shape.
    if not names and _are_shifted(a.parameters, b.parameters):
        return dict(zip(a.parameters, b.parameters, strict=True))
    matched = match_parameters(a.parameters, b.parameters, names)
    rest_a = {name: each for name, each in a.parameters.items() if name not in matched}
    rest_b = {name: each for name, each in b.parameters.items() if name not in matched.values()}
    by_shape = match_parameters(rest_a, rest_b, {})
    if len(by_shape) == len(rest_a) == len(rest_b):
        matched = {**matched, **by_shape}
    counts = [Counter(sorted_shape(each.shape) for each in call.parameters.values()) for call in (a, b)]
    return {
        name: other
        for name, other in matched.items()
        if (name == other and not name.isdecimal())
        or names.get(name) == other
        or counts[0][shape := sorted_shape(a.parameters[name].shape)] == counts[1][shape]
    }


def _are_shifted(a: Mapping[str, Parameter], b: Mapping[str, Parameter]) -> bool:
    positions = {name: index for index, name in enumerate(b)}
    moved = [name for index, name in enumerate(a) if positions.get(name, index) != index]
    has_numbers = all(any(map(str.isdecimal, re.split(r"[\W_]+", name))) for name in moved)
    shapes, others = ([sorted_shape(each.shape) for each in parameters.values()] for parameters in (a, b))
    is_one_order = [name for name in a if name in b] == [name for name in b if name in a]
    return bool(moved) and has_numbers and is_one_order and shapes == others


WRITE = 'Write lines of "name" = "its name in the other run".'


def read_names(path: Path) -> Names:
    """Read a TOML file that maps the names of one run to the names of the other run.

    RunError: The file cannot be read or is not TOML, a value is not a string, or two entries have the same value.
    """
    try:
        names = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}. Pass another file to --map.", "UC503") from None
    except RecursionError:
        raise RunError(f"{path}: its lists or tables are nested too deep. {WRITE}", "UC503") from None
    except ValueError as error:
        raise RunError(f"{path} is not TOML: {error}. {WRITE}", "UC503") from None
    for name, other in names.items():
        if not isinstance(other, str):
            raise RunError(f"{path}, {name}: {_not_a_string(name, other)}", "UC503")
    repeated = [name for name, count in Counter(names.values()).items() if count > 1]
    if repeated:
        raise RunError(f"{path}: several names have the value {repeated[0]!r}. Keep only one of these lines.", "UC503")
    return names


def _not_a_string(name: str, value: object) -> str:
    if isinstance(value, dict):
        example = f'"{name}.weight" = "its name in the other run"'
        return (
            "this is a table, not a line with two names. Put both names in quotes, such as "
            f"{example}. Remove headers such as [{name}]."
        )
    return f'its value is not a string. Put both names in quotes: "{name}" = "its name in the other run".'


def match_parameters(
    a: Mapping[str, Parameter | Float64s], b: Mapping[str, Parameter | Float64s], names: Names
) -> Names:
    """Return {name in `a`: name in `b`} for the parameters of two calls. Parameters without a partner are left out.

    Parameters are paired by `names` first, and then by equal names. If the calls have no common names, parameters with
    equal shapes are paired in the order of the calls. Positions such as "0" are not names. Shapes are compared without
    the order of their axes.
    """
    matched = {name: other for name, other in names.items() if name in a and other in b}
    taken = {*names, *names.values()}
    common = {name: name for name in a if name in b and name not in taken and not name.isdecimal()}
    if common:  # positions do not count as names: frameworks list parameters in different orders
        return common | matched
    by_shape: dict[tuple[str, ...], list[str]] = {}
    for name, parameter in b.items():
        if name not in names.values():
            by_shape.setdefault(sorted_shape(parameter.shape), []).append(name)
    rest = {name: sorted_shape(parameter.shape) for name, parameter in a.items() if name not in names}
    return matched | {name: by_shape[shape].pop(0) for name, shape in rest.items() if by_shape.get(shape)}


def sorted_shape(shape: Sequence[int | None]) -> tuple[str, ...]:
    """Return the lengths of a shape as sorted strings. A weight and its transpose have the same result."""
    return tuple(sorted(map(str, shape)))


def orient_names(names: Names, in_a: set[str], in_b: set[str]) -> Names | None:
    """Return `names` as a mapping from run a to run b.

    Return None if a name is unknown, or if the keys belong to different runs.
    """
    both = (names, {other: name for name, other in names.items()})
    return next((each for each in both if in_a.issuperset(each) and in_b.issuperset(each.values())), None)


def names_from_a_to_b(a: RecordedRun, b: RecordedRun, names: Names) -> Names:
    """Return `names` as a mapping from run a to run b.

    RunError: A name is unknown, or the keys belong to different runs.
    """
    in_a, in_b = ({name for line in run.lines for name in line.parameters} for run in (a, b))
    if (oriented := orient_names(names, in_a, in_b)) is not None:
        return oriented
    sides = [(a, in_a), (b, in_b)]
    unknown = [
        [(run, name, known) for (run, known), each in zip(order, (names, names.values()), strict=True)
         for name in each if name not in known]
        for order in (sides, sides[::-1])
    ]  # fmt: skip
    run, name, known = min(unknown, key=len)[0]
    near = difflib.get_close_matches(name, known, MOST_NEAR) or sorted(known)[:MOST_NEAR]
    remedy = f"This run has parameters such as {', '.join(near)}. Correct the name."
    if not known:
        remedy = "This run has no norms of parameters. Record this run with --norms, or with norms=True in Python."
    elif name in in_a | in_b:
        remedy = "It is a parameter of the other run. Write the names of the same run on the left of every line."
    problem = f"The map of names (--map) has {name!r}, which is not a parameter of {run.path}."
    raise RunError(f"{problem} {remedy}", "UC503")


# -- loops that clip one gradient per call


def merge_loops(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """If only one run clips in a loop, merge the calls of the loop."""
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
    """Return the calls of a step for each run, with loops merged. The lists in `rest` are changed."""
    if _are_loops_over_other_parameters(*rest):
        return ([merge_calls(lines)] for lines in rest)
    merged: tuple[list[RecordedCall], list[RecordedCall]] = ([], [])
    while all(rest):
        for lines, others in (rest, rest[::-1]):
            tensors = _count_beside(lines[0], others[0])
            if tensors > 1 and _is_single(others[0]):
                most = tensors if len(lines) > 1 else len(others)
                count = count_mergeable(others[:most])
                others[:count] = [merge_calls(others[:count])]
        for lines, taken in zip(rest, merged, strict=True):
            taken.append(lines.pop(0))
    return map(add, merged, rest)


def _are_loops_over_other_parameters(a: list[RecordedCall], b: list[RecordedCall]) -> bool:
    """Return whether both runs clip in loops, and each run has its own named parameters."""
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


def count_mergeable(lines: Sequence[RecordedCall]) -> int:
    """Count the calls at the start of the list that can be merged: each call clips one gradient, with the settings of
    the first call."""
    names: set[str] = set()
    for count, line in enumerate(lines):
        named = {name for name in line.parameters if not name.isdecimal()}
        if not _is_single(line) or not same(_settings(line), _settings(lines[0])) or named & names:
            return count
        names |= named
    return len(lines)


def _settings(line: RecordedCall) -> tuple[object, ...]:
    return line.call, line.rule, line.threshold, line.norm_type, line.eps, line.dtype, line.watched


def merge_calls(lines: Sequence[RecordedCall]) -> RecordedCall:
    if len(lines) == 1:
        return lines[0]
    parameters = {
        str(position) if name.isdecimal() else name: each
        for position, line in enumerate(lines)
        for name, each in line.parameters.items()
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


def orders_of(pair: CallPair) -> dict[str, str]:
    """Compare the order of each weight's elements in the two runs. Return {name of the weight: result}.

    A result is "same", "transposed", "reshaped", "rearranged" or "other". For "rearranged", the weights have the same
    elements in another order. For "other", no relation was found. The dict contains only weights that have
    fingerprints, and the same lengths of axes in both runs.
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
