"""The README: its examples run, and it has the facts that newcomers need."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.page_examples import printed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


NEVER_RUN = "**Never run: TensorFlow, Paddle and MLX on a GPU, Apple's MPS, TPUs, several GPUs, and the CUDA kernels.**"


@pytest.mark.parametrize("fact", [NEVER_RUN, "not on PyPI", "loss curve", "docs/install.md"])
def test_a_newcomer_reads_it_first(fact: str) -> None:
    assert fact in " ".join(README.split())


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 105


def test_the_example_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """In a process of its own, because it imports two frameworks."""
    if missing := [name for name in ("jax", "optax", "torch") if find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    ((example, output),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    assert printed(example, tmp_path, here=False) == output


def test_one_of_the_calls_clips(tmp_path: Path) -> None:
    """Each call clips a gradient of norm 5 to 1, PyTorch's with its eps of 1e-6."""
    if find_spec("torch") is None:
        pytest.skip("not installed: torch")
    (example,) = re.findall(r"```python\n(from unified_clip\.torch import.*?)```", README, re.DOTALL)
    start, *calls = example.strip().splitlines()
    code = """
import torch
model = torch.nn.Linear(2, 1, bias=False)
def backward():
    model.weight.grad = torch.tensor([[3.0, 4.0]])
"""
    for call in filter(None, calls):
        code += f"backward()\n{call}\nprint(model.weight.grad.tolist())\n"
    with_eps, exact = "[[0.5999999046325684, 0.7999998331069946]]\n", "[[0.6000000238418579, 0.800000011920929]]\n"
    assert printed(f"{start}\n{code}", tmp_path, here=False) == with_eps + exact


def test_no_text_for_users_has_a_placeholder_of_an_address() -> None:
    files = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "action.yml", ".pre-commit-hooks.yaml", "mkdocs.yml"]
    pages = [*(ROOT / name for name in [*files, "pyproject.toml"]), *(ROOT / "docs").rglob("*.[my]*")]
    assert len(pages) > 40
    placeholder = re.compile(r"\bOWNER\b|<this repository>|path/to/unified_clip")
    assert [page for page in pages if placeholder.search(page.read_text(encoding="utf-8"))] == []


def test_the_make_commands_exist_and_begin_with_a_set_up() -> None:
    commands = re.findall(r"^make (.*?) #", README, re.MULTILINE)
    assert len(commands) == 2
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for command in commands:
        arguments = ["make", "--always-make", "--dry-run", *shlex.split(command)]
        done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert "-m venv" in done.stdout


def test_links_lead_to_files() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", README)
    assert len(linked) > 10
    assert [target for target in linked if not (ROOT / target).exists()] == []


def test_every_command_in_the_table_exists() -> None:
    from unified_clip.cli import EXTRAS

    commands = re.findall(r"\| `unified-clip (\w+)", README)
    assert len(commands) == 4
    assert set(commands) <= set(EXTRAS)
