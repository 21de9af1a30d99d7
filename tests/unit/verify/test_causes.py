"""`unified-clip verify` names the cause of a difference: mistakes in the clip, dtypes, rounding and gradients."""

from __future__ import annotations

from pathlib import Path

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
    ("line", "mistake", "says"),
    [
        ("np.float32(0.125) * grad", "another learning rate", ["learning rate 0.25", "learning rate 0.125"]),
        (
            "np.float32(0.25) * grad + np.float32(0.1) * weights[name]",
            "another optimizer",
            ["no weight decay", "weight decay 0.4"],
        ),
    ],
)
def test_updates_that_differ_after_equal_clips_have_a_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, mistake: str, says: list[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL.replace("np.float32(0.25) * grad", line))
    assert data["steps"][0]["differs"] == ["update"]
    assert data["finding"]["mistake"] == mistake
    assert all(each in data["finding"]["text"] for each in says)


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
    assert cause_kinds(data) == ([] if same else ["another optimizer"])


def test_calls_of_a_loop_are_counted_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_as_json(tmp_path, capsys, GLOBAL, PER_TENSOR)["clips"]["calls"] == [STEPS, 2 * STEPS]
    run_verify(tmp_path, GLOBAL, PER_TENSOR)
    printed = capsys.readouterr().out
    assert f"with the clip calls clip_by_norm ({2 * STEPS})." in printed
    assert (
        "new.py:step clips 2 parts of the gradients by their own norms, and old.py:step clips all gradients by their "
        "total norm." in printed
    )


@needs_torch
@pytest.mark.parametrize("threshold", ["0.5", "1e9"])
def test_each_step_shows_that_one_side_clips_after_the_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threshold: str
) -> None:
    clip = f"torch.nn.utils.clip_grad_norm_(net.parameters(), {threshold})"
    old = TORCH.replace("CLIP", clip)
    new = TORCH.replace("        CLIP\n", "").replace("optimizer.step()", f"optimizer.step()\n        {clip}")
    data = verify_as_json(tmp_path, capsys, old, new)
    assert all("clip" in step["differs"] for step in data["steps"])
    assert cause_kinds(data)[0] == "clipping after the step"


def test_another_eps_that_max_ulp_hides_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verify(tmp_path, GLOBAL, NUMPY.replace("CLIP", "uc.clip_grad_norm_(grads, 0.5)"), "--max-ulp", "64") == 0
    printed = capsys.readouterr().out
    assert "Another eps of the clip: new.py:step differs from old.py:step as if eps were 1e-06 instead of 0." in printed
    assert "which --max-ulp 64 allows." in printed


