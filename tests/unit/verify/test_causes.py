"""`unified-clip verify` names the cause of a difference: mistakes in the clip, dtypes, rounding and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.port.verify_pairs import (
    GLOBAL,
    NUMPY,
    PER_TENSOR,
    STEPS,
    TORCH,
    cause_kinds,
    needs_torch,
    run_verify,
    values,
    verify_as_json,
)
from support.tiers import sampled


@pytest.mark.parametrize(
    ("clip", "mistake"),
    sampled(
        [
            ("grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}", "per tensor for global"),
            ("grads, _ = uc.clip_by_global_norm(grads, 0.25)", "another threshold"),
            ("uc.clip_grad_norm_(grads, 0.5)", "another eps of the clip"),
            ("uc.clip_grad_norm_({'weight': grads['weight']}, 0.5)", "left out"),
            ("uc.clip_by_global_norm(grads, 0.5)", "the clip does not reach the step"),
            ("grads, _ = uc.clip_by_global_norm({n: 2 * g for n, g in grads.items()}, 0.5)", "scaled gradients"),
        ],
        3,
    ),
)
def test_a_mistake_is_named_at_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clip: str, mistake: str
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, NUMPY.replace("CLIP", clip))
    assert not data["same"]
    assert data["steps"][0]["differs"]
    assert mistake in cause_kinds(data)


@pytest.mark.parametrize(
    ("line", "mistake", "expected"),
    [
        ("np.float32(0.125) * grad", "another learning rate", (0.25, 0.125)),
        ("np.float32(0.25) * grad + np.float32(0.1) * weights[name]", "another optimizer", (None, 0.4)),
    ],
)
def test_updates_that_differ_after_equal_clips_have_a_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, mistake: str, expected: tuple[Any, Any]
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL.replace("np.float32(0.25) * grad", line))
    assert data["steps"][0]["differs"] == ["update"]
    assert cause_kinds(data) == [mistake]
    assert values(data, mistake) == expected


def test_a_mistake_at_a_later_step_is_named_beside_one_at_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs train apart from the first step on, and each run still shows its own threshold."""
    late = GLOBAL.replace("in batches:", "in batches:\n        number = locals().get('number', 0) + 1")
    late = late.replace("grads, 0.5)", "grads, 0.5 if number < 3 else 0.25)").replace(
        "np.float32(0.25)", "np.float32(0.5)"
    )
    data = verify_as_json(tmp_path, capsys, GLOBAL, late)
    found = [(each["step"], each["mistake"], each["a"], each["b"]) for each in data["findings"]]
    assert found == [(1, "another learning rate", 0.25, 0.5), (3, "another threshold", 0.5, 0.25)]


def test_steps_without_a_clip_on_either_side_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sometimes = NUMPY.replace("for batch in batches:", "for index, batch in enumerate(batches):").replace(
        "CLIP", "grads = grads if index % 2 else uc.clip_by_global_norm(grads, 0.5)[0]"
    )
    data = verify_as_json(tmp_path, capsys, sometimes, sometimes)
    assert data["same"]
    assert data["without_clip"] == [2, 4]
    assert run_verify(tmp_path, sometimes, sometimes) == 0
    printed = capsys.readouterr().out
    assert "At 2 of 4 steps (2, 4), no clip calls were recorded. Only gradients and updates" in printed
    assert [line.split("│")[-2].strip() for line in printed.splitlines() if line.startswith("│")] == [
        "same", "no clip call", "same", "no clip call",
    ]  # fmt: skip


@pytest.mark.parametrize(("rate", "same"), sampled([("2.0**-18", True), ("2.0**-17", False), ("0", False)], 2))
def test_small_updates_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str, same: bool
) -> None:
    """All of them are less than 64 units in the last place of their parameters."""
    small = GLOBAL.replace("np.float32(0.25)", "np.float32(2.0**-18)")
    new = GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")
    data = verify_as_json(tmp_path, capsys, small, new, "--max-ulp", "64")
    assert data["same"] is same
    assert [step["differs"] for step in data["steps"]] == [[] if same else ["update"]] * STEPS
    assert cause_kinds(data) == (
        [] if same else ["weights are not updated" if rate == "0" else "another learning rate"]
    )


