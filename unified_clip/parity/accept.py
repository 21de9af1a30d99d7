"""Take what the natives do now into a suite's list of known differences: for a person to read, and to commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from .engine import Run
from .natives import KINDS, Difference, Known, Shown

UNSIZED = ("raises", "returns", "silent", "form")


class Changes(NamedTuple):
    """How many entries of the list were left as they are, taken out and added."""

    kept: int
    dropped: int
    added: int


def write(path: Path, run: Run) -> Changes:
    """Drop from a list what is no longer true, and add what it lacks. Comments and the entries that are true stay."""
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    entries: AoT = document.setdefault("known", tomlkit.aot())
    untrue = [shown.known for shown in run.known if not _is_true(shown, run)]
    added = [_entry(key, found, list(entries)) for key, found in _unlisted(run, untrue).items()]
    stale = [index for index, entry in enumerate(entries) if any(_is(entry, known) for known in untrue)]
    for index in reversed(stale):
        del entries[index]
    kept = len(entries)
    for entry in added:
        entries.append(entry)
    partial = path.with_suffix(".partial")
    partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    partial.replace(path)
    return Changes(kept, len(stale), len(added))


def _is(entry: Any, known: Known) -> bool:
    names = ("framework", "function", "kind", "cases", "reason")
    same = all(entry[name] == getattr(known, name) for name in names)
    return same and entry.get("versions", "") == known.versions


def _is_true(shown: Shown, run: Run) -> bool:
    """Whether an entry shows as it says, and every difference that it covers is as it says."""
    cells = ((row.case.name, row.cells.get(shown.known.framework)) for row in run.rows)
    wrong = ((name, cell.native) for name, cell in cells if cell and cell.native and cell.problem)
    return not shown.problem and not any(
        shown.known.covers(shown.known.framework, name, difference) for name, difference in wrong
    )


Key = tuple[str, str, str]
"""Framework, function and kind."""


def _unlisted(run: Run, untrue: Sequence[Known]) -> dict[Key, dict[str, Difference]]:
    """By case, the differences that no true entry of the list covers."""
    known = [shown.known for shown in run.known if shown.known not in untrue]
    found: dict[Key, dict[str, Difference]] = {}
    for framework, case, difference in _differences(run):
        if not any(entry.covers(framework, case, difference) for entry in known):
            found.setdefault((framework, difference.function, difference.kind), {})[case] = difference
    return found


def _differences(run: Run) -> Iterator[tuple[str, str, Difference]]:
    for row in run.rows:
        for framework, cell in row.cells.items():
            if cell.native and cell.native.kind:
                yield framework, row.case.name, cell.native


def _entry(key: Key, found: dict[str, Difference], old: list[Any]) -> Table:
    """An entry for these differences, with the words of an old one for the same function and kind."""
    framework, function, kind = key
    same = [entry for entry in old if (entry["framework"], entry["function"], entry["kind"]) == key]
    words = {name: same[0][name] for name in ("title", "reason") if same and name in same[0]}
    entry = tomlkit.table()
    entry.update({"framework": framework, "function": function, "kind": kind})
    if kind not in UNSIZED:
        entry["size"] = float(f"{max(difference.size for difference in found.values()):.3g}")
    entry["cases"] = sorted(found)
    entry.update({"reason": KINDS[kind], **words})
    return entry