def test_norms_of_noise_in_a_clip_per_tensor_are_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example, the gradient of a bias before BatchNorm is noise, which differs between both sides."""
    noise = "grads['bias'] *= np.float32({}); grads = {{name"
    old, new = (PER_TENSOR.replace("grads = {name", noise.format(factor)) for factor in ("1e-9", "2e-9"))
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert data["same"]


@pytest.mark.parametrize(("off", "grown"), [("2.0**-18 * 4**number", True), ("(number == 3) * 2.0**-12", False)])
def test_rounding_that_grows_is_distinguished_from_an_immediate_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off: str, grown: bool
) -> None:
    new = GLOBAL.replace("for batch in batches:", "for number, batch in enumerate(batches):")
    new = new.replace("np.float32(0.25) * grad", f"np.float32(0.25) * grad + weights[name] * np.float32({off})")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "64")
    assert not data["same"]
    assert ("rounding that has grown" in cause_kinds(data)) is grown


def test_a_difference_without_a_cause_is_reported_as_unexplained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = "raw = grads; grads = {n: g * np.linspace(0.2, 0.3, len(g), dtype='f')[:, None] for n, g in raw.items()}"
    new = NUMPY.replace("CLIP", by_hand.replace("[:, None]", ".reshape(len(g), *[1] * (g.ndim - 1))"))
    new = new.replace("weights, grads\n", "weights, grads, raw\n")
    assert run_verify(tmp_path, PER_TENSOR, new) == 1
    assert "Unexplained: " in capsys.readouterr().out


def test_gradients_that_change_after_the_clip_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5); grads['bias'] *= np.float32(2)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new)
    assert data["steps"][0]["differs"] == ["tensors", "update"]
    assert data["finding"]["mistake"] == "the clip does not reach the step"
    text = data["finding"]["text"]
    assert "yields gradients that differ from the results of its clip calls: 'bias'. Other code changes" in text
    assert "multiplies" not in text


@pytest.mark.parametrize("scale", [1, 128])
def test_a_division_after_the_clip_is_named_with_its_factor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: int
) -> None:
    scaled, divided = (
        f"grads = {{n: g * np.float32({factor}) for n, g in grads.items()}}" for factor in (scale, 2**-7)
    )
    new = NUMPY.replace("CLIP", f"{scaled}; grads, _ = uc.clip_by_global_norm(grads, 0.5); {divided}")
    finding = verify_as_json(tmp_path, capsys, GLOBAL, new)["finding"]
    if scale == 1:
        assert finding["mistake"] == "the clip does not reach the step"
        assert finding["text"].endswith("after the clip, and multiplies all of them by 0.0078125")
    else:
        assert finding["mistake"] == "clipping before unscaling"
        assert "gradients that are 128 times as large" in finding["text"]
        assert "Scaled gradients" not in capsys.readouterr().out


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
    assert data["finding"]["mistake"] == "another dtype"
    name = dtype.removeprefix("np.")
    assert data["finding"]["text"].startswith(f"'weight' is float32 in the old step and {name} in the new step")


def test_another_dtype_explains_only_its_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = GLOBAL.replace("array.copy()", "array.astype(np.float64)").replace("np.float32(0.25)", "np.float64(0.5)")
    assert cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "64")) == ["another learning rate"]


def test_a_difference_that_rounding_explains_does_not_hide_another_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = GLOBAL.replace("np.float32(0.25)", "np.float32(0.5)")
    new = new.replace("grads, _ =", "grads = {n: np.nextafter(g, np.float32(9)) for n, g in grads.items()}; grads, _ =")
    assert cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, new)) == ["rounding", "another learning rate"]


def test_integers_are_not_named_as_another_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_integers = GLOBAL.replace(
        "yield weights,", "yield {name: each.astype(int) for name, each in weights.items()},"
    )
    assert "another dtype" not in cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, with_integers))


@pytest.mark.parametrize("rounded", ["", "raw = {n: np.nextafter(g, np.float32(9)) for n, g in raw.items()}; "])
@pytest.mark.parametrize("kept", ["clipped", "raw"])
def test_gradients_that_are_not_cleared_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str, rounded: str
) -> None:
    clip = f"raw = grads; {rounded}clipped, _ = uc.clip_by_global_norm(raw, 0.5); grads = clipped; kept = {kept}"
    new = NUMPY.replace("CLIP", clip).replace("    for batch in", "    kept = {}\n    for batch in")
    added = "grads = gradients(weights, batch); grads = {n: g + kept.get(n, 0) for n, g in grads.items()}"
    data = verify_as_json(tmp_path, capsys, GLOBAL, new.replace("grads = gradients(weights, batch)", added))
    assert cause_kinds(data) == [*(["rounding"] if rounded else []), "gradients are not cleared"]
    assert "at step 2, every gradient of the new script still contains" in data["finding"]["text"]


def test_a_clip_by_hand_that_does_not_reach_the_step_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = "np.sqrt(sum(float((g.astype(float)**2).sum()) for g in grads.values()))"
    by_hand = f"raw = grads; grads = {{n: np.float32(min(1.0, 0.5 / {norm})) * g for n, g in raw.items()}}"
    old = NUMPY.replace("CLIP", by_hand).replace("yield weights, grads", "yield weights, grads, raw")
    new = old.replace("np.float32(0.25) * grad", "np.float32(0.25) * raw[name]")
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert data["finding"]["mistake"] == "the clip does not reach the step"
