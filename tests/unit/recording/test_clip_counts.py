"""`ClipCounts` says how often each gradient was clipped, and has no effect on the life of a parameter."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import pytest

from unified_clip.recorder.hooks import OUTPUT
from unified_clip.recorder.steps import ClipCounts

CLIPPED = {"gradients": 1, "clip_counts": {1: 1}}
UNCLIPPED = {"gradients": 1, "clip_counts": {0: 1}, "unclipped": ["p0"]}
EARLY = {**UNCLIPPED, "clipped_early": 1}


class Parameter:
    def __init__(self, state: int | None = 1) -> None:
        self.state = state  # of its gradient, which is None or zero if the state is None


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> ClipCounts:
    monkeypatch.setattr(OUTPUT, "recorded_calls", 1)  # if it is 0, nobody needs names
    return ClipCounts(lambda each: each.state, lambda each: isinstance(each, Parameter), lambda each: not each.state)


def taken(counts: ClipCounts, *parameters: Parameter) -> dict[str, Any]:
    return counts.take(parameters, lambda each: f"p{parameters.index(each)}")


def backward(counts: ClipCounts, *parameters: Parameter) -> None:
    counts.before_backward()
    for each in parameters:
        each.state = (each.state or 0) + 1
    counts.after_backward()


def test_a_clipped_parameter_can_be_deleted(counts: ClipCounts) -> None:
    parameters = [Parameter() for _ in range(3)]
    backward(counts, *parameters)
    counts.add(parameters)
    backward(counts, parameters[0])  # clipped early
    parameters[1].state = None
    counts.before_backward()  # cleared after its clip
    living = [ref(each) for each in parameters]
    del parameters
    gc.collect()
    assert [each() for each in living] == [None] * 3
    backward(counts)
    assert taken(counts) == {"gradients": 0, "clip_counts": {}}


@pytest.mark.parametrize("lose", [lambda counts, each: None, lambda counts, each: backward(counts, each)])
def test_a_new_parameter_does_not_inherit_the_clips_of_a_deleted_one(
    counts: ClipCounts, lose: Callable[[ClipCounts, Parameter], object]
) -> None:
    old = Parameter()
    counts.add([old])
    lose(counts, old)
    identity = id(old)
    del old
    others: list[Parameter] = []
    while id(new := Parameter()) != identity:
        others.append(new)
        assert len(others) < 1000, "Python reuses the place of a deleted object"
    assert taken(counts, new) == UNCLIPPED


def test_each_gradient_counts_its_clips_since_its_backward_pass(counts: ClipCounts) -> None:
    once, twice, never = parameters = [Parameter() for _ in range(3)]
    backward(counts, *parameters)
    counts.add([twice])
    counts.add([once, twice])
    wanted = {"gradients": 3, "clip_counts": {0: 1, 1: 1, 2: 1}, "unclipped": ["p2"]}
    assert taken(counts, once, twice, never) == wanted
    backward(counts, *parameters)
    counts.add([once])
    counts.add([never])
    wanted = {"gradients": 3, "clip_counts": {0: 1, 1: 2}, "unclipped": ["p1"], "clip_calls": 2}
    assert taken(counts, once, twice, never) == wanted


@pytest.mark.parametrize("unknown", [None, object()])
def test_after_a_clip_of_an_unknown_parameter_the_next_step_has_no_counts(counts: ClipCounts, unknown: object) -> None:
    parameter = Parameter()
    backward(counts, parameter)
    counts.add([parameter, unknown])
    assert taken(counts, parameter) == {"gradients": 1}
    backward(counts, parameter)
    counts.add([parameter])
    assert taken(counts, parameter) == {"gradients": 1, "clip_counts": {1: 1}}


def early(counts: ClipCounts, *events: Sequence[str]) -> list[dict[str, Any]]:
    parameter, steps = Parameter(), []
    for event in events:
        if event == "clip":
            counts.add([parameter])
        elif event == "backward":
            backward(counts, parameter)
        elif event == "clear":
            parameter.state = None
        elif event == "begin backward":
            counts.before_backward()
        elif event == "end backward":
            counts.after_backward()
        else:
            steps.append(taken(counts, parameter))
    return steps


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        (["backward", "clip", "step"], [CLIPPED]),
        (["backward", "clip", "backward", "step"], [EARLY]),
        (["backward", "clip", "backward", "clip", "step"], [{**CLIPPED, "clipped_early": 1}]),
        (["backward", "clip", "clear", "backward", "step"], [EARLY]),
        (["backward", "clip", "clear", "backward", "clip", "step"], [CLIPPED]),  # a skipped step
        (["backward", "clip", "step", "backward", "step"], [CLIPPED, UNCLIPPED]),
        (["backward", "clip", "step", "step"], [CLIPPED, CLIPPED]),  # two optimizers with one parameter
        (["backward", "clip", "backward", "step", "backward", "clip", "step"], [EARLY, CLIPPED]),
        (["backward", "clip", "clear", "backward", "step", "backward", "step"], [EARLY, UNCLIPPED]),
        # a step in a hook of the backward pass, which then deletes the gradient
        (["begin backward", "clip", "step", "clear", "end backward", "backward", "step"], [CLIPPED, UNCLIPPED]),
        # a backward pass of another loss
        (["backward", "clip", "step", "begin backward", "end backward", "step"], [CLIPPED, UNCLIPPED]),
    ],
)
def test_a_clip_before_the_last_backward_pass_is_early(
    counts: ClipCounts, events: list[str], wanted: list[dict[str, Any]]
) -> None:
    assert early(counts, *events) == wanted
