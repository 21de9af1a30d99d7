"""Recording on Paddle: clips of optimizers, names of layers, static programs, and Paddle's own clips and optimizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
import pytest
from support.paddle_programs import tensor

import unified_clip
import unified_clip.paddle as uc
from unified_clip import ClipWarning
from unified_clip.recording import runs


def lines(path: Path) -> list[dict[str, Any]]:
    result = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in result if "call" in line]


@pytest.mark.parametrize("named", [False, True])
def test_an_optimizers_clip_is_recorded_with_the_names_of_parameters(tmp_path: Path, named: bool) -> None:
    model = paddle.nn.Linear(3, 2)
    clip = uc.ClipGradByGlobalNorm(0.1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, names=model if named else None):
        model(paddle.ones([4, 3])).sum().backward()
        optimizer.step()
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["call"] == "GradientClipByGlobalNorm"
    assert line["norm"] == pytest.approx(128**0.5, rel=1e-6)
    assert list(line["parameters"]) == (["weight", "bias"] if named else [each.name for each in model.parameters()])


def test_the_repeated_rows_of_a_sparse_gradient_are_summed(tmp_path: Path) -> None:
    model = paddle.nn.Embedding(3, 1, sparse=True)
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        (model(paddle.to_tensor([1, 1, 0])) * tensor([[1.5], [1.5], [4.0]])).sum().backward()
        optimizer.step()
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["norm"] == 5.0


def test_a_static_program_says_that_it_is_not_recorded(tmp_path: Path, static: None) -> None:
    building = paddle.static.program_guard(paddle.static.Program())
    with building, unified_clip.record(tmp_path / "run.jsonl", norms=True):
        value = paddle.static.data("x", [2], "float32")
        with pytest.warns(ClipWarning, match="a clip call inside a graph of paddle is not recorded"):
            uc.clip_by_norm(value, 1.0)
    assert lines(tmp_path / "run.jsonl") == []


def test_what_to_static_leaves_its_graph_for_is_recorded(tmp_path: Path) -> None:
    clip = paddle.jit.to_static(lambda x: uc.clip_by_norm(x, 1.0), full_graph=False)
    with unified_clip.record(tmp_path / "run.jsonl"):
        clip(tensor([3.0, 4.0]))
    assert [line["norm"] for line in lines(tmp_path / "run.jsonl")] == [[5.0]]


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


LAUNCHED = """
import paddle
import paddle.distributed as dist

paddle.seed(0)
dist.init_parallel_env()
model, clip = paddle.DataParallel(paddle.nn.Linear(6, 1)), paddle.nn.ClipGradByGlobalNorm(0.25)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
for step in range(4):
    model(paddle.ones([4, 6]) * (dist.get_rank() + 1)).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
"""


@pytest.mark.nightly
def test_each_rank_of_paddles_launcher_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAUNCHED, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo", "train.py"]
    command = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", sys.executable, *launch]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=300, check=True, capture_output=True)
    recorded = runs.read(tmp_path / "run.jsonl")
    assert [(process.rank, process.ranks) for process in recorded.header.processes] == [(0, 2), (1, 2)]
    norms = [[line.norm for line in lines] for lines in (recorded.lines, *recorded.others)]
    assert len(norms[0]) == 4
    assert norms[0] == norms[1]
