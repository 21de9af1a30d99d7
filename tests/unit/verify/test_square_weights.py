"""`unified-clip verify` of a port with square weights: an embedding, and a dense kernel that it transposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.port.verify_pairs import cause_kinds, verify_as_json

STEP = """
import numpy as np
import unified_clip.numpy as uc

def step(weights, batches):
    w = {name: array.copy() for name, array in weights.items()}
    for batch in batches:
        rows = w["table"][batch["x"]]
        hidden = np.tanh(rows @ w["dense"]TURN)
        error = hidden - batch["y"]
        last = error * (1 - hidden**2)
        table = np.zeros_like(w["table"])
        np.add.at(table, batch["x"], last @ (w["dense"]TURN).T)
        grads, _ = uc.clip_by_global_norm({"table": table, "dense": (rows.T @ last)TURN}, 0.25)
        for name, grad in grads.items():
            w[name] = w[name] - 0.125 * grad
        yield w, grads
"""
"""An embedding and a dense layer, both square. Tests replace TURN, because a port stores the kernel transposed."""

OLD = STEP.replace("TURN", "")
UNTRANSPOSED = STEP.replace("TURN", ".T")
"""The port loads the kernel without a transpose."""

TRANSPOSED = UNTRANSPOSED.replace("array.copy() for", "array.T.copy() if name == 'dense' else array for")


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    source = np.random.default_rng(5)
    np.savez(tmp_path / "square.npz", table=source.normal(size=(6, 6)), dense=source.normal(size=(6, 6)))
    np.savez(tmp_path / "rows.npz", x=source.integers(0, 6, (2, 8)), y=source.normal(size=(2, 8, 6)))
    weights, batches = str(tmp_path / "square.npz"), str(tmp_path / "rows.npz")
    return ["--weights", weights, "--batches", batches, "--max-ulp", "64"]


def test_a_transposed_kernel_agrees(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_as_json(tmp_path, capsys, OLD, TRANSPOSED, *options)["same"]


@pytest.mark.parametrize("new", [TRANSPOSED.replace('- batch["y"]', '- 2 * batch["y"]'), UNTRANSPOSED])
def test_other_gradients_of_equal_weights_are_other_data_or_another_forward_pass(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str], new: str
) -> None:
    assert cause_kinds(verify_as_json(tmp_path, capsys, OLD, new, *options)) == ["other data or loss"]
