"""Choose example gradients that show the effect of configurations, and their differences."""

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
"""Parameter names for configurations without patterns."""

STANDINS = ("weight", "bias")
"""Texts for wildcards of patterns."""

PAIRED = 30
"""The limit of patterns that are combined in pairs, for a name that both match."""


@dataclass(frozen=True)
class Example:
    """Gradients with a description."""

    of: str
    gradients: Gradients
    step: int


@dataclass(frozen=True)
class _Kin:
    """Parameter names that a configuration treats alike, for each configuration, and their rules."""

    names: Sequence[str]
    rules: Sequence[Clipping | None]
    """One rule per configuration; None if the names are excluded."""


@dataclass(frozen=True)
class _Measure:
    """A rule's norm and its threshold."""

    rule: str
    order: float
    limit: float

    def scaled(self, arrays: Sequence[Array], share: float) -> list[Array] | None:
        """Scale arrays so that their norm is this share of the threshold; None if floats cannot represent it."""
        wanted = self.limit * share
        of_all = norm_of(arrays, self.order)
        sizes = [norm_of([each], self.order) if self.rule == "norm" else of_all for each in arrays]
        factors = [wanted / size if size else math.inf for size in sizes]
        if not all(0 < factor < math.inf and wanted < math.inf for factor in factors):
            return None
        dtype = np.float32 if 1e-30 < wanted < 1e30 else np.float64
        return [(each * factor).astype(dtype) for each, factor in zip(arrays, factors, strict=True)]

    def label(self, share: float) -> str:
        size = f"{self.limit * share:g}" if share != 1 else describe.number(self.limit)
        if self.rule == "value":
            return f"gradients whose largest element is {size}"
        order = "" if self.order == 2 else f" of order {describe.number(self.order)}"
        return f"tensors of norm {size}{order} each" if self.rule == "norm" else f"gradients of norm {size}{order}"


def examples(configs: Sequence[Settings], step: int) -> list[Example]:
    """Return examples around the thresholds of each rule, and more where configurations differ."""
    kin = _kin(configs)
    several = len(kin) > 1
    found: list[Example] = []
    together: dict[str, Array] = {}
    for each in kin:
        prefix = f"{', '.join(each.names)}: " if several else ""
        around = list(_around(each, step))
        found += [Example(prefix + of, gradients, step) for of, gradients in around]
        together.update(around[-1][1])
        found += [
            Example(f"{prefix}{of}, at step {later}", gradients, later)
            for later in _later_steps(each.rules, step)
            for of, gradients in list(_around(each, later))[-1:]
        ]
        if _differ_on_infinities(configs, each.rules):
            found.append(Example(f"{prefix}gradients with an infinity", _with_infinity(around[0][1]), step))
    if several:
        found.append(Example("the largest of each together", together, step))
    return found


def steps(configs: Sequence[Settings], step: int) -> list[int]:
    """Return the step, and the steps at which thresholds may differ."""
    rules = itertools.zip_longest(*(each.parts for each in configs))
    return [step, *dict.fromkeys(later for each in rules for later in _later_steps(each, step))]


def norm_of(arrays: Sequence[Array], order: float) -> float:
    """Return the norm over all elements, without overflow or underflow of intermediate results."""
    flat = np.concatenate([np.abs(each).astype(np.float64).ravel() for each in arrays] or [np.zeros(0)])
    largest = float(flat.max(initial=0.0))
    if not 0 < largest < math.inf or order == math.inf:
        return largest
    with np.errstate(all="ignore"):
        return float(largest * np.float64(math.fsum((flat / largest) ** order)) ** (1 / order))


# -- sizes


def _around(kin: _Kin, step: int) -> Iterator[tuple[str, Gradients]]:
    """Yield examples below, at and above the thresholds."""
    shape = _shape(kin)
    every = dict.fromkeys(measure for rule in kin.rules if rule for measure in _measures(rule, step))
    measures = sorted(every, key=lambda measure: measure.limit)
    one = len(measures) == 1
    told = {
        0.5: "below the threshold" if one else "half the smallest threshold",
        1: "at the threshold" if one else "at one threshold",
        10: "above the threshold" if one else "ten times the largest threshold",
    }
    shares = [(measures[0], 0.5), *((each, 1) for each in measures), (measures[-1], 10)] if measures else []
    any_made = False
    for measure, share in shares:
        arrays = measure.scaled(shape, share)
        if arrays is not None:
            any_made = True
            yield f"{measure.label(share)} ({told[share]})", dict(zip(kin.names, arrays, strict=True))
    if not any_made:
        plain = [each.astype(np.float32) for each in shape]
        yield "gradients whose largest element is 12", dict(zip(kin.names, plain, strict=True))


