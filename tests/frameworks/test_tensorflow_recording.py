"""Recording on TensorFlow: what is traced while a recording is open is recorded whenever it runs, but not by XLA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import unified_clip
import unified_clip.tensorflow as uc
from unified_clip import ClipWarning

MISSED = "a clip call inside a graph of tensorflow is not recorded"


@pytest.fixture
def gradients() -> list[tf.Tensor]:
    return [tf.constant([[3.0], [4.0]]), tf.constant([12.0])]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_function_is_recorded_with_the_names_and_norms_of_its_variables(
    tmp_path: Path, gradients: list[tf.Tensor]
) -> None:
    variables = [tf.Variable([[1.0], [0.0]], name="w"), tf.Variable([2.0], name="b")]

    @tf.function
    def clip(given: list[tf.Tensor]) -> Any:
        pairs = uc.GradientClipByGlobalNorm(1.0)(list(zip(given, variables, strict=True)))
        return [gradient for gradient, _ in pairs]

    with unified_clip.record(tmp_path / "run.jsonl", norms=True) as run:
        for _ in range(2):
            run.next_step()
            clip(gradients)
    clip(gradients)  # no recording is open
    result = lines(tmp_path / "run.jsonl")
    assert [(line["step"], line["norm"], line["coef"]) for line in result] == [(1, 13.0, 1 / 13), (2, 13.0, 1 / 13)]
    parameters = result[0]["parameters"]
    assert {name: {key: each[key] for key in ("shape", "norm", "weight")} for name, each in parameters.items()} == {
        "w": {"shape": [2, 1], "norm": 5.0, "weight": 1.0},
        "b": {"shape": [1], "norm": 12.0, "weight": 2.0},
    }
    assert {name: {*each["sample"]} for name, each in parameters.items()} == {"w": {3.0, 4.0}, "b": {12.0}}
    assert {len(each["weight_sample"]) for each in parameters.values()} == {4, 2}


def test_xla_and_graphs_of_sessions_say_that_they_are_not_recorded(tmp_path: Path, gradients: list[tf.Tensor]) -> None:
    compiled = tf.function(lambda gradients: uc.clip_by_global_norm(gradients, 1.0)[1], jit_compile=True)
    with unified_clip.record(tmp_path / "run.jsonl"), pytest.warns(ClipWarning, match=MISSED):
        assert compiled(gradients) == 13.0
    graph = tf.Graph().as_default()
    with unified_clip.record(tmp_path / "other.jsonl"), graph, tf.compat.v1.Session() as session:
        with pytest.warns(ClipWarning, match=MISSED):
            clipped = uc.clip_by_norm(tf.constant([3.0, 4.0]), 1.0)
        assert session.run(clipped) == pytest.approx([0.6, 0.8])
    for name in ("run", "other"):
        (warning,) = lines(tmp_path / f"{name}.jsonl")
        assert MISSED in warning["warning"]


def test_a_call_under_a_tape_is_recorded(tmp_path: Path, gradients: list[tf.Tensor]) -> None:
    with unified_clip.record(tmp_path / "run.jsonl", norms=True), tf.GradientTape() as tape:
        tape.watch(gradients[0])
        clipped = uc.clip_by_norm(gradients[0], 1.0)
    assert tape.gradient(clipped, gradients[0]) is not None
    (line,) = lines(tmp_path / "run.jsonl")
    assert (line["norm"], line["coef"]) == ([5.0], [0.2])
