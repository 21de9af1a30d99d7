"""Compare the clips of a recorded run with a clip configuration: `unified-clip record --check`."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from .._kit.display import counted
from ..config.check_rules import CheckRules
from ..config.clip_config import ClipConfig
from ..config.explain import describe
from ..config.schedules import threshold_at
from ..config.schema import Clipping, is_off
from ..config.selection import ParameterSelection
from ..errors import ClipWarning, ConfigError
from ..recorder.hooks import NOT_RECORDED
from ..recording.lines import without_calls
from ..recording.recorded_run import OptimizerStep, RecordedCall, RecordedRun
from .clip_use import ClipUse, shown
from .clips_of_steps import are_paired, calls_before_steps, earlier_steps, in_rounds, is_clip, with_shared
from .judge import loading
from .model import CheckReport, Clip, Counts, Difference, Finding, Kind, Result
from .rules.entries import Entries, applied

RULES = {"global": "global_norm", "each": "norm", "value": "value"}
"""Maps the rule of a recorded call to the rule of a clip configuration."""

RAMP_ROUNDING = 2**-22
"""The largest relative difference between a threshold of a schedule in float32 and in float64."""

MOST_NAMES, MOST_RANGES = 5, 5

REPLACE = "Change this clip, or clip by {load} instead."
BEFORE_STEP = "Clip once per step: after the last backward pass, and before the step of the optimizer."
PASS_ALL = "Pass all parameters of the optimizer to the clip."
ONE_CALL = "Clip all gradients of the optimizer by one call."
PASS_RESULT = "Pass the results of the clip to the optimizer."
UNSCALE = "Unscale the gradients before the clip, for example by scaler.unscale_(optimizer)."
UNSCALE_KERAS = "Let the optimizer in the LossScaleOptimizer clip, which gets unscaled gradients."

EARLY = "Gradients were clipped before the last backward pass of this step, or after the previous step."
LATE = "It clips gradients that the optimizer has already used."
LOST = "The optimizer gets {lost} of its {gradients} gradients as they were before a clip, not the results of the clip."
BY_HAND = "Code that is not recorded changed gradients between the backward pass and the step. It might clip."
HOOKED = "Parameters have hooks of Tensor.register_hook, which might clip in the backward pass."
LEFT_OUT = "The clips before this step leave out {left} of its {gradients} gradients{names}."
OWN_NORMS = "The gradients of this step were clipped by {calls} calls, each with its own norm. One norm is wanted."
ONE_NORM = "It clips parameters of several groups of {file} by one norm."
UNNAMED = "The clips before this step leave out {left} of its {gradients} gradients, and their names are unknown."
NO_NAMES = "The recording has no names of the gradients of clips, so groups were not compared. Record with --norms."
ONLY_A_RUN = "The threshold, which only a run knows"
"""The reason by which an entry of `check.ignore` with only a rule accepts every threshold."""

UNCHECKED = "The steps were not checked for missing or repeated clips: {reason}."
NO_STEPS = UNCHECKED.format(reason="no step of an optimizer was recorded")
NOT_PAIRED = "The recording does not show which clip belongs to which step, so these steps were not checked."
OTHER_PROCESSES = "The steps of the first process were checked. For {others}, only the settings of clips were compared."


@dataclass(frozen=True)
class Problem:
    """A finding without its steps. Equal problems of several steps become one finding."""

    kind: Kind
    place: str | None
    clip: str
    does: str
    edit: str = ""
    differences: tuple[tuple[str, str, str], ...] = ()
    config: ClipConfig | None = field(default=None, compare=False)
    """What the clip does, for the entries of `check.ignore` that approve an effect."""


def check(run: RecordedRun, config: ClipConfig, clip: Path, *, nearest: bool = False) -> CheckReport:
    """Return a report about the clips that a run made. It lists equal findings of several steps once."""
    return _RunCheck(run, config, clip, nearest).report()


class _RunCheck:
    def __init__(self, run: RecordedRun, config: ClipConfig, clip: Path, nearest: bool) -> None:
        self._run, self._config, self._clip, self._nearest = run, config, clip, nearest
        self._entries = Entries(clip, config.check or CheckRules())
        self._steps: dict[Problem, list[int]] = {}
        self._notes: dict[str, None] = {}
        self._all_checked = True  # whether all steps were checked for missing and repeated clips
        self._results: dict[tuple[str | None, str], Result] = {}

    def report(self) -> CheckReport:
        run = self._run
        self._check_steps(calls_before_steps(run), run.optimizer_steps)
        for line in (line for lines in run.others for line in lines):
            self._check_settings(line, 0)
        if run.others:
            self._notes[OTHER_PROCESSES.format(others=counted(len(run.others), "other process"))] = None
        if not (self._results or self._steps or (run.optimizer_steps and is_off(self._config))):
            advice = without_calls(run.header.exit_status, run.header.processes)
            self._steps[Problem("unknown", None, run.name, "The run has no recorded clip.", advice)] = []
        all_findings = [self._finding(problem, steps) for problem, steps in self._steps.items()]
        findings = [each for each in all_findings if each.ignored is None]
        found = {(each.path, each.line, each.clip) for each in findings}
        clips = [self._listed(place, name, result, found) for (place, name), result in self._results.items()]
        return CheckReport(
            version=1,
            config=shown(self._clip),
            wanted=describe.sentences(self._config),
            headline=self._headline(findings, len(all_findings) - len(findings)),
            clips=clips,
            findings=findings,
            ignored=[each for each in all_findings if each.ignored is not None],
            accepted=[],
            notes=list(self._notes),
            counts=Counts(files=0, trainers=0, sources=0, clips=len(clips), unread=0),
        )

    def _headline(self, findings: Sequence[Finding], ignored: int) -> str:
        calls = sum(len(each) for each in (self._run.lines, *self._run.others))
        checked = f"{counted(calls, 'recorded clip')} in {counted(len(self._run.optimizer_steps), 'step')}"
        outcome = counted(len(findings), "finding") if findings else f"as in {self._clip.name}"
        outcome += f", {ignored} ignored" if ignored else ""
        return f"{checked}: {outcome}{'' if self._all_checked else ', but not all steps were checked'}."

    def _check_steps(self, windows: Sequence[Sequence[RecordedCall]], steps: Sequence[OptimizerStep]) -> None:
        numbers = earlier_steps(steps)
        for lines, earlier in zip(windows, numbers, strict=True):
            for line in lines:
                self._check_settings(line, earlier)
        lost = [warning for warning in self._run.warnings if NOT_RECORDED in warning]
        if not steps:
            self._leave_unchecked(NO_STEPS)
        elif lost:
            self._all_checked = False
            for does, _, rest in (warning.partition(". ") for warning in lost):
                does = UNCHECKED.format(reason=does.rstrip("."))
                self._steps[Problem("unknown", None, self._run.name, does, rest)] = []
        elif not is_off(self._config):
            if rounds := in_rounds(windows, steps, self._config.uses_names):
                windows, steps, paired = [lines for lines, _ in rounds], [step for _, step in rounds], True
                numbers = [*range(len(rounds))]
            else:
                windows = with_shared(windows, steps)
                paired = are_paired(windows, steps)
            for lines, step, earlier in zip(windows, steps, numbers, strict=False):
                for problem in self._problems_of_step(step, [each for each in lines if is_clip(each)], paired):
                    self._add(earlier + 1, problem)

    def _leave_unchecked(self, note: str) -> None:
        self._notes[note], self._all_checked = None, False

    # -- settings

    def _check_settings(self, line: RecordedCall, step: int) -> None:
        """step: The number of earlier steps of the optimizer, for schedules."""
        if line.late:
            self._add(step, Problem("drift", line.place, line.call, LATE, BEFORE_STEP))
        if not is_clip(line):
            return
        result: Result = "same"
        for problem in self._problems_of_call(line, step):
            allowed = self._nearest or self._entries.of_file("nearest", Path(self._location(line.place)[0]))
            is_near = allowed and {about for about, *_ in problem.differences} == {"eps"}
            result = "near" if is_near and result == "same" else result
            if not is_near:
                self._add(step + 1, problem)
                result = problem.kind  # type: ignore[assignment]  # a call is not "unused"
        key = line.place, line.call
        self._results[key] = result if self._results.get(key, "same") in ("same", "near") else self._results[key]

    def _problems_of_call(self, line: RecordedCall, step: int) -> Iterator[Problem]:
        if line.loss_scale not in (None, 1.0):
            does = "It clips gradients that are still multiplied by the loss scale."
            advice = UNSCALE_KERAS if line.framework == "tensorflow" else UNSCALE
            yield Problem("drift", line.place, line.call, does, advice)
        if line.rule not in RULES or (line.threshold is None and not is_off(self._config)):
            does = f"The effect is unknown: the rule is {line.rule}, and the threshold is {line.threshold}."
            yield Problem("unknown", line.place, line.call, does)
            return
        if any(part.adaptive for part in self._config.parts):
            self._notes[f"{self._clip.name} computes the threshold from norms, so thresholds were not compared."] = None
        if self._config.uses_names and not line.parameters:
            self._notes[NO_NAMES] = None
        parts = self._parts_of(line)
        if len(parts) > 1 and len(self._config.parts) > 1 and line.parameters and line.rule == "global":
            yield Problem("drift", line.place, line.call, ONE_NORM.format(file=self._clip.name))
        if differences := min((_differences(line, part, step) for part in parts), key=len):
            does = f"It does not clip as {self._clip.name} does."
            yield Problem("drift", line.place, line.call, does, "", tuple(differences), self._config_of(line))
        if self._config.uses_names and (wrong := self._excluded(list(line.parameters))):
            does = f"It clips {_some(wrong)}, which {self._clip.name} excludes."
            yield Problem("drift", line.place, line.call, does)
        if self._config.nonfinite != "family" and line.watched and not all(map(math.isfinite, line.known_norms())):
            does = "It applies its formula to a norm that is inf or NaN."
            difference = ("the result if the norm is not finite", "clipped", self._config.nonfinite)
            yield Problem("drift", line.place, line.call, does, "", (difference,), self._config_of(line))

    def _config_of(self, line: RecordedCall) -> ClipConfig | None:
        """Return the rule, norm type and threshold of a call, for entries of `check.ignore` that approve an effect."""
        rule, order = RULES[line.rule or ""], {"norm_type": line.order or 2.0, "family": self._config.family}
        settings = {
            "include": self._config.include,
            "exclude": self._config.exclude,
            **(order if rule != "value" else {}),
        }
        names = ("min", "max") if isinstance(line.threshold, tuple) else ("threshold",)
        limits = line.threshold if isinstance(line.threshold, tuple) else (line.threshold or 0.0,)
        with contextlib.suppress(ConfigError):
            return ClipConfig(rule=rule, **settings, **dict(zip(names, map(_decimal, limits), strict=True)))
        return None

    def _parts_of(self, line: RecordedCall) -> Sequence[Clipping]:
        """Return the parts of the configuration for the parameters of a call, or all parts if that is unknown."""
        *groups, _ = self._selected(list(line.parameters)) if self._config.uses_names else [[]]
        named = [part for part, names in zip(self._config.parts, groups, strict=False) if names]
        return named or self._config.parts

    def _excluded(self, names: Sequence[str]) -> list[str]:
        return self._selected(names)[-1]

    def _selected(self, names: Sequence[str]) -> list[list[str]]:
        with warnings.catch_warnings():  # about patterns that match none of these names
            warnings.simplefilter("ignore", ClipWarning)
            return ParameterSelection(self._config, None).parameters({name: name for name in names}) or [[]]

    # -- steps

    def _problems_of_step(self, step: OptimizerStep, lines: Sequence[RecordedCall], paired: bool) -> Iterator[Problem]:
        if step.changed_after_clip:
            yield _of_step(step, "drift", "Code that is not recorded changed gradients between the clip and the step.")
        if step.lost_clips and any(line.clipped is not False for line in lines):  # otherwise, nothing was lost
            does = LOST.format(lost=step.lost_clips, gradients=step.gradients)
            yield _of_step(step, "missing", does, ClipConfig(rule="none"), PASS_RESULT)
        elif step.clip_counts is not None:
            yield from self._problems_of_counts(step, step.clip_counts)
        elif not paired:
            self._leave_unchecked(NOT_PAIRED)
        elif not lines:
            yield _of_step(step, "missing", "No clip was recorded before this step.", ClipConfig(rule="none"))
        elif step.gradients is not None and not self._config.uses_names:
            clipped = sum(line.count or 0 for line in lines)
            if clipped < step.gradients:
                left = step.gradients - clipped
                does = LEFT_OUT.format(left=left, gradients=step.gradients, names="")
                yield _of_step(step, "missing", does, edit=PASS_ALL)
            elif clipped > step.gradients:
                yield _of_step(step, "drift", "Some gradients were clipped more than once before this step.")
            elif self._has_one_norm and sum(line.rule == "global" for line in lines) > 1:
                yield _of_step(step, "drift", OWN_NORMS.format(calls=len(lines)), edit=ONE_CALL)

    @property
    def _has_one_norm(self) -> bool:
        return [part.rule for part in self._config.parts] == ["global_norm"]

    def _problems_of_counts(self, step: OptimizerStep, counts: dict[int, int]) -> Iterator[Problem]:
        left, gradients = counts.get(0, 0), sum(counts.values())
        if (most := max(counts, default=0)) > 1:
            yield _of_step(step, "drift", f"Gradients were clipped {most} times before this step.")
        elif self._has_one_norm and step.clip_calls:
            yield _of_step(step, "drift", OWN_NORMS.format(calls=step.clip_calls), edit=ONE_CALL)
        if step.clipped_early:
            yield _of_step(step, "drift", EARLY)
        excluded = self._excluded(step.unclipped) if self._config.uses_names else []
        names = [name for name in step.unclipped if name not in excluded]
        if left and left == gradients:
            is_right = step.clipped_early or (excluded and not names)
            yield from [] if is_right else [_without_clip(step)]
        elif left and self._config.uses_names and not step.unclipped:
            yield _of_step(step, "unknown", UNNAMED.format(left=left, gradients=gradients))
        elif names or (left and not self._config.uses_names):
            text = f": {_some(names)}" if names else ""
            does = LEFT_OUT.format(left=len(names) or left, gradients=gradients, names=text)
            yield _of_step(step, "missing", does, edit=PASS_ALL)

    # -- the report

    def _add(self, step: int, problem: Problem) -> None:
        self._steps.setdefault(problem, []).append(step)

    def _finding(self, problem: Problem, steps: Sequence[int]) -> Finding:
        path, line = self._location(problem.place)
        finding = Finding(
            kind=problem.kind,
            path=path,
            line=line,
            column=1,
            clip=problem.clip,
            does=problem.does,
            wanted=" ".join(describe.sentences(self._config)),
            differences=[Difference(about=a, found=found, wanted=wanted) for a, found, wanted in problem.differences],
            effect=f"{problem.does} {_ranges(steps)}" if problem.kind == "drift" else _ranges(steps),
            edit=problem.edit or REPLACE.format(load=loading(self._clip, Path(path))),
        )
        use = ClipUse(Path(path), line, 1, problem.clip, config=problem.config)
        if problem.config is not None and not is_off(problem.config):
            use = replace(use, rule=problem.config, why_unknown=ONLY_A_RUN)
        return applied(self._entries, use, finding, self._config)

    def _listed(self, place: str | None, name: str, result: Result, found: Set[tuple[str, int, str]]) -> Clip:
        path, line = self._location(place)
        result = result if result in ("same", "near") or (path, line, name) in found else "ignored"
        return Clip(path=path, line=line, column=1, clip=name, format="", family="", result=result)

    def _location(self, place: str | None) -> tuple[str, int]:
        path, _, line = (place or "").rpartition(":")
        return (path, int(line)) if path else (shown(self._run.path), 1)


def _differences(line: RecordedCall, part: Clipping, step: int) -> list[tuple[str, str, str]]:
    found = {
        "rule": RULES[line.rule or ""], "bounds": line.threshold, "threshold": line.threshold,
        "norm_type": line.order, "eps": line.eps,
    }  # fmt: skip
    differing = [(about, found[about], wanted) for about, wanted in _wanted(part, step).items()]
    differences = [each for each in differing if not _same(*each[1:])]
    if any(about == "rule" for about, *_ in differences):  # then eps and norm_type say nothing
        differences = [each for each in differences if each[0] in ("rule", "threshold", "bounds")]
    return [(about, _text(value), _text(wanted)) for about, value, wanted in differences]


def _wanted(part: Clipping, step: int) -> dict[str, object]:
    """Return the settings that a recorded call has in common with a part of a configuration."""
    wanted: dict[str, object] = {"rule": part.rule}
    threshold = None if part.threshold is None else threshold_at(part.threshold, step)
    if part.rule == "value":
        wanted["bounds"] = part.as_clip_rule(threshold).bounds
    elif part.rule != "none":
        wanted |= {"norm_type": part.norm_type or 2.0, "eps": part.as_clip_rule(1.0).convention.eps}
        wanted |= {"threshold": threshold} if part.adaptive is None else {}
    return wanted


def _of_step(
    step: OptimizerStep, kind: Kind, does: str, config: ClipConfig | None = None, edit: str = BEFORE_STEP
) -> Problem:
    return Problem(kind, step.place, step.optimizer, does, edit, config=config)


def _without_clip(step: OptimizerStep) -> Problem:
    if step.changed or step.hooks:
        return _of_step(step, "unknown", BY_HAND if step.changed else HOOKED)
    if step.empty_clips:
        return _of_step(step, "missing", "The clip before this step got no gradients.")
    return _of_step(step, "missing", "Its gradients were not clipped.", ClipConfig(rule="none"))


def _same(found: object, wanted: object) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=RAMP_ROUNDING) or found == wanted
    return found == wanted


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return describe.number(value) if isinstance(value, float) else str(value)


def _decimal(number: float) -> float:
    """Return 0.1 for 0.1 in float32."""
    decimal = float(f"{number:.6g}")
    return decimal if _same(number, decimal) else number


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _ranges(steps: Sequence[int]) -> str:
    """Return a text such as "Steps 1 to 3, 7."."""
    ordered = sorted(set(steps))
    ends = [index for index, step in enumerate(ordered) if step + 1 not in ordered[index + 1 : index + 2]]
    starts = [0, *(end + 1 for end in ends)]
    parts = [f"{ordered[a]} to {ordered[b]}" if a < b else f"{ordered[a]}" for a, b in zip(starts, ends, strict=False)]
    more = [f"and {counted(len(parts) - MOST_RANGES, 'more range')}"] if len(parts) > MOST_RANGES else []
    text = ", ".join([*parts[:MOST_RANGES], *more])
    return f"Step{'s' * (len(ordered) > 1)} {text}." if text else ""
