"""A clip configuration inside `tf.function`, compiled by XLA or not: a step that only the graph knows."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from unified_clip import ClipConfig

COSINE = {"schedule": "cosine", "start": 2.0, "end": 0.1, "steps": 7}
PIECEWISE = {"schedule": "piecewise", "values": [3.0, 0.1, "inf"], "boundaries": [2, 5]}


@pytest.mark.nightly
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("threshold", [COSINE, PIECEWISE, COSINE | {"schedule": "linear"}], ids=lambda t: t["schedule"])
@pytest.mark.parametrize(
    "settings",
    [{"rule": "global_norm"}, {"rule": "norm"}, {"rule": "value"}, {"rule": "global_norm", "exclude": ["b"]}],
)
def test_a_threshold_follows_its_schedule_in_a_graph(
    settings: dict[str, Any], threshold: dict[str, Any], jit_compile: bool
) -> None:
    in_graph, eager = (ClipConfig(threshold=threshold, **settings) for _ in range(2))
    grads = {"a": tf.constant([3.0, 4.0]), "b": tf.constant([6.0, 8.0])}
    clip = tf.function(lambda g, step: in_graph(g, step=step), jit_compile=jit_compile)
    for step in range(9):
        result, expected = clip(grads, tf.fill((1,) * (step % 3), step)), eager(grads, step=step)
        assert {name: g.numpy().tolist() for name, g in result.items()} == {
            name: g.numpy().tolist() for name, g in expected.items()
        }


@pytest.mark.nightly
def test_zero_is_chosen_inside_the_graph() -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, nonfinite="zero")
    run = tf.function(lambda a, b: clip([a, b]))
    assert [g.numpy().tolist() for g in run(tf.constant([3.0]), tf.constant([float("nan")]))] == [[0.0], [0.0]]
    assert [round(float(g[0]), 5) for g in run(tf.constant([3.0]), tf.constant([0.5]))] == [1.0, 0.5]


@pytest.mark.parametrize(("nonfinite", "remedy"), [("raise", "check the norm outside"), ("skip", "Use 'zero'")])
def test_what_a_graph_cannot_do_is_refused(nonfinite: str, remedy: str) -> None:
    clip = ClipConfig(rule="none", nonfinite=nonfinite)
    with pytest.raises(TypeError, match=remedy):
        tf.function(lambda g: clip([g]))(tf.ones(3))


def test_the_last_clip_of_a_graph_has_no_numbers() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    tf.function(lambda g: clip([g]))(tf.ones(3))
    with pytest.raises(RuntimeError, match=r"of a compiled graph.*let the graph return the norm"):
        _ = clip.last.norm


def test_a_schedule_in_a_graph_needs_a_step() -> None:
    clip = ClipConfig(rule="global_norm", threshold=COSINE)
    with pytest.raises(TypeError, match=r"inside a compiled graph cannot count its calls. Pass step=step"):
        tf.function(lambda g: clip([g]))(tf.ones(3))
    assert clip.step == 0
