"""With the code of docs/integrations/engines.md, engines compute the exact norm on several ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.processes import torch_engines as engines
from support.processes.torch_engines import Result
from support.processes.torch_layout import THRESHOLD, join_pieces
from support.processes.worlds import World

Worlds = Callable[[int], World]

PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "engines.md"
TITAN, MEGATRON, DEEPSPEED = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def check_results(results: Sequence[Result], all_reduces: int) -> None:
    full, after = (join_pieces(p for result in results for p in getattr(result, name)) for name in ("full", "after"))
    norm = reference.norm(full.values())
    assert norm > THRESHOLD, "there is something to clip"
    assert [(result.norm, result.all_reduces) for result in results] == [(norm, all_reduces)] * 4
    assert [result.engine for result in results] == pytest.approx([norm] * 4, rel=1e-6), "it is the engine's norm"
    coef = reference.coefficient(norm, THRESHOLD, 1e-6)
    for name, array in full.items():
        np.testing.assert_array_equal(after[name], reference.scaled(array, coef), strict=True, err_msg=name)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("stages", [False, True])
def test_torchtitan_clips_by_one_norm_over_meshes_and_stages(torch_worlds: Worlds, stages: bool, experts: bool) -> None:
    check_results(torch_worlds(4).run(engines.clip_as_titan, TITAN, stages, experts), all_reduces=1)


@pytest.mark.parametrize("layout", ["Megatron, distributed optimizer", "Megatron, tensor and pipeline parallel"])
def test_megatron_clips_by_the_norm_of_the_gradients_that_it_selects(torch_worlds: Worlds, layout: str) -> None:
    check_results(torch_worlds(4).run(engines.clip_as_megatron, MEGATRON, layout), all_reduces=1)


def test_deepspeed_clips_by_the_norm_of_all_shards(torch_worlds: Worlds) -> None:
    results = torch_worlds(4).run(engines.norms_as_deepspeed, DEEPSPEED)
    norm = reference.norm(join_pieces(piece for pieces, *_ in results for piece in pieces).values())
    assert norm > THRESHOLD, "there is something to clip"
    for _, engine, norms, all_reduces in results:
        assert engine == pytest.approx(norm, rel=1e-6), "it is the engine's norm"
        assert (norms, all_reduces) == ([norm, norm], 2)
