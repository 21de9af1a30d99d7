"""Find trainers in Python source that clip twice: by their own clip and by unified_clip."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..._kit import atomic_files
from ...config.formats.python_source import Source, last_name
from ...config.schema import is_off
from ..clip_use import OWN, ClipUse
from .engine_of_clip import is_at

CALLBACKS = {
    "integrations.transformers_callback.ClipCallback": ("transformers", "trl"),
    "integrations.lightning_callback.ClipCallback": ("lightning", "pytorch_lightning"),
}
"""Maps a callback of unified_clip to the packages of the trainers that call it."""

ATTACHED = ("transformers", "trl", "lightning", "pytorch_lightning", "keras", "tf_keras")
"""Packages whose trainers or optimizers can clip. If code also calls `attach_to`, it can clip the gradients twice."""


def packages_of_callbacks(path: Path) -> set[str]:
    text = atomic_files.read_text(path, errors="replace")
    names = [name for name in CALLBACKS if name.split(".")[1] in text and "ClipCallback(" in text]
    return {package for name in names for package in CALLBACKS[name]}


def marked(source: Source, uses: Sequence[ClipUse]) -> list[ClipUse]:
    """Return the clips of a file. Set `twice` for a trainer's clip if unified_clip clips the same gradients."""
    own = _own_clips(source)
    off = {use.package for use in uses if use.config is not None and is_off(use.config)}
    return [_marked(source, use, own, is_other_off=use.package in off) for use in uses]


def _marked(source: Source, use: ClipUse, own: dict[str, tuple[str, ast.expr]], *, is_other_off: bool) -> ClipUse:
    if use.package not in own or use.call or use.config is None or is_off(use.config):
        return use
    name, node = own[use.package]
    is_inside = any(isinstance(call, ast.Call) and is_at(call, use.line, use.column) for call in source.around(node))
    return use if is_other_off and not is_inside else replace(use, twice=f"{name} in line {node.lineno}")


def _own_clips(source: Source) -> dict[str, tuple[str, ast.expr]]:
    clips: dict[str, tuple[str, ast.expr]] = {}
    for name, node in source.named(OWN):
        parent = source.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            for package in CALLBACKS.get(name, ()):
                clips.setdefault(package, ("ClipCallback", node))
    for call in source.calls:
        if last_name(call.func) == "attach_to":
            for package in ATTACHED:
                clips.setdefault(package, ("attach_to", call))
    return clips
