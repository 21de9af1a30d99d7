"""A clip configuration inside `jax.jit`, `tf.function` and `to_static`: a step that only the graph knows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import nightly, where

from unified_clip import ClipConfig

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in ("jax", "tensorflow") and kit.exact)]

COSINE = {"schedule": "cosine", "start": 2.0, "end": 0.1, "steps": 7}
PIECEWISE = {"schedule": "piecewise", "values": [3.0, 0.1, "inf"], "boundaries": [2, 5]}


def compiled(kit: Kit, function: Callable[..., Any], xla: bool = False) -> Callable[..., Any]:
    framework = importlib.import_module(kit.name)
    return framework.jit(function) if kit.name == "jax" else framework.function(function, jit_compile=xla)


@pytest.mark.parametrize("xla", [True, *nightly(False)])
@pytest.mark.parametrize("threshold", [COSINE, PIECEWISE, COSINE | {"schedule": "linear"}], ids=lambda t: t["schedule"])
@pytest.mark.parametrize(
    "settings",
    [{"rule": "global_norm"}, {"rule": "norm"}, {"rule": "value"}, {"rule": "global_norm", "exclude": ["b"]}],
)
def test_a_threshold_follows_its_schedule_in_a_graph(
    kit: Kit, settings: dict[str, Any], threshold: dict[str, Any], xla: bool
) -> None:
    in_graph, eager = (ClipConfig(threshold=threshold, **settings) for _ in range(2))
    grads = {"a": kit.tensor([3.0, 4.0]), "b": kit.tensor([6.0, 8.0])}
    clip = compiled(kit, lambda g, step: in_graph(g, step=step), xla)
    for step in range(9):
        result = clip(grads, kit.tensor(np.full((1,) * (step % 3), step), "int32"))
        for name, expected in eager(grads, step=step).items():
            assert kit.array(result[name]).tolist() == kit.array(expected).tolist()


def test_zero_is_chosen_inside_the_graph(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, nonfinite="zero")
    run = compiled(kit, lambda a, b: clip([a, b]))
    for second, expected in ((float("nan"), [0.0, 0.0]), (0.5, [1.0, 0.5])):
        result = run(kit.tensor([3.0]), kit.tensor([second]))
        assert [round(float(kit.array(g)[0]), 5) for g in result] == expected


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"rule": "none", "nonfinite": "raise"}, "check the norm outside"),
        ({"rule": "none", "nonfinite": "skip"}, "Use 'zero'"),
        ({"rule": "global_norm", "threshold": COSINE}, r"cannot count its calls. Pass step=step"),
    ],
)
def test_what_a_graph_cannot_do_is_refused(kit: Kit, settings: dict[str, Any], remedy: str) -> None:
    clip = ClipConfig(**settings)
    with pytest.raises(TypeError, match=remedy):
        compiled(kit, lambda g: clip([g]))(kit.tensor([1.0] * 3))
    assert clip.step == 0


def test_the_clip_of_a_graph_has_no_numbers_and_is_no_part_of_the_rate(kit: Kit) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    compiled(kit, lambda g: clip([g]))(kit.tensor([1.0] * 3))
    with pytest.raises(RuntimeError, match=r"of a compiled graph.*let the graph return the norm"):
        _ = clip.last.norm
    assert clip.rate is None
    clip([kit.tensor([1.0] * 3)])
    assert (clip.rate, clip.step, clip.last.clipped) == (1.0, 1, True)


@where(lambda kit: kit.name == "jax")
def test_a_configuration_is_compiled_by_a_function_that_calls_it(kit: Kit) -> None:
    with pytest.raises(
        TypeError, match=r"pass a function to jax\.jit: jax\.jit\(lambda gradients: clip\(gradients\)\)"
    ):
        compiled(kit, ClipConfig(rule="global_norm", threshold=1.0))([kit.tensor([1.0] * 3)])
