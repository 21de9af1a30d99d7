"""mmengine's configurations in Python, which are read and never run: `optim_wrapper.clip_grad`."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from ..._static_values import Target, UnknownValueError, evaluate
from ...errors import ConfigError, NotRepresentableError
from ..documents import Document, Key
from ..schema import Settings, is_off
from .base import (
    FormatKey,
    Imported,
    OwnFormat,
    exported_threshold,
    global_norm_settings,
    has_key,
    read_norm_type,
    read_threshold,
    with_plain_threshold,
)

CLIP = ("optim_wrapper", "clip_grad")
OLD = ("optimizer_config", "grad_clip")
ROOTS = {"optim_wrapper", "optimizer_config", "_base_"}
ARGUMENTS = ("type", "optimizer", "paramwise_cfg", "constructor", "accumulative_counts", "loss_scale", "dtype")
"""Of one optimizer's wrapper. Other keys may be the names of several."""

WRITERS = {"globals", "locals", "vars", "exec"}
"""Builtins with which a name may be changed that is not written there."""

WHOLE = "import the whole configuration: what Config.fromfile(...).dump() gives"


@dataclass(frozen=True)
class Unread:
    """What only Python could say."""

    source: str

    def __repr__(self) -> str:
        return self.source


class MMEngine(OwnFormat):
    name = "mmengine"
    title = "mmengine"
    kinds = ("python",)
    source = "mmengine/optim/optimizer/optimizer_wrapper.py"
    newest = "0.10.7"
    clip_keys = (CLIP, (CLIP[0], "*", CLIP[1]))
    foreign_keys = (OLD,)
    vocabulary = frozenset(
        {
            "_base_",
            "model",
            "train_cfg",
            "default_hooks",
            "param_scheduler",
            "train_dataloader",
            "default_scope",
            "runner",
            "log_config",
        }
    )
    keys = (
        FormatKey("optim_wrapper.clip_grad", "", "None", "None: off; an empty dict is an error"),
        FormatKey("optim_wrapper.clip_grad.type: norm", "", "norm", "the global norm, PyTorch's rule"),
        FormatKey("optim_wrapper.clip_grad.type: value", "", "", "each element"),
        FormatKey("optim_wrapper.clip_grad.max_norm", "", "", "the threshold of norm; 0: zeros"),
        FormatKey("optim_wrapper.clip_grad.clip_value", "", "", "the threshold of value; 0: zeros"),
        FormatKey("optim_wrapper.clip_grad.norm_type", "", "2", "the order of the norm, inf too"),
        FormatKey("optim_wrapper.clip_grad.error_if_nonfinite", "", "False", 'True is nonfinite = "raise"'),
        FormatKey("optim_wrapper.NAME.clip_grad", "", "", "several optimizers, each with its own", "rejected"),
        FormatKey("optimizer_config.grad_clip", "", "", "of mmcv 1; mmengine does not read it", "rejected"),
        FormatKey(
            "_base_",
            "",
            "",
            "other files. Not read: settings there are missing",
            "rejected",
        ),
        FormatKey("_delete_: True", "", "", "nothing of _base_ is taken over", "imported"),
    )

    def recognises(self, document: Document) -> bool:
        return has_key(document, "optim_wrapper") or has_key(document, "optimizer_config")

    # -- reading

    def parse(self, text: str, name: str) -> Document:
        """What is assigned to names: dicts, lists, numbers, strings and other such names."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise ConfigError(f"{name}{line}: it is no Python: {error}") from None
        found: dict[str, Any] = {}
        places: dict[tuple[Key, ...], int] = {}
        for statement in tree.body:
            if _reads_base(statement):
                found["_base_"] = Unread(ast.unparse(statement.body))  # type: ignore[attr-defined]
                places["_base_",] = statement.lineno
            for key in _names_set(statement):
                places[key,] = statement.lineno
                found[key] = _value(statement.value, found, (key,), places)  # type: ignore[attr-defined]
        for key, statement in _not_understood(tree.body):
            places[key,] = statement.lineno
            found[key] = Unread(ast.unparse(statement).partition("\n")[0])
        return Document(name, text, "python", found, places)

    def read(self, document: Document, version: Version | None) -> Imported:
        if not has_key(document, *CLIP):
            return self._without(document)
        clip = document.get(*CLIP)
        if clip is None:
            return Imported({"rule": "none"})
        self._check_table(document, clip)
        if unread := [key for key, value in clip.items() if isinstance(value, Unread)]:
            raise document.wrong(
                [*CLIP, unread[0]], f"it is {clip[unread[0]]!r:.60}, which only running the file could tell; {WHOLE}"
            )
        notes = []
        if has_key(document, "_base_") and not _replaces(document, *CLIP):
            notes.append("the file has a _base_, which was not read: it may set further keys of clip_grad")
        known = {"norm": {"max_norm", "norm_type", "error_if_nonfinite", "foreach"}, "value": {"clip_value", "foreach"}}
        kind = clip.get("type", "norm")
        if kind not in known:
            raise document.wrong([*CLIP, "type"], f"it is {kind!r:.60}; mmengine knows norm and value")
        if unknown := sorted(clip.keys() - known[kind] - {"type", "_delete_"}):
            raise document.wrong([*CLIP, unknown[0]], f"clip_grad of type {kind!r} does not take it; remove it")
        key = [*CLIP, "max_norm" if kind == "norm" else "clip_value"]
        if not has_key(document, *key):
            raise document.wrong(CLIP, f"it lacks {key[-1]}, which type {kind!r} needs")
        limit = read_threshold(document, key, None, zero="zeros", null="error")
        if kind == "value":
            return Imported({"rule": "value", "threshold": limit}, notes)
        settings = global_norm_settings(limit, "pytorch", read_norm_type(document, [*CLIP, "norm_type"]))
        return Imported(settings | ({"nonfinite": "raise"} if clip.get("error_if_nonfinite") else {}), notes)

    def _without(self, document: Document) -> Imported:
        """Nothing is said of clipping where it should be."""
        for name in ("optim_wrapper", OLD[0]):
            if isinstance(document.get(name), Unread):
                raise document.wrong(
                    [name], f"it is {document.get(name)!r:.60}, which only running the file tells; {WHOLE}"
                )
        if has_key(document, "_base_") and not _replaces(document, CLIP[0]):
            raise document.wrong(["_base_"], f"clip_grad may be set there, and that is not read; {WHOLE}")
        if has_key(document, *OLD):
            raise document.wrong(
                OLD, "it is of mmcv 1, and mmengine does not read it; write optim_wrapper = dict(clip_grad=...)"
            )
        wrapper = document.get("optim_wrapper", default={})
        if not isinstance(wrapper, dict):
            raise document.wrong(["optim_wrapper"], f"it is {wrapper!r:.60}; it should be a dict")
        for name, each in wrapper.items():
            if isinstance(each, Unread) and name not in ARGUMENTS:
                raise document.wrong(
                    ["optim_wrapper", name], f"it is {each!r:.60}, which only running the file tells; {WHOLE}"
                )
            if isinstance(each, dict) and "clip_grad" in each:
                raise document.wrong(
                    ["optim_wrapper", name, "clip_grad"],
                    "there are several optimizers, each with a clip_grad of its own; write a configuration for each, "
                    "and attach it to that optimizer",
                )
        return Imported({"rule": "none"}, ["The file does not set clip_grad. By default, mmengine clips nothing."])

    def _check_table(self, document: Document, clip: Any) -> None:
        if isinstance(clip, Unread):
            raise document.wrong(CLIP, f"it is {clip!r:.60}, which only running the file could tell; {WHOLE}")
        if not isinstance(clip, dict) or not clip:
            raise document.wrong(CLIP, f"it is {clip!r:.60}; mmengine takes None or a dict with something in it")

    # -- writing

    def write(self, settings: Settings, version: Version) -> Any:
        settings = with_plain_threshold(settings)
        limit = exported_threshold(
            settings,
            self,
            rules=["global_norm", "value"],
            family="pytorch",
            zero="zeros",
            norm_types=True,
            nonfinite=["family", "raise"],
        )
        raises = settings.nonfinite == "raise"
        if raises and settings.rule == "value" and not is_off(settings):
            raise NotRepresentableError(
                f'Cannot export to {self.title}: it does not support `nonfinite = "raise"` with values. Remove it.'
            )
        if limit is None:
            return {"max_norm": float("inf"), "error_if_nonfinite": True} if raises else None
        if settings.rule == "value":
            return {"type": "value", "clip_value": limit}
        orders = {} if settings.norm_type in (None, 2.0) else {"norm_type": settings.norm_type}
        return {"max_norm": limit, **orders, **({"error_if_nonfinite": True} if raises else {})}

    def dump(self, data: Any) -> str:
        if data is None:
            return "optim_wrapper = dict(clip_grad=None)\n"
        entries = ", ".join(f"{key}={_source(value)}" for key, value in data.items())
        return f"optim_wrapper = dict(clip_grad=dict({entries}))\n"


def _replaces(document: Document, *keys: str) -> bool:
    """Whether a dict, or one that it is in, takes nothing over from the same dict in `_base_`."""
    places = [keys[:end] for end in range(1, len(keys) + 1)]
    said = [document.get(*place, "_delete_") for place in places if has_key(document, *place, "_delete_")]
    return any(each and not isinstance(each, Unread) for each in said)


def _reads_base(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.With) and "read_base" in ast.unparse(statement.items[0])


def _names_set(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns an expression to, where it does nothing else."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _not_understood(body: list[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """Statements that may change what matters, and are not just an assignment of an expression to names."""
    relevant = _relevant(body)
    found: list[tuple[str, ast.stmt]] = []
    for statement in body:
        names = _changed(statement) & relevant
        if "*" in names:
            names = {"optim_wrapper" if any("optim_wrapper" in _names_set(each) for each in body) else "_base_"}
        if names:
            found += [(name, statement) for name in sorted(names & ROOTS) or ["optim_wrapper"]]
    return found


def _relevant(body: list[ast.stmt]) -> set[str]:
    """The names on which the configuration of clipping depends, and others for the same dicts."""
    relevant = ROOTS | WRITERS | {"*"}
    assigned = [(_names_set(each), each.value) for each in body if isinstance(each, ast.Assign | ast.AnnAssign)]
    everything = {name for names, _ in assigned for name in names}
    others = {name for names, value in assigned if not isinstance(value, ast.Constant | None) for name in names}
    before = 0
    while before < len(relevant):
        before = len(relevant)
        for targets, value in assigned:
            used = _names(value) & everything if value else set()
            if relevant.intersection(targets):
                relevant |= used
            if relevant & used & (others | ROOTS):
                relevant.update(targets)
    return relevant


def _changed(statement: ast.stmt) -> set[str]:
    """The names that a statement may change, or the dicts that they stand for; '*' for any."""
    if _reads_base(statement) or (isinstance(statement, ast.AnnAssign) and statement.value is None):
        return set()
    plain = _names_set(statement)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not plain or len(plain) < len(targets):
        return _names(statement)
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and not _is_builtin(each.func)]
    walrus = [each.target for each in ast.walk(statement) if isinstance(each, ast.NamedExpr)]
    return {name for each in [*calls, *walrus] for name in _names(each)}


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and hasattr(builtins, function.id) and function.id not in WRITERS


def _names(node: ast.AST) -> set[str]:
    """Every name in it but those of builtins, whether it is used, bound or imported."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not _is_builtin(each):
            found.add(each.id)
        elif isinstance(each, ast.alias):
            found.add(each.asname or each.name.partition(".")[0])
        elif isinstance(each, ast.FunctionDef | ast.ClassDef):
            found.add(each.name)
    return found


def _source(value: Any) -> str:
    return f"float('{value}')" if value == float("inf") else repr(value)


def _value(node: ast.expr, names: dict[str, Any], keys: tuple[Key, ...], places: dict[tuple[Key, ...], int]) -> Any:
    """Return the value of an expression, and add the lines of its keys to `places`."""

    def value_of(name: Target) -> Any:
        if isinstance(name, ast.Name) and name.id in names:
            return names[name.id]
        raise UnknownValueError(name)

    entries = _entries(node)
    if entries is not None:
        for key, value in entries:
            places[*keys, key] = value.lineno
        return {key: _value(value, names, (*keys, key), places) for key, value in entries}
    try:
        return evaluate(node, value_of, lambda _: "")
    except UnknownValueError:
        return Unread(ast.unparse(node))


def _entries(node: ast.expr) -> list[tuple[str, ast.expr]] | None:
    """Of dict(key=value) and {'key': value}; None of anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        pairs: list[tuple[Any, ast.expr]] = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        pairs = [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
    else:
        return None
    return pairs if all(isinstance(key, str) for key, _ in pairs) else None
