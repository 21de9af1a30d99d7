"""Explain a configuration with example numbers, or compare two: `unified-clip explain`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ... import _json
from ..._core.exact import nearest
from ...errors import ClipWarning, NonFiniteNormError
from ..clip_config import ClipConfig
from ..clipper import Clipper
from ..schema import DEFAULT_FAMILY
from . import describe, examples
from .examples import Array, Example, Gradients

Outcome = Literal["clipped", "unchanged", "skipped", "raises"]
OUTCOMES = {"skipped": "skips the step", "raises": "raises an error"}


@dataclass(frozen=True)
class Worked:
    """The effect of a configuration on an example."""

    of: str
    outcome: Outcome
    norm: float
    """The total norm before clipping, over included gradients."""

    coef: float | None
    """None if the step is skipped or an error is raised, like the next two."""

    norm_clipped: float | None
    """The 2-norm of all results, excluded gradients too, in the dtype of norms."""

    results: dict[str, list[float]] | None
    """The first elements of the first gradients."""


@dataclass(frozen=True)
class Explanation:
    """A configuration in words and numbers."""

    name: str
    sentences: list[str]
    notes: list[str]
    worked: list[Worked]


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two configurations."""

    about: str
    a: str
    b: str


@dataclass(frozen=True)
class Compared:
    """The effects of two configurations on the same example."""

    of: str
    a: Worked
    b: Worked
    distance: float
    """The largest difference of an element, relative to the largest element of either result."""

    sentence: str


@dataclass(frozen=True)
class Comparison:
    """Two configurations."""

    a: Explanation
    b: Explanation
    same: bool
    """Whether both have the same effect on all gradients."""

    differences: list[Difference]
    compared: list[Compared]

    @property
    def summary(self) -> str:
        """Return the comparison in one line."""
        if self.same:
            return "They do the same."
        found = [each.sentence for each in self.compared]
        if all(each.distance == 0 for each in self.compared):
            which = "; ".join(f"{each.about} ({each.a} / {each.b})" for each in self.differences)
            found.append(f"they come out the same here, and yet the configurations differ: {which}")
        return "; ".join(dict.fromkeys(found)) + "."

    @property
    def verdict(self) -> str:
        """Return the last line below a table of `compared`."""
        if self.same:
            return "They do the same."
        differing = sum(each.distance != 0 for each in self.compared)
        if not differing:
            return "The results are identical, but the configurations differ."
        return f"The results differ in {differing} of {len(self.compared)} rows."


def explain(config: ClipConfig, name: str, gradients: Gradients | None = None, step: int = 0) -> Explanation:
    """Explain a configuration in words, and by its effect on gradients or on examples around its threshold."""
    notes = config.provenance.notes if config.provenance else []
    worked = [_work(config, each)[0] for each in _examples([config], gradients, step)]
    return Explanation(name, describe.sentences(config), list(notes), worked)


def compare(
    a: ClipConfig, b: ClipConfig, names: Sequence[str], gradients: Gradients | None = None, step: int = 0
) -> Comparison:
    """Compare two configurations, on gradients or on examples; at the start and end of different schedules too."""
    explained = [explain(config, name, gradients, step) for config, name in zip((a, b), names, strict=True)]
    compared = [_compare(a, b, each, names) for each in _examples([a, b], gradients, step)]
    return Comparison(explained[0], explained[1], a.meaning == b.meaning, _differences(a, b), compared)


def as_data(found: Explanation | Comparison) -> dict[str, Any]:
    """Return data for JSON, with NaN and infinities as strings."""
    data = asdict(found)
    if isinstance(found, Comparison):
        data["summary"] = found.summary
    plain: dict[str, Any] = _json.plain(data)
    return plain


# -- numbers


def _examples(configs: Sequence[ClipConfig], gradients: Gradients | None, step: int) -> list[Example]:
    if gradients is None:
        return examples.examples(configs, step)
    given = "the gradients given"
    return [
        Example(given if each == step else f"{given}, at step {each}", gradients, each)
        for each in examples.steps(configs, step)
    ]


def _work(config: ClipConfig, example: Example) -> tuple[Worked, list[Array]]:
    """Clip an example. Return its effect and the results; [] if the step is skipped or raises."""
    clipper, gradients = Clipper(config), dict(example.gradients)
    with warnings.catch_warnings(action="ignore", category=ClipWarning):  # examples have names of their own
        try:
            results = clipper(gradients, step=example.step)
        except NonFiniteNormError:
            without = _work(config.model_copy(update={"nonfinite": "family"}), example)[0]
            return Worked(example.of, "raises", without.norm, None, None, None), []
    if clipper.last.skipped:
        return Worked(example.of, "skipped", clipper.last.norm, None, None, None), []
    arrays = [results[name] for name in gradients]
    outcome: Outcome = "unchanged" if _distance(arrays, list(gradients.values())) == 0 else "clipped"
    few = {name: array.ravel()[:3].tolist() for name, array in list(results.items())[:3]}
    after = _rounded_norm(arrays)
    return Worked(example.of, outcome, clipper.last.norm, clipper.last.coef, after, few), arrays


