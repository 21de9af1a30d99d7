"""Pages of the public modules, which mkdocstrings fills with signatures and docstrings. No module is imported."""

from __future__ import annotations

import ast
from pathlib import Path

from unified_clip import _markdown

PACKAGE = Path(__file__).parents[2] / "unified_clip"
NAMESPACES = ("torch", "tensorflow", "paddle", "jax", "mlx", "numpy")
LATER = {"ClipConfig": "config", "suggest_threshold": "config"}
"""{name of `unified_clip` that needs an extra: its page}. `__all__` lacks these names."""

ALIASES = ("ClipGradByValue", "ClipGradByNorm", "ClipGradByGlobalNorm")

PAGES = {
    "unified_clip": ("unified_clip", ["unified_clip"]),
    **{name: (f"unified_clip.{name}", [f"unified_clip.{name}"]) for name in NAMESPACES},
    "adaptive": ("Adaptive thresholds", ["unified_clip.adaptive"]),
    "ownership": ("Sharded gradients", ["unified_clip.ownership"]),
    "recording": (
        "Recording",
        ["unified_clip.recording", "unified_clip.recording.runs", "unified_clip.recording.compare"],
    ),
    "integrations": (
        "Integrations",
        [
            "unified_clip.integrations.accelerate_clip",
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
    return f"::: {module}.{name}\n    options:\n      heading_level: {level}"


def index() -> str:
    rows = [
        [
            f"[{title}]({name}.md)",
            ", ".join(f"[`{public_name}`][{module}.{public_name}]" for public_name in public_names(module)),
        ]
        for name, (title, modules) in PAGES.items()
        for module in modules
    ]
    rows.insert(1, ["[Configuration](config.md)", ", ".join(f"[`{name}`][unified_clip.{name}]" for name in LATER)])
    text = "The reference has every public name, with its signature, parameters, errors and an executed example."
    return f"# API reference\n\n{text}\n\n{_markdown.table(['page', 'names'], rows)}\n"


def public_names(module: str) -> list[str]:
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    definitions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [node.name for node in definitions if node.name[0] != "_"]


def place(module: str, name: str) -> tuple[int, int]:
    """Return two numbers that sort names: functions, then classes, then aliases."""
    order = [node.name for node in parsed(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    kind = 2 if name in ALIASES else int(name[0].isupper())
    return kind, order.index(name) if name in order else len(order)


def summary(module: str) -> str:
    return ast.get_docstring(parsed(module)) or ""


def parsed(module: str) -> ast.Module:
    path = PACKAGE.parent / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
