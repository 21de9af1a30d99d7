"""`unified-clip compare` names the mistake of a wrong port from two recordings of PyTorch's own functions."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import unified_clip
import unified_clip.torch as uc
from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.recipes.finding import Finding
from unified_clip.recording import runs

THRESHOLD = 0.3
STEPS = 5

Parameters = list[torch.nn.Parameter]


def per_tensor(parameters: Parameters, step: int) -> None:
    for parameter in parameters:
        clip_grad_norm_(parameter, THRESHOLD)


def twice(parameters: Parameters, step: int) -> None:
    clip_grad_norm_(parameters, THRESHOLD)
    clip_grad_norm_(parameters, THRESHOLD / 2)


def at_most_steps(parameters: Parameters, step: int) -> None:
    if step != 3:
        clip_grad_norm_(parameters, THRESHOLD)


CLIPS: dict[str, Callable[[Parameters, int], object]] = {
    "another threshold": lambda parameters, _: clip_grad_norm_(parameters, 2 * THRESHOLD),
    "another eps of the clip": lambda parameters, _: uc.ClipGradByGlobalNorm(THRESHOLD).clip_(parameters),
    "another norm type": lambda parameters, _: clip_grad_norm_(parameters, THRESHOLD, norm_type=1),
    "another rule": lambda parameters, _: clip_grad_value_(parameters, THRESHOLD),
    "per tensor for global": per_tensor,
    "left out": lambda parameters, _: clip_grad_norm_(parameters[:-1], THRESHOLD),
    "clipped twice": twice,
    "left-out clip": at_most_steps,
}


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


@both
@pytest.mark.parametrize("cause", CLIPS)
def test_a_wrong_clip_is_named(tmp_path: Path, cause: str, norms: bool) -> None:
    comparison = compared(tmp_path, norms, clip=CLIPS[cause])
    first = comparison.findings[0]
    assert (first.kind, first.step) == (cause, 3 if cause == "left-out clip" else 1)


MISTAKES: dict[str, tuple[dict[str, Any], str, int]] = {
    "learning rate": ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.2)}, "another learning rate", 1),
    "momentum": ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}, "another optimizer", 1),
    "weight decay": ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1)}, "another optimizer", 1),
    "Adam": ({"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}, "another optimizer", 1),
    "no zero_grad": ({"clears": False}, "gradients are not cleared", 2),
    "clip after step": ({"clips_late": True}, "clipping after the step", 1),
    "loss not averaged over 4 ranks": ({"factor": 4.0}, "scaled gradients", 1),
    "loss scale not divided out": ({"factor": 65536.0}, "scaled gradients", 1),
    "accumulation": ({"passes": 4, "factor": 4.0}, "gradient accumulation", 1),
}


@both
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_beside_the_clip_is_named(tmp_path: Path, mistake: str, norms: bool) -> None:
    changes, cause, step = MISTAKES[mistake]
    comparison = compared(tmp_path, norms, **changes)
    assert comparison.findings[0].step == step
    assert {each.kind for each in comparison.findings} == {cause}


@both
@pytest.mark.parametrize(
    ("change", "kinds"),
    [({"seed": 1}, ["other initial weights"]), ({"shift": 1}, ["other data or loss"]), ({}, [])],
)
def test_other_weights_or_data_are_not_blamed_on_the_clip(
    tmp_path: Path, change: dict[str, Any], kinds: list[str], norms: bool
) -> None:
    comparison = compared(tmp_path, norms, **change)
    found = [each.kind for each in comparison.findings]
    assert found == kinds if norms else found in ([], ["other data or loss"], ["other gradients"])
    assert comparison.exit_code == bool(change)


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


@both
def test_a_right_port_is_the_same_up_to_rounding(tmp_path: Path, norms: bool) -> None:
    comparison = compared(tmp_path, norms, clip=lambda parameters, _: uc.clip_grad_norm_(parameters, THRESHOLD))
    assert {each.kind for each in comparison.findings} <= {"rounding"}


def record_two_networks(
    path: Path,
    clip: Callable[[Sequence[Any], int], object],
    *,
    clears: bool = True,
    is_early: bool = False,
    steps: Sequence[int] = (0, 1),
) -> list[runs.OptimizerStep]:
    """Record two iterations with two networks. `clip` gets the parameters of both networks, and the network's number.

    is_early: Whether the clip comes before the backward pass.
    steps: For each network, the number of the optimizer that steps after its clip.
    """
    torch.manual_seed(0)
    networks = [torch.nn.Sequential(torch.nn.Linear(2, width)) for width in (1, 4)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in networks]

    def backward(_: object, number: int) -> None:
        networks[number](10 * torch.ones(3, 2)).sum().backward()

    with unified_clip.record(path, norms=True):
        for number in (0, 1, 0, 1):
            if clears:
                optimizers[number].zero_grad()
            parameters = [list(each.parameters()) for each in networks]
            for act in (clip, backward)[:: 1 if is_early else -1]:
                act(parameters, number)
            optimizers[steps[number]].step()
    return list(runs.read(path).optimizer_steps)


def clip_own(parameters: Sequence[Any], number: int) -> None:
    clip_grad_norm_(parameters[number], THRESHOLD)


def compare_two_networks(tmp_path: Path, clip: Callable[[Sequence[Any], int], object], **options: Any) -> Finding:
    """Return the first cause in a comparison with a run in which each network is clipped before its own step."""
    record_two_networks(tmp_path / "right.jsonl", clip_own)
    record_two_networks(tmp_path / "wrong.jsonl", clip, **options)
    return compare(tmp_path / "right.jsonl", tmp_path / "wrong.jsonl").findings[0]


def no_parameters(parameters: Sequence[Any], number: int) -> None:
    clip_grad_norm_(parameters[0] if number == 0 else iter(()), THRESHOLD)


def other_parameters(parameters: Sequence[Any], number: int) -> None:
    clip_grad_norm_(parameters[1], THRESHOLD)


def after_zero_grad(parameters: Sequence[Any], number: int) -> None:
    for each in parameters[number] if number else ():
        each.grad = None
    clip_own(parameters, number)


@pytest.mark.parametrize(
    ("clip", "words"),
    [
        (no_parameters, "passes no parameters"),
        (other_parameters, "but the parameters of the optimizer have gradients"),
        (after_zero_grad, "The call might come before backward() or after zero_grad()"),
    ],
)
def test_a_clip_without_gradients_of_one_of_two_networks_has_a_reason(tmp_path: Path, clip: Any, words: str) -> None:
    cause = compare_two_networks(tmp_path, clip)
    assert cause.kind in ("left out", "left-out clip")
    assert words in cause.sentence


def test_a_clip_before_the_backward_pass_is_not_called_a_clip_of_other_parameters(tmp_path: Path) -> None:
    with pytest.warns(unified_clip.ClipWarning, match="No clip calls were recorded"):
        cause = compare_two_networks(tmp_path, clip_own, is_early=True)
    assert "The call might come before backward() or after zero_grad()" in cause.sentence


@pytest.mark.parametrize("is_first", [True, False])
def test_a_second_clip_of_the_same_gradients_is_a_second_clip(tmp_path: Path, is_first: bool) -> None:
    def clip_per_tensor(parameters: Sequence[Any], number: int) -> None:
        for each in parameters[number]:
            clip_grad_norm_(each, THRESHOLD / 2)

    def clip(parameters: Sequence[Any], number: int) -> None:
        clip_own(parameters, number)
        clip_per_tensor(parameters, number)

    record_two_networks(tmp_path / "once.jsonl", clip_own if is_first else clip_per_tensor)
    record_two_networks(tmp_path / "twice.jsonl", clip)
    findings = compare(tmp_path / "once.jsonl", tmp_path / "twice.jsonl").findings
    assert ("clips of a step", 1, 2) in [(each.field, each.old, each.new) for each in findings]


@pytest.mark.parametrize(("steps", "kind"), [((0, 0), "another number of steps"), ((1, 1), "left-out clip")])
def test_an_optimizer_that_steps_in_place_of_another_is_named(tmp_path: Path, steps: Sequence[int], kind: str) -> None:
    """Its second step has no clip of its own gradients."""
    record_two_networks(tmp_path / "right.jsonl", clip_own)
    record_two_networks(tmp_path / "wrong.jsonl", clip_own, steps=steps)
    found = {each.kind for each in compare(tmp_path / "right.jsonl", tmp_path / "wrong.jsonl").findings}
    assert {kind, "left-out clip"} <= found


@pytest.mark.parametrize(("clipped", "kind"), [((1, 3), "clip by hand"), ((0, 1, 3), "left-out clip")])
def test_hooks_are_named_if_they_replace_each_clip_of_a_network(
    tmp_path: Path, clipped: Sequence[int], kind: str
) -> None:
    numbers = itertools.count()

    def clip(parameters: Sequence[Any], number: int) -> None:
        if (index := next(numbers)) == 0:
            for each in parameters[0]:
                each.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        if index in clipped:
            clip_own(parameters, number)

    cause = compare_two_networks(tmp_path, clip)
    assert cause.kind == kind
    hooks = "2 parameters of wrong.jsonl had hooks of Tensor.register_hook, which can clip gradients"
    assert (hooks in cause.sentence) == (kind == "clip by hand")


def test_a_scale_and_an_offset_are_paired_by_their_start_values_not_by_their_order(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in ("old", "new")]
    for file, factor, names in zip(files, (1.0, 2.0), (("b_0", "w_0"), ("weight", "bias")), strict=True):
        torch.manual_seed(0)
        weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
        named = dict(zip(names, (bias, weight) if names[0] == "b_0" else (weight, bias), strict=True))
        optimizer = torch.optim.SGD(named.values(), lr=0.1)
        with unified_clip.record(file, norms=True, names=named):
            for _ in range(3):
                optimizer.zero_grad()
                (factor * (torch.randn(8, 4) * weight + bias - 1).square().mean()).backward()
                clip_grad_norm_(list(named.values()), THRESHOLD)
                optimizer.step()
    assert [each.kind for each in compare(*files).findings] == ["scaled gradients"]
