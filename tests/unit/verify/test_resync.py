"""`unified-clip verify --resync`: each new step begins with the old weights, so that differences do not add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.port.verify_pairs import NUMPY, STEPS, cause_kinds, run_verify, values, verify_as_json, write_data

from unified_clip import _command

LATE = 200
"""The last step with the right threshold."""

CLIP = "uc.clip_grad_norm_(grads, 0.5)"
OLD = NUMPY.replace("CLIP", CLIP)

SENT = """
        received = yield weights, grads
        weights = weights if received is None else dict(received)
"""
NEW = NUMPY.replace("        yield weights, grads\n", SENT)
OTHER_RATE = NEW.replace("np.float32(0.25)", "np.float32(0.26)")

BY_HAND = """
        norm = np.sqrt(sum(float(np.square(each).sum()) for each in grads.values()))
        unclipped = dict(grads)
        grads = {name: np.float32(min(1.0, LIMIT / norm)) * each for name, each in grads.items()}
"""


@pytest.fixture
def many_batches(tmp_path: Path) -> Path:
    """Data for 210 steps: targets that the model cannot reach, so that each step is clipped."""
    write_data(tmp_path)
    source = np.random.default_rng(3)
    x, y = source.normal(size=(LATE + 10, 4, 6)), source.normal(size=(LATE + 10, 4, 2)) * 5
    np.savez(tmp_path / "many.npz", x=x.astype(np.float32), y=y.astype(np.float32))
    return tmp_path / "many.npz"


def first_with(data: dict[str, Any], stage: str) -> int | None:
    return next((each["step"] for each in data["steps"] if stage in each["differs"]), None)


@pytest.mark.nightly
def test_a_wrong_threshold_from_step_201_is_found_although_the_optimizers_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], many_batches: Path
) -> None:
    by_hand = BY_HAND.replace("LIMIT", f"(0.5 if number <= {LATE} else 0.4)")
    old = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
    new = OTHER_RATE.replace("        CLIP\n", f"        number = locals().get('number', 0) + 1{by_hand}")
    new = new.replace("yield weights, grads", "yield weights, grads, unclipped")
    apart = verify_as_json(tmp_path, capsys, old, new, "--batches", str(many_batches))
    assert first_with(apart, "norm") == 2, "the first update differs, and so does everything after it"
    assert "coefficient" not in cause_kinds(apart)
    data = verify_as_json(tmp_path, capsys, old, new, "--batches", str(many_batches), "--resync")
    assert data["resynced"]
    assert first_with(data, "norm") is None, "equal weights give equal gradients"
    assert first_with(data, "update") == 1
    assert data["findings"][0]["mistake"] == "another learning rate"
    assert first_with(data, "coefficient") == LATE + 1


def test_equal_steps_agree_with_resync(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = verify_as_json(tmp_path, capsys, OLD, NEW.replace("CLIP", CLIP), "--resync")
    assert data["same"]
    assert data["resynced"]
    assert run_verify(tmp_path, OLD, NEW.replace("CLIP", CLIP), "--resync") == 0
    assert "new.py:step began with the same weights as " in capsys.readouterr().out


def test_updates_are_measured_from_the_weights_that_were_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = NEW.replace("CLIP", CLIP).replace("np.float32(0.25)", "np.float32(0.5)")
    data = verify_as_json(tmp_path, capsys, OLD, new, "--resync")
    assert all(each["update"]["relative"] == pytest.approx(0.5, rel=1e-5) for each in data["steps"])
    assert all(each["tensors"]["ulps"] == 0 for each in data["steps"])
    assert data["findings"][0]["mistake"] == "another learning rate"
    assert values(data, "another learning rate") == (0.25, 0.5)


def test_names_and_layouts_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = OTHER_RATE.replace("CLIP", CLIP).replace('"weight"', '"kernel"').replace('"bias"', '"offset"')
    new = new.replace(
        "    weights = {name: array.copy() for name, array in weights.items()}",
        '    weights = {"kernel": weights["weight"].T.copy(), "offset": weights["bias"].copy()}',
    )
    new = new.replace('weights["kernel"] +', 'weights["kernel"].T +').replace(
        'batch["x"].T @ error', '(batch["x"].T @ error).T'
    )
    (tmp_path / "names.toml").write_text('weight = "kernel"\nbias = "offset"\n', encoding="utf-8")
    data = verify_as_json(tmp_path, capsys, OLD, new, "--resync", "--map", str(tmp_path / "names.toml"))
    assert data["resynced"]
    assert all(each["norm"]["relative"] < 1e-6 for each in data["steps"])
    assert first_with(data, "update") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            OLD,
            OLD,
            "new.py:step: --resync cannot write the weights of the old script into 'weight': the function yields an "
            "object of type ndarray, and this object might be a copy of the parameter.",
        ),
        (
            OLD,
            OLD.replace("yield weights, grads", "sent = yield weights, grads"),
            "that yield returns (None without --resync): weights = (yield weights, gradients) or weights.",
        ),
        (
            OLD.replace("yield weights, grads", "last = grads") + "    return weights, last\n",
            NEW.replace("CLIP", CLIP),
            "--resync copies weights after each step, but ",
        ),
        (
            OLD,
            OLD.replace("yield weights, grads", "last = grads") + "    return weights, last\n",
            "new.py:step returns only after the last step. Yield (parameters, gradients) after each step, or remove",
        ),
        (
            OLD,
            NEW.replace("CLIP", CLIP).replace("yield weights, grads", "yield {'weight': weights['weight']}, grads"),
            "new.py:step yields gradients of 'bias' at step 1, but no parameters of these names",
        ),
    ],
)
def test_steps_that_cannot_be_resynced_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert run_verify(tmp_path, old, new, "--resync") == 2
    assert message in capsys.readouterr().err


def test_an_old_step_that_fails_does_not_leave_the_new_one_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = OLD.replace("        yield weights", "        assert False, 'broken'\n        yield weights")
    assert run_verify(tmp_path, fails, NEW.replace("CLIP", CLIP), "--resync") == _command.INCOMPLETE
    assert "AssertionError: broken" in capsys.readouterr().err
    few = OLD.replace("yield weights, grads", "yield weights, grads\n        break")
    assert run_verify(tmp_path, few, NEW.replace("CLIP", CLIP), "--resync") == 2
    assert f"old.py:step yielded 1 time for {STEPS} batches" in capsys.readouterr().err
