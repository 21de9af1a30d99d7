"""Recordings of PyTorch's own clipping functions."""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.tiers import TRACES_NATIVES

import unified_clip
import unified_clip.torch as uc
from unified_clip import ClipWarning
from unified_clip.compare.losses import logged_numbers
from unified_clip.recorder.pytorch_names import MOST_SEARCHES
from unified_clip.recording import runs

ORIGINAL = [torch.nn.utils.clip_grad_norm_]
"""The list keeps the original function, because a recording does not replace functions in lists."""

VALUES = ([3.0, -4.0], [[12.0], [84.0]])
TOTAL = math.sqrt(25 + 144 + 7056)


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    weights = [torch.nn.Parameter(torch.ones(torch.tensor(values).shape, dtype=dtype)) for values in VALUES]
    for weight, values in zip(weights, VALUES, strict=True):
        weight.grad = torch.tensor(values, dtype=dtype)
    return weights


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def recorded(path: Path, clip: Callable[[list[torch.nn.Parameter]], Any], **options: Any) -> list[dict[str, Any]]:
    alone, weights = parameters(), parameters()
    expected = clip(alone)
    with unified_clip.record(path, **options):
        result = clip(weights)
    assert torch.equal(torch.as_tensor(result or 0), torch.as_tensor(expected or 0))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(alone, weights, strict=True))
    return lines(path)


