"""docs/adding-a-framework.md names every member that a backend must have, and none that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-framework.md").read_text(encoding="utf-8")
BACKEND = "unified_clip/_core/backend.py"
PROTOCOLS = {"Backend": BACKEND, "DevicePrimitives": "unified_clip/_core/path.py"}
"""The protocols of a backend. A member is optional if one of them has a default for it."""

CAPABILITIES = ("Parameters", "Variables", "Pytree", "Sparse", "Distributed")


def members(name: str, path: str) -> dict[str, bool]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    (definition,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    has_default = {}
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            has_default[node.name] = any(not is_text(statement) for statement in node.body)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            has_default[node.target.id] = node.value is not None
    return has_default


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


BY_PROTOCOL = [members(*item) for item in PROTOCOLS.items()]
BY_CAPABILITY = {name: members(name, BACKEND) for name in CAPABILITIES}
NAMES = {name for group in BY_PROTOCOL for name in group}
REQUIRED = {name for name in NAMES if not any(group.get(name) for group in BY_PROTOCOL)}
EXISTING = {name for group in (*BY_PROTOCOL, *BY_CAPABILITY.values()) for name in group}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]


def listed(heading: str, column: int) -> list[str]:
    rows = [line.split("|")[1:-1] for line in section(heading).splitlines() if line.startswith("|")][2:]
    assert rows
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[column])]


def test_every_member_without_a_default_is_a_step() -> None:
    assert len(REQUIRED) > 20
    steps = [*listed("1. The host path", 1), *listed("2. The device path", 1)]
    assert REQUIRED - set(steps) == set()
    assert len(set(steps)) == len(steps)


def test_every_member_that_is_named_exists() -> None:
    named = {*listed("1. The host path", 1), *listed("2. The device path", 1)}
    others = section("Optional capabilities").partition("\nOther members")[2].partition("For `unified-clip")[0]
    named |= {*re.findall(r"`(\w+)`", others)}
    assert named - EXISTING == set()


def test_every_capability_has_a_row() -> None:
    assert {*CAPABILITIES} <= {*listed("Optional capabilities", 0)}


def test_every_flag_of_a_kit_exists() -> None:
    kit = members("Kit", "tests/support/kits.py")
    source = (ROOT / "tests/support/kits.py").read_text(encoding="utf-8")
    for name in listed("Optional capabilities", 1):
        assert name in kit or f"    {name} = " in source, name


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", PAGE))))
def test_what_the_page_names_is_there(path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / "unified_clip" / path).exists()


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", PAGE)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
