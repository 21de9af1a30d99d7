"""A clip configuration inside compiled graphs: a step that only the graph knows, and graphs that are left."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import FORMATS_TEXTS, nightly, where

from unified_clip import ClipConfig

pytestmark = pytest.mark.graphs
in_graphs = where(lambda kit: kit.name in ("jax", "tensorflow"))
on_torch = where(lambda kit: kit.name == "torch")

COSINE = {"schedule": "cosine", "start": 2.0, "end": 0.1, "steps": 7}
PIECEWISE = {"schedule": "piecewise", "values": [3.0, 0.1, "inf"], "boundaries": [2, 5]}


def compiled(kit: Kit, function: Callable[..., Any], xla: bool = False) -> Callable[..., Any]:
    framework = importlib.import_module(kit.name)
    return framework.jit(function) if kit.name == "jax" else framework.function(function, jit_compile=xla)


@in_graphs
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


@in_graphs
def test_zero_is_chosen_inside_the_graph(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, nonfinite="zero")
    run = compiled(kit, lambda a, b: clip([a, b]))
    for second, expected in ((float("nan"), [0.0, 0.0]), (0.5, [1.0, 0.5])):
        result = run(kit.tensor([3.0]), kit.tensor([second]))
        assert [round(float(kit.array(g)[0]), 5) for g in result] == expected


@in_graphs
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


@in_graphs
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


@on_torch
def test_a_compiled_step_clips_as_an_eager_one_does() -> None:
    import torch

    def trained(compiled: bool) -> tuple[list[float], torch.Tensor, int]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        clip = ClipConfig(
            rule="global_norm", threshold={"schedule": "linear", "start": 2.0, "end": 1.0, "steps": 2}, exclude=["bias"]
        )

        def step(x: torch.Tensor) -> None:
            (model(x) * 100).square().sum().backward()
            clip.clip_(list(model.named_parameters()))

        run = torch.compile(step, backend="aot_eager") if compiled else step
        norms = []
        for _ in range(3):
            model.zero_grad()
            run(torch.ones(2, 4))
            norms.append(float(torch.linalg.vector_norm(model.weight.grad)))
        return norms, model.weight.grad, clip.step

    eager, compiled = trained(False), trained(True)
    assert eager[0] == compiled[0] == pytest.approx([2.0, 1.5, 1.0])
    assert torch.equal(eager[1], compiled[1])
    assert eager[2] == compiled[2] == 3


@on_torch
@FORMATS_TEXTS
def test_a_whole_graph_is_refused_with_what_to_do() -> None:
    import torch

    clip = ClipConfig(rule="none").clipper()
    with pytest.raises(Exception, match=r"Clip outside the graph, or call a function of unified_clip\.torch"):
        torch.compile(lambda g: clip([g]), fullgraph=True, backend="aot_eager")(torch.ones(3))
    assert clip.step == 0
