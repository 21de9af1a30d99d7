"""`unified-clip verify` compares a step that uses Paddle's own clipping with its port to unified_clip."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import (
    NUMPY,
    TORCH,
    called_names,
    cause_kinds,
    largest_ulps,
    needs_torch,
    verify_as_json,
)

DYGRAPH = """
import paddle

def step(weights, batches):
    net = paddle.nn.Linear(6, 2)
    net.set_state_dict(weights)
    optimizer = paddle.optimizer.SGD(0.25, parameters=net.parameters(), grad_clip=paddle.nn.CLASS)
    for batch in batches:
        (net(paddle.to_tensor(batch["x"])) - paddle.to_tensor(batch["y"])).square().mean().backward()
        CALL
        optimizer.step()
        yield dict(net.named_parameters()), None
        optimizer.clear_grad()
"""

STATIC = """
import numpy as np
import paddle

def step(weights, batches):
    paddle.enable_static()
    x, y = paddle.static.data("x", [4, 6]), paddle.static.data("y", [4, 2])
    net = paddle.nn.Linear(6, 2)
    loss = (net(x) - y).square().mean()
    optimizer = paddle.optimizer.SGD(0.25, parameters=net.parameters(), grad_clip=paddle.nn.CLASS)
    optimizer.minimize(loss)
    executor, scope = paddle.static.Executor(), paddle.static.global_scope()
    executor.run(paddle.static.default_startup_program())
    names = {name: parameter.name for name, parameter in net.named_parameters()}
    for name, variable in names.items():
        scope.find_var(variable).get_tensor().set(weights[name], paddle.CPUPlace())
    for batch in batches:
        (found,) = executor.run(feed=batch, fetch_list=[loss])
        assert found.shape == ()
        yield {name: np.array(scope.find_var(variable).get_tensor()) for name, variable in names.items()}, None
"""


def paddle(source: str, kind: str, call: str = "") -> str:
    return source.replace("CLASS", f"{kind}(0.5)").replace("CALL", call)


GLOBAL = paddle(DYGRAPH, "ClipGradByGlobalNorm")


@pytest.mark.nightly
@needs_torch
def test_a_step_in_paddle_and_its_port_to_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paddle shows gradients only before the clip, so the results of the clip are recorded in the clip itself."""
    port = TORCH.replace("CLIP", "uc.ClipGradByGlobalNorm(0.5).clip_(net.parameters())")
    data = verify_as_json(tmp_path, capsys, GLOBAL, port, "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {"paddle.nn.ClipGradByGlobalNorm"}
    assert largest_ulps(data, "tensors") <= 64
    assert data["steps"][0]["coefficient"]["ulps"] == 0


@pytest.mark.nightly
def test_a_static_program_and_its_drop_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recordings do not contain unified_clip's clips in static programs. `verify` watches these clips like Paddle's
    clips."""
    old = paddle(STATIC, "ClipGradByGlobalNorm")
    new = old.replace("paddle.nn.Clip", "uc.Clip").replace("import paddle", "import paddle, unified_clip.paddle as uc")
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "8")
    assert data["same"]
    assert called_names(data, "new") == {"GradientClipByGlobalNorm"}
    assert largest_ulps(data, "tensors") <= 8


@needs_torch
@pytest.mark.nightly
def test_a_port_that_adds_eps_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = TORCH.replace("CLIP", "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, port)
    assert cause_kinds(data)[0] == "another eps of the clip"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "call", "replacement"),
    [
        (
            paddle(DYGRAPH, "ClipGradByNorm"),
            "nn.ClipGradByNorm",
            "grads = {n: uc.clip_by_norm(g, 0.5) for n, g in grads.items()}",
        ),
        (paddle(DYGRAPH, "ClipGradByValue"), "nn.ClipGradByValue", "uc.clip_grad_value_(grads, 0.5)"),
        (
            paddle(DYGRAPH, "ClipGradByNorm", "paddle.nn.utils.clip_grad_norm_(net.parameters(), 0.5)").replace(
                "grad_clip", "name"
            ),
            "nn.utils.clip_grad_norm_",
            "uc.clip_grad_norm_(grads, 0.5)",
        ),
        (
            paddle(STATIC, "ClipGradByGlobalNorm"),
            "nn.ClipGradByGlobalNorm",
            "grads, _ = uc.clip_by_global_norm(grads, 0.5)",
        ),
        (
            paddle(STATIC, "ClipGradByNorm"),
            "nn.ClipGradByNorm",
            "grads = {n: uc.clip_by_norm(g, 0.5) for n, g in grads.items()}",
        ),
    ],
)
def test_clips_of_paddle_are_recorded_in_dygraph_and_in_static_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, call: str, replacement: str
) -> None:
    data = verify_as_json(tmp_path, capsys, old, NUMPY.replace("CLIP", replacement), "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {f"paddle.{call}"}
    assert all(len(step["old"]) == 1 for step in data["steps"])
    assert largest_ulps(data, "tensors") <= 64