def _shape(kin: _Kin) -> list[Array]:
    """Return arrays of norm 13, with both signs for bounds."""
    last = [12.0, -12.0] if any(rule and rule.rule == "value" for rule in kin.rules) else [12.0]
    return [np.array([3.0, 4.0]), np.array(last)] if len(kin.names) > 1 else [np.array([3.0, 4.0, *last])]


def _measures(rule: Clipping, step: int) -> Iterator[_Measure]:
    if rule.rule == "none":
        return
    if rule.min is not None and rule.max is not None:
        limits = [abs(rule.min), abs(rule.max)]
    else:
        limits = [schedules.threshold_at(rule.threshold, step)] if rule.threshold is not None else []
    order = math.inf if rule.rule == "value" else rule.norm_type or 2.0
    yield from (_Measure(rule.rule, order, limit) for limit in limits if 0 < limit < math.inf)


# -- differences


def _later_steps(rules: Sequence[Clipping | None], step: int) -> list[int]:
    """Return steps at the start, inside and at the end of schedules that differ."""
    thresholds = [rule.threshold if rule else None for rule in rules]
    if len(thresholds) < 2 or all(each == thresholds[0] for each in thresholds):
        return []
    found = set()
    for each in thresholds:
        if isinstance(each, Ramp):
            found |= {each.begin, each.begin + each.steps // 4, each.begin + each.steps}
        elif isinstance(each, Piecewise):
            found |= {0, *each.boundaries}
    return sorted(found - {step})


def _differ_on_infinities(configs: Sequence[Settings], rules: Sequence[Clipping | None]) -> bool:
    told = {
        (config.nonfinite, rule.part(1.0).family.infinite_norm_gives_nan if rule else None)
        for config, rule in zip(configs, rules, strict=True)
    }
    return len(told) > 1


def _with_infinity(gradients: Gradients) -> Gradients:
    changed = {name: array.copy() for name, array in gradients.items()}
    next(iter(changed.values()))[0] = math.inf
    return changed


# -- names


def _kin(configs: Sequence[Settings]) -> list[_Kin]:
    """Return names for each combination of rules that the configurations apply to the same name."""
    names = list(dict.fromkeys(_candidates([pattern for each in configs for pattern in _patterns(each)])))
    places = [_places(config, names) for config in configs]
    found: dict[tuple[int | None, ...], list[str]] = {}
    for name in names:
        found.setdefault(tuple(place.get(name) for place in places), []).append(name)
    touched = {key: value for key, value in found.items() if any(place is not None for place in key)} or found
    return [
        _Kin(
            names[:2],
            [None if part is None else config.parts[part] for config, part in zip(configs, key, strict=True)],
        )
        for key, names in touched.items()
    ]


def _places(config: Settings, names: Sequence[str]) -> dict[str, int]:
    """Return the index of the part of a configuration for each name."""
    with warnings.catch_warnings(action="ignore", category=ClipWarning):  # the names are made up
        parts = ParameterSelection(config, None).parameters({name: name for name in names}) or []
    return {name: index for index, part in enumerate(parts[:-1]) for name in part}  # the last are left out


def _patterns(config: Settings) -> Iterator[str]:
    for group in config.groups:
        yield from (*group.include, *group.exclude)
    yield from (*config.include, *config.exclude)


def _candidates(patterns: Sequence[str]) -> Iterator[str]:
    yield from NAMES
    patterns = list(dict.fromkeys(pattern for pattern in patterns if pattern != "*"))
    for pattern in patterns:
        yield from (_matching(pattern, standin) for standin in STANDINS)
        if pattern.startswith("*."):  # which may be missing
            yield _matching(pattern.removeprefix("*."), STANDINS[0])
    for one, other in itertools.permutations(patterns[:PAIRED], 2):
        for standin in STANDINS:
            name = _matching(one, _matching(other, standin))
            if fnmatch.fnmatchcase(name, other):
                yield name


def _matching(pattern: str, standin: str) -> str:
    """Return a name that a pattern matches."""
    text = re.sub(r"\[(!?)(.)[^]]*\]", lambda found: "_" if found[1] else found[2], pattern)
    return text.replace("*", standin).replace("?", "x")
