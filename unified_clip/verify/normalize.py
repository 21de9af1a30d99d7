"""A recording of a function's clip calls made comparable with that of another: the same names, calls and steps."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _json
from ..tensors.files import safetensors
from ..tensors.types import Dense
from .clipped import Line
from .clipped import clipped as after
from .match_names import Known, Named, Parameters
from .run import Ran
from .watch.base import Native, Seen, fields

BY_HAND = "by hand"
"""The call of lines that are made of gradients before and after, which the function gave."""

SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON does not have."""


@dataclass(frozen=True)
class Settled:
    """A recording that was written with the names that the function gives."""

    path: Path
    calls: int
    names: frozenset[str]
    """Of all gradients in it."""

    before: Mapping[int, Parameters]
    """By step, the gradients that its calls were given, where they are stored."""

    clipped: Mapping[int, Parameters]
    """By step, what the calls have made of the gradients, as far as that is known."""

    unclipped: frozenset[int]
    """The steps after which the function gave gradients that are not clipped."""

    not_gradients: Mapping[str, int]
    """By name, how many calls are left out because they clipped no gradient."""

    order: Mapping[int, Sequence[frozenset[str]]]
    """By step, of which parameters its calls were, by the names by which lists are ordered."""


def settle(
    ran: Ran, weights: Parameters, steps: int, path: Path, mapped: Mapping[str, str], like: Settled | None = None
) -> Settled:
    """Write a recording with the names that the function gives, its calls in the order of those of another.

    `mapped`: to the names by which lists are ordered, and calls.
    """
    header, *lines = (_parsed(json.loads(line)) for line in ran.recording.read_text(encoding="utf-8").splitlines())
    lines = list(_in_steps(lines, ran, steps)) or list(_by_hand(ran))
    settled: list[Line] = []
    before: dict[int, dict[str, Dense]] = {}
    clipped: dict[int, dict[str, Dense]] = {}
    unclipped = set()
    not_gradients: Counter[str] = Counter()
    order: dict[int, list[frozenset[str]]] = {}
    for step, group in itertools.groupby(lines, key=lambda line: line["step"]):
        known = Known(ran, weights, step, steps)
        seen = [(line, known.named(line, ran.directory)) for line in group]
        not_gradients.update(line["call"] for line, found in seen if found is None)
        named = [(line, found) for line, found in seen if found is not None]
        for line, found in named:
            before.setdefault(step, {}).update(_renamed(_given(line, ran.directory), found))
            clipped.setdefault(step, {}).update(_renamed(after(line, ran.directory), found))
            unclipped |= {step} if found.given_unclipped else set()
        calls = [{**line, "parameters": _renamed(line.get("parameters") or {}, found)} for line, found in named]
        merged = [_sorted(line, mapped) for line in _merged(calls)]
        order[step] = [frozenset(mapped.get(name, name) for name in line["parameters"]) for line in merged]
        settled += _in_order(merged, order[step], like.order.get(step, []) if like else [])
    path.write_text("".join(json.dumps(_json.plain(line)) + "\n" for line in [header, *settled]), encoding="utf-8")
    names = frozenset(name for line in settled for name in line["parameters"])
    return Settled(path, len(settled), names, before, clipped, frozenset(unclipped), not_gradients, order)


def _given(line: Line, directory: Path) -> dict[str, Dense]:
    return safetensors.load(directory / line["gradients"]) if line.get("gradients") else {}


def _parsed(value: Any) -> Any:
    """With the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _parsed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_parsed(each) for each in value]
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def _in_steps(lines: list[Line], ran: Ran, steps: int) -> Iterator[Line]:
    """Where the function gave nothing between the steps, the calls are dealt evenly to them, if that is possible."""
    if ran.yields or len(lines) % steps:
        yield from lines
        return
    for index, line in enumerate(lines):
        yield {**line, "step": index // (len(lines) // steps) + 1}


def _by_hand(ran: Ran) -> Iterator[Line]:
    """Lines of what the function gave before and after its own clipping: by one norm, if one number explains it."""
    seen = []
    for step, given in enumerate(ran.given, start=1):
        before, after = given.unclipped or {}, given.gradients or {}
        if names := [name for name in before if name in after]:
            seen.append((step, Seen([before[n] for n in names], [after[n] for n in names], (), names)))
    one, each = (
        [{"step": step, **fields(Native(BY_HAND, "", rule, None, 2.0, None), found)} for step, found in seen]
        for rule in ("global", "each")
    )
    yield from each if any(math.isnan(line["coef"]) for line in one) else one


def _renamed(table: Mapping[str, Any], found: Named) -> dict[str, Any]:
    return {found.names.get(own, own): each for own, each in table.items()}


# -- calls that belong together


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Calls that clip one gradient each, in a row and alike, are one that clips each of them."""
    groups: list[list[Line]] = []
    for line in lines:
        if groups and all(_goes_with(line, other) for other in groups[-1]):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_as_one(group) if len(group) > 1 else group[0] for group in groups]


def _goes_with(line: Line, other: Line) -> bool:
    both = (line, other)
    alone = all(len(each["parameters"]) == 1 and each["rule"] in ("global", "each", "value") for each in both)
    alike = all(line.get(key) == other.get(key) for key in ("call", "rule", "threshold", "norm_type", "eps", "dtype"))
    return alone and alike and not set(line["parameters"]) & set(other["parameters"])


def _as_one(lines: Sequence[Line]) -> Line:
    parameters = {name: each for line in lines for name, each in line["parameters"].items()}
    one = {key: value for key, value in lines[0].items() if key not in ("gradients", "after")}
    one |= {"parameters": parameters, "clipped": any(line["clipped"] for line in lines)}
    for key in ("nan", "inf"):
        one[key] = None if any(line[key] is None for line in lines) else sum(line[key] for line in lines)
    if one["rule"] != "value":
        one |= {"rule": "each", **{key: [_only(line[key]) for line in lines] for key in ("norm", "coef")}}
    return one


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _in_order(lines: list[Line], own: Sequence[frozenset[str]], wanted: Sequence[frozenset[str]]) -> list[Line]:
    """Calls of a step in the order of another function's, where they share no parameter: then it is of no matter."""
    apart = len(frozenset().union(*own)) == sum(map(len, own))
    if len(own) != len(wanted) or set(own) != set(wanted) or not apart:
        return lines
    return [lines[own.index(each)] for each in wanted]


def _sorted(line: Line, mapped: Mapping[str, str]) -> Line:
    """By name: lists of norms are compared in their order, and frameworks list parameters in orders of their own."""
    names = list(line["parameters"])
    if line.get("rule") != "each" or len(line["norm"]) != len(names):
        return line
    order = sorted(range(len(names)), key=lambda index: mapped.get(names[index], names[index]))
    lists = {key: [line[key][index] for index in order] for key in ("norm", "coef")}
    return {**line, "parameters": {names[index]: line["parameters"][names[index]] for index in order}, **lists}
