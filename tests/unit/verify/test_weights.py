"""`unified-clip verify` names weights that a port has not loaded, transposed or clipped, and parameters that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.port import verify_pairs

from unified_clip.cli import main

STEPS = 3

LAYERS = """
import numpy as np
import unified_clip.numpy as uc

def gradients(w, batch):
    hidden = np.tanh(batch["x"] @ w["in"])
    middle = np.tanh(hidden @ w["mid"] + w["bias"])
    error = (middle @ w["out"] - batch["y"]) / len(batch["y"])
    last = error @ w["out"].T * (1 - middle**2)
    first = last @ w["mid"].T * (1 - hidden**2)
    return {"in": batch["x"].T @ first, "mid": hidden.T @ last, "bias": last.sum(0), "out": middle.T @ error}

def step(weights, batches):
    w = {name: array.copy() for name, array in weights.items()}
    for batch in batches:
        grads = gradients(w, batch)
        CLIP
        for name, grad in grads.items():
            w[name] -= 0.125 * grad
        yield w, grads
"""
"""A network of three layers. Tests replace CLIP."""

CLIP = "grads, _ = uc.clip_by_global_norm(grads, 0.01)"
OLD = LAYERS.replace("CLIP", CLIP)

PORT = OLD.replace("w = {name: array.copy() for name, array in weights.items()}", "w = load(weights)").replace(
    "yield w, grads", "yield turned(w), turned(grads)"
)
PORT += """
def turned(tensors):
    return {name: array.T if array.ndim == 2 else array for name, array in tensors.items()}

def load(weights):
    stored = {name: array.T.copy() if array.ndim == 2 else array.copy() for name, array in weights.items()}
    LOAD
    return {name: array.copy() for name, array in turned(stored).items()}
"""
"""A port that stores its matrices transposed. Tests replace LOAD by a mistake in the loading."""


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    source = np.random.default_rng(2)
    shapes = {"in": (6, 5), "mid": (5, 5), "bias": (5,), "out": (5, 2)}
    np.savez(tmp_path / "init.npz", **{name: source.normal(size=shape) for name, shape in shapes.items()})
    np.savez(tmp_path / "batches.npz", x=source.normal(size=(STEPS, 8, 6)), y=source.normal(size=(STEPS, 8, 2)))
    return ["--weights", str(tmp_path / "init.npz"), "--batches", str(tmp_path / "batches.npz"), "--max-ulp", "64"]


def verify(tmp_path: Path, new: str, options: list[str]) -> int:
    (tmp_path / "old.py").write_text(OLD, encoding="utf-8")
    (tmp_path / "new.py").write_text(new, encoding="utf-8")
    return main(["verify", f"{tmp_path}/old.py:step", f"{tmp_path}/new.py:step", *options])


def data_of(tmp_path: Path, new: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert verify(tmp_path, new, [*options, "--format", "json"]) == 1
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_a_port_that_loads_its_weights_correctly_is_the_same(tmp_path: Path, options: list[str]) -> None:
    assert verify(tmp_path, PORT.replace("LOAD", ""), options) == 0


@pytest.mark.parametrize(
    ("load", "mistake", "names"),
    [
        ("stored['mid'] = weights['mid'].copy()", "untransposed weight", "the square weights of 'mid'"),
        ("stored['in'] = weights['in'].reshape(5, 6)", "untransposed weight", "'in' are transposed"),
        ("stored['bias'] = np.ones(5)", "other initial weights", "weights of 'bias' differ"),
        ("stored['bias'][2] += 0.001", "other initial weights", "weights of 'bias' differ"),
        ("stored['in'] *= 1.0001; stored['out'] += 1e-4", "other initial weights", "weights of 'in' and 'out' differ"),
        (
            "stored = {name: 1.125 * array for name, array in stored.items()}",
            "other initial weights",
            "weights of 'in', 'mid', 'bias' and 'out' differ",
        ),
    ],
)
def test_a_mistake_at_loading_is_named_with_its_parameter(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str], load: str, mistake: str, names: str
) -> None:
    data = data_of(tmp_path, PORT.replace("LOAD", load), options, capsys)
    assert verify_pairs.cause_kinds(data) == [mistake]
    assert names in data["findings"][0]["text"]


L2 = "grads = {n: g + 0.02 * w[n] * (g.ndim > 1) for n, g in grads.items()}; "


@pytest.mark.parametrize("adds", ["old", "new"])
@pytest.mark.parametrize("decay", ["", " + 0.02 * w[name] * (grad.ndim > 1)"])
def test_weight_decay_before_the_clip_is_named(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str], adds: str, decay: str
) -> None:
    """An L2 regularizer in the loss, and weight decay in the optimizer or none."""
    before, after = OLD.replace(CLIP, L2 + CLIP), OLD.replace("0.125 * grad", f"0.125 * (grad{decay})")
    for name, source in zip(("old", "new"), (before, after) if adds == "old" else (after, before), strict=True):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    assert main(["verify", f"{tmp_path}/old.py:step", f"{tmp_path}/new.py:step", *options, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    kinds = verify_pairs.cause_kinds(data)
    assert set(kinds) == {"weight decay before the clip", *(["another optimizer"] if decay else [])}
    expected = ("0.02 * weight", "none")
    assert verify_pairs.values(data, "weight decay before the clip") == (expected if adds == "old" else expected[::-1])
    assert "gradients of 'in', 'mid' and 'out'" in data["findings"][-1]["text"]


def test_a_mistake_in_the_data_is_not_called_an_untransposed_weight(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = PORT.replace("LOAD", "").replace('batch["y"]) /', 'batch["y"] + 1) /')
    assert verify_pairs.cause_kinds(data_of(tmp_path, new, options, capsys)) == ["other data or loss"]


def test_every_parameter_that_differs_is_in_the_json_data_and_the_worst_are_printed(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = OLD.replace("0.125 * grad", "0.125 * grad * (name == 'bias' or 2)")
    step = data_of(tmp_path, new, options, capsys)["steps"][0]
    assert step["parameters"]["tensors"] == []
    updates = step["parameters"]["update"]
    assert {each["parameter"] for each in updates} == {"in", "mid", "out"}
    assert [each["ulps"] for each in updates] == sorted((each["ulps"] for each in updates), reverse=True)
    assert step["update"] == updates[0]
    assert verify(tmp_path, OLD.replace("0.125 * grad", "0.25 * grad"), options) == 1
    printed = capsys.readouterr().out
    (line,) = [each for each in printed.splitlines() if each.startswith("The updates differ from step 1 on")]
    assert ". At step 1, 4 of 4 parameters differ: " in line
    assert sum(f"'{name}' (" in line for name in ("in", "mid", "bias", "out")) == 3
    assert line.endswith(" and 1 other.")


def test_a_parameter_that_no_optimizer_has_is_named(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = OLD.replace("for name, grad in grads.items():", "for name, grad in {**grads, 'mid': 0}.items():")
    data = data_of(tmp_path, new, options, capsys)
    assert verify_pairs.cause_kinds(data) == ["weights are not updated"]
    assert "do not change 'mid'" in data["findings"][0]["text"]
