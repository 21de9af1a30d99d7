"""PyTorch: the table of `tools/sharded_natives.py`, which measures PyTorch's norm of sharded gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from support.processes.torch_sharded_natives import measure, script
from support.processes.worlds import World


def test_the_table_compares_norms_on_several_processes_with_the_exact_norm(
    torch_worlds: Callable[[int], World],
) -> None:
    array = np.array([[3.0], [4.0]], np.float32)
    results = torch_worlds(2).run(
        measure,
        [
            ("rows", [array]),
            ("meshes", [array, array], ("rows", "hybrid")),
            ("plain", [array, array], ("rows", "plain")),
            ("greatest", [np.array([[2.0], [-3.0]], np.float32)], ("rows",), np.inf),
        ],
    )
    descriptions = {key: script().join_ranks([result[key] for result in results]) for key in results[0]}
    assert {descriptions[name, "unified_clip"] for name, library in descriptions if library == "unified_clip"} == {
        "exact"
    }
    assert descriptions["rows", "native"] == "exact"
    assert descriptions["greatest", "native"] == "exact"
    for name in ("meshes", "plain"):  # PyTorch's error, or the norm in releases without the error
        assert descriptions[name, "native"].startswith("`") or descriptions[name, "native"] == "exact"


def test_the_table_has_ulps_and_ranks_that_differ() -> None:
    module = script()
    scenario = module.Scenario("", [np.array([3.0, 4.0], np.float32)])
    spoiled = module.Scenario("", [np.array([2.0, np.nan], np.float32)], p=np.inf)
    assert module.describe_result(spoiled, [], lambda gradients, p: torch.tensor(2.0)) == "2 in place of NaN"
    assert module.describe_result(spoiled, [], lambda gradients, p: torch.tensor(torch.nan)) == "exact"
    off = module.describe_result(scenario, [], lambda gradients, p: torch.tensor(5.0).nextafter(torch.tensor(6.0)))
    assert off == "1 ulp (9.5e-08)"
    assert module.join_ranks([off, off]) == off
    assert module.join_ranks(["exact", off, "exact"]) == f"rank 0, 2: exact; rank 1: {off}"
