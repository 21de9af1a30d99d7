"""Two recordings made comparable: the same names for the same parameters, whatever the frameworks call them.

A recording calls parameters what the clip call knew of them, often nothing. The functions give their parameters and
gradients by name: a gradient that was clipped is known by its norm among those, or its weight among the weights.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import _json
from ..parity import tensor_file
from ..parity.tensors import Dense, encode
from .observe import Native, Seen, fields
from .verify_run import Given, Ran

CLOSE = 1e-4
"""How far, relatively, the norm of a clipped gradient may be from what the coefficient says: it was rounded."""

Line = dict[str, Any]
"""As a recording has it, parsed."""

Parameters = Mapping[str, Dense]

BY_HAND = "by hand"
"""The call of lines that are made of gradients before and after, which the function gave."""


@dataclass(frozen=True)
class Settled:
    """A recording that was written with the names that the function gives."""

    path: Path
    calls: int
    names: Sequence[str]
    """Of all parameters in it."""

    clipped: Mapping[int, Parameters]
    """By step, what the calls have made of the gradients, as far as that is known."""


def settle(ran: Ran, weights: Parameters, steps: int, path: Path, mapped: Mapping[str, str]) -> Settled:
    """Write a recording with the names that the function gives. `mapped`: to the names by which lists are ordered."""
    header, *lines = (json.loads(line) for line in ran.recording.read_text(encoding="utf-8").splitlines())
    lines = list(_in_steps(_numbers(lines), ran, steps)) or list(_by_hand(ran))
    settled: list[Line] = []
    clipped: dict[int, dict[str, Dense]] = {}
    for step, group in itertools.groupby(lines, key=lambda line: line["step"]):
        known = _Known(ran, weights, step, steps)
        kept = []
        for line in group:
            names = _names(line, known, ran.directory)
            if names is not None:
                kept.append(_renamed(line, names))
                clipped.setdefault(step, {}).update(_renamed_keys(_clipped(line, ran.directory), names))
        settled += [_sorted(each, mapped) for each in _merged(kept)]
    path.write_text("".join(json.dumps(_json.plain(line)) + "\n" for line in [header, *settled]), encoding="utf-8")
    every = {name for line in settled for name in line.get("parameters") or ()}
    return Settled(path, len(settled), sorted(every), clipped)


def at_step(ran: Ran, step: int, steps: int) -> Given | None:
    """What the function gave after a step: a function that returns does so after the last."""
    index = step - 1 if len(ran.given) == steps else step - steps
    return ran.given[index] if 0 <= index < len(ran.given) else None


def _numbers(lines: Sequence[Line]) -> list[Line]:
    """Numbers that JSON does not have are strings."""
    return [json.loads(json.dumps(line), object_hook=_with_numbers) for line in lines]


def _with_numbers(table: Line) -> Line:
    special = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return {
        key: [special.get(each, each) if isinstance(each, str) else each for each in value]
        if isinstance(value, list)
        else special.get(value, value)
        if isinstance(value, str) and key != "call"
        else value
        for key, value in table.items()
    }


def _in_steps(lines: list[Line], ran: Ran, steps: int) -> Iterator[Line]:
    """Where the function gave nothing between the steps, the calls are dealt evenly to them, if that is possible."""
    if len(ran.given) == steps > 1 or not lines or len(lines) % steps:
        yield from lines
        return
    each = len(lines) // steps
    for index, line in enumerate(lines):
        yield {**line, "step": index // each + 1}


def _by_hand(ran: Ran) -> Iterator[Line]:
    """Lines of what the function gave before and after its own clipping."""
    pairs = []
    for step, given in enumerate(ran.given, start=1):
        names = [name for name in given.unclipped or {} if name in (given.gradients or {})]
        if given.unclipped and given.gradients and names:
            pairs.append(
                (step, Seen([given.unclipped[n] for n in names], [given.gradients[n] for n in names], (), names))
            )
    for rule in ("global", "each"):
        native = Native(BY_HAND, "", rule, None, 2.0, None)  # type: ignore[arg-type]  # one of its words
        lines = [{"step": step, **fields(native, seen), "framework": None} for step, seen in pairs]
        if rule == "each" or not any(math.isnan(line["coef"]) for line in lines):
            yield from lines
            return


# -- names


class _Known:
    """What is known of the parameters at a step: norms by name, of gradients after clipping, and of weights before."""

    def __init__(self, ran: Ran, weights: Parameters, step: int, steps: int) -> None:
        now, before = at_step(ran, step, steps), at_step(ran, step - 1, steps)
        self.gradients = now.gradients if now else None
        self.weights = before.parameters if before else weights if step == 1 else {}
        self.forms = {form(each.shape) for each in (self.weights or ran.given[-1].parameters).values()}


def form(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, whatever the order of its axes."""
    return tuple(sorted(shape))


def _names(line: Line, known: _Known, directory: Path) -> dict[str, str] | None:
    """From names in a line to those that are known; None for a function that has clipped what is no gradient."""
    if not line.get("parameters"):
        return {}
    order, norms = line["norm_type"] or 2.0, _norms_after(line, directory)
    found: dict[str, str] = {}
    for source, expected in ((known.gradients, norms), (known.weights, _weights(line))):
        found |= _matches(line, source or {}, expected, order, found)
    alone = "after" in line and len(line["parameters"]) == 1
    if alone and not found and not _may_be_gradient(line, known):
        return None
    taken = set(found.values())
    return found | {own: f"{own} of the call" for own in line["parameters"] if own not in found and own in taken}


