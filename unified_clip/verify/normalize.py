"""Make the recordings of two training steps comparable: the same names, calls and steps."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _json
from ..tensors.types import Dense
from .match_names import Line, NameMatch, Parameters, StepTensors, clipped_gradients, stored_gradients
from .run import ScriptRun
from .watch.base import NativeCall, ObservedTensors, fields
from .worker import RECORDING

BY_HAND = "by hand"
"""The call of lines for gradients that the training step clips itself."""


@dataclass
class NormalizedRecording:
    """A recording with the names that the training step yields."""

    ran: ScriptRun
    path: Path
    lines: list[Line] = field(default_factory=list)
    before: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))
    """By step, the gradients before its calls, if they are stored."""

    clipped: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))
    """By step, the gradients after its calls, if they are stored or can be computed."""

    unclipped: set[int] = field(default_factory=set)
    """The steps after which the training step yields unclipped gradients."""

    not_gradients: Counter[str] = field(default_factory=Counter)
    """By function, how many calls are left out because they clipped no gradient."""

    order: dict[int, list[frozenset[str]]] = field(default_factory=dict)
    """By step, the parameters of each call, by their common names."""


def normalize(
    ran: ScriptRun,
    weights: Parameters,
    steps: int,
    path: Path,
    mapped: Mapping[str, str],
    reference: NormalizedRecording | None = None,
) -> NormalizedRecording:
    """Write a recording with the names that the training step yields.

    Args:
        ran: The training step.
        weights: Its initial weights.
        steps: The number of steps.
        path: The file to write.
        mapped: From its names to the common names, by which lists and calls are ordered.
        reference: The recording of the other training step, whose order of calls it takes.
    """
    recording = (ran.directory / RECORDING).read_text(encoding="utf-8")
    header, *lines = (_parsed(json.loads(line)) for line in recording.splitlines())
    lines = list(_distribute_over_steps(lines, ran, steps)) or list(_lines_of_own_clipping(ran))
    result = NormalizedRecording(ran, path)
    for step, group in itertools.groupby(lines, key=lambda line: line["step"]):
        tensors = StepTensors(ran, weights, step, steps)
        seen = [(line, tensors.match(line, ran.directory)) for line in group]
        result.not_gradients.update(line["call"] for line, found in seen if found is None)
        named = [(line, found) for line, found in seen if found is not None]
        for line, found in named:
            result.before[step] |= _renamed(stored_gradients(line, ran.directory), found)
            result.clipped[step] |= _renamed(clipped_gradients(line, ran.directory), found)
            result.unclipped |= {step} if found.given_unclipped else set()
        calls = [{**line, "parameters": _renamed(line.get("parameters") or {}, found)} for line, found in named]
        merged = [_sort_by_name(line, mapped) for line in _merge_calls(calls)]
        order = result.order[step] = [frozenset(mapped.get(n, n) for n in line["parameters"]) for line in merged]
        result.lines += _in_order_of(merged, order, reference.order.get(step, []) if reference else [])
    lines = [header, *result.lines]
    path.write_text("".join(json.dumps(_json.plain(line)) + "\n" for line in lines), encoding="utf-8")
    return result


def _parsed(value: Any) -> Any:
    """Replace strings by the numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _parsed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_parsed(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _distribute_over_steps(lines: list[Line], ran: ScriptRun, steps: int) -> Iterator[Line]:
    """Distribute calls evenly over the steps, if the training step yields nothing in between."""
    if ran.yields or len(lines) % steps:
        yield from lines
        return
    for index, line in enumerate(lines):
        yield {**line, "step": index // (len(lines) // steps) + 1}


def _lines_of_own_clipping(ran: ScriptRun) -> Iterator[Line]:
    """Yield lines for gradients before and after the step's own clipping: global if one coefficient explains them."""
    seen = []
    for step, given in enumerate(ran.given, start=1):
        before, after = given.unclipped or {}, given.gradients or {}
        if names := [name for name in before if name in after]:
            seen.append((step, ObservedTensors([before[n] for n in names], [after[n] for n in names], (), names)))
    one, each = (
        [{"step": step, **fields(NativeCall(BY_HAND, "", rule, None, 2.0, None), found)} for step, found in seen]
        for rule in ("global", "each")
    )
    yield from each if any(math.isnan(line["coef"]) for line in one) else one


def _renamed(table: Mapping[str, Any], found: NameMatch) -> dict[str, Any]:
    return {found.names.get(own, own): each for own, each in table.items()}


# -- calls that belong together


def _merge_calls(lines: Sequence[Line]) -> list[Line]:
    """Merge consecutive calls that clip one gradient each in the same way."""
    groups: list[list[Line]] = []
    for line in lines:
        if groups and all(_belong_together(line, other) for other in groups[-1]):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_merge(group) if len(group) > 1 else group[0] for group in groups]


def _belong_together(line: Line, other: Line) -> bool:
    both = (line, other)
    alone = all(len(each["parameters"]) == 1 and each["rule"] in ("global", "each", "value") for each in both)
    alike = all(line.get(key) == other.get(key) for key in ("call", "rule", "threshold", "norm_type", "eps", "dtype"))
    return alone and alike and not set(line["parameters"]) & set(other["parameters"])


def _merge(lines: Sequence[Line]) -> Line:
    parameters = {name: each for line in lines for name, each in line["parameters"].items()}
    one = {key: value for key, value in lines[0].items() if key not in ("gradients", "after")}
    one |= {"parameters": parameters, "clipped": any(line["clipped"] for line in lines)}
    for key in ("nan", "inf"):
        one[key] = None if any(line[key] is None for line in lines) else sum(line[key] for line in lines)
    if one["rule"] != "value":
        one |= {"rule": "each", **{key: [_single(line[key]) for line in lines] for key in ("norm", "coef")}}
    return one


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _in_order_of(lines: list[Line], own: Sequence[frozenset[str]], wanted: Sequence[frozenset[str]]) -> list[Line]:
    """Return the calls of a step in another order, if they share no parameter: then the order does not matter."""
    are_disjoint = len(frozenset().union(*own)) == sum(map(len, own))
    if len(own) != len(wanted) or set(own) != set(wanted) or not are_disjoint:
        return lines
    return [lines[own.index(each)] for each in wanted]


def _sort_by_name(line: Line, mapped: Mapping[str, str]) -> Line:
    """Sort lists of norms by name: frameworks list parameters in different orders."""
    names = list(line["parameters"])
    if line.get("rule") != "each" or len(line["norm"]) != len(names):
        return line
    order = sorted(range(len(names)), key=lambda index: mapped.get(names[index], names[index]))
    lists = {key: [line[key][index] for index in order] for key in ("norm", "coef")}
    return {**line, "parameters": {names[index]: line["parameters"][names[index]] for index in order}, **lists}
