"""`unified-clip verify` pairs clip calls, gradients and parameters of two training functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port import verify_pairs
from support.port.verify_pairs import (
    GLOBAL,
    NUMPY,
    PER_TENSOR,
    PER_TENSOR_IN_ONE_CALL,
    STEPS,
    largest_ulps,
    verify_as_json,
)

from unified_clip.compare.parameter_names import oriented
from unified_clip.recording.runs import RunError


def test_a_call_for_each_gradient_equals_one_call_per_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, PER_TENSOR, PER_TENSOR_IN_ONE_CALL)
    assert data["same"]
    assert data["calls"] == [2 * STEPS, STEPS]


def test_unclipped_gradients_are_replaced_by_the_results_of_the_clip_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = (
        GLOBAL.replace("CLIP", "")
        .replace("grads, _ =", "raw = grads; grads, _ =")
        .replace("weights, grads\n", "weights, raw\n")
    )
    data = verify_as_json(tmp_path, capsys, raw, GLOBAL)
    assert data["same"]
    assert data["unclipped"] == ["old"]
    assert largest_ulps(data, "tensors") == 0


def test_gradients_that_are_not_yielded_are_the_results_of_the_clip_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL.replace("weights, grads\n", "weights, None\n"), GLOBAL)
    assert data["same"]
    assert data["unclipped"] == []
    assert largest_ulps(data, "tensors") == 0


@pytest.mark.parametrize("script", [GLOBAL, PER_TENSOR])
def test_a_function_may_return_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str) -> None:
    """Its calls of a step, one or several, belong to this step."""
    data = verify_as_json(tmp_path, capsys, script.replace("        yield weights", "    return weights"), script)
    assert data["same"]
    assert [step["norm"]["ulps"] for step in data["steps"]] == [0] * STEPS
    assert [step["update"] is None for step in data["steps"]] == [True] * (STEPS - 1) + [False]


def test_gradients_are_paired_by_the_weights_that_are_yielded_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = """
        clipped = uc.GradientClipByGlobalNorm(0.5)(list(zip(weights.values(), grads.values())))
        grads = dict(zip(grads, [gradient for _, gradient in clipped]))"""
    pairs = NUMPY.replace("CLIP", clip).replace("weights, grads\n", "weights, None\n")
    data = verify_as_json(tmp_path, capsys, pairs, GLOBAL)
    assert data["same"]
    assert largest_ulps(data, "tensors") == 0


def test_square_tensors_are_paired_in_their_closest_order_of_axes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    square = "np.outer(np.arange(6), weights['weight'][:, 0])"
    old, new = (
        GLOBAL.replace("yield weights,", f"yield {{**weights, 'square': {each}}},") for each in (square, f"{square}.T")
    )
    assert verify_as_json(tmp_path, capsys, old, new)["same"]


@pytest.mark.parametrize(
    ("by_hand", "same"),
    [
        ("norm = np.sqrt(sum((g.astype(float) ** 2).sum() for g in grads.values()))", True),
        ("norm = np.abs(grads['weight']).max()", False),
    ],
)
def test_a_manual_clip_is_recognized_by_gradients_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_hand: str, same: bool
) -> None:
    clip = f"raw = grads; {by_hand}; grads = {{n: g * np.float32(min(1, 0.5 / norm)) for n, g in grads.items()}}"
    hand = NUMPY.replace("CLIP", clip).replace("weights, grads\n", "weights, grads, raw\n")
    data = verify_as_json(tmp_path, capsys, hand, GLOBAL, "--max-ulp", "64")
    assert data["same"] is same
    assert verify_pairs.called_names(data, "old") == {"by hand"}
    assert {line["rule"] for step in data["steps"] for line in step["old"]} == {"global"}


def test_layouts_and_names_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turned = GLOBAL.replace(
        "yield weights, grads",
        "yield tuple({'W': each['weight'].T, 'b': each['bias']} for each in (weights, grads))",
    )
    assert verify_as_json(tmp_path, capsys, GLOBAL, turned)["same"]
    assert verify_as_json(tmp_path, capsys, GLOBAL, turned.replace("'b'", "'bias'"))["same"], "one name is equal"
    (tmp_path / "names.toml").write_text('weight = "W"\nbias = "b"\n', encoding="utf-8")
    data = verify_as_json(tmp_path, capsys, GLOBAL, turned, "--map", str(tmp_path / "names.toml"))
    assert data["same"]
    assert largest_ulps(data, "update") == 0


def two_calls(order: str, limit: str = "0.5") -> str:
    clip = f"""
        grads |= {{name + '2': 2 * grad for name, grad in grads.items()}}
        for name in {order}:
            grads.update(uc.clip_by_global_norm({{key: grads[key] for key in (name, name + '2')}}, {limit})[0])"""
    twins = "{name: array.copy() for name, array in weights.items()}"
    both = f"{twins} | {{name + '2': array.copy() for name, array in weights.items()}}"
    return NUMPY.replace("CLIP", clip).replace(twins, both)


@pytest.mark.parametrize(("limit", "same"), [("0.5", True), ("(0.5 if name == 'bias' else 0.25)", False)])
def test_calls_of_a_step_that_share_no_parameter_may_come_in_another_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, same: bool
) -> None:
    old, new = two_calls("('weight', 'bias')"), two_calls("('bias', 'weight')", limit)
    data = verify_as_json(tmp_path, capsys, old, new)
    assert [len(step["new"]) for step in data["steps"]] == [2] * STEPS
    assert data["same"] is same


def test_a_map_of_known_names_in_two_directions_is_rejected_by_its_direction() -> None:
    text = r"has 'B', which is not a parameter of old.py:step. The other run has this parameter. On every line, write"
    with pytest.raises(RunError, match=text):
        oriented({"a": "A", "B": "b"}, ("old.py:step", {*"ab"}), ("new.py:step", {*"AB"}))
