"""Find calls of a `ClipConfig` that do not clip all gradients in each step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source
from ....errors import ConfigError
from ...clip_use import OWN, ClipUse
from . import effect

KINDS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "attach_to": "attached", "clip_": "in place",
    "pairs": "functional",
}  # fmt: skip
"""The kind of each method of `ClipConfig` that clips."""


def configurations(source: Source, uses: Sequence[ClipUse]) -> dict[str, ClipConfig]:
    """Return {code of a variable or attribute: configuration} for the known configurations that a file makes."""
    made = {(use.line, use.column): use.config for use in uses if use.config is not None}
    known: dict[str, ClipConfig] = {}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            config = made.get((node.value.func.lineno, node.value.func.col_offset + 1))
            known |= {ast.unparse(target): config for target in node.targets} if config is not None else {}
    return known


def imported(source: Source, module: str, known: Mapping[str, ClipConfig]) -> dict[str, ClipConfig]:
    """Return {name: configuration} for the configurations that a file imports from a module.

    known: The configurations of the module, by name.
    """
    nodes = [node for node in source.nodes if isinstance(node, ast.ImportFrom)]
    names = [alias for node in nodes if (node.module or "").rpartition(".")[2] == module for alias in node.names]
    return {alias.asname or alias.name: known[alias.name] for alias in names if alias.name in known}


def read(source: Source, path: Path, known: Mapping[str, ClipConfig]) -> Iterator[ClipUse]:
    """Yield each call of a configuration in `known` whose effect is not that of the configuration, with the reason."""
    for call in source.nodes:
        if not isinstance(call, ast.Call):
            continue
        method, config = _method(call, known)
        if config is None:
            continue
        use = ClipUse(path, call.lineno, call.col_offset + 1, f"{OWN}.ClipConfig.{method}", config, package=OWN)
        try:
            narrowed = effect.of_call(source, call, config, KINDS[method])
        except ConfigError as error:
            yield replace(use, config=None, why_unknown=str(error))
            continue
        if narrowed != config:
            yield replace(use, config=narrowed)


def _method(call: ast.Call, known: Mapping[str, ClipConfig]) -> tuple[str, ClipConfig | None]:
    """Return (method, configuration) for a call of a known configuration. For other calls, configuration is None."""
    if (config := known.get(ast.unparse(call.func))) is not None:
        return "__call__", config
    if isinstance(call.func, ast.Attribute) and call.func.attr in KINDS:
        return call.func.attr, known.get(ast.unparse(call.func.value))
    return "", None
