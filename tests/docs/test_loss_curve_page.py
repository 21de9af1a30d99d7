"""docs/my-loss-curve-differs.md: its commands print the output on the page, and its change mends the port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from support.page_examples import patched, run

from unified_clip.causes.cause import CauseKind

PAGE = (Path(__file__).parents[2] / "docs" / "my-loss-curve-differs.md").read_text(encoding="utf-8")

SCRIPTS: dict[str, str] = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
PRINTED: list[tuple[str, str]] = re.findall(r"```console\n\$ unified-clip (.*?)\n(.*?)```", PAGE, re.DOTALL)
((CHANGED, DIFF),) = re.findall(r"```diff\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def assert_same(printed: str, expected: str) -> None:
    """Assert the same lines, up to the rounding of another processor."""
    lines, on_page = printed.splitlines(), expected.splitlines()
    assert [NUMBER.sub("#", line) for line in lines] == [NUMBER.sub("#", line) for line in on_page]
    for line, other in zip(lines, on_page, strict=True):
        numbers, others = (list(map(float, NUMBER.findall(text))) for text in (line, other))
        assert numbers == pytest.approx(others, rel=1e-4, abs=1e-5)


@pytest.mark.nightly
def test_the_commands_print_the_output_on_the_page(tmp_path: Path) -> None:
    if None in (find_spec("torch"), find_spec("keras")):
        pytest.skip("PyTorch or Keras is not installed")
    for name, code in SCRIPTS.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    run(tmp_path, "data.py")
    (first, wrong), (second, right) = PRINTED
    commands = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    of_old, of_new, again = commands
    for command in (of_old, of_new):
        execute(tmp_path, command)
    assert_same(run(tmp_path, "-m", "unified_clip", *first.split()), wrong)
    (tmp_path / CHANGED).write_text(patched(SCRIPTS[CHANGED], DIFF), encoding="utf-8")
    execute(tmp_path, again)
    assert_same(run(tmp_path, "-m", "unified_clip", *second.split()), right)


def execute(folder: Path, command: str) -> None:
    program, *arguments = command.split()
    assert (program, arguments[-2]) == ("unified-clip", "python")
    arguments[-2] = sys.executable
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "unified_clip", *arguments], check=True, cwd=folder, env=environment)


def test_every_cause_with_advice_exists() -> None:
    table = PAGE.partition("| the report | do this |\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1].strip().removeprefix("has ") for row in table.splitlines()[1:]]
    named = {cause for cell in cells for cause in cell.split(", or ") if '"' not in cause}
    assert len(named) == 2
    assert named <= {*get_args(CauseKind)}


PER_TENSOR = """
import torch, unified_clip, unified_clip.torch as uc

gradients = [torch.arange(12.0).reshape(3, 4) - 4, torch.full((5,), 1e-3), torch.zeros(2), torch.arange(7.0) * 1e4]
parameters = [[torch.nn.Parameter(torch.zeros_like(each)) for each in gradients] for _ in range(2)]
for each in parameters:
    for parameter, gradient in zip(each, gradients):
        parameter.grad = gradient.clone()
uc.GradientClipByNorm(0.5).clip_(parameters[0])
optimizer = torch.optim.SGD(parameters[1], lr=0.0)
unified_clip.ClipConfig(rule="norm", threshold=0.5, family="paddle").attach_to(optimizer)
optimizer.step()
clipped = [uc.clip_by_norm(gradient, 0.5) for gradient in gradients]
for each in parameters:
    print(all(torch.equal(parameter.grad, result) for parameter, result in zip(each, clipped)))
"""


@pytest.mark.nightly
def test_three_ways_to_clip_per_tensor_have_the_same_bits(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    assert run(tmp_path, "-c", PER_TENSOR).split() == ["True", "True"]
