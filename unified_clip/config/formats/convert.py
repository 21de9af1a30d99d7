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
from .base import OwnFormat, holds, parsed_version

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
    name, version = _asked(from_) if from_ else (None, None)
    if name == OURS:
        return read_own(path)
    trainer, document = (FORMATS[name], _document(path, FORMATS[name])) if name else _told(path)
    if name and trainer is not None:
        _check_not_anothers(path, trainer)
    if trainer is None:
        return loading.checked(document)
    unread = placement.check(document, trainer)
    imported = trainer.read(document, version)
    known = {} if version is None else {"version": str(version)}
    provenance = Provenance(format=trainer.name, file=path.name, notes=[*imported.notes, *unread], **known)
    return {**imported.settings, "provenance": provenance.model_dump(exclude_unset=True)}


def read_own(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings in a file of unified_clip's own format.

    Raises:
        ConfigError: The file cannot be read, or something in it is wrong. For a trainer's file the error names the
            command that imports it.
    """
    try:
        return loading.checked(documents.read(path))
    except ConfigError:
        if advice := _import_advice(Path(path)):
            raise ConfigError(advice) from None
        raise


def _import_advice(path: Path) -> str:
    """Return which trainer's format a file has, and the command that imports it; '' if it is no trainer's."""
    try:
        found = [trainer for trainer, _ in _recognising(path)]
    except ConfigError:
        return ""
    trainers = [trainer for trainer in found if trainer is not None]
    if not trainers or len(trainers) < len(found):  # or it is of this package
        return ""
    titles = " or ".join(trainer.title for trainer in trainers)
    option, argument = (f" --from {trainers[0].name}", f", {trainers[0].name!r}") if len(trainers) > 1 else ("", "")
    return (
        f"{path.name}: it is a configuration of {titles}, not of {OURS}. Import it: unified-clip config import "
        f"{shlex.quote(str(path))}{option} --out clip.toml, or ClipConfig.import_from({str(path)!r}{argument})"
    )


def write(config: Settings, to: str, version: str | None = None) -> str:
    """The text that says the same in a trainer's own format.

    Args:
        to: "name" or "name@version".
        version: The same, on its own. Default: the newest that is known.

    Raises:
        NotRepresentableError: The format does not support it; the message names what, and the remedy.
        ConfigError: There is no such format.
    """
    name, asked = _asked(to)
    if name == OURS:
        return documents.dump({"version": config.version, **config.data()}, "toml")
    trainer = FORMATS[name]
    wanted = parsed_version(version) or asked or Version(trainer.newest)
    data = trainer.write(config, wanted)
    kind = trainer.kinds[0]
    return trainer.dump(data) if isinstance(trainer, OwnFormat) else documents.dump(data, kind)


def _asked(text: str) -> tuple[str, Version | None]:
    """The name and the version in "name@version"."""
    name, at, version = text.partition("@")
    if name != OURS and name not in FORMATS:
        raise ConfigError(f"there is no format {name!r}; there are {', '.join(FORMATS)}, and {OURS}")
    return name, parsed_version(version) if at else None


def _document(path: Path, trainer: Format) -> Document:
    kind = KINDS.get(path.suffix.lower())
    text = documents.read_text(path)
    if kind is not None and kind in trainer.kinds:
        return documents.parse(text, kind, path.name)
    if kind is None and isinstance(trainer, OwnFormat):
        return trainer.parse(text, path.name)
    raise ConfigError(
        f"{path.name}: {trainer.title} has files of {' or '.join(trainer.kinds)}, and its name is of none"
    )


def _check_not_anothers(path: Path, trainer: Format) -> None:
    """Read as what it is not, a file would be found to say nothing, and defaults taken for what it means."""
    found = [each for each, _ in _recognising(path)]
    if found and trainer not in found:
        names = " or ".join(each.name if each else OURS for each in found)
        raise ConfigError(f"{path.name}: it looks like {names}, and not like {trainer.name}. Pass --from {names}.")


def _told(path: Path) -> tuple[Format | None, Document]:
    """The one format that recognises a file, or None if the file is ours."""
    found = _recognising(path)
    if not found:
        raise ConfigError(
            f"{path.name}: nothing in it tells which format it is; say it with --from NAME[@VERSION], NAME one of "
            f"{', '.join(FORMATS)}"
        )
    if len(found) > 1:
        names = [trainer.name if trainer else OURS for trainer, _ in found]
        raise ConfigError(f"{path.name}: it may be {' or '.join(names)}; say which: --from {names[0]}")
    return found[0]


def _recognising(path: Path) -> list[tuple[Format | None, Document]]:
    kind, text = KINDS.get(path.suffix.lower()), documents.read_text(path)
    if kind is not None:
        document = documents.parse(text, kind, path.name)
        ours: list[Format | None] = [None] if holds(document, "rule") else []
        known = [each for each in FORMATS.values() if kind in each.kinds and each.recognises(document)]
        return [(each, document) for each in [*ours, *known]]
    found: list[tuple[Format | None, Document]] = []
    for trainer in (each for each in FORMATS.values() if isinstance(each, OwnFormat)):
        try:
            document = trainer.parse(text, path.name)
        except ConfigError:
            continue
        if trainer.recognises(document):
            found.append((trainer, document))
    return found
