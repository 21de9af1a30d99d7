"""Find entries without effect in the table `check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...config.check_rules import CheckRules
from ...config.documents import Key
from ...config.formats import convert
from .. import trainer_files
from ..clip_use import ClipUse
from ..judge import make_finding
from ..model import Finding
from . import declared_keys, patterns

REMOVED = {
    "off": "The check has no rule `off` any more. Instead, add an entry to check.ignore for each pattern, with the "
    'pattern as path, with rule = "none" and with a reason. The entry accepts a clip only if it is off.',
    "explicit": "The check has no rule `explicit` any more. Instead, write the clip key into the trainer's files. The "
    'list of clips in a report without findings names each default, by the words "by default".',
    "nonfinite": "The check has no rule `nonfinite` any more. Instead, add an entry to check.ignore for each pattern, "
    "with the pattern as path, with the rule of this configuration and with a reason. The entry accepts every action "
    "for norms that are not finite.",
}


def check_removed(clip: Path, rules: CheckRules) -> None:
    """Raise ConfigError for a rule that an earlier release of the check had."""
    for name, advice in REMOVED.items():
        if getattr(rules, name) is not None:
            raise convert.named(clip, convert.UNIFIED_CLIP)[1].wrong(("check", name), advice)


def find(
    clip: Path, rules: CheckRules, used: set[int], files: Sequence[Path], paths: Sequence[Path], uses: Sequence[ClipUse]
) -> Iterator[Finding]:
    """Yield a finding for each entry without effect in the table `check`.

    used: The indices of the `check.ignore` entries that match a finding.
    """
    root = clip.resolve().parent
    is_whole = any(root.is_relative_to(path.resolve()) for path in paths)
    yield from _ignore(clip, rules, used, files, is_whole=is_whole)
    if not is_whole:
        return
    for name, globs in (("each", rules.each), ("nearest", rules.nearest)):
        for index, glob in enumerate(globs):
            if not any(patterns.matches(glob, file, root) for file in files):
                why = f"No checked file matches {glob!r}."
                yield _finding(clip, (name, index), f'{name} "{glob}"', why, patterns.advice(glob, root))
    applied = {patterns.first_match(rules.formats, file, root) for file in files}
    for glob in rules.formats.keys() - applied:
        why = f"No checked file matches {glob!r}, or an earlier pattern of check.formats matches the same files."
        yield _finding(clip, ("formats", glob), f'formats."{glob}"', why, patterns.advice(glob, root))
    yield from _keys(clip, rules, uses)


def _ignore(
    clip: Path, rules: CheckRules, used: set[int], files: Sequence[Path], *, is_whole: bool
) -> Iterator[Finding]:
    root = clip.resolve().parent
    for index, rule in enumerate(rules.ignore):
        if index not in used and (is_whole or any(patterns.matches(rule.path, file, root) for file in files)):
            clips = f" about a clip with {rule.clip!r} in its name" if rule.clip else ""
            why = f"The checked files that match {rule.path!r} have no finding{clips}."
            edit = patterns.advice(rule.path, root, "path or its clip" if rule.clip else "path")
            edit = edit if is_whole else f"If no other file needs the entry: {edit[0].lower()}{edit[1:]}"
            yield _finding(clip, ("ignore", index), f"ignore {index + 1}", why, edit)


def _keys(file: Path, rules: CheckRules, uses: Sequence[ClipUse]) -> Iterator[Finding]:
    root = file.resolve().parent
    declared = [use for use in uses if use.is_declared]
    for index, key in enumerate(rules.key):
        clips = [use.clip for use in declared if patterns.matches(key.path, use.path, root)]
        if not any(declared_keys.matches(key, clip.partition(" = ")[0].split(".")) for clip in clips):
            why = f"The checked files that match {key.path!r} have no key {key.key!r}."
            edit = patterns.advice(key.path, root, "path or its key")
            yield _finding(file, ("key", index), f"key {index + 1}", why, edit)


def _finding(clip: Path, keys: Sequence[Key], name: str, why: str, edit: str) -> Finding:
    line = trainer_files.line(clip, ("check", *keys))
    return make_finding(ClipUse(clip, line, 1, f"check.{name}"), "unused", why, edit)
