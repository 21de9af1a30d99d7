"""`unified-clip compare` of a GRU of Keras with one of PyTorch: other gates first, and two biases in place of one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import cause_kinds, clip_line, write_and_compare

from unified_clip.recording.compare import RecordingComparison
from unified_clip.recording.report import sentences
from unified_clip.tensors.arrangement import fingerprints_of, sums_of

KERNEL = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
GATES = np.concatenate([KERNEL[:, 3:6], KERNEL[:, :3], KERNEL[:, 6:]], axis=1).T.copy()
NEGATED = -GATES


def weight(array: np.ndarray, norm: float) -> dict[str, Any]:
    fields = {"norm": norm, "shape": list(array.shape), "weight": float(np.linalg.norm(array))}
    return {**fields, "fingerprints": fingerprints_of(array, "float32"), "sums": sums_of(array, "float32")}


def bias(norm: float, *shape: int) -> dict[str, Any]:
    return {"norm": norm, "shape": list(shape), "weight": norm}


def clip(step: int, rule: str, parameters: dict[str, dict[str, Any]], framework: str = "torch") -> dict[str, Any]:
    norms = [each["norm"] for each in parameters.values()]
    total = math.hypot(*norms)
    values = {"norm": total, "coef": 1 / total} if rule == "global" else {"norm": norms, "coef": [1 / n for n in norms]}
    fields = {"rule": rule, "framework": framework, "count": len(norms), "parameters": parameters, "call": rule}
    return clip_line(step, {"a": 5.0}, **{**fields, **values})


def keras(rule: str = "each", norm: float = 2.0) -> list[dict[str, Any]]:
    return [
        clip(1, rule, {"gru/gru_cell/kernel": weight(KERNEL, norm), "gru/gru_cell/bias": bias(5.0, 2, 9)}, "tensorflow")
    ]


def torch(
    rule: str = "each", norm: float = 2.0, array: np.ndarray = GATES, joins: bool = False
) -> list[dict[str, Any]]:
    biases = [bias(3.0, 9), bias(4.0, 9)]
    if joins:
        both = {str(position): each for position, each in enumerate(biases)}
        return [clip(1, rule, {"0": weight(array, norm)}), clip(1, "global", both)]
    return [clip(1, rule, {str(position): each for position, each in enumerate([weight(array, norm), *biases])})]


def compared(tmp_path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]], is_old: bool) -> RecordingComparison:
    return write_and_compare(tmp_path, *((new, old) if is_old else (old, new)))


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("rule", ["global", "each"])
def test_a_right_port_with_two_biases_and_other_gates_first_is_the_same(
    tmp_path: Path, rule: str, is_old: bool
) -> None:
    comparison = compared(tmp_path, keras(rule), torch(rule, joins=rule == "each"), is_old)
    text = "\n".join(sentences.report_lines(comparison))
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 1), text


@pytest.mark.parametrize("is_old", [True, False])
def test_two_biases_clipped_alone_are_another_rule_than_one_bias(tmp_path: Path, is_old: bool) -> None:
    (cause,) = compared(tmp_path, keras(), torch(), is_old).findings
    assert cause.kind == "another rule"
    assert "clips 'gru/gru_cell/bias' as one tensor." in cause.sentence
    assert "splits this tensor into '1' and '2', and clips each part by its own" in cause.sentence


def test_clips_of_other_tensors_beside_the_two_biases_are_not_joined(tmp_path: Path) -> None:
    weights, biases = torch(joins=True, array=GATES[:, :2].copy())
    comparison = compared(tmp_path, keras(), [weights, biases], False)
    assert [len(pair.b.parameters) for pair in comparison.pairs] == [1]


def test_two_tensors_are_not_paired_with_two_tensors_of_other_sizes(tmp_path: Path) -> None:
    left, right = (
        [clip(1, "global", {n: bias(1.0, s) for n, s in sizes}, "jax")]
        for sizes in ((("a", 2), ("b", 4)), (("c", 3), ("d", 3)))
    )
    (pair,) = write_and_compare(tmp_path, left, right).pairs
    assert not any(" + " in name for name in pair.a.parameters)


def test_another_threshold_for_the_two_biases_is_not_joined(tmp_path: Path) -> None:
    weights, biases = torch(joins=True)
    assert compared(tmp_path, keras(), [weights, {**biases, "threshold": 2.0}], False).exit_code == 1


@pytest.mark.parametrize("is_old", [True, False])
def test_gates_that_were_not_exchanged_are_named(tmp_path: Path, is_old: bool) -> None:
    comparison = compared(tmp_path, keras("global"), torch("global", 2.5, KERNEL.T.copy()), is_old)
    assert cause_kinds(comparison) == ["other initial weights"]
    sentence = comparison.findings[0].sentence
    assert "(z, r, h) in Keras, (r, z, n) in PyTorch and (r, z, c) in Paddle. Exchange the first third" in sentence


@pytest.mark.parametrize("is_old", [True, False])
def test_gates_in_another_order_are_no_other_initial_weights(tmp_path: Path, is_old: bool) -> None:
    comparison = compared(tmp_path, keras("global"), torch("global", 2.5), is_old)
    assert "other initial weights" not in cause_kinds(comparison)
    text = "\n".join(sentences.report_lines(comparison))
    assert "Not compared: the order of the elements of " in text


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize(("array", "kinds"), [(GATES, ["other initial weights"]), (KERNEL.T.copy(), [])])
def test_gates_of_an_lstm_have_to_keep_their_order(
    tmp_path: Path, array: np.ndarray, kinds: list[str], is_old: bool
) -> None:
    old = [clip(1, "global", {"lstm/lstm_cell/kernel": weight(KERNEL, 2.0)}, "tensorflow")]
    new = [clip(1, "global", {"0": weight(array, 2.5)})]
    comparison = compared(tmp_path, old, new, is_old)
    assert [kind for kind in cause_kinds(comparison) if kind == "other initial weights"] == kinds
    text = "\n".join(sentences.report_lines(comparison))
    assert ("input, forget, cell and output. Transpose these weights" in text) == bool(kinds)
    assert "Not compared: the order" not in text


def test_other_elements_of_the_same_norm_are_other_initial_weights(tmp_path: Path) -> None:
    comparison = compared(tmp_path, keras("global"), torch("global", 2.5, NEGATED), False)
    assert cause_kinds(comparison) == ["other initial weights"]
    assert "different elements or a different order" in comparison.findings[0].sentence
