"""PyTorch: the table of what its own norm is where several processes hold the gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from support.processes.torch_sharded_natives import measured, script
from support.processes.worlds import World


def test_the_table_says_what_the_norms_of_several_processes_come_to(
    torch_worlds: Callable[[int], World],
) -> None:
    array = np.array([[3.0], [4.0]], np.float32)
    found = torch_worlds(2).run(
        measured,
        [
            ("rows", [array]),
            ("meshes", [array, array], ("rows", "hybrid")),
            ("plain", [array, array], ("rows", "plain")),
            ("greatest", [np.array([[2.0], [-3.0]], np.float32)], ("rows",), np.inf),
        ],
    )
    told = {key: script().together([each[key] for each in found]) for key in found[0]}
    assert {told[name, "ours"] for name, whose in told if whose == "ours"} == {"exact"}
    assert told["rows", "native"] == "exact"
    assert told["greatest", "native"] == "exact"
    for name in ("meshes", "plain"):  # what PyTorch raises, or that it does no longer
        assert told[name, "native"].startswith("`") or told[name, "native"] == "exact"


def test_a_distance_and_processes_that_part_are_told_in_words() -> None:
    module = script()
    scenario = module.Scenario("", [np.array([3.0, 4.0], np.float32)])
    spoiled = module.Scenario("", [np.array([2.0, np.nan], np.float32)], p=np.inf)
    assert module.said(spoiled, [], lambda gradients, p: torch.tensor(2.0)) == "2 in place of NaN"
    assert module.said(spoiled, [], lambda gradients, p: torch.tensor(torch.nan)) == "exact"
    off = module.said(scenario, [], lambda gradients, p: torch.tensor(5.0).nextafter(torch.tensor(6.0)))
    assert off == "1 ulp (9.5e-08)"
    assert module.together([off, off]) == off
    assert module.together(["exact", off, "exact"]) == f"rank 0, 2: exact; rank 1: {off}"
