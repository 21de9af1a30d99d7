"""Find clip keys by their names, also in places that the trainer does not read."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ..._kit.static_values import is_number
from ...errors import ConfigError
from ..documents import BASE_KEYS, Document, Key, dotted, inheriting
from ..documents.keys import UNKNOWN
from .base import Format, Imported, Path, SetElsewhereError, name_format
from .conditions import ANY as ANY

BY_CODE = (
    "If your own code reads this key, write a clip configuration with the key's value. If you run unified-clip config "
    "check, you can instead declare the key by an entry of check.key."
)

CLIP_NAME = re.compile(
    r".*grad(ient)?s?(norm|value|val)?clip.*"  # gradient_clip_val, gradient_clipping, global_grad_clip
    r"|.*clip(ping)?(by)?(global)?grad.*"  # clip_grad, CLIP_GRADIENTS, clip_grad_by_norm
    r"|.*max(imum)?grad(ient)?s?(l2)?(norm|value).*"  # max_grad_norm, max_grad_l2_norm
    r"|.*grad(ient)?s?max(imum)?norm"  # gradient_max_norm
    r"|(global)?clip(ping)?(by|max)?(global)?norm(global)?"  # clip_norm, clipnorm, clip_max_norm
    r"|clip(by)?value"  # clip_value, Keras' clipvalue, clip_by_value
)
"""Matches names of clip keys in the form that `normalized` returns."""

NUMBERS = re.compile(
    r".+ grad(ient)?norm"
    r"|.*(optim|train|solver).* (clip|clipval(ue)?|maxnorm)"
    r"|(.* )?(generator|discriminator)gradnorm"
)
"""Matches the last two keys of a path, such as "train maxnorm". The value of this path must be a number."""

MISSPELT, SHORTEST_MISSPELT = 0.85, 8

COMPOSED = "the file inherits settings from other files, and does not set the threshold."
IMPORT_ANOTHER = (
    "Import the file that sets it. Or let your program print the whole configuration, and import the output: Hydra "
    "prints it with --cfg job."
)
NOT_READ = "{place}: the file inherits settings from other files, which are not read."

COMMON = ("maxgradnorm", "gradientclipval", "gradientclipping", "clipgradnorm")
"""These names are also recognised with a typing error."""

SWITCHES = ("clip", "clipping", "clipgrad", "clipgradient", "clipgradients")
"""A clip key with one of these endings can have the value `true`."""


def check(document: Document, trainer: Format) -> list[Path]:
    """Return the clip keys that the trainer does not read. Raise ConfigError if the file has only such keys."""
    if not isinstance(document.data, dict | list):
        return []
    places = trainer.places(document)
    _check_duplicates(document, trainer, places)
    found = list(entries(document.data, [*places, *trainer.foreign_keys]))
    read = [value for path, value in found if _is_at(path, places) and path[-1] not in trainer.mode_keys]
    others = [(path, value) for path, value in found if not _is_at(path, [*places, *trainer.foreign_keys])]
    unread = [(path, value) for path, value in others if is_clip_key(path, value, places)]
    if unread and not read:
        raise _unread(document, trainer, unread[0][0])
    is_shown = len(others) < len(found) or inheriting(document) is not None or trainer.recognises(document)
    if not is_shown and trainer.vocabulary.isdisjoint(document.data):
        target = _format_place(places[0], trainer)
        raise ConfigError(
            f"{document.name}: no key shows that this is a file of {trainer.title}. If the file belongs to another "
            f"trainer, {name_format('NAME')}. Otherwise, pass a whole configuration of {trainer.title}, or set "
            f"{target}.",
            "UC103",
        )
    return [path for path, value in unread if value not in read]


def check_own_clip(document: Document, trainer: Format) -> None:
    """Raise SetElsewhereError if a file inherits settings, and has no clip key."""
    keys = inheriting(document)
    if keys is not None and not any(read_paths(document, trainer)):
        for place in trainer.places(document):
            document.get(*itertools.takewhile(lambda key: key != ANY, place))  # raises if the value is unknown
        raise SetElsewhereError(document.place(keys, document.name), COMPOSED, IMPORT_ANOTHER)


def notes(document: Document, trainer: Format, unread: Sequence[Path], imported: Imported) -> list[str]:
    """Return notes about inherited settings and clip keys that the trainer does not read.

    Raise ConfigError if the clip is off, but one of these might switch it on.
    """
    keys, is_off = inheriting(document), imported.settings["rule"] == "none"
    if keys is not None and is_off and imported.by_default:
        raise document.wrong(next(read_paths(document, trainer)), f"{COMPOSED} {IMPORT_ANOTHER}", UNKNOWN)
    for path in unread:
        if is_off and _raw(document, path) not in (None, False, 0, ""):
            raise _unread(document, trainer, path)
    inherited = [] if keys is None else [NOT_READ.format(place=document.place(keys, document.name))]
    return inherited + [
        f"{document.place(path)} looks like another clip setting, and is not imported." for path in unread
    ]


def _raw(document: Document, path: Path) -> Any:
    value = document.data
    for key in path:
        value = value[key]
    return value


def _check_duplicates(document: Document, trainer: Format, places: Sequence[Path]) -> None:
    keys = [*places, *trainer.foreign_keys, *((key,) for key in BASE_KEYS)]
    for duplicate in document.duplicates:
        outer = duplicate.keys
        for path, value in [(outer, duplicate.value), *entries(duplicate.value, keys, outer)]:
            if not (_is_at(path, keys) or is_clip_key(path, value, places)):
                continue
            if not document.shows(*path) or _raw(document, path) != value:
                place = f"{document.name}, line {document.line(outer)}, {dotted(path)}"
                problem = f"line {duplicate.line} also sets {'this key' if path == outer else dotted(outer)}."
                raise ConfigError(f"{place}: {problem} The trainer uses the last value. Remove the other key.")


def first_read(document: Document, trainer: Format) -> Path:
    read = [*read_paths(document, trainer)]
    has_value = (path for path in read if path[-1] not in trainer.mode_keys and _raw(document, path) is not None)
    return next(has_value, read[0] if read else ())


def read_paths(document: Document, trainer: Format) -> Iterator[Path]:
    places = trainer.places(document)
    return (path for path, _ in entries(document.data, places) if _is_at(path, places))


def unset(document: Document, trainer: Format) -> str:
    """Return a text such as "max_grad_norm is not set", or '' if a clip key has a value."""
    places = [place for place in trainer.places(document) if place[-1] not in trainer.mode_keys]
    read = [path for path, _ in entries(document.data, places) if _is_at(path, places)]
    if not places or any(_raw(document, path) is not None for path in read):
        return ""
    return (
        f"{dotted(read[0])} is null" if read else f"{_format_place(best_place(document, places), trainer)} is not set"
    )


def clip_keys(document: Document) -> list[tuple[Path, Any]]:
    return [(path, value) for path, value in entries(document.data) if is_clip_key(path, value, ())]


def entries(data: Any, places: Sequence[Path] = (), path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all paths and values of nested tables and lists, except below `places`."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        inner = (*path, key)
        if isinstance(key, str):
            yield inner, value
        if not _is_at(inner, places):
            yield from entries(value, places, inner)


def _is_at(path: Path, places: Sequence[Path]) -> bool:
    same_length = (zip(path, place, strict=True) for place in places if len(place) == len(path))
    return any(all(expected in (ANY, key) for key, expected in pairs) for pairs in same_length)


def _format_place(place: Path, trainer: Format) -> str:
    return dotted([trainer.placeholder if key == ANY else key for key in place])


def best_place(document: Document, places: Sequence[Path]) -> Path:
    return max(places, key=lambda place: document.shows(place[0]))


def _unread(document: Document, trainer: Format, path: Path) -> ConfigError:
    places = trainer.places(document)
    same_name = [place for place in places if normalized(place[-1]) == normalized(path[-1])]
    target = _format_place(best_place(document, same_name or places), trainer)
    problem = f"{trainer.title} does not read this key. Set {target} instead, or remove this key."
    return document.wrong(path, f"{problem} {BY_CODE}", "UC105")


def is_clip_key(path: Path, value: Any, places: Sequence[Path]) -> bool:
    """Return whether the last key of a path has the name of a clip key, maybe misspelt."""
    name = normalized(path[-1])
    if any(name == normalized(place[-1]) for place in places):
        return True
    if is_number(value) and any(_is_misspelt(name, key) for key in (*COMMON, *(normalized(p[-1]) for p in places))):
        return True
    if value is None or value is False or (value is True and not name.endswith(SWITCHES)):
        return False
    names = f"{normalized(path[-2])} {name}" if len(path) > 1 and isinstance(path[-2], str) else name
    is_number_key = is_number(value) and NUMBERS.fullmatch(names) is not None
    return is_number_key or CLIP_NAME.fullmatch(name) is not None


@cache
def _is_misspelt(name: str, expected: str) -> bool:
    if min(len(name), len(expected)) < SHORTEST_MISSPELT or abs(len(name) - len(expected)) > 2:
        return False
    return bool(difflib.get_close_matches(name, [expected], 1, MISSPELT))


def normalized(key: Key) -> str:
    return re.sub(r"[\W_]", "", str(key)).lower()
