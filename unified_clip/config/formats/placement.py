"""Find clip keys that a file has in the wrong place, where the trainer does not read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import ConfigError
from ..documents import Document, Key, dotted
from .base import Format

Path = tuple[Key, ...]

ANY = "*"
"""In a path of `Format.places`, "*" stands for any key, or for any index of a list."""

LOOKALIKE = re.compile(
    r".*grad(ient)?s?(norm|value|val)?clip.*"  # gradient_clip_val, gradient_clipping, global_grad_clip
    r"|.*clip(ping)?(by)?(global)?grad.*"  # clip_grad, CLIP_GRADIENTS, clip_grad_by_norm
    r"|.*max(imum)?grad(ient)?s?norm.*"  # max_grad_norm
    r"|(global)?clip(ping)?(by)?(global)?norm(global)?"  # clip_norm, clipnorm, clip_norm_global
)
"""Matches the name of a clip key in any trainer, in lower case and without punctuation."""

SWITCHES = ("clip", "clipping", "clipgrad", "clipgradient", "clipgradients")
"""The last parts of keys that switch clipping on or off."""


def check(document: Document, trainer: Format) -> list[str]:
    """Check that the clip keys of a file are where its trainer reads them.

    Returns:
        A note for each clip key that the trainer ignores, unless a key that it reads has the same value.

    Raises:
        ConfigError: The trainer reads none of the file's clip keys; or the file has none of the trainer's keys, so
            that the trainer's default cannot be assumed.
    """
    if not isinstance(document.data, dict | list):
        return []
    places = trainer.places(document)
    read: list[Any] = []
    unread: list[Path] = []
    for path, value in _entries(document.data, [*places, *trainer.foreign_keys]):
        if _is_at(path, places):
            read += [value] if path[-1] not in trainer.mode_keys else []
        elif not _is_at(path, trainer.foreign_keys) and _is_clip_key(path, value, places):
            unread.append(path)
    if read:
        ignored = [document.place(path) for path in unread if document.get(*path) not in read]
        return [f"{place} looks like another clip setting. It is not imported." for place in ignored]
    if unread:
        raise _misplaced(document, trainer, unread[0], places)
    keys = document.data if isinstance(document.data, dict) else {}
    if not trainer.recognises(document) and trainer.vocabulary.isdisjoint(keys):
        raise ConfigError(
            f"{document.name}: it has no key of {trainer.title}, so it may not be one of its files. "
            f"Pass a whole configuration of {trainer.title}, or set {_format_place(places[0])}.",
            "UC103",
        )
    return []


def first_read(document: Document, trainer: Format) -> Path:
    """Return the path of the first clip key that the trainer reads in a file; () if the file has none."""
    places = trainer.places(document)
    return next((path for path, _ in _entries(document.data, places) if _is_at(path, places)), ())


def clip_keys(document: Document) -> list[tuple[Path, Any]]:
    """Return (path, value) of the keys that are named like a clip key of any trainer, and are not off."""
    return [(path, value) for path, value in _entries(document.data, ()) if _is_clip_key(path, value, ())]


def _entries(data: Any, places: Sequence[Path], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) for the keys of all tables. Tables at one of `places` are not searched."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        inner = (*path, key)
        if isinstance(key, str):
            yield inner, value
        if not _is_at(inner, places):
            yield from _entries(value, places, inner)


def _is_at(path: Path, places: Sequence[Path]) -> bool:
    """Return whether a path matches one of these places. ANY in a place matches any key."""
    same_length = (zip(path, place, strict=True) for place in places if len(place) == len(path))
    return any(all(expected in (ANY, key) for key, expected in pairs) for pairs in same_length)


def _is_clip_key(path: Path, value: Any, places: Sequence[Path]) -> bool:
    """Return whether a key is named like a clip key of this trainer, or like one of another trainer that is not off."""
    name = _normalized(path[-1])
    if any(name == _normalized(place[-1]) for place in places):
        return True
    if value is None or value is False or (value is True and not name.endswith(SWITCHES)):
        return False
    return LOOKALIKE.fullmatch(name) is not None


def _normalized(key: Key) -> str:
    return re.sub(r"[\W_]", "", str(key)).lower()


def _format_place(place: Path) -> str:
    return dotted([key for key in place if key != ANY])


def _misplaced(document: Document, trainer: Format, path: Path, places: Sequence[Path]) -> ConfigError:
    targets = [place for place in places if _normalized(place[-1]) == _normalized(path[-1])]
    if targets:
        advice = f"{trainer.title} does not read this key here. Move it to {_format_place(targets[0])}."
    else:
        advice = f"{trainer.title} has no such key. Set {_format_place(places[0])} instead."
    return document.wrong(path, advice, "UC105")
