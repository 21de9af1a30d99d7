"""Recording on Paddle: clips of optimizers, names of layers, and static programs, which are not recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paddle
import pytest
from support.paddle_programs import tensor

import unified_clip
import unified_clip.paddle as uc
from unified_clip import ClipWarning


def lines(path: Path) -> list[dict[str, Any]]:
    result = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in result if "call" in line]


@pytest.mark.parametrize("named", [False, True])
def test_an_optimizers_clip_is_recorded_with_the_names_of_parameters(tmp_path: Path, named: bool) -> None:
    model = paddle.nn.Linear(3, 2)
    clip = uc.ClipGradByGlobalNorm(0.1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, names=model if named else None):
        model(paddle.ones([4, 3])).sum().backward()
        optimizer.step()
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["call"] == "GradientClipByGlobalNorm"
    assert line["norm"] == pytest.approx(128**0.5, rel=1e-6)
    assert list(line["parameters"]) == (["weight", "bias"] if named else [each.name for each in model.parameters()])


def test_a_static_program_says_that_it_is_not_recorded(tmp_path: Path, static: None) -> None:
    building = paddle.static.program_guard(paddle.static.Program())
    with building, unified_clip.record(tmp_path / "run.jsonl", norms=True):
        value = paddle.static.data("x", [2], "float32")
        with pytest.warns(ClipWarning, match="a clip call inside a graph of paddle is not recorded"):
            uc.clip_by_norm(value, 1.0)
    assert lines(tmp_path / "run.jsonl") == []


def test_what_to_static_leaves_its_graph_for_is_recorded(tmp_path: Path) -> None:
    clip = paddle.jit.to_static(lambda x: uc.clip_by_norm(x, 1.0), full_graph=False)
    with unified_clip.record(tmp_path / "run.jsonl"):
        clip(tensor([3.0, 4.0]))
    assert [line["norm"] for line in lines(tmp_path / "run.jsonl")] == [[5.0]]
