"""Choose example gradients that show how configurations differ."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ClipWarning
from .. import schedules
from ..schedules import Piecewise, Ramp
from ..schema import Clipping, Settings
from ..selection import ParameterSelection
from . import describe

Array = np.ndarray[Any, Any]
Gradients = Mapping[str, Array]

NAMES = ("dense.weight", "dense.bias", "conv.weight", "conv.bias")

STANDINS = ("weight", "bias")
"""These words replace `*` in a pattern, to create names that match the pattern."""

PAIRED = 30
"""The first PAIRED patterns are combined in pairs, to create names that match two patterns."""


@dataclass(frozen=True)
class Example:
    of: str
    gradients: Gradients
    step: int = 0


@dataclass(frozen=True)
class _Measure:
    """The norm that a clip rule compares with its threshold."""

    rule: str
    order: float
    threshold: float

    def scaled(self, arrays: Sequence[Array], share: float) -> list[Array] | None:
        """Scale arrays to a norm of `share` times the threshold. Return None if floats cannot represent the result."""
        target = self.threshold * share
        total = norm_of(arrays, self.order)
        norms = [norm_of([array], self.order) if self.rule == "norm" else total for array in arrays]
        factors = [target / norm if norm else math.inf for norm in norms]
        if not all(0 < factor < math.inf and target < math.inf for factor in factors):
            return None
        dtype = np.float32 if 1e-30 < target < 1e30 else np.float64
        return [(array * factor).astype(dtype) for array, factor in zip(arrays, factors, strict=True)]

    def label(self, share: float) -> str:
        size = f"{self.threshold * share:g}" if share != 1 else describe.number(self.threshold)
        if self.rule == "value":
            return f"gradients whose largest element is {size}"
        norm = "norm" if self.order == 2 else f"norm of order {describe.number(self.order)}"
        if self.rule == "norm":
            return f"tensors whose own {norm} is {size}"
        return f"gradients of norm {size}" if self.order == 2 else f"gradients whose {norm} is {size}"


def examples(configs: Sequence[Settings]) -> list[Example]:
    groups = _name_groups(configs)
    result: list[Example] = []
    largest: dict[str, Array] = {}
    for names, rules in groups:
        prefix = f"{', '.join(names)}: " if len(groups) > 1 else ""
        around = list(_around(names, rules, 0))
        result += [Example(prefix + label, gradients) for label, gradients in around]
        largest.update(around[-1][1])
        for step in _later_steps(rules):
            *_, (label, gradients) = _around(names, rules, step)
            result.append(Example(f"{prefix}{label}, at step {step}", gradients, step))
        infinities = {
            (config.nonfinite, rule.as_clip_rule(1.0).convention.infinite_norm_gives_nan if rule else None)
            for config, rule in zip(configs, rules, strict=True)
        }
        if len(infinities) > 1:
            infinite = {name: array.copy() for name, array in around[0][1].items()}
            infinite[names[0]][0] = math.inf
            result.append(Example(f"{prefix}gradients with an infinity", infinite))
    if len(groups) > 1:
        result.append(Example("all groups together, with their largest gradients", largest))
    return result


def norm_of(arrays: Sequence[Array], order: float) -> float:
    """Return the norm over all elements. Intermediate results neither overflow nor underflow."""
    flat = np.abs(np.concatenate(arrays, dtype=np.float64))
    largest = float(flat.max(initial=0.0))
    if not 0 < largest < math.inf or order == math.inf:
        return largest
    with np.errstate(all="ignore"):
        return float(largest * np.float64(math.fsum((flat / largest) ** order)) ** (1 / order))


def _around(names: Sequence[str], rules: Sequence[Clipping | None], step: int) -> Iterator[tuple[str, Gradients]]:
    # Arrays of norm 13, with both signs for bounds.
    last = [12.0, -12.0] if any(rule and rule.rule == "value" for rule in rules) else [12.0]
    shape = [np.array([3.0, 4.0]), np.array(last)] if len(names) > 1 else [np.array([3.0, 4.0, *last])]
    distinct = dict.fromkeys(measure for rule in rules if rule for measure in _measures(rule, step))
    measures = sorted(distinct, key=lambda measure: measure.threshold)
    is_one = len(measures) == 1
    places = {
        0.5: "below the threshold" if is_one else "half the smallest threshold",
        1: "at the threshold" if is_one else "at one threshold",
        10: "above the threshold" if is_one else "ten times the largest threshold",
    }
    shares = [(measures[0], 0.5), *((measure, 1) for measure in measures), (measures[-1], 10)] if measures else []
    scaled = [(f"{measure.label(share)} ({places[share]})", measure.scaled(shape, share)) for measure, share in shares]
    plain = ("gradients whose largest element is 12", [array.astype(np.float32) for array in shape])
    for label, arrays in [(label, arrays) for label, arrays in scaled if arrays is not None] or [plain]:
        yield label, dict(zip(names, arrays, strict=True))


def _measures(rule: Clipping, step: int) -> Iterator[_Measure]:
    if rule.rule == "none":
        return
    thresholds = map(abs, rule.bounds or [schedules.threshold_at(rule.threshold or 0.0, step)])
    order = math.inf if rule.rule == "value" else rule.norm_type or 2.0
    yield from (_Measure(rule.rule, order, threshold) for threshold in thresholds if 0 < threshold < math.inf)


def _later_steps(rules: Sequence[Clipping | None]) -> list[int]:
    """Return the steps at which the schedules of two rules can differ."""
    thresholds = [rule.threshold if rule else None for rule in rules]
    later: set[int] = set()
    for threshold in thresholds if any(threshold != thresholds[0] for threshold in thresholds) else ():
        if isinstance(threshold, Ramp):
            later |= {threshold.begin, threshold.begin + threshold.steps // 4, threshold.begin + threshold.steps}
        elif isinstance(threshold, Piecewise):
            later.update(threshold.boundaries)
    return sorted(later - {0})


# -- names


def _name_groups(configs: Sequence[Settings]) -> list[tuple[Sequence[str], Sequence[Clipping | None]]]:
    """Return names with the rule of each configuration for these names, or None if it excludes them."""
    patterns = [name for config in configs for include, exclude in config.patterns for name in (*include, *exclude)]
    names = list(dict.fromkeys(_candidate_names(patterns)))
    parts = [_part_by_name(config, names) for config in configs]
    groups: dict[tuple[int | None, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(part.get(name) for part in parts), []).append(name)
    included = {key: value for key, value in groups.items() if any(part is not None for part in key)} or groups
    return [
        (names[:2], [None if part is None else config.parts[part] for config, part in zip(configs, key, strict=True)])
        for key, names in included.items()
    ]


def _part_by_name(config: Settings, names: Sequence[str]) -> dict[str, int]:
    # The example names cause warnings about patterns that match no name.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClipWarning)
        parts = ParameterSelection(config, None).parameters({name: name for name in names}) or []
    return {name: index for index, part in enumerate(parts[:-1]) for name in part}  # the last part is excluded


def _candidate_names(patterns: Sequence[str]) -> Iterator[str]:
    yield from NAMES
    patterns = list(dict.fromkeys(pattern for pattern in patterns if pattern != "*"))
    for pattern in patterns:
        yield from (_matching_name(pattern, standin) for standin in STANDINS)
        if pattern.startswith("*."):  # `*.bias` also matches the name `bias` alone
            yield _matching_name(pattern.removeprefix("*."), STANDINS[0])
    for outer, inner in itertools.permutations(patterns[:PAIRED], 2):
        for standin in STANDINS:
            name = _matching_name(outer, _matching_name(inner, standin))
            if fnmatch.fnmatchcase(name, inner):
                yield name


def _matching_name(pattern: str, standin: str) -> str:
    """Return a name that matches a pattern: `standin` replaces `*`, `x` replaces `?`, and `a` replaces `[ab]`."""
    text = re.sub(r"\[(!?)(.)[^]]*\]", lambda match: "_" if match[1] else match[2], pattern)
    return text.replace("*", standin).replace("?", "x")
