"""Import files of trainers as clip configurations, and export clip configurations to files of trainers."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version
from pydantic import ValidationError

from ...errors import ConfigError, NotRepresentableError
from .. import documents
from ..documents import DOCUMENT_KINDS, Document, dotted, format_value, inheriting
from ..documents.model_errors import first_error
from ..families import family_difference
from ..schema import FAMILIES, VERSION, Provenance, Settings
from . import FORMATS, Format, placement
from .base import OtherFamilyError, OwnFormat, name_format, parse_version
from .python_source import PythonFormat

UNIFIED_CLIP = "unified_clip"

NEAREST = "Or export with the trainer's family and eps: pass --nearest, or nearest=True in Python."

Candidate = tuple[Format | None, Document]
"""The format is None for a clip configuration of unified_clip."""


def read(path: str | os.PathLike[str], from_: str | None = None) -> dict[str, Any]:
    """Return the clip settings in a file of any format."""
    path = Path(path)
    name, version = parse_name(from_) if from_ else ("", None)
    if name == UNIFIED_CLIP:
        return read_own(path)
    return settings(named(path, name) if name else _detect(path), version)


def settings(candidate: Candidate, version: Version | None = None) -> dict[str, Any]:
    trainer, document = candidate
    if trainer is None:
        return settings_data(document)
    unlike = _unlike(trainer, document)
    try:
        unread = placement.check(document, trainer)
    except ConfigError as error:
        raise ConfigError(" ".join([str(error), *unlike]), error.code) from None
    placement.check_own_clip(document, trainer)
    imported = trainer.read(document, version)
    versions: dict[str, Any] = {} if version is None else {"version": str(version)}
    about_keys = placement.notes(document, trainer, unread, imported)
    not_finite = [imported.not_finite] if imported.not_finite else []
    notes = [*unlike, *about_keys, *imported.notes, *not_finite]
    provenance = Provenance(format=trainer.name, file=document.name, notes=notes, **versions)
    origin = provenance.model_dump(exclude_unset=True)
    origin |= {"not_finite": imported.not_finite, "acts_as": imported.acts_as}
    return {**imported.settings, "provenance": origin}


def read_own(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a clip configuration. For a trainer's file, raise an error that advises to import the file."""
    path = Path(path)
    try:
        return settings_data(_parse_own(path))
    except ConfigError:
        if advice := _import_advice(path):
            raise ConfigError(advice, "UC103") from None
        raise


def _parse_own(path: Path) -> Document:
    return documents.parse(documents.read_text(path), documents.kind_of(path), path.name)


def settings_data(document: Document) -> dict[str, Any]:
    data = document.data
    if not isinstance(data, dict):
        remedy = 'Give keys and values, such as {"rule": "norm", "threshold": 1.0}.'  # both YAML and JSON
        raise ConfigError(f"{document.name} contains {format_value(data)}, which is not a table. {remedy}")
    for keys, _, _ in document.duplicates:
        line = document.line(keys)
        raise ConfigError(f"{document.name}, line {line}: the key {keys[-1]!r} occurs twice. Remove one.")
    data = {key: value for key, value in data.items() if key != "$schema"}
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise document.wrong(
            ["version"],
            f"this release of unified_clip supports configurations of version {VERSION}, not of version {version}. "
            "Install a later release.",
        )
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        raise first_error(error, document, Settings) from None
    return data


def write(
    config: Settings, to: str, version: str | None = None, *, nearest: bool = False, kind: str | None = None
) -> tuple[str, list[str]]:
    """Export a configuration as text. Return the text, and notes for the user."""
    name, to_version = parse_name(to)
    if name == UNIFIED_CLIP:
        return documents.dump({"version": config.version, **config.data()}, kind or "toml"), []
    trainer = FORMATS[name]
    kinds = trainer.kinds[:1] if isinstance(trainer, OwnFormat) else trainer.kinds  # `dump` writes only the first kind
    if kind and kind not in kinds:
        problem = f"{trainer.title} is exported as {_in_words(kinds)}, not as {kind}."
        raise NotRepresentableError(f"{problem} Leave out --as, or change the suffix of the --out file.")
    exact_version = parse_version(version) or to_version or Version(trainer.newest)
    notes: list[str] = []
    try:
        data = trainer.write(config, exact_version)
    except OtherFamilyError as error:
        supported, notes = _with_family(config, error, nearest)
        data = trainer.write(supported, exact_version)
    return trainer.dump(data, kind), notes


