"""docs/distributed.md: the code in each row of PyTorch's table gives the norm of unsharded gradients, and the example
prints the output on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded_layouts as layouts
from support.processes.torch_layout import THRESHOLD, join_pieces
from support.processes.torch_sharded_layouts import LAYOUTS
from support.processes.worlds import World

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


def rows() -> list[tuple[str, str]]:
    """Return the layouts of the table with their keywords. A row can have several layouts, and several keywords."""
    section = PAGE.read_text().partition("### PyTorch\n")[2].partition("\n### ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert cells[0] == ["layout", "keywords"]
    return [
        (layout, "" if keywords == "none" else keywords.strip("`"))
        for layouts, alternatives in cells[2:]
        for layout in layouts.split("; ")
        for keywords in re.split(" or (?=`)", alternatives)
    ]


ROWS = rows()


def test_every_row_has_a_layout_and_every_layout_a_row() -> None:
    assert {layout for layout, _ in ROWS} == set(LAYOUTS)


@pytest.mark.parametrize(("layout", "keywords"), ROWS)
def test_the_keywords_of_a_row_give_the_norm_of_unsharded_gradients(
    torch_worlds: Callable[[int], World], layout: str, keywords: str
) -> None:
    results = torch_worlds(4).run(layouts.clip_layout, layout, keywords)
    full, before, after = (
        join_pieces(piece for result in results for piece in getattr(result, name))
        for name in ("full", "before", "after")
    )
    norm = reference.norm(full.values())
    assert norm > THRESHOLD, "there is something to clip"
    assert [result.norm for result in results] == [norm] * 4
    coef = reference.coefficient(norm, THRESHOLD, 1e-6)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], reference.scaled(array, coef), strict=True, err_msg=name)


def test_passing_a_parameter_that_fully_shard_has_replaced_is_an_error(torch_worlds: Callable[[int], World]) -> None:
    for message in torch_worlds(4).run(layouts.clip_with_replaced_parameter):
        assert "also_elsewhere[0], of shape [10, 8], is not a parameter of this call" in message


ENDED_BADLY = "terminate called without an active exception"
"""The message of PyTorch's threads if they abort a process that ends after a backward pass of FSDP2 on a CPU."""


def test_the_example_runs_on_several_processes(tmp_path: Path) -> None:
    code, printed = re.findall(r"```python\n# train.py(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "train.py").write_text(code.partition("\n")[2])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for _ in range(4):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        if ENDED_BADLY not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