def _rounded_norm(arrays: Sequence[Array]) -> float:
    """Return the 2-norm over all elements, rounded to the dtype that norms of these arrays have."""
    is_double = any(array.dtype in (np.float64, np.complex128) for array in arrays)
    return nearest(examples.norm_of(arrays, 2.0), "float64" if is_double else "float32")


def _compare(a: ClipConfig, b: ClipConfig, example: Example, names: Sequence[str]) -> Compared:
    (first, its), (second, others) = _work(a, example), _work(b, example)
    apart = first.results is None or second.results is None
    distance = (0.0 if first.outcome == second.outcome else math.inf) if apart else _distance(its, others)
    return Compared(example.of, first, second, distance, _sentence(first, second, distance, names))


def _distance(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Return the largest relative difference; 0 for equal numbers, inf if nonfinite elements differ."""
    if all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True)):
        return 0.0
    apart = _greatest([_wide(x) - _wide(y) for x, y in zip(a, b, strict=True)])
    largest = _greatest([*map(_wide, a), *map(_wide, b)])
    if not math.isfinite(apart):
        return math.inf
    return apart / largest if largest else 0.0


def _greatest(arrays: Sequence[Array]) -> float:
    """Return the largest magnitude; NaN if there is one."""
    return float(np.max([np.abs(array).max() for array in arrays if array.size], initial=0.0))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _sentence(a: Worked, b: Worked, distance: float, names: Sequence[str]) -> str:
    of = a.of
    norms = f"total norms {a.norm:.6g} and {b.norm:.6g}"
    if a.norm == b.norm or (math.isnan(a.norm) and math.isnan(b.norm)):
        norms = "same total norm"
    if distance == 0:
        return f"{of}: identical"
    if a.norm_clipped is None or b.norm_clipped is None:
        does = [f"{name} {OUTCOMES.get(each.outcome, 'does not')}" for name, each in zip(names, (a, b), strict=True)]
        return f"{of}: {', '.join(does)}"
    if not math.isfinite(distance):
        return f"{of}: {norms}; they differ in what is not finite"
    if a.norm_clipped == b.norm_clipped:
        return f"{of}: {norms}; up to {distance:.2g} apart"
    lower, higher = sorted((a.norm_clipped, b.norm_clipped))
    which = names[0] if a.norm_clipped == lower else names[1]
    return f"{of}: {norms}; {which} lands {(higher - lower) / higher:.2g} lower"


# -- words


def _differences(a: ClipConfig, b: ClipConfig) -> list[Difference]:
    found = [Difference(about, x, y) for about, x, y in _aspects(a, b) if x != y]
    for name in dict.fromkeys(group.name for each in (a, b) for group in each.groups):
        one, other = _group(a, name), _group(b, name)
        if one != other:
            found.append(Difference(f"group {name!r}", one, other))
    if not found and a.meaning != b.meaning:  # where nonfinite hides it
        found.append(Difference("family", a.family or DEFAULT_FAMILY, b.family or DEFAULT_FAMILY))
    return found


def _group(config: ClipConfig, name: str) -> str:
    told = (f"{describe.listed(g.include, g.exclude)}: {describe.rule(g)}" for g in config.groups if g.name == name)
    return next(told, "no such group")


def _aspects(a: ClipConfig, b: ClipConfig) -> list[tuple[str, str, str]]:
    shared = {group.name for group in a.groups} & {group.name for group in b.groups}

    def both(about: str, tell: Any) -> tuple[str, str, str]:
        return about, tell(a), tell(b)

    return [
        both("rule", lambda c: c.rule),
        both("threshold", describe.limits),
        both("norm", lambda c: describe.order(c) if _has_norm(c) else "none"),
        both("eps", lambda c: describe.number(c.part(1.0).family.eps) if _has_norm(c) else "none"),
        both("a norm that is not finite", describe.nonfinite),
        both("parameters", lambda c: describe.listed(c.include, c.exclude)),
        both("order of the groups", lambda c: ", ".join(g.name for g in c.groups if g.name in shared)),
    ]


def _has_norm(config: ClipConfig) -> bool:
    return config.rule in ("norm", "global_norm")
