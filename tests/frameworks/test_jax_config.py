"""A clip configuration inside `jax.jit`: a step that only the graph knows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from unified_clip import ClipConfig

COSINE = {"schedule": "cosine", "start": 2.0, "end": 0.1, "steps": 7}
PIECEWISE = {"schedule": "piecewise", "values": [3.0, 0.1, "inf"], "boundaries": [2, 5]}


@pytest.mark.parametrize("threshold", [COSINE, PIECEWISE, COSINE | {"schedule": "linear"}], ids=lambda t: t["schedule"])
@pytest.mark.parametrize(
    "settings",
    [{"rule": "global_norm"}, {"rule": "norm"}, {"rule": "value"}, {"rule": "global_norm", "exclude": ["b"]}],
)
def test_a_threshold_follows_its_schedule_in_a_graph(settings: dict[str, Any], threshold: dict[str, Any]) -> None:
    in_graph, eager = (ClipConfig(threshold=threshold, **settings) for _ in range(2))
    grads = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([6.0, 8.0])}
    clip = jax.jit(lambda g, step: in_graph(g, step=step))
    for step in range(9):
        result, expected = clip(grads, jnp.full((1,) * (step % 3), step)), eager(grads, step=step)
        assert {name: g.tolist() for name, g in result.items()} == {name: g.tolist() for name, g in expected.items()}


def test_zero_is_chosen_inside_the_graph() -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, nonfinite="zero")
    run = jax.jit(lambda a, b: clip([a, b]))
    assert [g.tolist() for g in run(jnp.array([3.0]), jnp.array([float("nan")]))] == [[0.0], [0.0]]
    assert [round(float(g[0]), 5) for g in run(jnp.array([3.0]), jnp.array([0.5]))] == [1.0, 0.5]


@pytest.mark.parametrize(("nonfinite", "remedy"), [("raise", "check the norm outside"), ("skip", "Use 'zero'")])
def test_what_a_graph_cannot_do_is_refused(nonfinite: str, remedy: str) -> None:
    clip = ClipConfig(rule="none", nonfinite=nonfinite)
    with pytest.raises(TypeError, match=remedy):
        jax.jit(lambda g: clip([g]))(jnp.ones(3))


def test_the_last_clip_of_a_graph_has_no_numbers() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    jax.jit(lambda g: clip([g]))(jnp.ones(3))
    with pytest.raises(RuntimeError, match=r"of a compiled graph.*let the graph return the norm"):
        _ = clip.last.norm


def test_a_schedule_in_a_graph_needs_a_step() -> None:
    clip = ClipConfig(rule="global_norm", threshold=COSINE)
    with pytest.raises(TypeError, match=r"inside a compiled graph cannot count its calls. Pass step=step"):
        jax.jit(lambda g: clip([g]))(jnp.ones(3))
    assert clip.step == 0


def test_a_graph_is_no_part_of_the_rate() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    jax.jit(lambda g: clip([g]))(jnp.ones(3))
    assert clip.rate is None
    clip([jnp.ones(3)])
    assert (clip.rate, clip.step, clip.last.clipped) == (1.0, 1, True)


def test_a_configuration_is_compiled_by_a_function_that_calls_it() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    with pytest.raises(
        TypeError, match=r"pass a function to jax\.jit: jax\.jit\(lambda gradients: clip\(gradients\)\)"
    ):
        jax.jit(clip)([jnp.ones(3)])
    assert jax.jit(lambda gradients: clip(gradients))([jnp.ones(3)])[0].shape == (3,)
