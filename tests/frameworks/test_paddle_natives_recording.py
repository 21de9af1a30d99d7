"""Recordings of Paddle's own clipping."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.agreement import agreeing
from support.optimizer_rules import EPS, RATE, check_rules

import unified_clip
from unified_clip import ClipWarning
from unified_clip.recording import runs


def lines(path: Path) -> list[dict[str, Any]]:
    result = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in result if "call" in line]


def train(clip: Any, steps: int = 2) -> list[bytes]:
    paddle.seed(0)
    layer = paddle.nn.Linear(3, 2)
    layer.weight.set_value(np.arange(6, dtype=np.float32).reshape(3, 2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters(), grad_clip=clip)
    for _ in range(steps):
        layer(paddle.ones([4, 3])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return [parameter.numpy().tobytes() for parameter in layer.parameters()]


@pytest.mark.parametrize(
    ("kind", "argument", "rule", "threshold"),
    [
        ("ClipGradByGlobalNorm", 0.5, "global", 0.5),
        ("ClipGradByNorm", 0.5, "each", 0.5),
        ("ClipGradByValue", 0.5, "value", [-0.5, 0.5]),
    ],
)
@pytest.mark.parametrize("norms", [False, True])
def test_a_class_on_an_optimizer_is_an_event_of_each_step(
    tmp_path: Path, kind: str, argument: float, rule: str, threshold: Any, norms: bool
) -> None:
    clip = getattr(paddle.nn, kind)(argument)
    alone = train(clip)
    with unified_clip.record(tmp_path / "run.jsonl", norms=norms):
        assert train(clip) == alone
    result = lines(tmp_path / "run.jsonl")
    assert [line["step"] for line in result] == [1, 2]
    assert {(line["call"], line["rule"]) for line in result} == {(f"paddle.nn.{kind}", rule)}
    assert result[0]["threshold"] == threshold
    if rule == "global":
        assert result[0]["coef"] == pytest.approx(0.5 / result[0]["norm"])
        assert result[0]["clipped"]
    if norms:
        assert len(result[0]["parameters"]) == 2
        total = math.hypot(*(each["norm"] for each in result[0]["parameters"].values()))
        assert rule != "global" or result[0]["norm"] == pytest.approx(total)


def test_a_function_is_an_event_with_the_norm_that_it_returns(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    layer(paddle.ones([4, 3])).sum().backward()
    with unified_clip.record(tmp_path / "run.jsonl"):
        norm = paddle.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        paddle.nn.utils.clip_grad_value_(layer.parameters(), 0.1)
    by_norm, by_value = lines(tmp_path / "run.jsonl")
    assert by_norm["norm"] == by_norm["returned_norm"] == norm.item()
    assert (by_norm["call"], by_value["call"]) == (
        "paddle.nn.utils.clip_grad_norm_",
        "paddle.nn.utils.clip_grad_value_",
    )
    assert by_value["threshold"] == [pytest.approx(-0.1), pytest.approx(0.1)]


def test_a_step_counts_the_clips_that_get_no_gradient(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    with unified_clip.record(tmp_path / "run.jsonl"):
        paddle.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        layer(paddle.ones([4, 3])).sum().backward()
        paddle.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert (step.empty_clips, step.calls) == (1, 1)


def test_steps_of_optimizers_are_recorded_with_what_ran_before_them(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5))
    with unified_clip.record(tmp_path / "run.jsonl"):
        for step in range(3):
            layer(paddle.ones([4, 3])).mean().backward()
            layer(paddle.ones([4, 3])).mean().backward()
            optimizer.step()
            if step != 1:
                optimizer.clear_grad()
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [(each.calls, each.backward_calls, each.cleared) for each in steps] == [
        (1, 2, None), (2, 2, True), (3, 2, False),
    ]  # fmt: skip
    assert {each.optimizer for each in steps} == {"paddle.optimizer.Adam"}
    settings = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "weight_decay": 0.0}
    assert steps[0].settings == settings


def test_nesterov_and_the_missing_dampening_of_momentum_are_recorded(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    clip = paddle.nn.ClipGradByGlobalNorm(0.5)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters(), grad_clip=clip, use_nesterov=True)
    with unified_clip.record(tmp_path / "run.jsonl"):
        layer(paddle.ones([4, 3])).mean().backward()
        optimizer.step()
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert (step.settings["nesterov"], step.settings["dampening"]) == (True, 0.0)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (partial(paddle.optimizer.Adam, amsgrad=True), {"amsgrad": True}),
        (partial(paddle.optimizer.Adagrad, initial_accumulator_value=0.5), {"initial_accumulator_value": 0.5}),
        (partial(paddle.optimizer.RMSProp, rho=0.75, centered=True), {"alpha": 0.75, "centered": True}),
    ],
)
def test_settings_of_the_second_moment_are_recorded(tmp_path: Path, optimizer: Any, expected: dict[str, Any]) -> None:
    layer = paddle.nn.Linear(3, 2)
    clip = paddle.nn.ClipGradByGlobalNorm(0.5)
    with unified_clip.record(tmp_path / "run.jsonl"):
        layer(paddle.ones([4, 3])).mean().backward()
        optimizer(learning_rate=0.1, parameters=layer.parameters(), grad_clip=clip).step()
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert {name: step.settings.get(name) for name in expected} == expected


def test_learning_rates_of_parameters_are_recorded_by_name(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2, bias_attr=paddle.ParamAttr(learning_rate=3.0))
    optimizer = paddle.optimizer.SGD(0.5, parameters=layer.parameters())
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        layer(paddle.ones([4, 3])).mean().backward()
        unified_clip.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert step.rates == {layer.weight.name: 0.5, layer.bias.name: 1.5}
    assert step.settings["lr"] == (0.5, 1.5)


L1, L2 = paddle.regularizer.L1Decay, paddle.regularizer.L2Decay


def recorded_decay(path: Path, name: str, layer: Any, parameters: Any, **options: Any) -> Any:
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = getattr(paddle.optimizer, name)(0.1, parameters=parameters, grad_clip=clip, **options)
    with unified_clip.record(path):
        layer(paddle.ones([4, 3])).mean().backward()
        optimizer.step()
    return runs.read(path).optimizer_steps[0].settings.get("weight_decay")


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Adam", "NAdam", "RAdam", "RMSProp", "Adagrad", "Adamax"])
@pytest.mark.parametrize(
    ("decay", "of_bias", "grouped", "recorded"),
    [
        (None, None, False, 0.0), (0.01, None, False, 0.01), (L2(0.01), None, False, 0.01),
        (L1(0.01), None, False, None), (0.01, L2(0.5), False, (0.01, 0.5)), (0.01, L1(0.5), False, None),
        (0.01, None, True, (0.01, 0.25)), (None, None, True, (0.0, 0.25)),
    ],
)  # fmt: skip
def test_the_weight_decay_of_an_optimizer_is_recorded(
    tmp_path: Path, name: str, decay: Any, of_bias: Any, grouped: bool, recorded: Any
) -> None:
    layer = paddle.nn.Linear(3, 2, bias_attr=paddle.ParamAttr(regularizer=of_bias))
    groups = [{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.25}]
    parameters = groups if grouped else layer.parameters()
    assert recorded_decay(tmp_path / "run.jsonl", name, layer, parameters, weight_decay=decay) == recorded


@pytest.mark.parametrize(("name", "argument"), [("AdamW", "weight_decay"), ("Lamb", "lamb_weight_decay")])
def test_the_decoupled_weight_decay_of_an_optimizer_is_recorded(tmp_path: Path, name: str, argument: str) -> None:
    layer = paddle.nn.Linear(3, 2)
    assert recorded_decay(tmp_path / "run.jsonl", name, layer, layer.parameters(), **{argument: 0.125}) == 0.125


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {"weight_decay": 0.125, "apply_decay_param_fun": lambda name: not name.endswith("b_0")}),
        ("Lamb", {"lamb_weight_decay": 0.125, "exclude_from_weight_decay_fn": lambda each: each.ndim == 1}),
    ],
)
def test_parameters_that_a_function_excludes_have_no_recorded_weight_decay(
    tmp_path: Path, name: str, options: Any
) -> None:
    path, layer = tmp_path / "run.jsonl", paddle.nn.Linear(3, 2)
    assert recorded_decay(path, name, layer, layer.parameters(), **options) == (0.0, 0.125)


def test_a_step_of_several_parameter_groups_is_one_step_with_the_settings_of_each_group(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    groups = [
        {"params": [layer.weight], "weight_decay": 0.5, "beta1": 0.8},
        {"params": [layer.bias], "weight_decay": 0.0, "learning_rate": 0.5},
    ]
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.AdamW(0.25, parameters=groups, grad_clip=clip)
    with unified_clip.record(tmp_path / "run.jsonl"):
        for _ in range(2):
            layer(paddle.ones([4, 3])).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [(each.calls, each.backward_calls, each.cleared) for each in steps] == [(2, 1, None), (4, 1, True)]
    assert steps[0].settings == steps[1].settings
    assert steps[0].settings == {
        "lr": (0.25, 0.125), "weight_decay": (0.5, 0.0), "betas": (0.8, 0.999, 0.9, 0.999), "eps": 1e-8,
        "amsgrad": False,
    }  # fmt: skip


def test_a_step_that_fails_in_a_group_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = paddle.nn.Linear(3, 2)
    groups = [{"params": [layer.weight], "weight_decay": 0.5}, {"params": [layer.bias], "weight_decay": 0.0}]
    optimizer = paddle.optimizer.AdamW(0.25, parameters=groups, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
    optimize = type(optimizer)._create_optimization_pass

    def fail(self: Any, given: Any, *rest: Any, **options: Any) -> Any:
        if not given.get("weight_decay"):
            raise ArithmeticError
        return optimize(self, given, *rest, **options)

    with unified_clip.record(tmp_path / "run.jsonl"):
        layer(paddle.ones([4, 3])).mean().backward()
        monkeypatch.setattr(type(optimizer), "_create_optimization_pass", fail)
        with pytest.raises(ArithmeticError):
            optimizer.step()
        monkeypatch.undo()
        optimizer.step()
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert step.settings["weight_decay"] == (0.5, 0.0)


def test_the_losses_of_backward_passes_are_recorded_with_each_step(tmp_path: Path) -> None:
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.SGD(0.0, parameters=[weight], grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
    with unified_clip.record(tmp_path / "run.jsonl"):
        (weight.sum() * 3.0).backward()
        weight.sum().backward()
        optimizer.step()
        (weight * 2.0).backward()  # two numbers, which are no loss
        weight.sum().backward(paddle.to_tensor(2.0))
        optimizer.step()
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [list(step.losses) for step in steps] == [[6.0, 2.0], []]


@pytest.mark.parametrize("kind", ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"])
def test_events_agree_with_those_of_verify(tmp_path: Path, kind: str) -> None:
    with agreeing(tmp_path, calls=2):
        train(getattr(paddle.nn, kind)(0.5))


def test_events_of_functions_agree_with_those_of_verify(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(3, 2)
    layer(paddle.ones([4, 3])).square().sum().backward()
    with agreeing(tmp_path, calls=2):
        paddle.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        paddle.nn.utils.clip_grad_value_(layer.parameters(), 0.1)


def test_an_optimizer_with_an_unknown_setting_does_not_end_the_training(tmp_path: Path) -> None:
    class Odd(paddle.optimizer.SGD):
        _epsilon = property(lambda self: 1 / 0)

    layer = paddle.nn.Linear(3, 2)
    optimizer = Odd(0.1, parameters=layer.parameters())
    before = layer.weight.numpy()
    with unified_clip.record(tmp_path / "run.jsonl"):
        layer(paddle.ones([4, 3])).sum().backward()
        with pytest.warns(ClipWarning, match="a step of an optimizer is not recorded: ZeroDivisionError"):
            optimizer.step()
    assert (layer.weight.numpy() != before).all()


def test_the_rules_of_its_optimizers_are_identified() -> None:
    def weights_of(name: str, gradients: Sequence[Any]) -> list[Any]:
        zero = paddle.nn.initializer.Constant(0.0)
        weight = paddle.create_parameter([len(gradients[0])], "float32", default_initializer=zero)
        decay = {"weight_decay": 0.0} if name == "AdamW" else {}
        optimizer = getattr(paddle.optimizer, name)(RATE, epsilon=EPS, parameters=[weight], **decay)
        weights = [weight.numpy().copy()]
        for gradient in gradients:
            (weight * paddle.to_tensor(gradient)).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            weights.append(weight.numpy().copy())
        return weights

    check_rules("paddle", paddle.optimizer, weights_of)


@pytest.mark.parametrize("by_hand", [(), (0,), (1,), (0, 1)])
def test_gradients_that_the_script_changes_are_counted_over_all_groups(tmp_path: Path, by_hand: Sequence[int]) -> None:
    layers = [paddle.nn.Linear(3, 2), paddle.nn.Linear(2, 2)]
    optimizer = paddle.optimizer.AdamW(0.1, parameters=[{"params": each.parameters()} for each in layers])
    with pytest.warns(ClipWarning, match="No clip calls"), unified_clip.record(tmp_path / "run.jsonl", norms=True):
        train_by_hand(layers, optimizer, by_hand)
    first, *others = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert first.changed is None  # the optimizer is older than the recording
    for step in others:
        assert step.changed == 2 * len(by_hand)
        halved = [each.raw_norm is not None and each.norm < 0.75 * each.raw_norm for each in step.tensors.values()]
        assert halved == [number in by_hand for number in (0, 0, 1, 1)]


def train_by_hand(layers: Sequence[Any], optimizer: Any, by_hand: Sequence[int]) -> None:
    for _ in range(3):
        layers[1](layers[0](paddle.ones([4, 3]))).square().mean().backward()
        for each in [parameter for number in by_hand for parameter in layers[number].parameters()]:
            each.grad.set_value(each.grad * 0.5)
        optimizer.step()
        optimizer.clear_grad()