@needs_torch
@pytest.mark.parametrize("threshold", sampled(["0.5", "1e9"], 2))
def test_each_step_shows_that_one_side_clips_after_the_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threshold: str
) -> None:
    clip = f"torch.nn.utils.clip_grad_norm_(net.parameters(), {threshold})"
    old = TORCH.replace("CLIP", clip)
    new = TORCH.replace("        CLIP\n", "").replace("optimizer.step()", f"optimizer.step()\n        {clip}")
    data = verify_as_json(tmp_path, capsys, old, new)
    assert cause_kinds(data) == ["clipping after the step"]
    assert values(data, "clipping after the step") == ("before the step", "after the step")
    assert {"old.py:step", "new.py:step"} <= {*data["findings"][0]["text"].replace(",", "").split()}


def test_another_eps_that_max_ulp_hides_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = NUMPY.replace("CLIP", "uc.clip_grad_norm_(grads, 0.5)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "64")
    assert data["same"]
    assert cause_kinds(data) == ["another eps of the clip"]
    assert values(data, "another eps of the clip") == (0, 1e-6)


def test_a_difference_without_a_cause_is_reported_as_unexplained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = "raw = grads; grads = {n: g * np.linspace(0.2, 0.3, len(g), dtype='f')[:, None] for n, g in raw.items()}"
    new = NUMPY.replace("CLIP", by_hand.replace("[:, None]", ".reshape(len(g), *[1] * (g.ndim - 1))"))
    new = new.replace("weights, grads\n", "weights, grads, raw\n")
    data = verify_as_json(tmp_path, capsys, PER_TENSOR, new)
    assert cause_kinds(data) == ["unexplained"]
    assert (data["findings"][0]["step"], data["findings"][0]["field"]) == (1, "gradients of the step")


def test_gradients_that_change_after_the_clip_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5); grads['bias'] *= np.float32(2)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new)
    assert data["steps"][0]["differs"] == ["tensors", "update"]
    assert cause_kinds(data) == ["the clip does not reach the step"]
    assert "'bias'" in data["findings"][0]["text"]
    assert "'weight'" not in data["findings"][0]["text"]


@pytest.mark.parametrize("scale", [1, 128])
def test_a_division_after_the_clip_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: int) -> None:
    scaled, divided = (
        f"grads = {{n: g * np.float32({factor}) for n, g in grads.items()}}" for factor in (scale, 2**-7)
    )
    new = NUMPY.replace("CLIP", f"{scaled}; grads, _ = uc.clip_by_global_norm(grads, 0.5); {divided}")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new)
    if scale == 1:
        assert cause_kinds(data) == ["the clip does not reach the step"]
    else:
        assert cause_kinds(data) == ["clipping before unscaling"]
        assert values(data, "clipping before unscaling") == ("1", "128")


@pytest.mark.parametrize(
    ("dtype", "rate", "same"),
    [("np.float64", "0.25", True), ("np.float16", "0.25", False), ("np.float16", "2**-10", False)],
)
def test_another_dtype_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, rate: str, same: bool
) -> None:
    old = GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")
    new = GLOBAL.replace("array.copy()", f"array.astype({dtype})").replace("np.float32(0.25)", f"{dtype}({rate})")
    new = new.replace(
        "gradients(weights, batch)\n", f"gradients(weights, {{n: a.astype({dtype}) for n, a in batch.items()}})\n"
    )
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert data["same"] is same
    assert cause_kinds(data) == ["another dtype"]
    assert values(data, "another dtype") == ("float32", dtype.removeprefix("np."))


@pytest.mark.parametrize("rounded", ["", "raw = {n: np.nextafter(g, np.float32(9)) for n, g in raw.items()}; "])
@pytest.mark.parametrize("kept", ["clipped", "raw"])
def test_gradients_that_are_not_cleared_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str, rounded: str
) -> None:
    clip = f"raw = grads; {rounded}clipped, _ = uc.clip_by_global_norm(raw, 0.5); grads = clipped; kept = {kept}"
    new = NUMPY.replace("CLIP", clip).replace("    for batch in", "    kept = {}\n    for batch in")
    added = "grads = gradients(weights, batch); grads = {n: g + kept.get(n, 0) for n, g in grads.items()}"
    data = verify_as_json(tmp_path, capsys, GLOBAL, new.replace("grads = gradients(weights, batch)", added))
    assert cause_kinds(data) == ["gradients are not cleared"]
    assert data["findings"][0]["step"] == 2
    assert values(data, "gradients are not cleared") == ("cleared", "not cleared")
