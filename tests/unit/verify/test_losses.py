"""`unified-clip verify` shows the losses that training steps yield."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import NUMPY, STEPS, cause_kinds, run_verify, verify_as_json
from support.tiers import sampled

GLOBAL = NUMPY.replace("CLIP", "uc.clip_grad_norm_(grads, 0.5)")
WITH_LOSS = GLOBAL.replace("yield weights, grads", "yield weights, grads, LOSS")
MEAN = 'np.square(batch["x"] @ weights["weight"] + weights["bias"] - batch["y"]).mean()'


def test_losses_are_columns_of_the_table_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (WITH_LOSS.replace("LOSS", loss) for loss in (MEAN, MEAN.replace(".mean()", ".sum()")))
    assert run_verify(tmp_path, old, new) == 0
    printed = capsys.readouterr().out
    assert "loss old" in printed
    assert "loss new" in printed
    assert "loss differs from step 1 on: " in printed
    data = verify_as_json(tmp_path, capsys, old, new)
    losses = [each["loss"] for each in data["steps"]]
    assert len(losses) == STEPS
    assert all(loss["new"] == pytest.approx(8 * loss["old"]) for loss in losses)
    assert len({loss["old"] for loss in losses}) == STEPS


@pytest.mark.parametrize(("factor", "is_small"), [(1 + 1e-9, True), (1.1, False)])
def test_a_tiny_difference_in_float64_is_advised_to_be_a_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, is_small: bool
) -> None:
    old = WITH_LOSS.replace("LOSS", f"float({MEAN})").replace("array.copy()", "array.astype(np.float64)")
    new = old.replace("uc.clip_grad_norm_", f'grads["bias"][0] *= {factor}; uc.clip_grad_norm_')
    data = verify_as_json(tmp_path, capsys, old, new)
    assert cause_kinds(data) == ["other gradients"]
    assert ("Compare the constants of both models" in data["findings"][0]["fix"]) == is_small


def test_a_loss_of_one_step_only_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verify(tmp_path, WITH_LOSS.replace("LOSS", MEAN), GLOBAL) == 0
    assert "loss was not compared: only old.py:step has it." in capsys.readouterr().out


def test_a_loss_may_follow_parameters_without_gradients_or_be_returned_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = NUMPY.replace("CLIP", "grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}")
    once = loop.replace("yield weights, grads", f"loss = {MEAN}") + "    return weights, float(loss)\n"
    each_step = loop.replace("yield weights, grads", f"yield weights, None, float({MEAN})")
    data = verify_as_json(tmp_path, capsys, once, each_step)
    assert [each["loss"]["old"] is None for each in data["steps"]] == [True] * (STEPS - 1) + [False]
    assert data["steps"][-1]["loss"]["old"] == pytest.approx(data["steps"][-1]["loss"]["new"])


@pytest.mark.parametrize("loss", sampled(["np.ones(2)", "'1.5'", "True", "[1.5]"], 3))
def test_a_loss_that_is_not_one_number_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    assert run_verify(tmp_path, GLOBAL, WITH_LOSS.replace("LOSS", loss)) == 2
    assert "new.py:step: output 1 of the function has unclipped gradients of type " in capsys.readouterr().err
