"""Find unified_clip's `ClipCallback` in configuration files of LightningCLI and Hydra."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._kit import atomic_files
from ..config.clip_config import ClipConfig
from ..config.documents import DOCUMENT_KINDS, Document, Key
from ..config.formats import convert
from ..config.schema import is_off
from ..errors import ConfigError
from .clip_use import OWN, ClipUse

CALLBACKS = ("integrations.transformers_callback.ClipCallback", "integrations.lightning_callback.ClipCallback")

CLASSES = {f"{OWN}.{name}": f"{OWN}.{name}" for name in CALLBACKS}
CLASSES["ClipCallback"] = f"{OWN}.integrations.lightning_callback.ClipCallback"
"""LightningCLI accepts the name "ClipCallback" without a module."""

CONFIG_CLASSES = (f"{OWN}.ClipConfig", f"{OWN}.config.clip_config.ClipConfig", "ClipConfig")

NOT_READ = (
    "The check cannot read the configuration of this ClipCallback. {problem} Write the configuration as `class_path: "
    "unified_clip.ClipConfig` with init_args, or as `_target_: unified_clip.ClipConfig`. Write thresholds as numbers."
)


def with_callbacks(path: Path, uses: Sequence[ClipUse]) -> list[ClipUse]:
    return [*(_marked(use) for use in uses), *_read(path)]


def _marked(use: ClipUse) -> ClipUse:
    if use.document is None or use.config is None:
        return use
    has_callback = next(_callbacks(use.document.data), None) is not None
    return replace(use, is_replaced=has_callback and is_off(use.config))


def _read(path: Path) -> Iterator[ClipUse]:
    if path.suffix.lower() not in DOCUMENT_KINDS or b"ClipCallback" not in atomic_files.read_bytes(path):
        return
    with contextlib.suppress(ConfigError):
        document = convert.named(path, convert.UNIFIED_CLIP)[1]
        for keys, name, arguments in _callbacks(document.data):
            yield _use(path, document, keys, name, arguments)


def _use(path: Path, document: Document, keys: tuple[Key, ...], name: str, arguments: Any) -> ClipUse:
    line = document.line(keys) or 1
    try:
        return ClipUse(path, line, 1, name, ClipConfig(**_settings(arguments)))
    except ConfigError as error:
        return ClipUse(path, line, 1, name, why_unknown=NOT_READ.format(problem=error))


def _settings(arguments: Any) -> dict[str, Any]:
    name, settings = _call(arguments.get("config") if isinstance(arguments, dict) else None)
    if name not in CONFIG_CLASSES or not isinstance(settings, dict):
        raise ConfigError("The value of the key `config` is not a ClipConfig with settings.")
    return settings


def _callbacks(data: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], str, Any]]:
    name, arguments = _call(data)
    if name in CLASSES:
        yield (*keys, "class_path" if "class_path" in data else "_target_"), CLASSES[name], arguments
        return
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield from _callbacks(value, (*keys, key))


def _call(data: Any) -> tuple[str, Any]:
    match data:
        case {"class_path": str(name)}:
            return name, data.get("init_args")
        case {"_target_": str(name)}:
            return name, {key: value for key, value in data.items() if not str(key).startswith("_")}
    return "", None