def _renamed(line: Line, names: Mapping[str, str]) -> Line:
    return {**line, "parameters": _renamed_keys(line.get("parameters") or {}, names)}


def _renamed_keys(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(own, own): each for own, each in table.items()}


def _clipped(line: Line, directory: Path) -> dict[str, Dense]:
    """The gradients after a call, where they were stored."""
    if "after" in line:
        return tensor_file.load(directory / line["after"])
    if not line.get("gradients") or line["rule"] not in ("global", "each"):
        return {}
    stored = tensor_file.load(directory / line["gradients"])
    coefs = line["coef"] if isinstance(line["coef"], list) else [line["coef"]] * len(line["parameters"])
    return {
        name: _product(stored[name], coef)
        for name, coef in zip(line["parameters"], coefs, strict=False)
        if name in stored
    }


def _product(tensor: Dense, coef: float) -> Dense:
    """As ours compute it: in float32, but for float64."""
    wide = tensor.dtype == "float64"
    values = tensor.values() if wide else np.multiply(tensor.values(), float(np.float32(coef))).astype(np.float32)
    return encode((values * coef if wide else values).astype(np.float64), tensor.dtype)


def _may_be_gradient(line: Line, known: _Known) -> bool:
    """Of one tensor that is not known: functions that clip numbers are used on much else than gradients."""
    (parameter,) = line["parameters"].values()
    return form(parameter["shape"]) in known.forms and (line["rule"] != "value" or known.gradients is None)


def _norms_after(line: Line, directory: Path) -> dict[str, float]:
    """The norm of each gradient after clipping, by its name in the recording."""
    if "after" in line:
        stored = tensor_file.load(directory / line["after"])
        return {name: _norm(each, line["norm_type"] or 2.0) for name, each in stored.items()}
    coefs = line["coef"] if isinstance(line["coef"], list) else [line["coef"]] * len(line["parameters"])
    if line["rule"] == "value" or len(coefs) != len(line["parameters"]):
        return {}
    pairs = zip(line["parameters"].items(), coefs, strict=True)
    return {name: parameter["norm"] * coef for (name, parameter), coef in pairs}


def _weights(line: Line) -> dict[str, float]:
    return {name: each["weight"] for name, each in line["parameters"].items() if each.get("weight") is not None}


def _matches(
    line: Line, source: Parameters, expected: Mapping[str, float], order: float, found: Mapping[str, str]
) -> dict[str, str]:
    """The names in `source` of tensors that have the expected norms, the nearest first; each name once."""
    free = {name: (form(each.shape), _norm(each, order)) for name, each in source.items() if name not in found.values()}
    pairs = []
    for own, norm in expected.items():
        shape = form(line["parameters"][own]["shape"])
        pairs += [
            (abs(norm - theirs), own, name)
            for name, (theirs_form, theirs) in free.items()
            if own not in found and theirs_form == shape and math.isclose(norm, theirs, rel_tol=CLOSE)
        ]
    matched: dict[str, str] = {}
    for _, own, name in sorted(pairs, key=lambda pair: pair[0]):
        if own not in matched and name not in matched.values():
            matched[own] = name
    return matched


def _norm(tensor: Dense, order: float) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(tensor.values().reshape(-1), order))


# -- calls that belong together


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Calls that clip one gradient each, in a row and alike, are one that clips each of them."""
    merged: list[list[Line]] = []
    for line in lines:
        last = merged[-1] if merged else None
        if (
            last
            and _is_single(line)
            and _is_single(last[0])
            and _kind(line) == _kind(last[0])
            and not _again(line, last)
        ):
            last.append(line)
        else:
            merged.append([line])
    return [_as_one(group) if len(group) > 1 else group[0] for group in merged]


def _is_single(line: Line) -> bool:
    return len(line.get("parameters") or ()) == 1 and line["rule"] in ("global", "each", "value")


def _kind(line: Line) -> Any:
    return [line["call"], line["rule"], line["threshold"], line["norm_type"], line["eps"], line["dtype"]]


def _again(line: Line, group: Sequence[Line]) -> bool:
    """Whether one of the calls before has clipped the same parameter."""
    return any(set(line["parameters"]) & set(each["parameters"]) for each in group)


def _as_one(lines: Sequence[Line]) -> Line:
    parameters = {name: each for line in lines for name, each in line["parameters"].items()}
    one = {**lines[0], "parameters": parameters, "clipped": any(line["clipped"] for line in lines)}
    for key in ("nan", "inf"):
        one[key] = None if any(line[key] is None for line in lines) else sum(line[key] for line in lines)
    if one["rule"] != "value":
        one |= {"rule": "each", **{key: [_only(line[key]) for line in lines] for key in ("norm", "coef")}}
    for key in ("gradients", "after"):
        one.pop(key, None)
    return one


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _sorted(line: Line, mapped: Mapping[str, str]) -> Line:
    """By name: lists of norms are compared in their order, and frameworks list parameters in orders of their own."""
    parameters = line.get("parameters") or {}
    if line["rule"] != "each" or len(line["norm"]) != len(parameters):
        return line
    names = list(parameters)
    order = sorted(range(len(names)), key=lambda index: mapped.get(names[index], names[index]))
    return {
        **line,
        "parameters": {names[index]: parameters[names[index]] for index in order},
        "norm": [line["norm"][index] for index in order],
        "coef": [line["coef"][index] for index in order],
    }
