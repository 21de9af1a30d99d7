"""Imports go one way and in no circle, the rule imports no framework, and modules and folders stay small."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

from support import syntax

import unified_clip
from unified_clip._dispatch import ADAPTERS

PACKAGE = Path(unified_clip.__file__).parent
FRAMEWORKS = {*ADAPTERS, "keras"}
NAMESPACES = set(ADAPTERS.values())
LAYERS = [
    "recorder", "_kit", "errors", "_command", "_core", "_native", "_compute", "_distributed", "_api", "_backends",
    "_dispatch", "adaptive", "namespaces", "_compilers", "_page", "tensors", "causes", "recording", "recipes",
    "compare", "suggest",
    "ownership", "source", "facts", "config", "package", "monitor", "integrations", "parity", "verify", "port", "check",
    "bench",
    "_versions", "cli", "testing", "pytest_plugin",
]  # fmt: skip
"""Each layer may import from itself and from the layers before it."""


def layer(module: str) -> str:
    first = module.split(".")[0]
    return {"": "package", "__init__": "package", "__main__": "cli"}.get(
        first, "namespaces" if first in NAMESPACES else first
    )


SMALL = (
    "_api", "_backends", "adaptive", "_compute", "_core", "_distributed", "causes", "check", "compare", "config",
    "facts",    "parity", "port", "recipes", "recorder", "recording", "source", "tensors", "verify",
)  # fmt: skip
"""Packages whose modules are short and whose folders are small."""

MOST_LINES = 400
MOST_MODULES = 14

FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


@functools.cache
def imported(path: Path) -> list[str]:
    """Return the modules and names that a file imports, including lazy imports and imports for type checkers."""
    package = ["unified_clip", *path.relative_to(PACKAGE).parts[:-1]]
    names = []
    for node in syntax.nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names += [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
    return names


def own_modules(path: Path) -> set[str]:
    modules = set()
    for name in imported(path):
        if name.split(".")[0] == "unified_clip":
            names = name.split(".")[1:]
            places = (".".join(names), ".".join([*names, "__init__"]), ".".join(names[:-1]))
            modules.add(next((place for place in places if place in FILES), ".".join([*names[:-1], "__init__"])))
    return modules


def import_cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    reached = {module: _reached(module, imports) for module in imports}
    cycles: list[set[str]] = []
    for module in imports:
        circle = {successor for successor in reached[module] if module in reached[successor]}
        if circle and circle not in cycles:
            cycles.append(circle)
    return cycles


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        following = imports.get(waiting.pop(), set()) - reached
        reached |= following
        waiting += following
    return reached


def test_no_module_imports_from_a_later_layer() -> None:
    assert len(FILES) > 15
    for module, path in FILES.items():
        for target in own_modules(path):
            assert LAYERS.index(layer(target)) <= LAYERS.index(layer(module)), f"{module} imports {target}"


def test_modules_do_not_import_each_other() -> None:
    cycles = import_cycles({module: own_modules(path) for module, path in FILES.items()})
    assert not cycles, "break these circles: move what both need into a module that both can import"


def test_modules_are_short() -> None:
    lengths = {
        module: len(path.read_text().splitlines()) for module, path in FILES.items() if module.split(".")[0] in SMALL
    }
    assert len(lengths) > 100
    assert sorted(module for module, length in lengths.items() if length > MOST_LINES) == []


def test_folders_are_small() -> None:
    folders = Counter(module.rpartition(".")[0] for module in FILES if not module.endswith("__init__"))
    assert set(SMALL) <= folders.keys()
    large = [name for name, count in folders.items() if name.split(".")[0] in SMALL and count > MOST_MODULES]
    assert sorted(large) == []


def test_the_core_imports_no_framework() -> None:
    for path in [*(PACKAGE / "_core").glob("*.py"), PACKAGE / "__init__.py", PACKAGE / "_dispatch.py"]:
        assert not {name.split(".")[0] for name in imported(path)} & FRAMEWORKS, path.name


def test_a_backend_imports_its_own_framework_and_numpy_only() -> None:
    modules = [module for module in FILES if module.startswith("_backends.") and module != "_backends.__init__"]
    assert {module.split(".")[1] for module in modules} >= NAMESPACES
    for module in modules:
        path, name = FILES[module], module.split(".")[1]
        own = {package for package, adapter in ADAPTERS.items() if adapter in (name, "numpy")}
        own |= {"keras"} if name == "tensorflow" else set()
        assert {name.split(".")[0] for name in imported(path)} & FRAMEWORKS <= own


def test_namespaces_have_no_arithmetic() -> None:
    for name in NAMESPACES:
        nodes = syntax.nodes(PACKAGE / f"{name}.py")
        operators = [node.op for node in nodes if isinstance(node, ast.BinOp)]
        assert not [op for op in operators if not isinstance(op, ast.BitOr)], "| makes types"
        assert not [node for node in nodes if isinstance(node, ast.Compare | ast.If)]
