"""`unified-clip compare`: the largest differences and the losses in its sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recordings import step_line, write_and_compare, write_recording

from unified_clip.recording.losses import compare_logged
from unified_clip.recording.report import sentences
from unified_clip.recording.runs import read


def lines_with_noise(
    noise: float, losses: tuple[float, ...], optimizer: str, moved: float = 0.0
) -> list[dict[str, Any]]:
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
        step_line = {"step": step, "optimizer": optimizer, "settings": {"lr": 0.1}, "backward_calls": 1}
        lines += [clip, step_line, {"step": step, "logged": {"loss": loss}}]
    return lines


def print_comparison(path: Path, *runs: list[dict[str, Any]], max_ulp: float) -> str:
    return "\n".join(sentences.report_lines(write_and_compare(path, *runs, max_ulp=max_ulp)))


@pytest.mark.parametrize("optimizer", ["torch.optim.SGD", "torch.optim.AdamW"])
def test_noise_is_not_compared_and_moves_weights_with_adam_only(tmp_path: Path, optimizer: str) -> None:
    old, new = (lines_with_noise(noise, (1.0, 0.5), optimizer) for noise in (1e-8, 3e-8))
    text = print_comparison(tmp_path, old, new, max_ulp=64)
    assert "The runs are the same" in text
    assert "Not compared: the gradients of 'noise'" in text
    assert "norms differ" not in text.lower()
    assert ("with Adam by up to the learning rate" in text) == (optimizer == "torch.optim.AdamW")


@pytest.mark.parametrize("moved", [0.2, 2e-6])
def test_noise_is_named_and_weights_agree_apart_from_it(tmp_path: Path, moved: float) -> None:
    old, new = (
        lines_with_noise(noise, (1.0, 0.5), "torch.optim.Adam", distance)
        for noise, distance in ((1e-8, 0.0), (3e-8, moved))
    )
    text = print_comparison(tmp_path, old, new, max_ulp=0)
    assert "Rounding noise: only rounding noise in 'noise' differs." in text
    assert "Rounding: " not in text
    assert "Weights are equal in all 2 calls that were compared. Rounding noise of 'noise' is ignored." in text
    assert "Gradients' norms are equal in all 2 calls that were compared. Rounding noise of 'noise' is ignored." in text


def test_rounding_is_reported_before_noise(tmp_path: Path) -> None:
    old, new = (
        lines_with_noise(noise, (1.0, 0.5), "torch.optim.Adam", distance)
        for noise, distance in ((1e-8, 0.0), (3e-8, 0.2))
    )
    new[3]["parameters"]["a"]["norm"] = 2.0 + 2.0**-21
    text = print_comparison(tmp_path, old, new, max_ulp=0)
    assert "The runs first differ at step 2: the norm of the gradient of 'a'" in text
    assert "Rounding noise: " not in text
    assert "Weights are equal in all 2 calls that were compared. Rounding noise of 'noise' is ignored." in text


def test_a_loss_beyond_rounding_is_not_called_rounding(tmp_path: Path) -> None:
    old, new = (
        lines_with_noise(1e-8, losses, "torch.optim.SGD") for losses in ((1.0, 1.0), (1 + 100 * 2.0**-23, 1.01))
    )
    text = print_comparison(tmp_path, old, new, max_ulp=256)
    assert "loss differs from step 2 on: 1.0 and 1.01 at this step. The values differ by at most 0.99 %." in text
    assert "which can be rounding" not in text


@pytest.mark.parametrize("far", [False, True])
def test_losses_of_runs_without_clips_are_compared_in_float32(tmp_path: Path, far: bool) -> None:
    runs = []
    for name, loss in (("a.jsonl", 1.0), ("b.jsonl", 1.5 if far else 1.0 + 2.0**-23)):
        steps = [step_line(step, losses=[loss]) for step in (1, 2)]
        runs.append(read(write_recording(tmp_path / name, steps)))
    (loss,) = compare_logged(*runs, lambda each, _: each.exceeds(64))
    assert (loss.first is not None) == far
    assert loss.differences[0].ulps == (4194304 if far else 1)
