"""Compare the optimizers of two runs: the rules that explain their updates, and their recorded settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...causes.cause import CauseKind, names_text
from ...recording.recorded_run import OptimizerStep
from ...tensors.arithmetic import Float64s
from ..finding import Finding, in_order, value_text
from ..networks import Network
from ..pairs import Pair, PairedRuns
from ..run import ParameterStep, Run
from .rules import DECAY, DECAY_OF, PLACE_OF_EPS, same_setting
from .settings import compare_settings, other_decay, other_rates, rate_finding, squared_rows
from .updates import RATE, SAME_RATE, UNDECAYED, Difference, Recipe, Step, closest, differences, effect, recipes

MOST_TENSORS = 48
"""The number of tensors whose updates are explained. They are the first ones of an optimizer."""

MOST_STEPS = 1_000

LEAST = 2.0**-22
"""Larger changes of a weight are not lost in its rounding."""

TINY = 1e-20
"""A port to PyTorch may need a tiny learning rate instead of 0."""

SMALL = 0.01
"""Where eps is added, and how large it is, matters only for small gradients, and is tolerated if it changes the updates
of a run by a smaller fraction."""


class ComparedOptimizers(NamedTuple):
    findings: Sequence[Finding]
    tolerated: Sequence[Finding]
    unexplained: Sequence[str]
    """The runs whose updates no rule explains."""


def compare_optimizers(runs: PairedRuns) -> ComparedOptimizers:
    """Compare the optimizers of each set of parameters that one optimizer trains in both runs."""
    findings: dict[tuple[str, str], Finding] = {}
    unexplained: dict[str, None] = {}
    unmoved = [_unmoved(runs, side) for side in (0, 1)]
    for side, own in enumerate(unmoved):
        if own:
            finding = _unmoved_finding(runs, own, side)
            findings[(finding.kind, finding.field)] = finding
    moved = [pair for pair in runs.pairs if not any(pair in own for own in unmoved)]
    for own, left, right in _common_networks(runs.a, runs.b, moved):
        for finding in _compare(runs, own, left, right, unexplained):
            findings.setdefault((finding.kind, finding.field), finding)
    tolerated = [each for each in findings.values() if each.effect < SMALL]
    return ComparedOptimizers([each for each in findings.values() if each not in tolerated], tolerated, [*unexplained])


Common = tuple[list[Pair], list[OptimizerStep], list[OptimizerStep]]
"""Parameters that one optimizer trains in each run, and its steps in both runs."""


def _common_networks(a: Run, b: Run, pairs: Sequence[Pair]) -> Iterator[Common]:
    """Split the parameters of two optimizers by their learning rates, too."""
    for left, right in itertools.product(a.networks, b.networks):
        by_rates: dict[tuple[float | None, ...], list[Pair]] = {}
        for pair in pairs:
            if _trains(left, pair.old) and _trains(right, pair.new):
                rates = left.steps[0].rates.get(pair.old[0]), right.steps[0].rates.get(pair.new[0])
                by_rates.setdefault(rates, []).append(pair)
        for own in by_rates.values():
            yield own, list(left.steps), list(right.steps)
    if not (a.networks and b.networks) and pairs:
        left_steps, right_steps = ([step for each in run.networks for step in each.steps] for run in (a, b))
        yield list(pairs), left_steps, right_steps


def _trains(network: Network, names: Sequence[str]) -> bool:
    return not network.names or any(name in network.names.values() for name in names)


def _compare(
    runs: PairedRuns,
    pairs: Sequence[Pair],
    left: Sequence[OptimizerStep],
    right: Sequence[OptimizerStep],
    unexplained: dict[str, None],
) -> Iterator[Finding]:
    a, b = runs.sides
    if rows := squared_rows(a, b, left, right):
        yield rows
        return
    single = [pair for pair in pairs if pair.is_single and _is_known(a, pair.old[0]) and _is_known(b, pair.new[0])]
    old, new = (
        side_of(run, {pair.name: pair.sides[place][0] for pair in single}, steps)
        for place, (run, steps) in enumerate(((a, left), (b, right)))
    )
    if old.is_unclipped != new.is_unclipped:
        yield _unclipped(*((a, b) if old.is_unclipped else (b, a)), is_old=old.is_unclipped)
        return
    if not (old.recipes and new.recipes):
        unexplained |= {side.run.name: None for side in (old, new) if side.is_known and not side.recipes}
        yield from compare_settings(a, b, left, right, [old.rates, new.rates])
        return
    found = [old.recipes, new.recipes]
    rates = None if old.rates is None or new.rates is None else [old.rates, new.rates]
    if rates:
        found = [[each._replace(rates=own) for each in every] for every, own in zip(found, rates, strict=True)]
        if recorded := other_rates(a, b, rates):
            yield recorded
    recipe, other = closest(*found)
    differing = differences(recipe, other)
    yield from () if any(each.setting == DECAY for each in differing) else other_decay(b, left, right)
    place = next((each.old for each in differing if each.setting == PLACE_OF_EPS), None)
    for difference in differing:
        if difference.setting != RATE:
            finding = _finding(a, b, difference, left, right, place)
            if difference.setting in ("eps", PLACE_OF_EPS):
                finding = finding._replace(effect=effect(old.steps, recipe, difference.setting, difference.new))
            yield finding
        elif not rates:  # recorded rates are exact
            yield rate_finding(a, b, [_listed(difference.old), _listed(difference.new)], SAME_RATE)


class Side(NamedTuple):
    """What one run does to the parameters of one optimizer."""

    run: Run
    steps: Sequence[Step]
    recipes: Sequence[Recipe]
    rates: Sequence[float] | None
    """The recorded learning rates."""

    is_unclipped: bool
    """Whether the updates follow from the gradients before the clip, and not from those that it returns."""

    @property
    def is_known(self) -> bool:
        return any(step.updates is not None for step in self.steps)


def side_of(run: Run, names: Mapping[str, str], optimizer_steps: Sequence[OptimizerStep]) -> Side:
    """names: {name in the old run: name in this run}."""
    steps, rates = known_steps(run, names), _recorded_rates(optimizer_steps, [*names.values()])
    settings = [step.settings for step in optimizer_steps[:1]]

    def fitting(each: Sequence[Step]) -> list[Recipe]:
        found = [recipe for recipe in recipes(each, settings) if rates is None or _agree(recipe.rates, rates)]
        # several constants can explain the same updates
        return [recipe for recipe in found if _has_recorded(recipe, settings)] or found

    found, is_unclipped = fitting(steps), False
    if not run.is_late and not (found if rates is not None else any(map(_is_constant, found))):
        raw = fitting(known_steps(run, names, lambda each: each.raw))
        is_unclipped = bool(raw) and (rates is not None or any(map(_is_constant, raw)))
    return Side(run, steps, found, rates, is_unclipped)


def _agree(rates: Sequence[float], recorded: Sequence[float]) -> bool:
    """Rates that contradict the recorded ones only seem to explain the updates."""
    pairs = zip(rates, recorded, strict=False)
    return all(math.isnan(x) or math.isclose(x, y, rel_tol=SAME_RATE, abs_tol=TINY) for x, y in pairs)


def _has_recorded(recipe: Recipe, settings: Sequence[Mapping[str, object]]) -> bool:
    return all(
        same_setting(recipe.settings.get(name, value), value) for each in settings for name, value in each.items()
    )


def _is_constant(recipe: Recipe) -> bool:
    rates = [rate for rate in recipe.rates if not math.isnan(rate)]
    return all(math.isclose(rate, rates[0], rel_tol=SAME_RATE) for rate in rates)


def _unclipped(run: Run, other: Run, *, is_old: bool) -> Finding:
    sentence = (
        f"the updates of {run.name} follow from the gradients before its clip, and not from those that the clip "
        f"returns, as in {other.name}"
    )
    fix = f"In {run.name}, use the result of the clip"
    values = in_order("other gradients", "the clipped gradients", is_old)
    return Finding(1, "the clip does not reach the step", "gradients of the step", sentence, fix, *values)


def _unmoved(runs: PairedRuns, side: int) -> list[Pair]:
    """Return the parameters whose weights only the other run changes."""
    own, other = _changes(runs.sides[side]), _changes(runs.sides[1 - side])
    return [
        pair for pair in runs.pairs if own.get(pair.sides[side]) == 0 and other.get(pair.sides[1 - side], 0) > LEAST
    ]


def _changes(run: Run) -> dict[tuple[str, ...], float]:
    """Return the largest change of each weight with a gradient, as a fraction of its largest element."""
    floors = [run.noise_floor(number) for number in range(1, 1 + max(map(len, run.parameters.values()), default=0))]
    changes: dict[tuple[str, ...], float] = {}
    for name, steps in run.parameters.items():
        known = [(each.weight, each.update) for each in steps if each.weight is not None and each.update is not None]
        if known and any((each.raw_norm or 0.0) > floor for each, floor in zip(steps, floors, strict=False)):
            most = [
                max(float(np.abs(array).max(initial=0.0)) for array in arrays) for arrays in zip(*known, strict=True)
            ]
            changes[(name,)] = most[1] / (most[0] or 1.0)
    return changes


def _unmoved_finding(runs: PairedRuns, pairs: Sequence[Pair], side: int) -> Finding:
    run, other = runs.sides[side], runs.sides[1 - side]
    sentence = (
        f"the steps of {run.name} do not change {names_text([pair.sides[side][0] for pair in pairs])}, which "
        f"{other.name} changes, although they have gradients"
    )
    fix = (
        f"In {run.name}, pass these parameters to an optimizer, and call its step(). An optimizer does not get "
        "parameters that are created or replaced after it is made, and those of a copy of the model are others"
    )
    values = in_order("not changed", "changed", side == 0)
    return Finding(1, "weights are not updated", "weights after the step", sentence, fix, *values)


def known_steps(
    run: Run, names: Mapping[str, str], part: Callable[[ParameterStep], Float64s | None] = lambda each: each.gradient
) -> list[Step]:
    """Return the steps up to the first one whose gradients or weights are unknown."""
    known = [*names][:MOST_TENSORS]
    found: list[Step] = []
    for steps in zip(*(run.parameters[names[name]] for name in known), strict=False):
        gradients = _all_known(map(part, steps))
        weights = _all_known(each.weight for each in steps)
        if gradients is None or (weights is None and found):
            break
        weights = weights or [np.zeros(len(each)) for each in gradients]  # unknown before a late clip, and not needed
        updates = _all_known(each.update for each in steps)
        moved = None if updates is None else dict(zip(known, updates, strict=True))
        left, right = (dict(zip(known, each, strict=True)) for each in (gradients, weights))
        found.append(Step(left, right, moved))
    return found


def _is_known(run: Run, name: str) -> bool:
    first = run.first(name)
    return first.gradient is not None and (first.weight is not None or run.is_late)


def _all_known(values: Iterable[Float64s | None]) -> list[Float64s] | None:
    listed = list(values)
    known = [each for each in listed if each is not None]
    return known if known and len(known) == len(listed) else None


def _recorded_rates(steps: Sequence[OptimizerStep], names: Sequence[str]) -> list[float] | None:
    """Return the recorded learning rate of each step, or None if it is unknown or differs between the parameters."""
    rates = []
    for step in steps:
        own = {step.rates[name] for name in names if name in step.rates}
        value = own.pop() if len(own) == 1 else step.settings.get("lr")
        if isinstance(value, tuple) or value is None:
            return None
        rates.append(float(value))
    return rates or None


KINDS: Mapping[str, CauseKind] = {RATE: "another learning rate", PLACE_OF_EPS: "another place of the optimizer's eps"}


PHRASES: Mapping[str, str] = {
    PLACE_OF_EPS: "eps is added {}",
    DECAY_OF: "weight decay is added to {}",
    UNDECAYED: "the parameters without weight decay are {}",
    "nesterov": "the momentum of Nesterov is {}",
    "learning rates in the momentum": "a momentum of updates, which keeps earlier learning rates, is {}",
}

USED: Mapping[object, str] = {True: "used", False: "not used", None: "not used"}
"""The text of a setting that is on or off."""


def _finding(
    a: Run,
    b: Run,
    found: Difference,
    left: Sequence[OptimizerStep],
    right: Sequence[OptimizerStep],
    place_of_eps: object,
) -> Finding:
    """place_of_eps: Where the old run adds eps, if the new run adds it at another place."""
    phrase = PHRASES.get(found.setting, f"{found.setting} is {{}}")
    if found.setting == UNDECAYED:
        found = found._replace(**{side: names_text(each) for side in ("old", "new") if (each := getattr(found, side))})
    is_flag = any(each is True for each in (found.old, found.new))
    old, new = (phrase.format(USED[each] if is_flag else value_text(each)) for each in (found.old, found.new))
    optimizers = [f" ({steps[0].optimizer})" if steps and steps[0].optimizer else "" for steps in (left, right)]
    sentence = f"by the updates, {old} in {a.name}{optimizers[0]}, and {new} in {b.name}{optimizers[1]}"
    fix = f"Change the optimizer of {b.name}: {old}"
    is_of_eps = found.setting in ("eps", PLACE_OF_EPS) and left and right
    if is_of_eps and (formula := _eps_formula(left[0], place_of_eps)):
        fix = f"Before each optimizer.step() of {b.name}, set eps to {formula}, where t counts the steps from 1"
        if right[0].optimizer.startswith("torch."):
            fix += f': `for group in optimizer.param_groups: group["eps"] = {formula}`'
    kind = KINDS.get(found.setting, "another optimizer")
    return Finding(1, kind, found.setting, sentence, fix, found.old, found.new)


def _eps_formula(step: OptimizerStep, place: object) -> str:
    """Return the eps that has the same effect after the bias correction."""
    eps, betas = step.settings.get("eps"), step.settings.get("betas")
    if place != "before the bias correction" or not isinstance(betas, tuple) or not isinstance(eps, float):
        return ""
    return f"{eps!r} / (1 - {betas[1]!r}**t) ** 0.5"


def _listed(rates: object) -> list[float]:
    """A constant rate is one number."""
    return [float(each) for each in rates] if isinstance(rates, tuple) else [float(str(rates))] * MOST_STEPS
