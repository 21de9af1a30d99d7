"""A clip configuration under `torch.compile`: the graph is left at the call, which runs as it does eagerly."""

from __future__ import annotations

import pytest
import torch
from support.tiers import FORMATS_TEXTS

from unified_clip import ClipConfig


def test_a_compiled_step_clips_as_an_eager_one_does() -> None:
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


@FORMATS_TEXTS
def test_a_whole_graph_is_refused_with_what_to_do() -> None:
    clip = ClipConfig(rule="none").clipper()
    with pytest.raises(Exception, match=r"Clip outside the graph, or call a function of unified_clip\.torch"):
        torch.compile(lambda g: clip([g]), fullgraph=True, backend="aot_eager")(torch.ones(3))
    assert clip.step == 0
