"""Accelerate, Transformers and Lightning with models that FSDP shards over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.worlds import World
from support.trainers import torch_trainers
from support.trainers.torch_training import plain_records

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    started = World(torch_trainers.start, 2)
    yield started
    started.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return plain_records(tmp_path_factory.mktemp("plain") / "run.jsonl")


@pytest.mark.parametrize("train", [torch_trainers.lightning, torch_trainers.accelerate, torch_trainers.transformers])
def test_training_under_fsdp2_equals_that_of_one_process(
    world: World, train: Callable[..., Any], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    for rank, lines in enumerate(world.run(train, str(tmp_path))):
        for line, expected_line in zip(lines, expected, strict=True):
            assert (line.pop("ranks"), line.pop("rank"), sum(line.pop("layout").values())) == (2, rank, 2)
            parameters = {
                name: {"shape": values["shape"], "norm": values["norm"]}
                for name, values in expected_line["parameters"].items()
            }
            assert line == {**expected_line, "parameters": parameters}  # no rank has complete weights


def test_fsdp1_needs_declared_ownership(world: World, expected: list[dict[str, Any]]) -> None:
    for failure in world.attempt(torch_trainers.accelerate_by_fsdp1, False):
        assert "These are FSDP1 flat parameters, which carry no placement. Pass process_group=" in str(failure)
    for norms in world.run(torch_trainers.accelerate_by_fsdp1, True):
        assert norms == [line["norm"] for line in expected]