def _with_family(config: Settings, error: OtherFamilyError, nearest: bool) -> tuple[Settings, list[str]]:
    supported = type(config)(**{**config.data(), "family": error.family, "eps": None})
    difference = family_difference(config, supported)
    if difference is None:
        raise error
    if difference.same:
        return supported, []
    if not nearest:
        raise NotRepresentableError(f"{error} {NEAREST} {difference.sentence}")
    eps = FAMILIES[error.family, config.rule].eps
    rule = f"Exported with the trainer's family, {error.family!r} with eps = {eps:g}."
    return supported, [f"{rule} {difference.sentence}"]


def parse_name(text: str) -> tuple[str, Version | None]:
    name, at, version = text.partition("@")
    if name != UNIFIED_CLIP and name not in FORMATS:
        problem = f"{name!r} is not a format. Pass one of {', '.join(FORMATS)} and {UNIFIED_CLIP}."
        advice = "For another trainer, pass the file's key by --key, or add an entry of check.key."
        raise ConfigError(f"{problem} {advice}", "UC103")
    return name, parse_version(version) if at else None


def named(path: Path, name: str) -> Candidate:
    if name == UNIFIED_CLIP:
        return None, _parse_own(path)
    trainer = FORMATS[name]
    if not _may_read(trainer, path):
        problem = f"{path.name}: {trainer.title} reads {_in_words(trainer.kinds)}"
        advice = f"Pass a file of that kind. For another format, {name_format('NAME')}."
        raise ConfigError(f"{problem}. {advice}", "UC103")
    return trainer, _parse(trainer, path)


def _unlike(trainer: Format, document: Document) -> list[str]:
    if document.path is None or trainer.recognises(document):
        return []
    names = [each.name if each else UNIFIED_CLIP for each, _ in recognising(document.path)]
    if not names or {trainer.name, trainer.extends} & {*names}:
        return []
    problem = f"The file looks like {' or '.join(names)}, not like {trainer.name}."
    return [f"{problem} If the format is {names[0]}, {name_format(names[0])}."]


def _in_words(kinds: Sequence[str]) -> str:
    names = {"args": "shell scripts", "python": "Python source"}
    return " or ".join(names.get(kind, kind) for kind in kinds)


def _may_read(trainer: Format, path: Path) -> bool:
    kind = DOCUMENT_KINDS.get(path.suffix.lower())
    return kind in trainer.kinds if kind else isinstance(trainer, OwnFormat)


def _parse(trainer: Format, path: Path) -> Document:
    text, kind = documents.read_text(path), DOCUMENT_KINDS.get(path.suffix.lower())
    if isinstance(trainer, OwnFormat) and kind is None:
        return replace(trainer.parse(text, path.name), path=path)
    return replace(documents.parse(text, documents.kind_of(path), path.name), path=path)


def _detect(path: Path) -> Candidate:
    candidates = recognising(path)
    if len(candidates) == 1:
        return candidates[0]
    if names := [trainer.name if trainer else UNIFIED_CLIP for trainer, _ in candidates]:
        problem = f"{path.name} might have the format {' or '.join(names)}"
        raise ConfigError(f"{problem}. If the format is {names[0]}, {name_format(names[0])}.", "UC103")
    raise ConfigError(f"{path.name}: cannot infer the format. {_advice(path)}", "UC103")


def recognising(path: Path) -> list[Candidate]:
    """Return the formats that recognise a file, except formats that another of these formats extends."""
    candidates = _candidates(path)
    extended = {trainer.extends for trainer, _ in candidates if trainer}
    return [(trainer, document) for trainer, document in candidates if not trainer or trainer.name not in extended]


