"""Find calls of a `ClipConfig` that leave some gradients or some steps unclipped."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source
from ....errors import ConfigError
from ...clip_use import ACCELERATE_CLIP, OWN, ClipUse
from .. import configuration_uses, unused_configurations
from ..steps.value_flow import assigned
from . import effect, order

CLIPPING = ("__call__", "clip_", "pairs")

METHOD_KINDS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "attach_to": "attached", "clip_": "in place",
    "pairs": "functional",
}  # fmt: skip


class ConfigVariable(NamedTuple):
    config: ClipConfig
    is_clipper: bool = False


def configurations(
    source: Source, uses: Sequence[ClipUse], imports: Mapping[str, ConfigVariable] = MappingProxyType({})
) -> dict[str, ConfigVariable]:
    """Return {code: configuration or clipper} for code such as "self.clip" or "ClipConfig.load('clip.toml')".

    imports: The configurations and clippers that the file imports.
    """
    made = {(use.line, use.column): use.config for use in uses if use.config is not None}
    assignments = [pair for node in source.nodes for pair in assigned(node)]
    own_calls = ((call, _own(call, {}, made)) for call in source.calls)
    known = {**imports, **{ast.unparse(call): own for call, own in own_calls if own is not None}}
    before = -1
    while before < len(known):
        before = len(known)
        for target, value, _ in assignments:
            code = ast.unparse(target)
            if code not in known and (own := _own(value, known, made)) is not None:
                known[code] = own
    return known


def _own(
    node: ast.expr, known: Mapping[str, ConfigVariable], made: Mapping[tuple[int, int], ClipConfig]
) -> ConfigVariable | None:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="clipper")):
            own = _own(owner, known, made)
            return own._replace(is_clipper=True) if own is not None else None
        case ast.Call(func=function):
            config = made.get((function.lineno, function.col_offset + 1))
            return ConfigVariable(config) if config is not None else known.get(ast.unparse(node))
        case ast.IfExp(body=body, orelse=orelse):
            return _own(body, known, made) or _own(orelse, known, made)
        case ast.Name() | ast.Attribute():
            return known.get(ast.unparse(node))
    return None


def unused_clippers(source: Source, path: Path, known: Mapping[str, ConfigVariable]) -> Iterator[ClipUse]:
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="clipper")):
                own, name = known.get(ast.unparse(owner)), "ClipConfig.clipper"
            case ast.Assign(targets=[ast.Attribute()], value=ast.Name(id=variable) as node):
                is_only = not configuration_uses.is_used(source, variable, stores=False)
                own, name = (known.get(variable) if is_only else None), "ClipConfig"
            case _:
                continue
        if own is not None:
            use = ClipUse(path, node.lineno, node.col_offset + 1, f"{OWN}.{name}", own.config, package=OWN)
            if (marked := unused_configurations.mark_unused(source, use, node)) is not use:
                yield marked


def imported(source: Source, module: str, known: Mapping[str, ConfigVariable]) -> dict[str, ConfigVariable]:
    nodes = [node for node in source.nodes if isinstance(node, ast.ImportFrom)]
    names = [alias for node in nodes if (node.module or "").rpartition(".")[2] == module for alias in node.names]
    return {alias.asname or alias.name: known[alias.name] for alias in names if alias.name in known}


def calls(source: Source, known: Mapping[str, ConfigVariable]) -> Iterator[tuple[ast.Call, str, ConfigVariable]]:
    for call in source.calls:
        method, own = _method(source, call, known)
        if own is not None:
            yield call, method, own


def read(source: Source, path: Path, known: Mapping[str, ConfigVariable]) -> Iterator[ClipUse]:
    for call, method, (config, is_clipper) in calls(source, known):
        use = ClipUse(path, call.lineno, call.col_offset + 1, f"{OWN}.ClipConfig.{method}", config, package=OWN)
        try:
            narrowed = effect.of_call(source, call, config, METHOD_KINDS[method], has_names=is_clipper)
            has_step = any(each.arg == "step" for each in call.keywords)
            if method in CLIPPING and (config.is_adaptive or (config.has_schedule and not has_step)):
                order.check_once(source, call)
        except ConfigError as error:
            yield replace(use, config=None, why_unknown=str(error))
            continue
        if narrowed != config:
            yield replace(use, config=narrowed)


def _method(source: Source, call: ast.Call, known: Mapping[str, ConfigVariable]) -> tuple[str, ConfigVariable | None]:
    if source.dotted(call.func) == ACCELERATE_CLIP:
        clips = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "clip")]
        return "clip_", _own(clips[0], known, {}) if clips else None
    if (own := _own(call.func, known, {})) is not None:
        return "__call__", own
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHOD_KINDS:
        return call.func.attr, _own(call.func.value, known, {})
    return "", None
