"""mmengine's Python format, parsed and never run: `optim_wrapper.clip_grad`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from ....._static_values import Target, UnknownValueError, evaluate
from ....documents import Document, Key
from ....schema import Settings, is_off
from ...base import (
    ATTACH,
    SEVERAL_OPTIMIZERS,
    FormatKey,
    Imported,
    OwnFormat,
    imported_key,
    paths,
    read_norm_type,
    rejected_key,
    words,
)
from ...python_source import parse_tree

CLIP = ("optim_wrapper", "clip_grad")
MMCV = ("optimizer_config", "grad_clip")
ROOTS = {"optim_wrapper", "optimizer_config", "_base_"}

WRAPPER_ARGUMENTS = words("type optimizer paramwise_cfg constructor accumulative_counts loss_scale dtype")
"""The arguments of the wrapper of one optimizer. A dict with other keys may contain several optimizers."""

CLIP_ARGUMENTS = {"norm": words("max_norm norm_type error_if_nonfinite foreach"), "value": words("clip_value foreach")}

WRITERS = words("globals locals vars exec")
"""Builtin functions by which code can change a name without an assignment."""

WHOLE = "Import the whole configuration: the output of Config.fromfile(...).dump()."


@dataclass(frozen=True)
class Unread:
    """An expression whose value is only known at run time."""

    source: str

    def __repr__(self) -> str:
        return self.source


class MMEngine(OwnFormat):
    name, title = "mmengine", "mmengine"
    kinds = ("python",)
    source = "mmengine/optim/optimizer/optimizer_wrapper.py"
    newest = "0.10.7"
    instead = ATTACH
    own_keys = paths("optim_wrapper optimizer_config")
    clip_keys = paths("optim_wrapper.clip_grad optim_wrapper.*.clip_grad")
    foreign_keys = (MMCV,)
    vocabulary = words("""
        _base_ model train_cfg default_hooks param_scheduler train_dataloader default_scope runner log_config
    """)
    rules = ("global_norm", "value")
    zero = "zeros"
    norm_types = True
    nonfinite = ("family", "raise")
    keys = (
        FormatKey("optim_wrapper.clip_grad", "None: off; an empty dict is an error", "None"),
        FormatKey("optim_wrapper.clip_grad.type: norm", "the global norm, PyTorch's rule", "norm"),
        FormatKey("optim_wrapper.clip_grad.type: value", "each element"),
        FormatKey("optim_wrapper.clip_grad.max_norm", "the threshold of norm; 0: zeros"),
        FormatKey("optim_wrapper.clip_grad.clip_value", "the threshold of value; 0: zeros"),
        FormatKey("optim_wrapper.clip_grad.norm_type", "the order of the norm, inf too", "2"),
        FormatKey("optim_wrapper.clip_grad.error_if_nonfinite", 'True is nonfinite = "raise"', "False"),
        rejected_key("optim_wrapper.NAME.clip_grad", "several optimizers, each with its own"),
        rejected_key("optimizer_config.grad_clip", "of mmcv 1; mmengine does not read it"),
        rejected_key("_base_", "other files. Not read: settings there are missing"),
        imported_key("_delete_: True", "nothing of _base_ is taken over"),
    )

    def parse(self, text: str, name: str) -> Document:
        """Return the dicts, lists, numbers and strings that are assigned to names at the top level."""
        body = parse_tree(text, name).body
        data: dict[str, Any] = {}
        places: dict[tuple[Key, ...], int] = {}
        for statement in body:
            if _reads_base(statement):
                data["_base_"] = Unread(ast.unparse(statement.body))  # type: ignore[attr-defined]
                places["_base_",] = statement.lineno
            for key in _assigned_names(statement):
                places[key,] = statement.lineno
                data[key] = _value(statement.value, data, (key,), places)  # type: ignore[attr-defined]
        for key, statement in _unread_statements(body):
            places[key,] = statement.lineno
            data[key] = Unread(ast.unparse(statement).partition("\n")[0])
        return Document(name, text, "python", data, places)

    def read(self, document: Document, version: Version | None) -> Imported:
        if not document.has(*CLIP):
            return self._without_clip(document)
        clip = document.get(*CLIP)
        if clip is None:
            return Imported({"rule": "none"})
        _check_known(document, CLIP)
        if not isinstance(clip, dict) or not clip:
            raise document.wrong(CLIP, f"{clip!r:.60} makes training fail. Set None, or a dict with a threshold.")
        for name in clip:
            _check_known(document, [*CLIP, name])
        is_partial = document.has("_base_") and not _replaces(document, *CLIP)
        notes = ["The _base_ files are not read. They may set more keys of clip_grad."] if is_partial else []
        kind = clip.get("type", "norm")
        if kind not in CLIP_ARGUMENTS:
            raise document.wrong([*CLIP, "type"], f"{kind!r:.60} is not a type of clip in mmengine. Set norm or value.")
        if unknown := sorted(clip.keys() - CLIP_ARGUMENTS[kind] - {"type", "_delete_"}):
            raise document.wrong([*CLIP, unknown[0]], f"the type {kind!r} does not have this key. Remove it.")
        key = [*CLIP, "max_norm" if kind == "norm" else "clip_value"]
        if not document.has(*key):
            raise document.wrong(CLIP, f"the type {kind!r} needs {key[-1]}. Set it.")
        threshold = self.read_threshold(document, key, null="error")
        if kind == "value":
            return Imported(self.settings("value", threshold), notes)
        settings = self.settings("global_norm", threshold, read_norm_type(document, [*CLIP, "norm_type"]))
        return Imported(settings | ({"nonfinite": "raise"} if clip.get("error_if_nonfinite") else {}), notes)

    def _without_clip(self, document: Document) -> Imported:
        """Return the rule "none". ConfigError: clip_grad may be set in another place."""
        for name in ("optim_wrapper", MMCV[0]):
            _check_known(document, [name])
        if document.has("_base_") and not _replaces(document, CLIP[0]):
            raise document.wrong(["_base_"], f"the _base_ files may set clip_grad, and are not read. {WHOLE}")
        if document.has(*MMCV):
            raise document.wrong(MMCV, "mmengine ignores this key of mmcv 1. Set optim_wrapper = dict(clip_grad=...).")
        wrapper = document.get("optim_wrapper", default={})
        if not isinstance(wrapper, dict):
            raise document.wrong(["optim_wrapper"], f"{wrapper!r:.60} is not a dict. Set a dict.")
        for name, value in wrapper.items():
            if name not in WRAPPER_ARGUMENTS:
                _check_known(document, ["optim_wrapper", name])
            if isinstance(value, dict) and "clip_grad" in value:
                raise document.wrong(["optim_wrapper", name, "clip_grad"], SEVERAL_OPTIMIZERS)
        return Imported({"rule": "none"}, ["The file does not set clip_grad. By default, mmengine clips nothing."])

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        raises = {"error_if_nonfinite": True} if settings.nonfinite == "raise" else {}
        if raises and settings.rule == "value" and not is_off(settings):
            raise self.not_exported(
                'it does not support `nonfinite = "raise"` with the rule value. Remove `nonfinite`.'
            )
        if threshold is None:
            return {"max_norm": float("inf"), **raises} if raises else None
        if settings.rule == "value":
            return {"type": "value", "clip_value": threshold}
        norm_type = {} if settings.norm_type in (None, 2.0) else {"norm_type": settings.norm_type}
        return {"max_norm": threshold, **norm_type, **raises}

    def dump(self, data: Any) -> str:
        if data is None:
            return "optim_wrapper = dict(clip_grad=None)\n"
        sources = {key: "float('inf')" if value == float("inf") else repr(value) for key, value in data.items()}
        entries = ", ".join(f"{key}={source}" for key, source in sources.items())
        return f"optim_wrapper = dict(clip_grad=dict({entries}))\n"


def _check_known(document: Document, keys: Sequence[str]) -> None:
    """Raise ConfigError if the value of a key is only known at run time."""
    value = document.get(*keys)
    if isinstance(value, Unread):
        raise document.wrong(keys, f"the value of {value!r:.60} is only known at run time. {WHOLE}")


def _replaces(document: Document, *keys: str) -> bool:
    """Return whether a dict, or one that contains it, has `_delete_`: then the dicts of `_base_` files do not count."""
    paths = [(*keys[:end], "_delete_") for end in range(1, len(keys) + 1)]
    flags = [document.get(*path) for path in paths if document.has(*path)]
    return any(flag and not isinstance(flag, Unread) for flag in flags)


def _reads_base(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.With) and "read_base" in ast.unparse(statement.items[0])


def _assigned_names(statement: ast.stmt) -> list[str]:
    """Return the names to which a statement assigns an expression."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _unread_statements(body: list[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """Return (name, statement) for each statement, other than a plain assignment, that may change clipping."""
    relevant = _relevant_names(body)
    sets_wrapper = any("optim_wrapper" in _assigned_names(statement) for statement in body)
    not_understood: list[tuple[str, ast.stmt]] = []
    for statement in body:
        names = _changed_names(statement) & relevant
        if "*" in names:
            names = {"optim_wrapper" if sets_wrapper else "_base_"}
        if names:
            not_understood += [(name, statement) for name in sorted(names & ROOTS) or ["optim_wrapper"]]
    return not_understood


def _relevant_names(body: list[ast.stmt]) -> set[str]:
    """Return the names whose values decide about clipping, including other names for the same dicts."""
    relevant = {*ROOTS, *WRITERS, "*"}
    assignments = [(_assigned_names(node), node.value) for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    assigned = {name for names, _ in assignments for name in names}
    mutable = {name for names, value in assignments if not isinstance(value, ast.Constant | None) for name in names}
    before = 0
    while before < len(relevant):
        before = len(relevant)
        for targets, value in assignments:
            used = _names(value) & assigned if value else set()
            if relevant.intersection(targets):
                relevant |= used
            if relevant & used & (mutable | ROOTS):
                relevant.update(targets)
    return relevant


def _changed_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement may assign, or whose dicts it may change. '*' stands for any name."""
    if _reads_base(statement) or (isinstance(statement, ast.AnnAssign) and statement.value is None):
        return set()
    plain = _assigned_names(statement)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not plain or len(plain) < len(targets):
        return _names(statement)
    nodes = list(ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_builtin(node.func)]
    walrus = [node.target for node in nodes if isinstance(node, ast.NamedExpr)]
    return {name for node in [*calls, *walrus] for name in _names(node)}


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and hasattr(builtins, function.id) and function.id not in WRITERS


def _names(node: ast.AST) -> set[str]:
    """Return the names that are used, bound or imported in a node, without builtins."""
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not _is_builtin(inner):
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add(inner.asname or inner.name.partition(".")[0])
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            names.add(inner.name)
    return names


def _value(node: ast.expr, names: dict[str, Any], keys: tuple[Key, ...], places: dict[tuple[Key, ...], int]) -> Any:
    """Return the value of an expression, or `Unread`. Add the lines of a dict's keys to `places`."""

    def value_of(name: Target) -> Any:
        if isinstance(name, ast.Name) and name.id in names:
            return names[name.id]
        raise UnknownValueError(name)

    entries: dict[Any, ast.expr] | None = None
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            entries = {keyword.arg: keyword.value for keyword in node.keywords}
        case ast.Dict():
            entries = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
    if entries is not None and all(isinstance(key, str) for key in entries):
        places.update({(*keys, key): value.lineno for key, value in entries.items()})
        return {key: _value(value, names, (*keys, key), places) for key, value in entries.items()}
    try:
        return evaluate(node, value_of, lambda _: "")
    except UnknownValueError:
        return Unread(ast.unparse(node))
