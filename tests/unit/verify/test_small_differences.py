"""`unified-clip verify` names rounding and moving statistics, and blames neither data nor optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import (
    NUMPY,
    cause_kinds,
    largest_ulps,
    values,
    verify_as_json,
)

GLOBAL = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
PER_TENSOR = NUMPY.replace("CLIP", "grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}")
SMALL = PER_TENSOR.replace("grads = {name: uc", "grads['bias'] *= 1e-4 * FACTOR; grads = {name: uc")
WIDE = SMALL.replace(
    "weights = {name: array.copy()", "weights = {name: array.astype('float64')"
).replace("np.float32(0.25)", "0.25")  # fmt: skip
MOVING = GLOBAL.replace("weights = {name", "mean = np.zeros(6, 'f'); weights = {name").replace(
    "yield weights, grads",
    "mean = mean + np.float32(RATE) * (batch['x'].mean(0) - mean); yield {**weights, 'mean': mean}, grads",
)
"""A step with a moving mean, which has no gradient. Tests replace RATE."""


def test_rounding_of_a_small_gradient_is_the_only_cause_in_float64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (WIDE.replace("FACTOR", each) for each in ("1", "(1 + 3e-14)"))
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert not data["same"]
    assert cause_kinds(data) == ["rounding"]


def test_rounding_of_a_clipped_gradient_is_named_and_the_clip_calls_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = GLOBAL.replace(
        "yield weights, grads", "yield weights, {**grads, 'bias': grads['bias'] * np.float32(1 + 1e-6)}"
    )
    data = verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "1")
    assert cause_kinds(data) == ["rounding"]
    assert [step["differs"] for step in data["steps"]] == [["tensors"]] * 4


def test_the_difference_of_the_norms_explains_that_of_the_coefficients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Near 1, a ULP of the norm is twice as large as one of the coefficient."""
    clip = "grads = {'bias': np.float32([1.001 + ULPS * 2.0**-23, 0])}; grads, _ = uc.clip_by_global_norm(grads, 0.999)"
    old, new = (NUMPY.replace("CLIP", clip.replace("ULPS", each)) for each in ("0", "4"))
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "2")
    assert [step["differs"] for step in data["steps"]] == [["norm"]] * 4


ADAM = GLOBAL.replace(
    "    for batch in batches:", "    mean, square = {}, {}\n    for t, batch in enumerate(batches, 1):"
).replace(
    "weights[name] -= np.float32(0.25) * grad",
    "mean[name] = 0.9 * mean.get(name, 0) + 0.1 * grad; square[name] = 0.999 * square.get(name, 0) + 0.001 * grad**2\n"
    "            mean_, square_ = mean[name] / (1 - 0.9**t), square[name] / (1 - 0.999**t)\n"
    "            weights[name] = weights[name] - np.float32(RATE) * mean_ / (np.sqrt(square_) + np.float32(1e-8))",
)
TINY = ADAM.replace("grads, _ = uc", "grads['bias'] = grads['bias'] * np.float32([1e-6, 1]) + OFF; grads, _ = uc")
"""Adam, where one element of a gradient is tiny. Tests replace OFF and RATE."""


@pytest.mark.parametrize("steps", ["", " * (t == 1)"])
def test_rounding_that_adam_amplifies_is_named_rounding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: str
) -> None:
    """Adam keeps the difference of an earlier step."""
    off = f"np.float32([3e-9, 0]){steps}"
    old, new = (TINY.replace("OFF", each).replace("RATE", "0.01") for each in ("0", off))
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert largest_ulps(data, "update") > 400
    assert cause_kinds(data) == ["rounding"]


@pytest.mark.parametrize("rate", ["0.0101", "0.010001"])
def test_another_learning_rate_is_no_amplified_rounding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    old, new = (
        TINY.replace("OFF", off).replace("RATE", each) for off, each in (("0", "0.01"), ("np.float32([3e-9, 0])", rate))
    )
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert cause_kinds(data) == ["another learning rate"]
    old_size, new_size = values(data, "another learning rate")
    assert new_size / old_size == pytest.approx(float(rate) / 0.01, rel=1e-5)


def test_moving_statistics_are_no_difference_of_optimizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (MOVING.replace("RATE", each) for each in ("0.01", "0.1"))
    data = verify_as_json(tmp_path, capsys, old, new)
    assert cause_kinds(data) == ["tensors without a gradient"]
    assert "'mean'" in data["findings"][0]["text"]
