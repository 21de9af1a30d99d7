"""Imports go one way, and the rule imports no framework."""

from __future__ import annotations

import ast
from pathlib import Path

import unified_clip
from unified_clip._dispatch import ADAPTERS

PACKAGE = Path(unified_clip.__file__).parent
FRAMEWORKS = {*ADAPTERS, "keras"}
NAMESPACES = set(ADAPTERS.values())
LAYERS = [
    "errors", "_display", "_install", "_json", "_limits", "_markdown", "_safetensors", "_core", "_native", "_ops",
    "_dispatch", "namespaces", "recording", "package", "suggest", "ownership", "_modes", "config", "monitor",
    "integrations", "_workers", "_progress", "tensors", "parity", "verify", "port", "bench", "cli", "testing",
    "pytest_plugin",
]  # fmt: skip
"""Each may import from itself and from those before it."""


def layer(module: str) -> str:
    """The layer of a module named relative to the package."""
    first = module.split(".")[0]
    return {"": "package", "__init__": "package", "__main__": "cli"}.get(
        first, "namespaces" if first in NAMESPACES else first
    )


def imported(path: Path) -> list[str]:
    """The modules that a file imports when it is run; those of the package as `unified_clip.x`."""
    package = ["unified_clip", *path.relative_to(PACKAGE).parts[:-1]]
    names = []
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [f"{module}.{alias.name}" if module == "unified_clip" else module for alias in node.names]
    return names


def test_no_module_imports_from_a_later_layer() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 15
    for path in files:
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for name in imported(path):
            if name.split(".")[0] == "unified_clip":
                target = layer(name.removeprefix("unified_clip").lstrip("."))
                assert LAYERS.index(target) <= LAYERS.index(layer(module)), f"{module} imports {name}"


def test_the_core_imports_no_framework() -> None:
    for path in [*(PACKAGE / "_core").glob("*.py"), PACKAGE / "__init__.py", PACKAGE / "_dispatch.py"]:
        assert not {name.split(".")[0] for name in imported(path)} & FRAMEWORKS, path.name


def test_an_adapter_imports_its_own_framework_and_numpy_only() -> None:
    adapters = list((PACKAGE / "_ops").glob("*_ops.py"))
    assert len(adapters) >= 2
    for path in adapters:
        name = path.stem.removesuffix("_ops")
        own = {package for package, adapter in ADAPTERS.items() if adapter in (name, "numpy")}
        own |= {"keras"} if name == "tensorflow" else set()
        assert {name.split(".")[0] for name in imported(path)} & FRAMEWORKS <= own


def test_namespaces_hold_no_arithmetic() -> None:
    for name in NAMESPACES:
        path = PACKAGE / f"{name}.py"
        if path.exists():
            assert not [
                node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.BinOp | ast.Compare)
            ]
