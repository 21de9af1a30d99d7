"""The entries of the table `check`: which of them have an effect, and which findings `check.ignore` accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.check_rules import CheckRules, Ignore
from ...config.clip_config import ClipConfig
from ...config.families import family_difference
from ...config.schema import is_off
from .. import trainer_files
from ..clip_use import ClipUse, with_threshold
from ..judge import make_finding
from ..model import Finding
from . import patterns

UNUSED = {
    "ignore": "The checked files that match {path!r} have no finding{about}.",
    "key": "The checked files that match {path!r} have no key {key!r}.",
    "each": "No checked file matches {path!r}.",
    "nearest": "The checked files that match {path!r} have no clip with another family or eps.",
    "formats": "No checked file matches {path!r}, or an earlier pattern of check.formats matches the same files.",
}
"""Maps each list of entries to the reason why an entry has no effect."""


NOT_APPROVED = (
    "The entry {index} of check.ignore approves only {approved}, and the clip has another or an unknown effect. If you "
    "intend the effect of this clip, change rule and threshold of that entry. To accept every threshold of a rule, "
    "write only the rule. To accept the clip whatever its effect is, write neither."
)


class Entries:
    """The entries of the table `check`. An entry has an effect if it matches a file, a key or a finding."""

    def __init__(self, clip: Path, rules: CheckRules) -> None:
        self.clip, self.rules, self.root = clip, rules, clip.resolve().parent
        self._used: set[tuple[str, int]] = set()

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
                is_needed = is_whole or (
                    table == "ignore" and any(patterns.matches(path, file, self.root) for file in files)
                )
                if is_needed and (table, index) not in self._used:
                    yield self._finding(table, index, entry, why, is_whole=is_whole)

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


def _matching(entries: Entries, use: ClipUse) -> list[tuple[int, Ignore]]:
    """Return (index, entry) for each entry that matches the file and the name of a clip."""
    found = entries.of_file("ignore", use.path)
    return [
        (index, each) for index, each in found if not each.clip or patterns.as_regex(each.clip, ".*").search(use.clip)
    ]


def applied(entries: Entries, use: ClipUse, finding: Finding, config: ClipConfig) -> Finding:
    """Add the reason of the first `check.ignore` entry that approves a finding.

    If no entry approves the effect of the clip, add advice about the first one that matches.
    """
    found = _matching(entries, use)
    entries.use("ignore", *(index for index, _ in found))
    for _, entry in found:
        if approves(entry, use, config):
            return finding.model_copy(update={"ignored": entry.reason})
    for index, entry in found[:1]:
        why = NOT_APPROVED.format(index=index + 1, approved=approval(entry, config))
        return finding.model_copy(update={"edit": f"{why}\n{finding.edit}"})
    return finding


def shows_clip(entries: Entries, use: ClipUse) -> bool:
    if use.config is not None:
        return not is_off(use.config)
    return any(each.threshold is not None or each.rule not in (None, "none") for _, each in _matching(entries, use))


def approval(rule: Ignore, config: ClipConfig) -> str:
    """Return the effect that an entry approves, as text. Return '' if the entry has neither `rule` nor `threshold`."""
    parts = {"rule": rule.rule, "threshold": rule.threshold}
    text = ", ".join(f"{name} = {value!r}" for name, value in parts.items() if value is not None)
    return text if rule.rule or rule.threshold is None else f"{text} with the rule {config.rule}"


def approves(rule: Ignore, use: ClipUse, config: ClipConfig) -> bool:
    """Return whether an entry approves the effect of a clip.

    Settings that are not in the entry must agree with `config`. The family, the eps and the action for norms that are
    not finite can differ.
    """
    if rule.threshold is None and rule.rule is None:
        return True
    if rule.threshold is None and is_off(config):  # no threshold is given that the entry could approve
        return rule.rule == "none" and use.config is not None and is_off(use.config)
    if use.rule_of_any_threshold and rule.threshold is None:
        use = replace(use, config=with_threshold(use.rule_of_any_threshold, config.threshold))
    if use.config is None:
        return False
    if rule.rule == "none":
        return is_off(use.config)
    of_norm = ("family", "norm_type") if (rule.rule or config.rule) in ("norm", "global_norm") else ()
    kept = ("include", "exclude", *of_norm)
    settings: dict[str, Any] = {key: value for key, value in config.data().items() if key in kept}
    threshold = config.threshold if rule.threshold is None else rule.threshold
    settings |= {"rule": rule.rule or config.rule, "threshold": threshold, "nonfinite": use.config.nonfinite}
    approved = ClipConfig(**settings)
    return family_difference(use.config, approved) is not None
