"""Facts of recordings that no tensor shows: clips without gradients, hooks, passed norms, skipped steps, schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings import write_and_compare
from support.simulated_runs import ORDER, Clip, Optimizer, Training, run_lines

from unified_clip.recipes.finding import Finding

Line = dict[str, Any]
Lines = list[Line]

TRAINING = Training(steps=5)
UNCLIPPED = replace(TRAINING, clip=Clip("none"))


def is_step(line: Line) -> bool:
    return "optimizer" in line


def with_steps(**changes: Any) -> Callable[[Lines], Lines]:
    """Change each step of the optimizer."""
    return lambda lines: [{**line, **changes} if is_step(line) else line for line in lines]


def with_clips(change: Callable[[Line], Line]) -> Callable[[Lines], Lines]:
    return lambda lines: [line if is_step(line) else {**line, **change(line)} for line in lines]


def used(key: str, **changes: Any) -> Callable[[Line], Line]:
    """The function clips by a norm that is 10 % too large."""

    def change(line: Line) -> Line:
        norm = 1.1 * line["norm"]
        return {key: norm, "coef": line["threshold"] / (norm + line["eps"]), **changes}

    return change


def rows(line: Line) -> Line:
    norm = 1.1 * line["norm"]
    return {"passed_norm": norm, "stored_norm": norm, "coef": line["threshold"] / (norm + line["eps"])}


def overflow(lines: Lines, skipped: Sequence[int] = (3,)) -> Lines:
    """A loss scaler skips a step, because its gradients are infinite."""
    found = []
    for line in lines:
        if line["step"] in skipped and is_step(line):
            continue
        if line["step"] in skipped:
            gradients = {name: {**each, "norm": "inf"} for name, each in line["parameters"].items()}
            line = {**line, "norm": "inf", "coef": 0.0, "parameters": gradients, "inf": 1}
        found.append(line)
    return found


def zero(lines: Lines) -> Lines:
    """The gradients of step 2 are 0, as without a backward pass."""

    def cleared(tensors: Line) -> Line:
        return {name: {**each, "norm": 0.0, "sample": [0.0] * len(each["sample"])} for name, each in tensors.items()}

    return [
        line if line["step"] != 2 else {**line, "tensors": cleared(line["tensors"])}
        if is_step(line)
        else {**line, "norm": 0.0, "coef": 1.0, "parameters": cleared(line["parameters"])}
        for line in lines
    ]  # fmt: skip


FACTS: list[tuple[str, Training, Callable[[Lines], Lines], tuple[int, str, str, object, object]]] = [
    (
        "a clip before the backward pass", UNCLIPPED, with_steps(empty_clips=1),
        (1, "left-out clip", "clip", "clip", "none"),
    ),
    (
        "a clip of a used-up iterator", UNCLIPPED, with_steps(empty_clips=1, empty_because="no parameters"),
        (1, "left-out clip", "clip", "clip", "none"),
    ),
    ("a hook", UNCLIPPED, with_steps(hooks=4), (1, "clip by hand", "clip", "clip", "none")),
    (
        "a repeated parameter", TRAINING, with_clips(lambda line: {"repeated": 1}),
        (1, "repeated parameter", "clipped parameters", "once", "repeated"),
    ),
    (
        "a function that returns another norm", TRAINING, with_clips(used("returned_norm", watched=True)),
        (1, "inexact norm", "norm of the clip", "exact", "inexact"),
    ),
    (
        "a sparse gradient", TRAINING, with_clips(used("stored_norm", watched=True, sparse=1)),
        (1, "rows", "norm of the clip", "exact", "over the stored rows, without the sum of repeated rows"),
    ),
    (
        "the norm of the stored rows", TRAINING, with_clips(rows),
        (1, "rows", "norm of the clip", "exact", "over the stored rows"),
    ),
    (
        "rows that are squared separately", TRAINING, with_steps(repeated_rows=2, optimizer="keras.optimizers.Adam"),
        (1, "squared rows", "squares of", "the sum of the rows", "each row"),
    ),
    ("a step that a loss scaler skips", TRAINING, overflow, (3, "skipped step", "step", "made", "skipped")),
    (
        "two steps that a loss scaler skips", TRAINING, lambda lines: overflow(lines, (3, 4)),
        (3, "skipped step", "step", "made", "skipped"),
    ),
    (
        "a step without a clip, where each step has hooks", TRAINING,
        lambda lines: with_steps(hooks=4)([line for line in lines if is_step(line) or line["step"] != 3]),
        (3, "left-out clip", "clip", "clipped", "not clipped"),
    ),
    ("gradients that are 0", TRAINING, zero, (2, "other gradients", "gradients before the clip", "not 0", "0")),
]  # fmt: skip


def facts(finding: Finding) -> tuple[int, str, str, object, object]:
    return finding.step, finding.kind, finding.field, finding.old, finding.new


@pytest.mark.parametrize(
    ("training", "edit", "expected"), [each[1:] for each in FACTS], ids=[each[0] for each in FACTS]
)
def test_a_recorded_fact_is_the_first_finding(
    tmp_path: Path,
    training: Training,
    edit: Callable[[Lines], Lines],
    expected: tuple[int, str, str, object, object],
) -> None:
    runs = [list(run_lines(TRAINING)), edit(list(run_lines(training)))]
    *what, old, new = expected
    for pair, values in ((runs, (old, new)), (runs[::-1], (new, old))):
        first, *_ = write_and_compare(tmp_path, *pair, max_ulp=None).findings
        assert facts(first) == (*what, *values)


@pytest.mark.parametrize(
    ("because", "words"),
    [(None, "before backward()"), ("no parameters", "iterator"), ("other parameters", "optimizer have")],
)
def test_a_clip_without_gradients_has_the_reason(tmp_path: Path, because: str | None, words: str) -> None:
    lines = with_steps(empty_clips=1, **({"empty_because": because} if because else {}))(list(run_lines(UNCLIPPED)))
    (finding,) = write_and_compare(tmp_path, run_lines(TRAINING), lines, max_ulp=None).findings
    assert words in finding.sentence


# -- schedules


def warmup(step: int) -> float:
    return min(1.0, step / 5)


def warmup_a_step_ahead(step: int) -> float:
    return warmup(step + 1)


@pytest.mark.parametrize("records_settings", [True, False])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_schedule_that_is_a_step_ahead_is_shifted(tmp_path: Path, records_settings: bool, is_swapped: bool) -> None:
    trainings = [
        Training(optimizer=Optimizer(schedule=schedule), records_settings=records_settings)
        for schedule in (warmup, warmup_a_step_ahead)
    ]
    runs = [list(run_lines(each)) for each in (reversed(trainings) if is_swapped else trainings)]
    (finding,) = write_and_compare(tmp_path, *runs, max_ulp=None).findings
    assert (finding.step, finding.kind, finding.field) == (1, "shifted step", "learning rate schedule")


# -- networks


def test_another_rate_of_one_of_two_optimizers_is_found_in_any_order(tmp_path: Path) -> None:
    old = list(run_lines(replace(TRAINING, is_split=True)))
    new = [
        {**line, "settings": {**line["settings"], "lr": 0.1}} if is_step(line) and "out.bias" in line["parameters"]
        else line for line in run_lines(replace(TRAINING, is_split=True, records_tensors=False))
    ]  # fmt: skip
    findings = write_and_compare(tmp_path, old, new, max_ulp=None).findings
    assert "another learning rate" in [each.kind for each in findings]


def tied(lines: Lines) -> Lines:
    """The model has a second parameter with the values of "out.bias"."""

    def more(tensors: Line) -> Line:
        return {**tensors, "tied.bias": tensors["out.bias"]}

    found = []
    for line in lines:
        key = "tensors" if is_step(line) else "parameters"
        names = {"parameters": [*ORDER, "tied.bias"]} if is_step(line) else {}
        found.append({**line, **names, key: more(line[key])})
    return found


def test_weights_that_only_one_run_ties_are_named(tmp_path: Path) -> None:
    findings = write_and_compare(tmp_path, run_lines(TRAINING), tied(list(run_lines(TRAINING))), max_ulp=None).findings
    assert (1, "tied weights", "tied weights", "one parameter", "two parameters") in map(facts, findings)


def test_clips_of_each_micro_batch_are_several_clips(tmp_path: Path) -> None:
    """The first of two micro-batches has half of the gradient."""
    old = list(run_lines(TRAINING))
    new = []
    for line in with_steps(backward_calls=2)(old):
        if not is_step(line):
            halves = {
                name: {**each, "norm": each["norm"] / 2, "sample": [number / 2 for number in each["sample"]]}
                for name, each in line["parameters"].items()
            }
            half = line["norm"] / 2
            new.append({**line, "norm": half, "coef": min(1.0, 0.25 / (half + 1e-6)), "parameters": halves})
        new.append(line)
    findings = write_and_compare(tmp_path, old, new, max_ulp=None).findings
    (finding,) = [each for each in findings if each.field == "clips of a step"]
    assert (finding.kind, finding.old, finding.new) == ("several clips before a step", 1, 2)
    assert "the loop over micro-batches" in finding.fix


def test_a_late_clip_shows_the_weights_after_the_step(tmp_path: Path) -> None:
    """Without tensors at the steps, as in Keras and Paddle, all tensors are those of the clip."""
    trainings = [replace(TRAINING, clip=Clip(is_late=True), records_tensors=False)] * 2
    trainings[1] = replace(trainings[1], optimizer=Optimizer(rate=0.1), records_settings=False)
    findings = write_and_compare(tmp_path, *(list(run_lines(each)) for each in trainings), max_ulp=None).findings
    assert facts(findings[0])[1:] == ("another learning rate", "learning rate", 0.05, 0.1)


def test_rows_that_the_scripts_own_optimizer_may_also_square_are_no_finding(tmp_path: Path) -> None:
    keras = with_steps(repeated_rows=2, optimizer="keras.optimizers.Adam")(list(run_lines(TRAINING)))
    own = with_steps(optimizer="__main__.KerasAdam")(list(run_lines(TRAINING)))
    assert not write_and_compare(tmp_path, keras, own, max_ulp=None).findings
