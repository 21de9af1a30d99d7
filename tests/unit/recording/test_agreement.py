"""The sentences of `compare` about agreement are about compared numbers and possible effects only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unified_clip.recording import compare
from unified_clip.recording.report import sentences

HEADER = {"unified_clip": "0.1.0", "schema": 1, "started": "2026-01-01T00:00:00Z", "norms": True}


def steps(noise: float, losses: tuple[float, ...], optimizer: str, moved: float = 0.0) -> list[dict[str, Any]]:
    """Return the lines of a run with a gradient whose norm is `noise`, beside one whose norm is 2.

    moved: How far each step moves the weight with this gradient.
    """
    lines: list[dict[str, Any]] = []
    for step, loss in enumerate(losses, 1):
        norms = {"a": 2.0, "noise": noise}
        weights = {"a": 1.0, "noise": 1.0 + (step - 1) * moved}
        parameters = {name: {"norm": norm, "shape": [8], "weight": weights[name]} for name, norm in norms.items()}
        clip = {
            "step": step, "call": "clip_by_norm", "framework": "numpy", "rule": "each", "threshold": 1.0,
            "norm_type": 2.0, "eps": 0.0, "dtype": "float32", "norm": [2.0, noise], "coef": [0.5, 1.0],
            "clipped": True, "nan": 0, "inf": 0, "seconds": 0.001, "parameters": parameters,
        }  # fmt: skip
        made = {"step": step, "optimizer": optimizer, "settings": {"lr": 0.1}, "backward_calls": 1}
        lines += [clip, made, {"step": step, "logged": {"loss": loss}}]
    return lines


def printed(path: Path, *runs: list[dict[str, Any]], max_ulp: float) -> str:
    for name, lines in zip("ab", runs, strict=True):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (HEADER, *lines)))
    return "\n".join(sentences.lines(compare.compare(path / "a.jsonl", path / "b.jsonl", max_ulp=max_ulp)))


@pytest.mark.parametrize("optimizer", ["torch.optim.SGD", "torch.optim.AdamW"])
def test_noise_is_in_no_agreement_and_moves_weights_with_adam_only(tmp_path: Path, optimizer: str) -> None:
    old, new = (steps(noise, (1.0, 0.5), optimizer) for noise in (1e-8, 3e-8))
    text = printed(tmp_path, old, new, max_ulp=64)
    assert "The runs are the same" in text
    assert "Not compared: differences of 'noise'" in text
    assert "norms differ" not in text.lower()
    assert ("with Adam" in text) == (optimizer == "torch.optim.AdamW")


@pytest.mark.parametrize("moved", [0.2, 2e-6])
def test_noise_is_named_as_such_and_moves_no_weight_in_the_agreement(tmp_path: Path, moved: float) -> None:
    """Both if the weight moves far, and if it moves by less than the rounding of its norm."""
    old, new = (steps(noise, (1.0, 0.5), "torch.optim.Adam", far) for noise, far in ((1e-8, 0.0), (3e-8, moved)))
    text = printed(tmp_path, old, new, max_ulp=0)
    assert "Rounding noise: only the noise of 'noise' differs." in text
    assert "Rounding: " not in text
    assert "Weights are equal in all 2 calls that were compared, apart from rounding noise of 'noise'." in text
    assert "Gradients' norms are equal in all 2 calls that were compared, apart from rounding noise of 'noise'." in text


def test_rounding_is_reported_before_noise(tmp_path: Path) -> None:
    old, new = (steps(noise, (1.0, 0.5), "torch.optim.Adam", far) for noise, far in ((1e-8, 0.0), (3e-8, 0.2)))
    new[3]["parameters"]["a"]["norm"] = 2.0 + 2.0**-21
    text = printed(tmp_path, old, new, max_ulp=0)
    assert "The runs first differ at step 2: the norm of the gradient of 'a'" in text
    assert "Rounding noise: " not in text
    assert "Weights are equal in all 2 calls that were compared, apart from rounding noise of 'noise'." in text


def test_a_loss_beyond_rounding_is_not_called_rounding(tmp_path: Path) -> None:
    old, new = (steps(1e-8, losses, "torch.optim.SGD") for losses in ((1.0, 1.0), (1 + 100 * 2.0**-23, 1.01)))
    text = printed(tmp_path, old, new, max_ulp=256)
    assert "loss differs by more than 256 ULP from step 2 on: 1.0 and 1.01, by at most 0.99 %." in text
    assert "which can be rounding" not in text
