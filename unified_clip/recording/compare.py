"""Compare two recorded runs: find the first step and parameter at which they differ, and why."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from .._command.progress import Advance, unseen
from ..causes.cause import Cause
from .causes.eps_causes import first_other_eps
from .causes.join_causes import ROUNDED, Effect, effective, is_rounding, join
from .causes.order_of_calls import RULES_FOR_GLOBAL, other_networks, with_rule_divergence
from .causes.run_causes import find_causes
from .divergence import Agreement, Divergence, DivergencePoint, StepDifference, agreements, divergences
from .lines import without_calls
from .losses import LoggedComparison, compare_logged, is_loss
from .not_compared import not_compared
from .optimizers.clips_of_step import changes_by_hand, is_empty
from .optimizers.skipped_steps import align_skipped, have_same_rates, without_steps
from .optimizers.step_alignment import align_optimizers, join_steps, number_calls
from .optimizers.step_differences import step_differences
from .optimizers.unmoved_weights import unmoved_weights
from .pairs.calls import CallPair, MissingCalls, align_calls, pair_calls
from .pairs.loops import merge_loops
from .pairs.parameters import Names, names_from_a_to_b
from .recorded_run import RecordedRun
from .rounding import GROWTH, ROUNDING
from .runs import RunError, read

__all__ = ["RecordingComparison", "compare"]

PHASES = 3

MOST_ROUNDING = 0.01
"""Larger relative differences are not tolerated as rounding."""


@dataclass(frozen=True)
class RecordingComparison:
    """The result of `compare`: the differences of two recorded runs, and their causes."""

    a: RecordedRun
    b: RecordedRun
    max_ulp: float | None
    """Numbers that differ by up to this many units in the last place are treated as equal. None tolerates what rounding
    explains."""

    pairs: Sequence[CallPair]
    """The compared calls. Each pair has one call from each run."""

    divergences: Mapping[Divergence, Sequence[Cause]]
    """Maps each reported difference to its causes, with the earliest difference first. Differences that only rounding
    explains come last. Empty if the runs agree."""

    agreements: Sequence[Agreement]
    """How closely the runs agree in each quantity, such as the norm."""

    other_eps: tuple[Divergence, Cause] | None = None
    """The first coefficient that differs because the runs have different eps, and its `Cause`. None if the runs have
    the same eps, or if eps changes no coefficient. `max_ulp` does not affect `other_eps`."""

    logged: Sequence[LoggedComparison] = ()

    not_compared: Sequence[str] = ()
    """The recorded fields that differ, and that no divergence reports, such as "call.seconds"."""

    @property
    def runs(self) -> tuple[RecordedRun, RecordedRun]:
        return self.a, self.b

    @property
    def first(self) -> Divergence | None:
        """The first divergence, or None if the runs agree."""
        return next(iter(self.divergences), None)

    @property
    def findings(self) -> list[Cause]:
        """The causes of all divergences. Each kind of cause is listed once."""
        return list({each.kind: each for findings in self.divergences.values() for each in findings}.values())

    @property
    def unreported_eps(self) -> tuple[Divergence, Cause] | None:
        """`other_eps`, or None if a reported cause is already about eps."""
        return None if any(each.kind == "another eps of the clip" for each in self.findings) else self.other_eps

    @property
    def exit_code(self) -> int:
        return 0 if self.first is None else 1


def compare(
    a: str | Path,
    b: str | Path,
    *,
    names: Names | None = None,
    max_ulp: float | None = None,
    labels: Sequence[str | None] = (None, None),
    advance: Advance = unseen,
    has_effect: Effect | None = None,
) -> RecordingComparison:
    """Pair the calls of two recorded runs by step and position, and find the differences.

    Args:
        a: The file of a recording.
        b: The file of the other recording.
        names: Maps parameter names of one run to parameter names of the other run. All keys belong to the same run.
        max_ulp: Treat numbers as equal if they differ by up to this many ULP. See `Divergence.exceeds`. By default,
            report no difference that only rounding explains.
        labels: Names of the two runs in printed sentences. The default is the name of each file, with enough folders to
            distinguish the files.
        advance: A function (bar, count) that moves the progress bars "read" and "compare".
        has_effect: A function (step) that returns whether the updates of the runs differ at this step or later. With
            `at_once=True`, only this step counts. `verify` passes `has_effect`. If `has_effect` returns False
            for a step, `compare` does not report different optimizer settings at this step.

    Returns:
        The reported differences, the causes of each difference, and the agreement of the runs.

    Raises:
        RunError: A file cannot be read, or is not a recording. A run contains no successful clip call. No numbers
            can be compared. A name in `names` is in neither run. Some keys of `names` belong to the first run, and
            other keys belong to the second run.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import unified_clip
        >>> from unified_clip.recording.compare import compare
        >>> grads = [np.array([3.0, 4.0], np.float32)]
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     paths = [Path(directory, name) for name in ("old.jsonl", "new.jsonl")]
        ...     for path, threshold in zip(paths, (1.0, 0.5)):
        ...         with unified_clip.record(path):
        ...             _ = unified_clip.clip_by_global_norm(grads, threshold)
        ...     result = compare(*paths)
        >>> result.first.stage, result.first.a, result.first.b
        ('threshold', 1.0, 0.5)
    """
    names_of_runs = (label or name for label, name in zip(labels, _distinct_names(a, b), strict=True))
    left, right = (read(path, name, partial(advance, "read")) for path, name in zip((a, b), names_of_runs, strict=True))
    never_clip = [bool(run.optimizer_steps) and all(map(is_empty, run.lines)) for run in (left, right)]
    for run, never_clips in zip((left, right), never_clip, strict=True):
        if not never_clips or all(never_clip):
            check_clipped(run)
    left, right, pairs, missing, skipped, is_one_schedule = _pair_runs(left, right, names or {}, has_effect)
    runs = left, right
    networks = [] if has_effect else list(other_networks(left, right, pairs))
    for step in (each.divergence.step for each in networks):
        left, right = (without_steps(run, range(step, sys.maxsize)) for run in (left, right))
        pairs = [pair for pair in pairs if pair.a.step < step]
        missing = missing if missing and missing.step < step else None
    compared = agreements(pairs, max_ulp or 0.0)
    advance("compare", 1)
    points = [
        DivergencePoint(left, right, pairs, index, first, missing if index == len(pairs) else None)
        for first, index in _to_report(left, right, pairs, max_ulp or 0.0, missing)
    ]
    advance("compare", 1)
    causes = [find_causes(point) for point in points]
    points = list(map(with_rule_divergence, points, causes))
    of_steps = step_differences(left, right, {name: other for pair in pairs for name, other in pair.names.items()})
    if skipped and is_one_schedule:  # a skipped step shifts the learning rates of later iterations
        of_steps = [each for each in of_steps if each.divergence.stage != "learning rate"]
    unmoved = [] if has_effect else list(unmoved_weights(left, right, pairs))
    if unmoved:  # the wrong optimizer steps, and clears the gradients of other parameters
        of_steps = [each for each in of_steps if each.divergence.stage != "gradients cleared"]
    rates = [sorted(str(step.settings.get("lr")) for step in run.optimizer_steps) for run in (left, right)]
    acting = effective(of_steps, pairs, has_effect, have_one_set_of_rates=rates[0] == rates[1])
    differences = [*skipped, *unmoved, *acting, *networks]
    explained = join(points, {point.first: each for point, each in zip(points, causes, strict=True)}, differences)
    advance("compare", 1)
    at_first = (each for point, each in zip(points, causes, strict=True) if not point.index)
    if any(cause.kind in RULES_FOR_GLOBAL for each in at_first for cause in each):  # the norms have other gradients
        compared = [each for each in compared if each.stage in ("weight", "gradient")]
    if not (explained or compared):
        raise RunError(
            f"{left.path} and {right.path}: No numbers were compared. Without --norms, no norms are recorded for clips "
            "by value. Record both runs with --norms, or with norms=True in Python.",
            "UC502",
        )
    other_eps = first_other_eps(left, right, pairs)
    result = RecordingComparison(*runs, max_ulp, pairs, explained, compared, other_eps)
    if has_effect:
        return replace(result, logged=compare_logged(*runs, lambda each, _: each.exceeds(max_ulp or 0.0)))
    return _judge(result)


def _judge(comparison: RecordingComparison) -> RecordingComparison:
    """Sort rounding from mistakes, and compare the losses if nothing else explains why they differ."""
    a, b, pairs, max_ulp = comparison.a, comparison.b, comparison.pairs, comparison.max_ulp
    rounding = {each: causes for each, causes in comparison.divergences.items() if is_rounding(causes)}
    rest = {each: causes for each, causes in comparison.divergences.items() if each not in rounding}
    if (eps := comparison.unreported_eps) and not max_ulp:
        rest = dict(sorted([*rest.items(), (eps[0], [eps[1]])], key=lambda item: item[0].step))
    start = min((each.step for each in rest), default=sys.maxsize)
    largest = cache(partial(_largest_so_far, pairs, start))  # only a few comparisons need these numbers

    def is_beyond(difference: Divergence, before: float) -> bool:
        size = difference.ulps_at_its_size or 0.0
        if max_ulp is not None:
            return difference.exceeds(max_ulp)
        return size > ROUNDING and size > GROWTH * max(before, largest().get(difference.step, 0.0))

    logged = compare_logged(a, b, is_beyond)
    if not (rest or (rounding and max_ulp is not None)):
        rest = {each.first: [] for each in logged if each.first and is_loss(each.name)}
    if max_ulp is None:
        rest = {each: [cause for cause in causes if cause.kind not in ROUNDED] for each, causes in rest.items()}
        if not rest and any(each.greatest_relative > MOST_ROUNDING for each in comparison.agreements):
            rest = _too_far(pairs)
    reported = {"lr" if each.stage == "learning rate" else each.parameter or each.stage for each in rest}
    reported |= {cause.kind for causes in rest.values() for cause in causes}
    return replace(
        comparison,
        divergences=rest if max_ulp is None else {**rest, **rounding},
        logged=logged,
        not_compared=not_compared(a, b, pairs, reported),
    )


def _largest_so_far(pairs: Sequence[CallPair], start: int) -> dict[int, float]:
    """For each step before `start`, return the largest difference up to this step, in ULP at its size."""
    largest, so_far = 0.0, dict[int, float]()
    for each in itertools.chain.from_iterable(divergences(pairs, 0.0)):
        if each.step < start and not each.is_noise and math.isfinite(each.ulps_at_its_size or 0.0):
            so_far[each.step] = largest = max(largest, each.ulps_at_its_size or 0.0)
    return so_far


def _too_far(pairs: Sequence[CallPair]) -> dict[Divergence, Sequence[Cause]]:
    most = MOST_ROUNDING * (2.0**53 if all(pair.is_float64 for pair in pairs) else 2.0**24)
    every = itertools.chain.from_iterable(divergences(pairs, 0.0))
    far = next((each for each in every if not each.is_noise and (each.ulps_at_its_size or 0.0) > most), None)
    sentence = (
        f"the differences begin as rounding, and have grown to more than {100 * MOST_ROUNDING:g} %. From here on, "
        "rounding and a small mistake look the same. Compare fewer steps, or compare in float64: "
        "docs/my-loss-curve-differs.md#rounding"
    )
    return {far: [Cause("rounding that has grown", sentence)]} if far else {}


class _PairedRuns(NamedTuple):
    left: RecordedRun
    right: RecordedRun
    pairs: list[CallPair]
    missing: MissingCalls | None
    skipped: list[StepDifference]
    is_one_schedule: bool


def _pair_runs(left: RecordedRun, right: RecordedRun, names: Names, has_effect: Effect | None) -> _PairedRuns:
    skipped: list[StepDifference] = []
    is_one_schedule = False
    if not has_effect:
        left, right = number_calls(left, right)
    left, right = join_steps(left, right)
    if not has_effect:
        is_one_schedule = have_same_rates(left, right)
        left, right, skipped = align_skipped(left, right)
    left, right = merge_loops(left, right)
    shared_names = names_from_a_to_b(left, right, names)
    if not has_effect:
        right = align_optimizers(left, right, shared_names)
    left, right, missing = align_calls(left, right, shared_names)
    pairs = pair_calls(left, right, shared_names, math.inf if has_effect else None)
    return _PairedRuns(left, right, pairs, missing, skipped, is_one_schedule)


def _distinct_names(a: str | Path, b: str | Path) -> tuple[str, str]:
    paths = [Path(path).parent.resolve() / Path(path).name for path in (a, b)]
    lengths = range(1, max(len(path.parts) for path in paths) + 1)
    names = ([str(Path(*path.parts[-length:])) for path in paths] for length in lengths)
    return next(((old, new) for old, new in names if old != new), (paths[0].name, paths[1].name))


def check_clipped(run: RecordedRun) -> None:
    if any(line.rule is not None for line in run.lines):
        return
    if not run.lines:
        changes = changes_by_hand(run)
        remedy = "Use unified-clip verify, which compares the updates, or clip with a function of unified_clip."
        advice = changes and f" {changes[0].upper()}{changes[1:]}. {remedy}"
        raise RunError(f"{run.path}: {without_calls(run.header.exit_status, run.header.processes)}{advice}", "UC502")
    errors = [line.error for line in run.lines if line.error]
    without = len(run.lines) - len(errors)
    reasons = [f"{len(errors)} raised an error ({errors[0]})"] if errors else []
    reasons += [f"{without} got no gradient"] if without else []
    remedies = ["Correct the error, and record the run again."] if errors else []
    remedies += ["Clip after the backward pass, and pass parameters that have gradients."] if without else []
    problem = f"{run.path}: None of the {len(run.lines)} recorded calls has a result: {', '.join(reasons)}"
    raise RunError(f"{problem}. {' '.join(remedies)}", "UC502")


def _to_report(
    a: RecordedRun,
    b: RecordedRun,
    pairs: list[CallPair],
    max_ulp: float,
    missing: MissingCalls | None,
) -> list[tuple[Divergence, int]]:
    """Return (divergence, index of its pair of calls) for at most one divergence of each pair."""
    numeric: dict[str, tuple[Divergence, int]] = {}
    settings: dict[str, tuple[Divergence, int]] = {}
    allowed, earlier, noise = max(max_ulp, ROUNDING), 0.0, []
    later = _pairs_after(pairs, missing)
    for index, differences in enumerate(divergences(pairs, max_ulp)):
        if index in later:
            differences = [each for each in differences if each.ulps_at_its_size is None]
        noise += [(each, index) for each in differences if each.is_noise]
        for each in differences:
            if each.is_noise:
                continue
            numeric.setdefault("first", (each, index))
            if each.ulps_at_its_size is None:
                settings.setdefault(each.stage, (each, index))
            if each.ulps_at_its_size is None or each.ulps_at_its_size > allowed:
                numeric.setdefault("beyond rounding", (each, index))
            if each.ulps_at_its_size is None or each.ulps_at_its_size > max(allowed, GROWTH * earlier):
                numeric.setdefault("beyond growth", (each, index))
            if numeric.get("beyond growth", (None, -1))[1] == index and _is_own_jump(each, differences):
                numeric["beyond growth"] = (each, index)
        earlier = max([earlier, *(each.ulps_at_its_size for each in differences if each.ulps_at_its_size is not None)])
    rest = [line.step for run in (a, b) for line in run.lines[len(pairs) : len(pairs) + 1]]
    if rest and (missing or "beyond growth" not in numeric):  # otherwise it may follow from that divergence
        counts = [sum(line.step == min(rest) for line in run.lines) for run in (a, b)]
        settings["calls"] = (Divergence(min(rest), "calls", counts[0], counts[1]), len(pairs))
    if noise and not numeric and not settings:
        numeric["noise"] = noise[0]
    # the last divergence of a pair explains the whole pair
    chosen = {index: divergence for divergence, index in numeric.values()}
    for divergence, index in settings.values():
        chosen.setdefault(index, divergence)
    return [(chosen[index], index) for index in sorted(chosen)]


def _is_own_jump(divergence: Divergence, differences: Sequence[Divergence]) -> bool:
    sizes = [each.ulps_at_its_size for each in differences if each.stage != "coefficient" or each.ulps is None]
    if divergence.stage != "coefficient" or divergence.ulps is None or not sizes or None in sizes:
        return False
    return divergence.ulps > GROWTH * max(ROUNDING, *(size or 0.0 for size in sizes))


def _pairs_after(pairs: Sequence[CallPair], missing: MissingCalls | None) -> set[int]:
    if missing is None:
        return set()
    indices = [index for index, pair in enumerate(pairs) if pair.a.step == missing.step]
    return {index for place, index in enumerate(indices) if place in missing.later}
