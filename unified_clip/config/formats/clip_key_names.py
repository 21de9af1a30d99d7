"""Recognise the names of clip keys, such as `max_grad_norm`, in files of any trainer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..._kit.static_values import is_number
from ..documents import Key

Path = tuple[Key, ...]

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

COMMON = ("maxgradnorm", "gradientclipval", "gradientclipping", "clipgradnorm")
"""These names are also recognised with a typing error."""

SWITCHES = ("clip", "clipping", "clipgrad", "clipgradient", "clipgradients")
"""A clip key with one of these endings can have the value `true`."""


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


def is_misspelt(name: str) -> bool:
    name = normalized(name)
    return CLIP_NAME.fullmatch(name) is None and any(_is_misspelt(name, key) for key in COMMON)


@cache
def _is_misspelt(name: str, expected: str) -> bool:
    if min(len(name), len(expected)) < SHORTEST_MISSPELT or abs(len(name) - len(expected)) > 2:
        return False
    return bool(difflib.get_close_matches(name, [expected], 1, MISSPELT))


def normalized(key: Key) -> str:
    return re.sub(r"[\W_]", "", str(key)).lower()
