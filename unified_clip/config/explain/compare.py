"""Explain a configuration by its effect on example gradients, or compare two configurations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ..._core.exact import nearest
from ..._kit import plain_json
from ...errors import ClipWarning, NonFiniteNormError
from ..clip_config import ClipConfig
from ..clipper import Clipper
from ..families import SAME
from ..schema import is_off
from . import describe, examples
from .examples import Array, Example

Outcome = Literal["clipped", "unchanged", "skipped", "raises"]
RESULT = "the result if the norm is not finite"
NOT_FINITE = "the trainer's action if the norm is not finite"

OUTCOMES = {"skipped": "skips the step", "raises": "raises an error"}


@dataclass(frozen=True)
class ExampleResult:
    of: str
    """Describes the example, such as "gradients of norm 13"."""

    outcome: Outcome
    norm: float
    """Excluded gradients are not part of this norm."""

    coef: float | None = None
    """If the step is skipped or an error is raised, `coef`, `norm_clipped` and `results` are None."""

    norm_clipped: float | None = None
    """The 2-norm of all gradients after the clip, including excluded gradients."""

    results: dict[str, list[float]] | None = None
    """The first three elements of the first three gradients."""


@dataclass(frozen=True)
class ExplainedConfig:
    name: str
    sentences: list[str]
    notes: list[str]
    worked: list[ExampleResult]


@dataclass(frozen=True)
class DifferingSetting:
    about: str
    a: str
    b: str


@dataclass(frozen=True)
class ComparedResults:
    of: str
    a: ExampleResult
    b: ExampleResult
    distance: float
    """The largest difference between the results of `a` and `b`, divided by the largest magnitude of an element. NaN
    and infinite differences count as inf."""

    sentence: str


@dataclass(frozen=True)
class ConfigComparison:
    a: ExplainedConfig
    b: ExplainedConfig
    same: bool
    selections: str
    """A sentence about the parameters that each configuration clips, or '' if they are the same."""

    differences: list[DifferingSetting]
    compared: list[ComparedResults]

    @property
    def summary(self) -> str:
        if self.same:
            return SAME
        sentences = [row.sentence for row in self.compared]
        if self.selections:
            sentences.insert(0, self.selections.removesuffix("."))
        if not self.telling:
            settings = "; ".join(f"{setting.about} ({setting.a} / {setting.b})" for setting in self.differences)
            sentences.append(f"the results are identical, but the configurations differ: {settings}")
        return "; ".join(dict.fromkeys(sentences)) + "."

    @property
    def verdict(self) -> str:
        if self.same:
            return SAME
        effect = "" if self.telling else ", but the results of all examples are identical"
        names = ", ".join(setting.about for setting in self.differences)
        return f"The configurations differ in: {names}{effect}. {self.selections}".rstrip()

    @property
    def telling(self) -> list[ComparedResults]:
        """The example with the largest difference of finite results, and an example of another kind of difference."""
        rows = sorted((row for row in self.compared if row.distance), key=lambda row: row.distance)
        return list({math.isinf(row.distance): row for row in rows}.values())


def explain(config: ClipConfig, name: str) -> ExplainedConfig:
    return _explained(config, name, [_apply(config, example)[0] for example in examples.examples([config])])


def _explained(config: ClipConfig, name: str, worked: list[ExampleResult]) -> ExplainedConfig:
    notes = [note for note in config.notes if note != config.not_finite]
    return ExplainedConfig(name, describe.sentences(config), notes, worked)


def with_own_action(config: ClipConfig, other: ClipConfig) -> ClipConfig:
    """If a trainer acts like the `nonfinite` of another configuration, return its configuration with this `nonfinite`.

    With fp16, for example, a loss scaler skips steps like nonfinite = "skip", although no key of the trainer says so.
    """
    if "family" in (config.acts_as, other.nonfinite) or config.acts_as != other.nonfinite or is_off(config):
        return config
    return config.model_copy(update={"nonfinite": other.nonfinite})


def compare(a: ClipConfig, b: ClipConfig, names: Sequence[str]) -> ConfigComparison:
    """Compare the settings of two configurations, and their effects on example gradients."""
    a, b = with_own_action(a, b), with_own_action(b, a)
    compared = [_compare(a, b, example, names) for example in examples.examples([a, b])]
    first = _explained(a, names[0], [row.a for row in compared])
    second = _explained(b, names[1], [row.b for row in compared])
    same = a.meaning == b.meaning and a.not_finite == b.not_finite
    selections = ""
    if (a.include, a.exclude) != (b.include, b.exclude):
        selections = f"{names[0]} {describe.selection(a)}, but {names[1]} {describe.selection(b)}."
    return ConfigComparison(first, second, same, selections, _differences(a, b), compared)


def as_data(result: ExplainedConfig | ConfigComparison) -> dict[str, Any]:
    summary = {"summary": result.summary} if isinstance(result, ConfigComparison) else {}
    data: dict[str, Any] = plain_json.plain(asdict(result) | summary)
    return data


# -- numbers


def _apply(config: ClipConfig, example: Example) -> tuple[ExampleResult, list[Array]]:
    clipper, gradients = Clipper(config), dict(example.gradients)
    parameters = {name: np.ones_like(array) for name, array in gradients.items()} if config.needs_parameters else None
    with warnings.catch_warnings():  # examples have names of their own
        warnings.simplefilter("ignore", ClipWarning)
        try:
            results = clipper(gradients, step=example.step, parameters=parameters)
        except NonFiniteNormError:
            norm = _apply(config.model_copy(update={"nonfinite": "family"}), example)[0].norm
            return ExampleResult(example.of, "raises", norm), []
    last = clipper.last
    if last.skipped:
        return ExampleResult(example.of, "skipped", last.norm), []
    arrays = [results[name] for name in gradients]
    outcome: Outcome = "unchanged" if _distance(arrays, list(gradients.values())) == 0 else "clipped"
    few = {name: array[:3].tolist() for name, array in list(results.items())[:3]}
    is_double = any(array.dtype == np.float64 for array in arrays)
    norm_clipped = nearest(examples.norm_of(arrays, 2.0), "float64" if is_double else "float32")
    return ExampleResult(example.of, outcome, last.norm, last.coef, norm_clipped, few), arrays


def _compare(a: ClipConfig, b: ClipConfig, example: Example, names: Sequence[str]) -> ComparedResults:
    (first, arrays), (second, other_arrays) = _apply(a, example), _apply(b, example)
    distance = 0.0 if first.outcome == second.outcome else math.inf
    if first.results is not None and second.results is not None:
        distance = _distance(arrays, other_arrays)
    return ComparedResults(example.of, first, second, distance, _sentence(first, second, distance, names))


def _distance(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Return `ComparedResults.distance`. NaN equals NaN here."""
    first, second = (np.concatenate(arrays, dtype=np.float64) for arrays in (a, b))
    if np.array_equal(first, second, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = np.max(np.abs(first - second))
    largest = np.max(np.abs([first, second]))
    return float(difference / largest) if np.isfinite(difference) else math.inf


def _sentence(a: ExampleResult, b: ExampleResult, distance: float, names: Sequence[str]) -> str:
    if distance == 0:
        return f"{a.of}: identical"
    if a.norm_clipped is None or b.norm_clipped is None:
        effects = [f"{name} {OUTCOMES.get(row.outcome, 'does not')}" for name, row in zip(names, (a, b), strict=True)]
        return f"{a.of}: {', '.join(effects)}"
    is_same = a.norm == b.norm or (math.isnan(a.norm) and math.isnan(b.norm))
    norms = "same total norm" if is_same else f"total norms {a.norm:.6g} and {b.norm:.6g}"
    lower, higher = sorted((a.norm_clipped, b.norm_clipped))
    if not math.isfinite(distance):
        effect = "results differ in NaN or infinite elements"
    elif lower == higher:
        effect = f"results differ by up to {distance:.2g} times the largest element"
    else:
        name, other = names if a.norm_clipped == lower else reversed(names)
        effect = f"the clipped norm of {name} is lower by {(higher - lower) / higher:.2g} times that of {other}"
    return f"{a.of}: {norms}; {effect}"


# -- settings


def _differences(a: ClipConfig, b: ClipConfig) -> list[DifferingSetting]:
    first, second = _aspects(a, b), _aspects(b, a)
    rows = [(about, text, second.get(about, "no such group")) for about, text in first.items()]
    rows += [(about, "no such group", text) for about, text in second.items() if about not in first]
    return [DifferingSetting(about, x, y) for about, x, y in rows if x != y]


def _aspects(config: ClipConfig, other: ClipConfig) -> dict[str, str]:
    has_norm = config.rule in ("norm", "global_norm")
    shared = {group.name for group in other.groups}
    groups = {f"group {group.name!r}": f"{describe.listed(group)}: {describe.rule(group)}" for group in config.groups}
    return {
        "rule": config.rule,
        "threshold": describe.limits(config),
        "norm": describe.order(config) if has_norm else "none",
        "eps": describe.number(config.as_clip_rule(1.0).convention.eps) if has_norm else "none",
        RESULT: describe.nonfinite(config),
        NOT_FINITE: config.not_finite or "clipped by the rule",
        "parameters": describe.listed(config),
        "order of the groups": ", ".join(group.name for group in config.groups if group.name in shared),
        **groups,
    }
