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
    made = World(torch_trainers.start, 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process records."""
    return plain_records(tmp_path_factory.mktemp("plain") / "run.jsonl")


@pytest.mark.parametrize("train", [torch_trainers.lightning, torch_trainers.accelerate, torch_trainers.transformers])
def test_under_fsdp2_training_is_that_of_one_process(
    world: World, train: Callable[..., Any], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    for rank, lines in enumerate(world.run(train, str(tmp_path))):
        for line, of_one in zip(lines, expected, strict=True):
            assert (line.pop("ranks"), line.pop("rank"), sum(line.pop("layout").values())) == (2, rank, 2)
            parameters = {
                name: {"shape": each["shape"], "norm": each["norm"]} for name, each in of_one["parameters"].items()
            }
            assert line == {**of_one, "parameters": parameters}  # nobody has the whole weights


def test_under_fsdp1_nobody_knows_whose_the_shards_are_unless_it_is_stated(
    world: World, expected: list[dict[str, Any]]
) -> None:
    for found in world.attempt(torch_trainers.accelerate_by_fsdp1, False):
        assert "These are FSDP1 flat parameters, which carry no placement. Pass process_group=" in str(found)
    for norms in world.run(torch_trainers.accelerate_by_fsdp1, True):
        assert norms == [line["norm"] for line in expected]
