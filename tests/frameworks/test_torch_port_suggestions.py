"""The lines that `port` suggests for an optimizer clip as Paddle and Keras do, on PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.port.snippets import PADDLE, ported, with_lines

GRADIENTS = ([3.0, 4.0], [6.0, 8.0])
SOURCES = {
    "global norm": (("ByNorm(1.0)", "ByGlobalNorm(1.0)"), [[3 / 125**0.5, 4 / 125**0.5], [6 / 125**0.5, 8 / 125**0.5]]),
    "per tensor": (("ByNorm(1.0)", "ByNorm(1.0)"), [[0.6, 0.8], [0.6, 0.8]]),
    "by value": (("ByNorm(1.0)", "ByValue(3.5, -1.0)"), [[3.0, 3.5], [3.5, 3.5]]),
}


def stepped(lines: list[str], *, groups: int) -> list[list[float]]:
    parameters = [torch.zeros(2, requires_grad=True) for _ in GRADIENTS]
    for parameter, gradient in zip(parameters, GRADIENTS, strict=True):
        parameter.grad = torch.tensor(gradient)
    optimizer = torch.optim.SGD(parameters if groups == 1 else [{"params": [each]} for each in parameters], lr=1.0)
    exec("\n".join(lines), {"optimizer": optimizer})
    optimizer.step()
    return [parameter.grad.tolist() for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("rule", SOURCES)
def test_an_attached_configuration_clips_in_each_step(rule: str) -> None:
    change, expected = SOURCES[rule]
    (site,) = ported(with_lines(PADDLE, change, ("optimizer.step()", "run(optimizer)")))[1]
    assert "attach_to" in site.suggestion[-1]
    for gradient, expected_result in zip(stepped(site.suggestion, groups=1), expected, strict=True):
        assert gradient == pytest.approx(expected_result, rel=1e-6)


def test_groups_are_clipped_by_a_norm_each() -> None:
    changes = [("ByNorm(1.0)", "ByGlobalNorm(1.0)"), ("optimizer.step()", "run(optimizer)")]
    (site,) = ported(with_lines(PADDLE, *changes, ("parameters=model.parameters()", "parameters=groups")))[1]
    create, attach, reason, *comments = site.suggestion[1:]
    loop = [comment.removeprefix("# ") for comment in comments]
    assert reason.startswith("# Paddle clips each group separately.")
    assert loop[0].startswith("for group in")
    for gradient in stepped(["import unified_clip", create, *loop], groups=2):
        assert gradient == pytest.approx([0.6, 0.8], rel=1e-6)
    for gradient, expected in zip(stepped(["import unified_clip", create, attach], groups=1), SOURCES["global norm"][1],
                                strict=True):  # fmt: skip
        assert gradient == pytest.approx(expected, rel=1e-6)
