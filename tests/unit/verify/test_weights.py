"""`unified-clip verify` names weights that a port has not loaded, transposed or clipped, and parameters that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.port import verify_pairs
from support.port.verify_pairs import needs_torch

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


ADAM = """
        for name, grad in grads.items():
            mean[name] = 0.9 * mean.get(name, 0) + 0.1 * grad
            square[name] = 0.999 * square.get(name, 0) + 0.001 * grad**2
            w[name] = w[name] - 0.01 * mean[name] / (1 - 0.9**t) / (np.sqrt(square[name] / (1 - 0.999**t)) + EPS)
"""
SGD = "\n        for name, grad in grads.items():\n            w[name] -= 0.125 * grad\n"


def with_adam(source: str, eps: float = 1e-8) -> str:
    source = source.replace(SGD, ADAM.replace("EPS", f"{eps}"))
    return source.replace("for batch in batches:", "mean, square = {}, {}\n    for t, batch in enumerate(batches, 1):")


@pytest.mark.parametrize("load", ["stored['bias'][2] += 0.001", "stored['in'] *= 1.0001"])
def test_an_initial_weight_is_named_with_adam_too(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str], load: str
) -> None:
    (tmp_path / "adam.py").write_text(with_adam(OLD), encoding="utf-8")
    (tmp_path / "port.py").write_text(with_adam(PORT.replace("LOAD", load)), encoding="utf-8")
    assert main(["verify", f"{tmp_path}/adam.py:step", f"{tmp_path}/port.py:step", *options, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert verify_pairs.cause_kinds(data) == ["other initial weights"]
    assert f"weights of '{load[8:].partition(chr(39))[0]}' differ" in data["findings"][0]["text"]


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


TORCH_STEP = """
import torch, unified_clip.torch as uc
def step(weights, batches):
    w = {name: torch.nn.Parameter(torch.from_numpy(each.copy())) for name, each in weights.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=0.05, weight_decay=DECAY)
    for batch in batches:
        optimizer.zero_grad()
        for part in (slice(0, 2), slice(2, None)):
            hidden = torch.tanh(torch.from_numpy(batch["x"][part]) @ w["in"]) @ w["mid"] + w["bias"]
            loss = ((hidden @ w["out"]).squeeze(1) - torch.from_numpy(batch["y"][part])).pow(2).mean() + L2
            (loss / 2).backward()
        uc.GradientClipByGlobalNorm(0.1).clip_(w.values())
        optimizer.step()
        yield w, {name: each.grad for name, each in w.items()}
"""
SQUARES = "0.05 * sum(each.square().sum() for each in w.values())"


@needs_torch
@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(
    ("decays", "losses"),
    [(("0.1", "0.0"), ("0", SQUARES)), (("0.1", "0.1"), ("0", SQUARES)), (("0.0", "0.1"), (SQUARES, "0"))],
)
def test_an_l2_regularizer_is_named_beside_the_weight_decay_of_an_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decays: tuple[str, str], losses: tuple[str, str]
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"in": (3, 4), "mid": (4, 4), "bias": (4,), "out": (4, 1)}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "w.npz", **values | {"bias": np.zeros(4, np.float32)})
    x, y = (rng.normal(size=(2, 4, *rest)).astype(np.float32) for rest in ((3,), ()))
    np.savez(tmp_path / "b.npz", x=x, y=y)
    for name, decay, loss in zip(("old", "new"), decays, losses, strict=True):
        (tmp_path / f"{name}.py").write_text(TORCH_STEP.replace("DECAY", decay).replace("L2", loss), encoding="utf-8")
    files = [f"{tmp_path}/old.py:step", f"{tmp_path}/new.py:step", "--weights", f"{tmp_path}/w.npz"]
    assert main(["verify", *files, "--batches", f"{tmp_path}/b.npz", "--max-ulp", "64", "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    found = {each["field"]: (each["a"], each["b"]) for each in data["findings"]}
    added = ("none", "0.1 * weight")
    assert found.pop("weight decay before the clip") == (added if losses[0] == "0" else added[::-1])
    of_optimizers = tuple(float(each) or None for each in decays)
    assert found == ({} if decays[0] == decays[1] else {"weight decay": of_optimizers})


def test_weight_decay_of_some_parameters_is_not_called_other_weights(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = OLD.replace("0.125 * grad", "0.125 * (grad + 0.02 * w[name] * (grad.ndim > 1))")
    new = new.replace('batch["y"]) /', 'batch["y"] + 1) /')
    data = data_of(tmp_path, new, options, capsys)
    assert set(verify_pairs.cause_kinds(data)) == {"another optimizer", "other data or loss"}
    assert verify_pairs.values(data, "another optimizer") == (None, 0.02)


@needs_torch
@pytest.mark.usefixtures("quick_pytorch_workers")
def test_a_weight_in_the_recording_is_named_without_another_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"
    old = verify_pairs.TORCH.replace("CLIP", clip)
    new = old.replace("    optimizer =", "    net.bias.data[1] += 0.25\n    optimizer =")
    data = verify_pairs.verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert verify_pairs.cause_kinds(data) == ["other initial weights"]
    assert "'bias'" in json.dumps(data["findings"])


def test_a_mistake_in_the_data_is_not_called_an_untransposed_weight(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = PORT.replace("LOAD", "").replace('batch["y"]) /', 'batch["y"] + 1) /')
    assert verify_pairs.cause_kinds(data_of(tmp_path, new, options, capsys)) == ["other data or loss"]


def test_a_clip_that_lacks_some_gradients_is_named_with_their_names(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    groups = "; ".join(
        f"grads |= uc.clip_by_global_norm({{n: grads[n] for n in {names}}}, 0.01)[0]"
        for names in (("in", "mid"), ("bias", "out"))
    )
    (tmp_path / "both.py").write_text(LAYERS.replace("CLIP", groups), encoding="utf-8")
    (tmp_path / "one.py").write_text(LAYERS.replace("CLIP", groups.split(";")[0]), encoding="utf-8")
    files = [f"{tmp_path}/both.py:step", f"{tmp_path}/one.py:step"]
    assert main(["verify", *files, *options, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert verify_pairs.cause_kinds(data) == ["left out"]
    assert "'bias' and 'out'" in data["findings"][0]["text"]


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