def test_exact_norms_stand_beside_the_returned_one(tmp_path: Path) -> None:
    weights = [torch.nn.Parameter(torch.ones(1000)) for _ in range(2)]
    for seed in range(100):
        torch.manual_seed(seed)
        for weight in weights:
            weight.grad = torch.randn(1000)
        exact = uc.get_total_norm([weight.grad for weight in weights]).item()
        if exact != torch.nn.utils.get_total_norm([weight.grad for weight in weights]).item():
            break
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, names=dict(zip("ab", weights, strict=True))):
        returned = torch.nn.utils.clip_grad_norm_(weights, 1.0).item()
    (line,) = lines(tmp_path / "run.jsonl")
    assert (line["returned_norm"], line["norm"]) == (returned, exact)
    assert returned != exact
    assert math.hypot(*(each["norm"] for each in line["parameters"].values())) == pytest.approx(exact)
    assert [each["weight"] for each in line["parameters"].values()] == pytest.approx([math.sqrt(1000)] * 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gradient_that_equals_the_rounded_bound_is_not_clipped(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    weight.grad = torch.tensor([0.3], dtype=dtype)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        torch.nn.utils.clip_grad_value_(weight, 0.3)
    assert [line["clipped"] for line in lines(tmp_path / "run.jsonl")] == [False]


def test_each_recording_has_the_sums_of_a_weight_once(tmp_path: Path) -> None:
    """compare pairs the weights of two runs by these sums."""
    model = torch.nn.Linear(2, 3)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    has_sums = []
    for number in range(2):
        with unified_clip.record(tmp_path / f"{number}.jsonl", norms=True, names=model):
            for _ in range(2):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lines = runs.read(tmp_path / f"{number}.jsonl").lines
        has_sums.append([line.parameters["weight"].sums is not None for line in lines])
    assert has_sums == [[True, False]] * 2


def test_a_call_inside_a_call_is_no_event_of_its_own(tmp_path: Path) -> None:
    calls: Iterable[Callable[[list[torch.nn.Parameter]], Any]] = (
        lambda weights: torch.nn.utils.clip_grad_norm_(weights, 1.0),  # which calls clip_grads_with_norm_
        lambda weights: uc.clip_grad_norm_(weights, 1.0),
    )
    for number, call in enumerate(calls):
        assert len(recorded(tmp_path / f"{number}.jsonl", call)) == 1


def test_a_function_that_was_imported_before_is_recorded_and_put_back(tmp_path: Path) -> None:
    module = ModuleType("imports_before")
    module.clip = torch.nn.utils.clip_grad_norm_  # type: ignore[attr-defined]
    sys.modules["imports_before"] = module
    try:
        with unified_clip.record(tmp_path / "run.jsonl"):
            module.clip(parameters(), 1.0)  # type: ignore[attr-defined]
        assert [line["call"] for line in lines(tmp_path / "run.jsonl")] == ["torch.nn.utils.clip_grad_norm_"]
        assert module.clip is torch.nn.utils.clip_grad_norm_ is ORIGINAL[0]  # type: ignore[attr-defined]
    finally:
        del sys.modules["imports_before"]


def test_the_exception_of_a_native_is_recorded(tmp_path: Path) -> None:
    weights = parameters()
    weights[0].grad = torch.tensor([math.nan, 1.0])
    with unified_clip.record(tmp_path / "run.jsonl"), pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_(weights, 1.0, error_if_nonfinite=True)
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["error"].startswith("RuntimeError: ")


@TRACES_NATIVES
def test_a_compiled_graph_with_a_native_stays_whole(tmp_path: Path) -> None:
    clip = torch.compile(lambda weights: torch.nn.utils.clip_grad_norm_(weights, 1.0), fullgraph=True, backend="eager")
    with pytest.warns(ClipWarning, match="No clip calls were recorded"), unified_clip.record(tmp_path / "run.jsonl"):
        assert clip(parameters()).item() == TOTAL


def recorded_names(path: Path, *models: torch.nn.Module) -> list[str]:
    named = [item for model in models for item in model.named_parameters()]
    groups = [{"params": [p for name, p in named if ("bias" in name) is is_bias]} for is_bias in (False, True)]
    optimizer = torch.optim.AdamW([groups[0], {**groups[1], "weight_decay": 0.0, "lr": 0.5}], lr=0.1, weight_decay=0.1)
    sum(parameter.sum() for _, parameter in named).backward()
    with unified_clip.record(path, norms=True):
        torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        uc.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        optimizer.step()
    run = runs.read(path)
    assert run.lines[0].parameters.keys() == run.lines[1].parameters.keys()
    rates = {name: 0.5 if "bias" in name else 0.1 for name in run.lines[0].parameters}
    assert run.optimizer_steps[0].rates == ({} if any(map(str.isdecimal, rates)) else rates)
    return list(run.lines[0].parameters)


def test_parameters_get_the_names_of_their_model(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict(
        {"odd_body": torch.nn.Sequential(torch.nn.Linear(2, 2)), "odd_head": torch.nn.Linear(2, 1)}
    )
    copy = deepcopy(model)  # which no optimizer updates
    names = recorded_names(tmp_path / "run.jsonl", model)
    assert names == [name for name, _ in copy.named_parameters()]


def test_a_name_that_two_trained_models_have_gets_a_number(tmp_path: Path) -> None:
    nets = [
        torch.nn.ModuleDict({"odd_net": torch.nn.Linear(2, 2)}),
        torch.nn.ModuleDict({"odd_net": torch.nn.Linear(2, 1)}),
    ]
    assert recorded_names(tmp_path / "run.jsonl", *nets) == [
        "odd_net.weight",
        "odd_net.bias",
        "odd_net.weight#2",
        "odd_net.bias#2",
    ]


def test_parameters_without_a_name_cause_few_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[None] = []
    objects = gc.get_objects()
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(None) or objects)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        for _ in range(2 * MOST_SEARCHES):
            torch.nn.utils.clip_grad_norm_(parameters(), 1.0)
    for_optimizers = 1  # at the start of each recording
    assert len(searches) == for_optimizers + MOST_SEARCHES
    searches.clear()
    objects += (several := [torch.nn.Parameter(torch.ones(2)) for _ in range(MOST_SEARCHES)])
    objects.append(torch.optim.SGD(several, lr=0.1))
    torch.stack(several).sum().backward()
    with unified_clip.record(tmp_path / "next.jsonl", norms=True):
        torch.nn.utils.clip_grad_norm_(several, 1.0)
    assert len(searches) == for_optimizers + 1


def test_a_parameter_gets_its_name_if_its_optimizer_is_made_after_its_gradient(tmp_path: Path) -> None:
    model, weights = torch.nn.ModuleDict({"odd_late": torch.nn.Linear(2, 1)}), parameters()
    model["odd_late"](torch.ones(2)).sum().backward()
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert list(lines(tmp_path / "run.jsonl")[1]["parameters"]) == ["odd_late.weight", "odd_late.bias"]


class NotReady(torch.nn.Module):
    def __init__(self) -> None:  # as before `super().__init__()`
        pass


class WithoutGroups(torch.optim.Optimizer):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("kind", [NotReady, WithoutGroups])
def test_an_object_that_is_not_ready_hides_no_names(tmp_path: Path, kind: type) -> None:
    unready, model = kind(), torch.nn.ModuleDict({"odd_part": torch.nn.Linear(2, 1)})
    assert recorded_names(tmp_path / "run.jsonl", model) == ["odd_part.weight", "odd_part.bias"]
    del unready


def losses(path: Path) -> list[list[float]]:
    return [list(step.losses) for step in runs.read(path).optimizer_steps]


def test_the_losses_of_backward_passes_are_recorded_with_each_step(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with unified_clip.record(tmp_path / "run.jsonl"):
        weight.sum().mul(3.0).backward()
        torch.autograd.backward([weight.sum()])
        optimizer.step()
        weight.mul(2.0).backward(torch.ones(2))  # two numbers, which are no loss
        torch.autograd.backward([weight.sum(), weight[:1].sum()])
        weight.sum().backward(torch.tensor(2.0))
        with pytest.raises(RuntimeError, match="scalar outputs"):
            weight.mul(2.0).backward()
        optimizer.step()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
    assert losses(tmp_path / "run.jsonl") == [[6.0, 2.0], [], [2.0]]


def test_a_logged_loss_replaces_that_of_the_backward_passes(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for name, logs in (("logged", True), ("seen", False)):
        with unified_clip.record(tmp_path / name) as recording:
            for _ in range(2):
                weight.sum().backward()
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
                optimizer.step()
                if logs:
                    recording.log(loss=7.0)
    assert [value for _, value in logged_numbers(runs.read(tmp_path / "logged"))["loss"]] == [7.0, 7.0]
    assert [step for step, _ in logged_numbers(runs.read(tmp_path / "seen"))["loss"]] == [1, 2]


def train_once(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], 1.0)
    optimizer.step()


def test_the_loss_is_recorded_as_it_was_at_the_backward_pass(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unified_clip.record(tmp_path / "run.jsonl"):
        loss = model(torch.ones(3, 2)).square().mean()
        expected = loss.item()
        loss.backward()
        loss.detach().mul_(1000)  # as a script does that logs the sum of a batch
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    _, step = lines(tmp_path / "run.jsonl")
    assert step["losses"] == [expected]


def test_backward_passes_of_checkpoints_are_no_accumulation(tmp_path: Path) -> None:
    layer, last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*layer.parameters(), *last.parameters()], lr=0.1)
    with unified_clip.record(tmp_path / "run.jsonl"):
        inputs = torch.ones(3, 2, requires_grad=True)
        hidden = torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=True)
        train_once(last(hidden).square().mean(), optimizer)
    _, step = lines(tmp_path / "run.jsonl")
    assert step["backward_calls"] == len(step["losses"]) == 1


@pytest.mark.parametrize(
    ("kind", "is_decoupled", "name"), [("Adam", False, "Adam"), ("Adam", True, "AdamW"), ("AdamW", True, "AdamW")]
)
def test_adam_with_decoupled_weight_decay_is_adamw(tmp_path: Path, kind: str, is_decoupled: bool, name: str) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = getattr(torch.optim, kind)(model.parameters(), weight_decay=0.1)
    optimizer.param_groups[0]["decoupled_weight_decay"] = is_decoupled
    with unified_clip.record(tmp_path / "run.jsonl"):
        train_once(model(torch.ones(3, 2)).square().mean(), optimizer)
    assert lines(tmp_path / "run.jsonl")[-1]["optimizer"] == f"torch.optim.{name}"


def test_nothing_is_read_while_a_cuda_graph_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unified_clip.record(tmp_path / "run.jsonl"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.warns(ClipWarning, match="clip_grad_norm_ is not recorded: TypeError: a CUDA graph"):
            train_once(model(torch.ones(3, 2)).sum(), optimizer)
    (warning,) = lines(tmp_path / "run.jsonl")
    assert "a CUDA graph cannot report values" in warning["warning"]


@pytest.mark.parametrize(("early", "late"), [((), (0, 1)), ((0,), (1,)), ((0, 1), ())])
def test_clips_by_hand_before_and_after_the_gradients_are_unscaled_are_known(
    tmp_path: Path, early: Sequence[int], late: Sequence[int]
) -> None:
    """Two optimizers clip by the norm 0.125: `early` before, and `late` after the gradients are unscaled."""

    def clip(layer: torch.nn.Linear) -> None:
        norm = math.hypot(*(float(each.grad.norm()) for each in layer.parameters()))
        for each in layer.parameters():
            each.grad.mul_(0.125 / norm)

    torch.manual_seed(0)
    layers, scaler = [torch.nn.Linear(6, 3), torch.nn.Linear(3, 2)], torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in layers]
    raw: list[float] = []

    def train() -> None:
        for _ in range(3):
            scaler.scale(layers[1](layers[0](torch.randn(8, 6))).square().mean()).backward()
            raw.extend(float(layer.weight.grad.norm()) / 64 for layer in layers)
            for number, optimizer in enumerate(optimizers):
                clip(layers[number]) if number in early else None
                scaler.unscale_(optimizer)
                clip(layers[number]) if number in late else None
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()

    recording = unified_clip.record(tmp_path / "run.jsonl", norms=True)
    with pytest.warns(ClipWarning, match="No clip calls"), recording:
        train()
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [step.changed for step in steps] == [2] * 6
    for number, step in enumerate(steps):
        weight, bias = step.tensors.values()
        norm = 0.125 / 64 if number % 2 in early else 0.125
        assert math.hypot(weight.norm, bias.norm) == pytest.approx(norm)
        assert weight.raw_norm == pytest.approx(raw[number])


EMPTY: dict[str | None, Callable[[torch.nn.Module, torch.nn.Module], Iterable[torch.nn.Parameter]]] = {
    None: lambda trained, other: trained.parameters(),  # before the backward pass
    "no parameters": lambda trained, other: iter(()),
    "other parameters": lambda trained, other: other.parameters(),
}


@pytest.mark.parametrize("clip", [uc.clip_grad_norm_, torch.nn.utils.clip_grad_norm_])
def test_a_clip_without_gradients_is_an_empty_one_with_its_reason(tmp_path: Path, clip: Callable[..., Any]) -> None:
    for because, given in EMPTY.items():
        if clip is uc.clip_grad_norm_ and because == "no parameters":
            continue  # unified_clip itself warns of a used-up iterator
        trained, other = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        with unified_clip.record(tmp_path / f"{because}.jsonl"):
            for is_empty in (True, False):
                optimizer.zero_grad()
                if is_empty and because is None:
                    clip(given(trained, other), 0.1)
                trained(torch.ones(2, 6)).sum().backward()
                if not is_empty or because is not None:
                    clip(given(trained, other) if is_empty else trained.parameters(), 0.1)
                optimizer.step()
        steps = runs.read(tmp_path / f"{because}.jsonl").optimizer_steps
        assert [(each.empty_clips, each.empty_because) for each in steps] == [(1, because), (0, None)]


@pytest.mark.filterwarnings("ignore:.*No clip calls:unified_clip.ClipWarning")
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_parameters_with_hooks_are_counted(tmp_path: Path, register: str) -> None:
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    getattr(model.weight, register)(lambda tensor: None)
    with unified_clip.record(tmp_path / "run.jsonl"):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    assert [step.hooks for step in runs.read(tmp_path / "run.jsonl").optimizer_steps] == [1]
