"""Convert configurations from and to the formats of trainers."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...errors import ConfigError
from .. import documents, loading
from ..documents import KINDS, Document
from ..schema import Provenance, Settings
from . import FORMATS, Format, placement
from .base import OwnFormat, parse_version

OURS = "unified_clip"


def read(path: str | os.PathLike[str], from_: str | None = None) -> dict[str, Any]:
    """Return the settings in a file of any supported format, unified_clip's own included, for `ClipConfig`.

    Args:
        path: The file.
        from_: "name" or "name@version". None: the content decides.

    Raises:
        ConfigError: The file cannot be read, its format is not supported, or it has settings that cannot be imported.
    """
    path = Path(path)
    name, version = _parse_name(from_) if from_ else (None, None)
    if name == OURS:
        return read_own(path)
    trainer, document = (FORMATS[name], _document(path, FORMATS[name])) if name else _detect(path)
    if name and trainer is not None:
        _check_format(path, trainer)
    if trainer is None:
        return loading.validated(document)
    unread = placement.check(document, trainer)
    imported = trainer.read(document, version)
    versions = {} if version is None else {"version": str(version)}
    provenance = Provenance(format=trainer.name, file=path.name, notes=[*imported.notes, *unread], **versions)
    return {**imported.settings, "provenance": provenance.model_dump(exclude_unset=True)}


def read_own(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings in a file of unified_clip's own format.

    Raises:
        ConfigError: The file cannot be read, or something in it is wrong. For a trainer's file the error names the
            command that imports it.
    """
    try:
        return loading.validated(documents.read(path))
    except ConfigError:
        if advice := _import_advice(Path(path)):
            raise ConfigError(advice) from None
        raise


def _import_advice(path: Path) -> str:
    """Return the trainer of a file and the command that imports it; '' if no trainer recognises the file."""
    try:
        candidates = [trainer for trainer, _ in _recognising(path)]
    except ConfigError:
        return ""
    trainers = [trainer for trainer in candidates if trainer is not None]
    if not trainers or len(trainers) < len(candidates):  # None is unified_clip's own format
        return ""
    titles = " or ".join(trainer.title for trainer in trainers)
    option, argument = (f" --from {trainers[0].name}", f", {trainers[0].name!r}") if len(trainers) > 1 else ("", "")
    return (
        f"{path.name} is a configuration of {titles}, not of {OURS}. Import it: unified-clip config import "
        f"{shlex.quote(str(path))}{option} --out clip.toml, or ClipConfig.import_from({str(path)!r}{argument})"
    )


def write(config: Settings, to: str, version: str | None = None) -> str:
    """Return a configuration as text in a trainer's format.

    Args:
        config: The configuration.
        to: "name" or "name@version".
        version: The version of the trainer. Default: the newest supported one.

    Raises:
        NotRepresentableError: The format does not support a setting. The message names it, and the remedy.
        ConfigError: There is no such format.
    """
    name, to_version = _parse_name(to)
    if name == OURS:
        return documents.dump({"version": config.version, **config.data()}, "toml")
    trainer = FORMATS[name]
    data = trainer.write(config, parse_version(version) or to_version or Version(trainer.newest))
    kind = trainer.kinds[0]
    return trainer.dump(data) if isinstance(trainer, OwnFormat) else documents.dump(data, kind)


def _parse_name(text: str) -> tuple[str, Version | None]:
    """Return the name and the version in "name@version"."""
    name, at, version = text.partition("@")
    if name != OURS and name not in FORMATS:
        raise ConfigError(f"{name!r} is not a format. Pass one of {', '.join(FORMATS)} and {OURS}.")
    return name, parse_version(version) if at else None


def _document(path: Path, trainer: Format) -> Document:
    kind = KINDS.get(path.suffix.lower())
    text = documents.read_text(path)
    if kind is not None and kind in trainer.kinds:
        return documents.parse(text, kind, path.name)
    if kind is None and isinstance(trainer, OwnFormat):
        return trainer.parse(text, path.name)
    raise ConfigError(f"{path.name}: {trainer.title} reads {' or '.join(trainer.kinds)}. Rename the file accordingly.")


def _check_format(path: Path, trainer: Format) -> None:
    """Raise ConfigError if a file looks like another format. Its keys would be ignored, and defaults apply."""
    candidates = [candidate for candidate, _ in _recognising(path)]
    if candidates and trainer not in candidates:
        names = " or ".join(candidate.name if candidate else OURS for candidate in candidates)
        raise ConfigError(f"{path.name} looks like {names}, not like {trainer.name}. Pass --from {names}.")


def _detect(path: Path) -> tuple[Format | None, Document]:
    """Return the one format that recognises a file, or None for unified_clip's own."""
    candidates = _recognising(path)
    if not candidates:
        raise ConfigError(
            f"{path.name}: cannot infer the format. Pass --from NAME[@VERSION], where NAME is one of "
            f"{', '.join(FORMATS)}."
        )
    if len(candidates) > 1:
        names = [trainer.name if trainer else OURS for trainer, _ in candidates]
        raise ConfigError(f"{path.name} may be {' or '.join(names)}. Choose one, such as --from {names[0]}.")
    return candidates[0]


def _recognising(path: Path) -> list[tuple[Format | None, Document]]:
    kind, text = KINDS.get(path.suffix.lower()), documents.read_text(path)
    if kind is not None:
        document = documents.parse(text, kind, path.name)
        ours: list[Format | None] = [None] if document.has("rule") else []
        trainers = [trainer for trainer in FORMATS.values() if kind in trainer.kinds and trainer.recognises(document)]
        return [(candidate, document) for candidate in [*ours, *trainers]]
    candidates: list[tuple[Format | None, Document]] = []
    for trainer in (trainer for trainer in FORMATS.values() if isinstance(trainer, OwnFormat)):
        try:
            document = trainer.parse(text, path.name)
        except ConfigError:
            continue
        if trainer.recognises(document):
            candidates.append((trainer, document))
    return candidates
