"""Write entries for differences that a list of known differences does not cover."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.items import Table

from ..results import NativeResult
from .entries import KINDS, SIZED, UNEXPLAINED, WITHIN, is_match, recorded_cause
from .match import Place

ONE_SIZE = 10
"""If the sizes of two differences differ by more than this factor, their entry contains a size for each case."""


def new_entries(unlisted: Mapping[Place, NativeResult], old: list[Any]) -> list[Table]:
    """A new entry gets the title and the reason of a matching entry in `old`."""
    groups: dict[tuple[str, str, str, str, str, bool], dict[str, NativeResult]] = {}
    for (framework, case), each in unlisted.items():
        key = (framework, each.function or "", each.kind, each.not_finite, recorded_cause(each), each.finite_size > 0)
        groups.setdefault(key, {})[case] = each
    return [_entry(*key[:3], natives=natives, old=old) for key, natives in groups.items()]


def _entry(framework: str, function: str, kind: str, natives: dict[str, NativeResult], old: list[Any]) -> Table:
    subject = {"framework": framework, "function": function, "kind": kind}
    same = [entry for entry in old if all(entry[name] == value for name, value in subject.items())]
    same = [entry for entry in same if any(is_match(case, entry["cases"]) for case in natives)]
    cause = recorded_cause(next(iter(natives.values())))
    same = [entry for entry in same if not entry.get("cause") or cause in (entry["cause"], *entry["cause"])]
    words = {name: same[0][name] for name in ("title", "reason") if same and name in same[0]}
    entry = tomlkit.table()
    entry.update(subject)
    sizes = [native.finite_size for native in natives.values()]
    # A size covers every smaller size, too: a large difference of one case must not hide the growth of another.
    has_sizes = max(sizes) > ONE_SIZE * min(sizes)
    if cause:
        entry["cause"] = cause
    entry.update({"reason": _reason(kind, list(natives.values())), **words})
    set_cases(entry, sorted(natives), natives, WITHIN, has_sizes=has_sizes)
    return entry


def _reason(kind: str, natives: Sequence[NativeResult]) -> str:
    causes = list(dict.fromkeys(native.cause for native in natives if native.cause))
    if not causes:
        causes = [f"{KINDS[kind]}: {text}" for text in dict.fromkeys(native.detail for native in natives) if text]
    if not causes or kind in ("returns", "elements"):
        return f"{KINDS[kind]}{UNEXPLAINED}" if kind in SIZED else KINDS[kind]
    first = causes[0] if len(causes) == 1 else f"{causes[0]} (in the first of {len(natives)} cases)"
    is_unexplained = kind == "form" and any(each.finite_size and not each.cause for each in natives)
    return f"{first}. Numbers differ, too{UNEXPLAINED}" if is_unexplained else first


def set_cases(
    table: Table, patterns: Sequence[str], natives: Mapping[str, NativeResult], within: float, *, has_sizes: bool
) -> None:
    numbers = {
        "size": 0.0 if has_sizes else _size(natives.values(), within),
        "not_finite": next(iter(natives.values())).not_finite,
    }
    for key, value in numbers.items():
        if value:
            table[key] = value
        elif key in table:
            del table[key]
    if has_sizes:
        sizes = {text: [each for case, each in natives.items() if is_match(case, [text])] for text in patterns}
        table["cases"] = {text: _size(matching, within) for text, matching in sizes.items()}
    elif patterns != table.get("cases"):
        table["cases"] = tomlkit.array().multiline(len(patterns) > 1)
        table["cases"].extend(patterns)


def _size(natives: Collection[NativeResult], within: float) -> float:
    """Return the largest `finite_size`, rounded to three digits. The number stays unrounded if rounding would change
    it by more than the factor `within`.
    """
    greatest = max(difference.finite_size for difference in natives)
    size = float(f"{greatest:.3g}")
    return size if size / within <= greatest <= size * within else greatest
