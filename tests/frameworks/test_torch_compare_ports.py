"""`unified-clip compare` names the mistake of a wrong port from two recordings of PyTorch's own functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import unified_clip
import unified_clip.torch as uc
from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.recording import runs

THRESHOLD = 0.3
STEPS = 5

Parameters = list[torch.nn.Parameter]


def at_most_steps(parameters: Parameters, step: int) -> None:
    if step != 3:
        clip_grad_norm_(parameters, THRESHOLD)


def sgd(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(
    clip: Callable[[Parameters, int], object] = lambda parameters, _: clip_grad_norm_(parameters, THRESHOLD),
    *,
    optimizer: Callable[[Parameters], torch.optim.Optimizer] = sgd,
    clears: bool = True,
    clips_late: bool = False,
    factor: float = 1.0,
    passes: int = 1,
    seed: int = 0,
    shift: int = 0,
) -> None:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3), torch.nn.Linear(3, 1))
    parameters = list(net.parameters())
    update = optimizer(parameters)
    batches = torch.randn(STEPS, 16, 6, generator=torch.Generator().manual_seed(5)) * 2
    for step, batch in enumerate(batches.roll(shift, 0), start=1):
        if clears:
            update.zero_grad()
        for part in batch.chunk(passes):
            (net(part).square().mean() * factor / passes).backward()
        if clips_late:
            update.step()
        clip(parameters, step)
        if not clips_late:
            update.step()


def compared(folder: Path, norms: bool, **changes: Any) -> RecordingComparison:
    paths = [folder / "old.jsonl", folder / "new.jsonl"]
    for path, options in zip(paths, ({}, changes), strict=True):
        with unified_clip.record(path, norms=norms):
            train(**options)
    return compare(*paths)


both = pytest.mark.parametrize("norms", [False, True])


MISTAKES: dict[str, tuple[dict[str, Any], str, int]] = {
    "threshold": ({"clip": lambda parameters, _: clip_grad_norm_(parameters, 2 * THRESHOLD)}, "another threshold", 1),
    "not all": ({"clip": lambda parameters, _: clip_grad_norm_(parameters[:-1], THRESHOLD)}, "left out", 1),
    "never in a step": ({"clip": at_most_steps}, "left-out clip", 3),
    "no zero_grad": ({"clears": False}, "gradients are not cleared", 2),
    "clip after step": ({"clips_late": True}, "clipping after the step", 1),
    "accumulation": ({"passes": 4, "factor": 4.0}, "gradient accumulation", 1),
}


@both
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, mistake: str, norms: bool) -> None:
    changes, cause, step = MISTAKES[mistake]
    first, *others = compared(tmp_path, norms, **changes).findings
    assert (first.kind, first.step) == (cause, step)
    assert "clip" in changes or {each.kind for each in others} <= {cause}


@both
@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"seed": 1}, ["other initial weights"]),
        ({"shift": 1}, ["other data or loss"]),
        ({"clip": lambda parameters, _: uc.clip_grad_norm_(parameters, THRESHOLD)}, []),
    ],
)
def test_other_weights_or_data_are_not_blamed_on_the_clip_and_a_right_port_is_the_same(
    tmp_path: Path, change: dict[str, Any], kinds: list[str], norms: bool
) -> None:
    comparison = compared(tmp_path, norms, **change)
    found = [each.kind for each in comparison.findings if each.kind != "rounding"]
    assert found == kinds if norms else found in ([], ["other data or loss"], ["other gradients"])
    assert not kinds or comparison.exit_code == 1


def clip_at_each_step(parameters: Parameters, step: int) -> None:
    clip_grad_norm_(parameters, THRESHOLD)


def by_hand(parameters: Parameters, step: int) -> None:
    norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
    for parameter in parameters:
        parameter.grad.mul_((THRESHOLD / norm).clamp(max=1.0))


def by_hand_at_step_3(parameters: Parameters, step: int) -> None:
    by_hand(parameters, step) if step == 3 else clip_grad_norm_(parameters, THRESHOLD)


def test_a_clip_by_hand_is_reported(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in ("old", "new", "mixed")]
    for path, clip in zip(paths, (clip_at_each_step, by_hand, by_hand_at_step_3), strict=True):
        with warnings.catch_warnings(), unified_clip.record(path):
            warnings.filterwarnings("ignore", ".*No clip calls were recorded", unified_clip.ClipWarning)
            train(clip)
    for path, step in zip(paths[1:], (1, 3), strict=True):
        (cause,) = compare(paths[0], path).findings
        assert cause.kind == "clip by hand"
        assert cause.step == step
    with pytest.raises(runs.RunError, match=r"Before step 1 of the optimizer, .* changes 6 gradients outside"):
        compare(paths[1], paths[1])
    assert {step.changed for step in runs.read(paths[0]).optimizer_steps} == {None}


def by_data(parameters: Parameters, step: int) -> None:
    """`.data` hides the change from PyTorch's version counters."""
    norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
    for parameter in parameters:
        parameter.grad.data.mul_((THRESHOLD / (norm + 1e-6)).clamp(max=1.0))


def each_by_data(parameters: Parameters, step: int) -> None:
    for parameter in parameters:
        by_data([parameter], step)


@pytest.mark.filterwarnings("ignore:.*No clip calls were recorded")
@pytest.mark.parametrize(("clip", "kinds"), [(by_data, []), (each_by_data, ["per tensor for global"])])
def test_a_clip_by_hand_is_compared_by_its_numbers(
    tmp_path: Path, clip: Callable[[Parameters, int], object], kinds: list[str]
) -> None:
    comparison = compared(tmp_path, True, clip=clip)
    assert [each.kind for each in comparison.findings] == kinds
    assert kinds or comparison.recipes.steps == STEPS


def divided(parameters: Parameters, step: int) -> None:
    clip_grad_norm_(parameters, THRESHOLD)
    for parameter in parameters:
        parameter.grad.div_(128)


@both
def test_gradients_that_are_divided_after_the_clip_are_named(tmp_path: Path, norms: bool) -> None:
    comparison = compared(tmp_path, norms, clip=divided, factor=128.0)
    (cause,) = comparison.findings
    assert cause.kind == ("clipping before unscaling" if norms else "scaled gradients")
    assert (cause.old, cause.new) == ("1", "128")


def test_a_division_after_the_clip_is_not_called_another_optimizer(tmp_path: Path) -> None:
    (cause,) = compared(tmp_path, True, clip=divided).findings
    assert cause.kind == "the clip does not reach the step"


def returned(parameters: Parameters, step: int) -> None:
    clipped, _ = uc.clip_by_global_norm([parameter.grad for parameter in parameters], THRESHOLD)
    for parameter, gradient in zip(parameters, clipped, strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize(
    ("clip", "counts"),
    [(clip_at_each_step, [0] * STEPS), (returned, [None] * STEPS), (divided, [6] * STEPS), (by_hand, [None] * STEPS)],
)
def test_changes_after_the_clip_are_counted(tmp_path: Path, clip: Any, counts: list[int | None]) -> None:
    path = tmp_path / "run.jsonl"
    with warnings.catch_warnings(), unified_clip.record(path):
        warnings.filterwarnings("ignore", ".*No clip calls were recorded", unified_clip.ClipWarning)
        train(clip)
    assert [step.changed_after_clip for step in runs.read(path).optimizer_steps] == counts
