"""Compare two recorded runs: identify what each run does, and find where both differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .._command.progress import Advance, unseen
from ..recipes.compare import Comparison, compare_recipes
from ..recipes.finding import Finding
from ..recipes.missing_clips import clip_by_hand
from ..recipes.run import Run
from ..recording.lines import without_calls
from ..recording.recorded_run import RecordedRun
from ..recording.runs import RunError, read
from .losses import LoggedComparison, compare_logged, is_loss
from .parameter_names import Names, oriented

__all__ = ["RecordingComparison", "compare"]

PHASES = 2
INTERRUPTED = (-2, 130)
"""The exit statuses after Ctrl-C, which may end a recording on purpose."""


@dataclass(frozen=True)
class RecordingComparison:
    """The result of `compare`: how the recipes of two recorded runs differ."""

    a: RecordedRun
    b: RecordedRun
    recipes: Comparison
    findings: Sequence[Finding]
    """The differences, with the earliest first. Empty if the runs differ by rounding only."""

    logged: Sequence[LoggedComparison] = ()

    @property
    def runs(self) -> tuple[RecordedRun, RecordedRun]:
        return self.a, self.b

    @property
    def largest(self) -> float:
        """The largest difference of gradients, in units in the last place of their total norm in float32."""
        return max(self.recipes.distances.values(), default=0.0)

    @property
    def exit_code(self) -> int:
        return 1 if self.findings else 0


def compare(
    a: str | Path,
    b: str | Path,
    *,
    names: Names | None = None,
    max_ulp: float | None = None,
    labels: Sequence[str | None] = (None, None),
    advance: Advance = unseen,
) -> RecordingComparison:
    """Identify the recipe of each of two recorded runs, and find the differences of the recipes.

    A recipe has the weights and gradients that a run begins with, its clips, and its optimizer. Each run explains its
    own updates, so several mistakes do not hide each other.

    Args:
        a: The file of a recording, best with `norms=True`.
        b: The file of the other recording.
        names: Maps parameter names of one run to parameter names of the other run. All keys belong to the same run.
        max_ulp: The largest tolerated difference of gradients, in ULP of their total norm in float32. By default, what
            rounding explains.
        labels: Names of the two runs in printed sentences. The default is the name of each file, with enough folders to
            distinguish the files.
        advance: A function (bar, count) that moves the progress bars "read" and "compare".

    Returns:
        The differences, and how closely the runs agree.

    Raises:
        RunError: A file cannot be read, or is not a recording. A run contains no successful clip call. Nothing can be
            compared. A name in `names` is in neither run. Some keys of `names` belong to the first run, and other keys
            belong to the second run.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import unified_clip
        >>> from unified_clip.compare.recordings import compare
        >>> grads = [np.array([3.0, 4.0], np.float32)]
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     paths = [Path(directory, name) for name in ("old.jsonl", "new.jsonl")]
        ...     for path, threshold in zip(paths, (1.0, 0.5)):
        ...         with unified_clip.record(path):
        ...             _ = unified_clip.clip_by_global_norm(grads, threshold)
        ...     result = compare(*paths)
        >>> result.findings[0].field, result.findings[0].old, result.findings[0].new
        ('threshold', 1.0, 0.5)
    """
    names_of_runs = (label or name for label, name in zip(labels, _distinct_names(a, b), strict=True))
    left, right = (read(path, name, partial(advance, "read")) for path, name in zip((a, b), names_of_runs, strict=True))
    are_sampled = all(any(step.tensors for step in run.optimizer_steps) for run in (left, right))
    for run in (left, right):
        if not run.optimizer_steps or not (left.lines or right.lines or are_sampled):
            check_clipped(run)
    advance("compare", 1)
    runs = Run(left), Run(right)
    pairs = oriented(names or {}, *((run.path, _parameters(run)) for run in (left, right)))
    recipes = compare_recipes(*runs, pairs, max_ulp)
    advance("compare", 1)
    if not recipes.findings and not (recipes.pairs and recipes.steps):
        raise RunError(
            f"{left.path} and {right.path}: Nothing was compared, because no gradient of one run matches one of the "
            "other. Record both runs with --norms, or with norms=True in Python, and match the names with --map.",
            "UC502",
        )
    largest = 0.0 if recipes.findings else max(recipes.distances.values(), default=0.0)
    logged = compare_logged(left, right, largest)
    findings = list(recipes.findings) or _shorter(left, right, runs)
    if not findings:
        findings = [_of_loss(each) for each in logged if each.first and is_loss(each.name)]
    return RecordingComparison(left, right, recipes, sorted(findings, key=lambda each: each.step), logged)


def _of_loss(logged: LoggedComparison) -> Finding:
    assert logged.first is not None
    sentence = (
        f"{logged.name} is {logged.first.old:.9g} and {logged.first.new:.9g}. The gradients agree, so the scripts "
        "compute or log this number in different ways"
    )
    return Finding(logged.first.step, "other data or loss", logged.name, sentence, "", *logged.first[1:3])


def _shorter(a: RecordedRun, b: RecordedRun, runs: tuple[Run, Run]) -> list[Finding]:
    """A run that ended by itself earlier than the other one trains differently."""
    counts = [max(map(len, run.parameters.values()), default=0) for run in runs]
    if counts[0] == counts[1] or not all(counts):
        return []
    run, other = (a, b) if counts[0] < counts[1] else (b, a)
    if any(each.header.exit_status in INTERRUPTED or each.incomplete_line for each in (a, b)):
        return []
    sentence = f"{run.name} ends after {min(counts)} of the {max(counts)} steps of {other.name}"
    if error := next((f"{line.call} raised an error ({line.error})" for line in run.lines if line.error), ""):
        sentence += f". {error}"
    return [Finding(min(counts) + 1, "one run is shorter", "number of steps", sentence, "", *counts)]


def _parameters(run: RecordedRun) -> set[str]:
    return set().union(*(line.parameters for line in run.lines), *(step.parameters for step in run.optimizer_steps))


def _distinct_names(a: str | Path, b: str | Path) -> tuple[str, str]:
    paths = [Path(path).parent.resolve() / Path(path).name for path in (a, b)]
    lengths = range(1, max(len(path.parts) for path in paths) + 1)
    names = ([str(Path(*path.parts[-length:])) for path in paths] for length in lengths)
    return next(((old, new) for old, new in names if old != new), (paths[0].name, paths[1].name))


def check_clipped(run: RecordedRun) -> None:
    if any(line.rule is not None for line in run.lines):
        return
    if not run.lines and (by_hand := clip_by_hand(run, run.optimizer_steps)):
        sentence, advice = by_hand
        raise RunError(f"{run.path}: {sentence[:1].upper()}{sentence[1:]}. {advice}.", "UC502")
    if not run.lines:
        raise RunError(f"{run.path}: {without_calls(run.header.exit_status, run.header.processes)}", "UC502")
    errors = [line.error for line in run.lines if line.error]
    without = len(run.lines) - len(errors)
    reasons = [f"{len(errors)} raised an error ({errors[0]})"] if errors else []
    reasons += [f"{without} got no gradient"] if without else []
    remedies = ["Correct the error, and record the run again."] if errors else []
    remedies += ["Clip after the backward pass, and pass parameters that have gradients."] if without else []
    problem = f"{run.path}: None of the {len(run.lines)} recorded calls has a result: {', '.join(reasons)}"
    raise RunError(f"{problem}. {' '.join(remedies)}", "UC502")
