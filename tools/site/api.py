"""Pages of the public modules, which mkdocstrings fills with signatures and docstrings. No framework is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import unified_clip
from unified_clip import _api
from unified_clip._api import classes, settings, tensorflow_functions, torch_functions
from unified_clip._kit import markdown

PACKAGE = Path(__file__).parents[2] / "unified_clip"
NAMESPACES = ("torch", "tensorflow", "paddle", "jax", "mlx", "numpy")
LATER = {"ClipConfig": "config", "suggest_threshold": "config"}
"""{name of `unified_clip` that needs an extra: its page}. `__all__` lacks these names."""

PAGES = {
    "unified_clip": ("Functions and classes", ["unified_clip"]),
    "adaptive": ("Adaptive thresholds", ["unified_clip.adaptive"]),
    "ownership": ("Sharded gradients", ["unified_clip.ownership"]),
    "recording": (
        "Recording",
        ["unified_clip.recording", "unified_clip.recording.runs", "unified_clip.compare.recordings"],
    ),
    "integrations": (
        "Integrations",
        [
            "unified_clip.integrations.lightning_callback",
            "unified_clip.integrations.optax_transforms",
            "unified_clip.integrations.transformers_callback",
        ],
    ),
    "monitor": ("Monitoring", ["unified_clip.monitor"]),
    "testing": ("Testing", ["unified_clip.testing"]),
    "errors": ("Errors and warnings", ["unified_clip.errors"]),
}
"""{name of a page: its title and modules}."""


def pages() -> dict[str, str]:
    described = {f"api/{name}.md": page(*content) for name, content in PAGES.items()}
    return described | {"api/config.md": configuration(), "api/index.md": index()}


def configuration() -> str:
    text = (
        "These names need the extra `config` ([installation](../install.md)). [Configurations](../config.md) shows "
        "examples."
    )
    options = "\n      inherited_members: false"
    return (
        "\n\n".join(["# Configuration", text, *(section("unified_clip", name, 2) + options for name in LATER)]) + "\n"
    )


def page(title: str, modules: list[str]) -> str:
    sections = [f"# {title}"]
    for module in modules:
        if len(modules) > 1:
            sections.append(f"## {module}")
        names = sorted(public_names(module), key=lambda name: place(module, name))
        sections += [summary(module), *(section(module, name, 2 + (len(modules) > 1)) for name in names)]
    return "\n\n".join(sections) + "\n"


def section(module: str, name: str, level: int) -> str:
    return f"::: {address(module, name)}\n    options:\n      heading_level: {level}"


def index() -> str:
    rows = [
        [
            f"[{title}]({name}.md)",
            ", ".join(f"[`{public_name}`][{address(module, public_name)}]" for public_name in public_names(module)),
        ]
        for name, (title, modules) in PAGES.items()
        for module in modules
    ]
    rows.insert(1, ["[Configuration](config.md)", ", ".join(f"[`{name}`][unified_clip.{name}]" for name in LATER)])
    text = "The reference has every public name, with its signature, parameters, errors and an executed example."
    return f"# API reference\n\n{text}\n\n{markdown.table(['page', 'names'], rows)}\n"


def address(module: str, name: str) -> str:
    """Return the place of a docstring. The modules of the frameworks bind functions that are defined elsewhere."""
    if module != "unified_clip" or name not in _api.__all__:
        return f"{module}.{name}"
    defined = next(each for each in (torch_functions, tensorflow_functions, settings, classes) if hasattr(each, name))
    return f"{defined.__name__}.{name}"


def public_names(module: str) -> list[str]:
    if module == "unified_clip":
        return [name for name in unified_clip.__all__ if getattr(unified_clip, name).__name__ == name]  # no alias
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    definitions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [node.name for node in definitions if node.name[0] != "_"]


def place(module: str, name: str) -> tuple[bool, int]:
    """Return two values that sort names: functions, then classes."""
    order = [node.name for node in parsed(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return name[0].isupper(), order.index(name) if name in order else len(order)


def summary(module: str) -> str:
    text = ast.get_docstring(parsed(module)) or ""
    if module != "unified_clip":
        return text
    rows = [[f"`unified_clip.{name}`", " ".join(summary(f"unified_clip.{name}").split())] for name in NAMESPACES]
    return f"{text}\n\n{markdown.table(['module', 'description'], rows)}"


def parsed(module: str) -> ast.Module:
    path = PACKAGE.parent / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
