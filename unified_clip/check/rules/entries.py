"""The entries of the table `check`, and which of them have an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...config.check_rules import CheckRules
from ...config.formats import convert
from .. import trainer_files
from ..clip_use import ClipUse
from ..judge import make_finding
from ..model import Finding
from . import patterns

REMOVED = {
    "off": "The check has no rule `off` any more. Instead, add an entry to check.ignore for each pattern, with the "
    'pattern as path, with rule = "none" and with a reason. The entry accepts a clip only if it is off.',
    "explicit": "The check has no rule `explicit` any more. Instead, write the clip key into the trainer's files. The "
    'list of clips in a report without findings names each default, by the words "by default".',
    "nonfinite": "The check has no rule `nonfinite` any more. Instead, add an entry to check.ignore for each pattern, "
    "with the pattern as path, with the rule of this configuration and with a reason. The entry accepts every action "
    "for norms that are not finite.",
}

NO_FILE = "No checked file matches {path!r}."
UNUSED = {
    "ignore": "The checked files that match {path!r} have no finding{about}.",
    "key": "The checked files that match {path!r} have no key {key!r}.",
    "each": NO_FILE,
    "nearest": NO_FILE,
    "formats": "No checked file matches {path!r}, or an earlier pattern of check.formats matches the same files.",
}
"""Maps each list of entries to the reason why an entry has no effect."""


class Entries:
    """The entries of the table `check`. An entry has an effect if it matches a file, a key or a finding."""

    def __init__(self, clip: Path, rules: CheckRules) -> None:
        self.clip, self.rules, self.root = clip, rules, clip.resolve().parent
        self._used: set[tuple[str, int]] = set()
        for name, advice in REMOVED.items():
            if getattr(rules, name) is not None:
                raise convert.named(clip, convert.UNIFIED_CLIP)[1].wrong(("check", name), advice)

    def of_file(self, table: str, file: Path) -> list[tuple[int, Any]]:
        """Return (index, entry) for each entry whose pattern matches a file."""
        entries = enumerate(getattr(self.rules, table))
        return [(index, each) for index, each in entries if patterns.matches(_pattern(each), file, self.root)]

    def use(self, table: str, *indices: int) -> None:
        """Remember that entries have an effect."""
        self._used.update((table, index) for index in indices)

    def format_of(self, file: Path) -> str:
        """Return the format that `check.formats` gives a file, as "name" or "name@version", or ''."""
        for index, glob in self.of_file("formats", file)[:1]:
            self.use("formats", index)
            return self.rules.formats[glob]
        return ""

    def unused(self, files: Sequence[Path], paths: Sequence[Path]) -> Iterator[Finding]:
        """Yield a finding for each entry without effect. An entry may need files that are not below `paths`."""
        is_whole = any(self.root.is_relative_to(path.resolve()) for path in paths)
        for table, why in UNUSED.items():
            for index, entry in enumerate(getattr(self.rules, table)):
                path = _pattern(entry)
                is_used = (table, index) in self._used or (why == NO_FILE and self._matches_any(path, files))
                if is_used or not (is_whole or (table == "ignore" and self._matches_any(path, files))):
                    continue
                yield self._finding(table, index, entry, why, is_whole=is_whole)

    def _matches_any(self, glob: str, files: Sequence[Path]) -> bool:
        return any(patterns.matches(glob, file, self.root) for file in files)

    def _finding(self, table: str, index: int, entry: Any, why: str, *, is_whole: bool) -> Finding:
        path, has_fields = _pattern(entry), not isinstance(entry, str)
        other = "key" if table == "key" else "clip" if getattr(entry, "clip", "") else ""
        wrong = f"path or its {other}" if other else "path"
        about = f" about a clip with {entry.clip!r} in its name" if other == "clip" else ""
        edit = patterns.advice(path, self.root, wrong if has_fields else "")
        edit = edit if is_whole else f"If no other file needs the entry: {edit[0].lower()}{edit[1:]}"
        name = f"{table} {index + 1}" if has_fields else f'{table}{"." if table == "formats" else " "}"{entry}"'
        line = trainer_files.line(self.clip, ("check", table, entry if table == "formats" else index))
        reason = why.format(path=path, about=about, key=getattr(entry, "key", ""))
        return make_finding(ClipUse(self.clip, line, 1, f"check.{name}"), "unused", reason, edit)


def _pattern(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry.path)