def _candidates(path: Path) -> list[Candidate]:
    trainers = [trainer for trainer in FORMATS.values() if _may_read(trainer, path)]
    if kind := DOCUMENT_KINDS.get(path.suffix.lower()):
        document = replace(documents.parse(documents.read_text(path), kind, path.name), path=path)
        own: list[Candidate] = [(None, document)] if document.shows("rule") else []
        recognising = own + [(trainer, document) for trainer in trainers if trainer.recognises(document)]
        return recognising or [(trainer, document) for trainer in trainers if _has_common_keys(trainer, document)]
    documents.read_text(path)  # a file that cannot be read is in no format
    candidates: list[Candidate] = []
    for trainer in trainers:
        with contextlib.suppress(ConfigError):
            document = _parse(trainer, path)
            candidates += [(trainer, document)] if trainer.recognises(document) else []
    return candidates


def _has_common_keys(trainer: Format, document: Document) -> bool:
    when = trainer.row.recognise_last
    return bool(when) and trainer.context(document, only_shows=True).holds(when)


def _advice(path: Path) -> str:
    kind = DOCUMENT_KINDS.get(path.suffix.lower())
    document = documents.parse(documents.read_text(path), kind, path.name) if kind else None
    keys = [keys for keys, _ in placement.clip_keys(document)] if document else []
    trainers = [trainer for trainer in FORMATS.values() if kind in trainer.kinds]
    with_key = [trainer for trainer in trainers if not {*trainer.clip_keys}.isdisjoint(keys)]
    if path.suffix == ".gin":
        advice = "gin files are not supported. Write a clip configuration: docs/config.md describes it."
    elif document and (inherited := inheriting(document)) is not None:
        place = document.place(inherited, document.name)
        advice = f"{place}: {placement.COMPOSED} {placement.IMPORT_ANOTHER}"
    elif path.suffix == ".py":
        own = (trainer for trainer in FORMATS.values() if not isinstance(trainer, PythonFormat))
        names = ", ".join(trainer.name for trainer in own if "python" in trainer.kinds)
        file = shlex.quote(str(path))
        advice = (
            "To compare the clips in this source with a clip configuration, such as clip.toml: "
            f"unified-clip config check clip.toml {file}. To list the clips: unified-clip port {file}. If the file is "
            f"a configuration, {name_format('NAME')}, where NAME is one of {names}."
        )
    elif with_key:
        titles = " or ".join(trainer.title for trainer in with_key)
        first, *others = [trainer.name for trainer in with_key]
        any_of = f"{name_format('NAME')}, where NAME is one of {', '.join([first, *others])}"
        option = any_of if others else name_format(first)
        advice = f"This key controls clipping in {titles}. If it is a file of {titles}, {option}."
    else:
        advice = f"If the file belongs to a trainer of docs/formats.md, {name_format('NAME')}, with the trainer's name."
    if document and keys:
        advice = (
            f"{dotted(keys[0])} (line {document.line(keys[0])}) looks like a clip setting. {advice} If your own code "
            "reads this key, pass --key and --rule, or write a clip configuration with its value: see docs/config.md."
        )
    return advice


def _import_advice(path: Path) -> str:
    try:
        trainers = [trainer for trainer, _ in recognising(path)]
    except ConfigError:
        return ""
    if not trainers or trainers[0] is None:  # None is unified_clip's own format
        return ""
    option, argument = (f" --from {trainers[0].name}", f", {trainers[0].name!r}") if len(trainers) > 1 else ("", "")
    titles = [trainer.title for trainer in trainers if trainer]
    advice = "Import it" if len(titles) == 1 else f"If it is a file of {titles[0]}, import it"
    return (
        f"{path.name} is a configuration of {' or '.join(titles)}, not of {UNIFIED_CLIP}. {advice}: unified-clip "
        f"config import {shlex.quote(str(path))}{option} --out clip.toml, or ClipConfig.import_from({str(path)!r}"
        f"{argument})"
    )
