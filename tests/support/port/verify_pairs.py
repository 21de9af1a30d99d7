"""Training steps for the tests of `unified-clip verify`, and functions that run the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_clip.cli import main

STEPS = 4

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
"""For ports to PyTorch: `make test-paddle` and `make test-tensorflow` run without it."""

_source = np.random.default_rng(6)


def _numbers(*shape: int) -> np.ndarray:
    return (_source.integers(-8, 9, shape) / 8).astype(np.float32)


WEIGHTS = {"weight": _numbers(6, 2), "bias": _numbers(2)}
BATCHES = {"x": _numbers(STEPS, 4, 6), "y": _numbers(STEPS, 4, 2)}

NUMPY = """
import numpy as np
import unified_clip.numpy as uc

def gradients(weights, batch):
    error = 2 * (batch["x"] @ weights["weight"] + weights["bias"] - batch["y"]) / batch["y"].size
    return {"weight": batch["x"].T @ error, "bias": error.sum(0)}

def step(weights, batches):
    weights = {name: array.copy() for name, array in weights.items()}
    for batch in batches:
        grads = gradients(weights, batch)
        CLIP
        for name, grad in grads.items():
            weights[name] -= np.float32(0.25) * grad
        yield weights, grads
"""
"""A linear model. Replace CLIP."""

TORCH = """
import torch
import unified_clip.torch as uc

def step(weights, batches):
    net = torch.nn.Linear(6, 2)
    net.load_state_dict({name: torch.from_numpy(array.T.copy()) for name, array in weights.items()})
    optimizer = torch.optim.SGD(net.parameters(), 0.25)
    for batch in batches:
        optimizer.zero_grad()
        (net(torch.from_numpy(batch["x"])) - torch.from_numpy(batch["y"])).square().mean().backward()
        CLIP
        optimizer.step()
        yield dict(net.named_parameters()), {name: each.grad for name, each in net.named_parameters()}
"""

GLOBAL = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
PER_TENSOR = NUMPY.replace("CLIP", "grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}")
PER_TENSOR_IN_ONE_CALL = NUMPY.replace(
    "CLIP",
    "grads = dict(zip(grads, [g for _, g in uc.GradientClipByNorm(0.5)(zip(weights.values(), grads.values()))]))",
)


def write_data(directory: Path) -> list[str]:
    np.savez(directory / "init.npz", **WEIGHTS)
    np.savez(directory / "batches.npz", **BATCHES)
    return ["--weights", str(directory / "init.npz"), "--batches", str(directory / "batches.npz")]


def run_verify(directory: Path, old: str, new: str, *options: str, scripts: Sequence[str] = ()) -> int:
    """Run the command on two sources of a function `step`, or on `scripts`."""
    (directory / "old.py").write_text(old, encoding="utf-8")
    (directory / "new.py").write_text(new, encoding="utf-8")
    scripts = scripts or [f"{directory / name}:step" for name in ("old.py", "new.py")]
    return main(["verify", *scripts, *write_data(directory), *options])


def verify_as_json(
    directory: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, *options: str
) -> dict[str, Any]:
    status = run_verify(directory, old, new, "--json", *options)
    printed = capsys.readouterr()
    assert printed.err == ""
    data: dict[str, Any] = json.loads(printed.out)
    assert status == (0 if data["same"] else 1)
    return data


def cause_kinds(data: Mapping[str, Any]) -> list[str]:
    return [each["mistake"] for each in data["findings"]]


def values(data: Mapping[str, Any], mistake: str) -> tuple[Any, Any]:
    """Return the value of each side in the first finding of a kind."""
    return next((each["a"], each["b"]) for each in data["findings"] if each["mistake"] == mistake)


def called_names(data: Mapping[str, Any], side: str) -> set[str]:
    return {line["call"] for step in data["steps"] for line in step[side]}


def largest_ulps(data: Mapping[str, Any], stage: str) -> float:
    return max(step[stage]["ulps"] for step in data["steps"])
