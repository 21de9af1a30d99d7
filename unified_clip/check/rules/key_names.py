"""Infer a clipping rule from the names and values of keys that no known trainer reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..._kit.static_values import is_number
from ...config.schema import Rule
from ..clip_use import NamedValue

ANY_RULE: tuple[Rule, ...] = ("global_norm", "norm", "value")

RULES: dict[str, tuple[Rule, ...]] = {
    "norm": ("norm", "global_norm"), "global_norm": ("global_norm",), "value": ("value",),
}  # fmt: skip
"""Maps a value, such as "norm" in `gradient_clip_algorithm: norm`, to the rules that the value can mean."""

NAMES: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    (r"value", ("value",)),
    (r"global.*norm|norm.*global", ("global_norm",)),
    (r"^clipnorm$|by_?norm$", ("norm",)),  # Keras' clipnorm, clip_by_norm, ClipGradByNorm
    (r"norm", ("norm", "global_norm")),
)
"""Patterns for names of keys, and the rules that a matching key can set. The first match decides."""

ONLY_VALUE = re.compile(r"(clip_?)?value")
"""Matches names such as CLIP_VALUE. In Detectron2, CLIP_VALUE sets only the threshold, and CLIP_TYPE sets the rule."""


def inner_values(value: Any, name: str = "") -> Iterator[NamedValue]:
    """Yield the values in nested tables and lists.

    name: The name of `value`. The name of a value in a table has a dot, such as "grad_clip.max_norm".
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from inner_values(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from inner_values(inner, name)
    else:
        yield NamedValue(name, value)


def allowed(values: Sequence[NamedValue]) -> list[Rule]:
    """Return the rules that are possible for all clip keys in a file. For `grad_clip`, every rule is possible."""
    texts = [RULES.get(str(each.value).lower(), ()) for each in values if not is_number(each.value)]
    names = [_by_name(each.name, has_text=any(texts)) for each in values if is_number(each.value)]
    return [rule for rule in ANY_RULE if all(rule in rules for rules in (*texts, *names))]


def _by_name(name: str, *, has_text: bool) -> tuple[Rule, ...]:
    for part in reversed(name.lower().replace("-", "_").split(".")):
        if has_text and ONLY_VALUE.fullmatch(part):
            continue
        if rules := next((rules for pattern, rules in NAMES if re.search(pattern, part)), None):
            return rules
    return ANY_RULE
