"""Find the keys with which a trainer clips like the shared clip configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from packaging.version import Version

from ..config import documents
from ..config.clip_config import ClipConfig
from ..config.documents import DOCUMENT_KINDS, Document, Key, dotted, script_options
from ..config.families import family_difference
from ..config.formats import FORMATS, Format, convert, placement
from ..config.formats.base import OwnFormat
from ..errors import ConfigError
from .clip_use import ClipUse

Path = tuple[Key, ...]


STILL_FAILS = "If you change only these keys, the check still fails:"


class TrainerKeys(NamedTuple):
    text: str
    same: bool | None = None
    """Whether the edited file has the same effect as the configuration, or None if the edit was not tried."""

    problem: str = ""

    @property
    def with_problem(self) -> str:
        return f"{self.text}\n{STILL_FAILS} {self.problem}" if self.problem else self.text


def find_keys(use: ClipUse, target: ClipConfig) -> TrainerKeys:
    trainer, document = FORMATS[use.format], use.document
    is_document = not isinstance(trainer, OwnFormat)
    kind = DOCUMENT_KINDS.get(use.path.suffix.lower()) if is_document else None
    text = convert.write(target, use.format, nearest=True, kind=kind)[0].rstrip()
    if document is None or document.kind not in (*DOCUMENT_KINDS.values(), "args"):
        return TrainerKeys(text)
    has_data = is_document or trainer.mode_keys
    exported = dict(leaves(documents.parse(text, kind or trainer.kinds[0], "").data)) if has_data else {}
    if target.rule == "none" and not exported:
        return TrainerKeys(text)  # the trainer clips nothing without its key
    own = placement.first_read(document, trainer) or _unset(trainer, document)
    problem = ""
    for changes in _candidates(trainer, document, target, exported, own):
        same, why = _result(trainer, document, changes, target, use.version)
        if not why:
            return TrainerKeys(_text(changes, document), same)
        problem = problem or why
    return TrainerKeys(text, problem=problem)


def _unset(trainer: Format, document: Document) -> Path:
    places = [place for place in trainer.places(document) if place[-1] not in trainer.mode_keys]
    best = placement.best_place(document, places) if places else ()
    return () if placement.ANY in best else tuple(best)


Changes = dict[Path, Any]
"""Maps the path of each key to its new value. The value REMOVED removes the key."""

REMOVED = object()


def _candidates(
    trainer: Format, document: Document, target: ClipConfig, exported: Changes, own: Path
) -> Iterator[Changes]:
    """Yield the possible edits. Edits that also remove all other clip keys come last.

    exported: The keys and values that `config export` writes.
    own: The path of the first clip key in the document, or the path of the clip key to add.
    """
    threshold = {own: trainer.off if target.rule == "none" else target.threshold} if own else {}
    moved = {(*own[:-1], *path[-1:]): value for path, value in exported.items()}
    edits = [changes for changes in (exported, moved if own else {}, threshold) if changes]
    unread = placement.unread_paths(document, trainer)
    if unread and placement.unset(document, trainer):
        yield from ({**changes, **dict.fromkeys(unread, REMOVED)} for changes in edits)
    yield from edits
    for changes in edits:
        removed = [*_others(trainer, document, changes), *unread]
        yield {**changes, **dict.fromkeys(removed, REMOVED)}


def _others(trainer: Format, document: Document, changes: Changes) -> list[Path]:
    tables = {path[:-1] for path in changes}
    read = placement.read_paths(document, trainer)
    beside = [(*table, *path[-1:]) for table in tables for path in trainer.clip_keys]
    return [path for path in dict.fromkeys([*read, *beside]) if path not in changes and document.shows(*path)]


def _result(
    trainer: Format, document: Document, changes: Changes, target: ClipConfig, version: Version | None
) -> tuple[bool, str]:
    """Return whether the edited file clips like `target`, and a problem or ''."""
    data = document.data
    for path, value in changes.items():
        data = _with(data, path, value)
    changed = replace(document, data=data, duplicates=())
    try:
        config = ClipConfig(**convert.settings((trainer, changed), version))
    except ConfigError as error:
        return False, str(error)
    if target.rule == "none":
        is_off = config.rule == "none"
        return is_off, "" if is_off else "the trainer still clips."
    difference = family_difference(config, target) if config.rule == target.rule else None
    if difference is None:
        return False, "other keys of the file change the clip."
    return difference.same, ""


def _with(data: Any, path: Sequence[Key], value: Any) -> Any:
    if isinstance(data, list):
        return [_with(each, path[1:], value) if index == path[0] else each for index, each in enumerate(data)]
    table = data if isinstance(data, dict) else {}
    changed = {key: each for key, each in table.items() if key != path[0] or value is not REMOVED or len(path) > 1}
    if len(path) > 1:
        changed[path[0]] = _with(table.get(path[0]), path[1:], value)
    elif value is not REMOVED:
        changed[path[0]] = value
    return changed


def leaves(data: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _text(changes: Changes, document: Document) -> str:
    kind = document.kind
    removed = [path for path, value in changes.items() if value is REMOVED or (kind == "args" and value is None)]
    data: Any = {}
    for path, value in changes.items():
        if path not in removed:
            data = _with(data, path, value)
    names = [script_options.option(path[-1]) if kind == "args" else dotted(path) for path in removed]
    text = [documents.dump(data, kind).rstrip()] if data else []
    return "\n".join([*text, f"Remove {' and '.join(names)}."] if removed else text)
