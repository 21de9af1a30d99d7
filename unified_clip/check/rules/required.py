from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from ..._kit import atomic_files
from ...config.documents import DOCUMENT_KINDS
from ...config.documents.script_options import without_comments
from ...config.schema import is_off
from ...port.catalog import setting_of_base
from ...source.project import Project
from .. import trainer_files
from ..clip_use import ClipUse, FoundClips, shown
from ..command_lines import is_shell
from ..files_to_check import below
from ..judge import make_finding
from ..model import Finding
from ..python import notebooks
from ..python.training import Trainings
from ..trainer_files import PYTHON, SOURCES
from . import patterns, settings

WILDCARD = re.compile(r"[*?]")
OTHER_TOOLS = re.compile(
    r"\..*|(package(-lock)?|(ts|js)config(\..*)?|tokenizer(_config)?|vocab|special_tokens_map|(generation|preprocessor)_config)"
    r"\.json|(pyproject|Cargo|netlify)\.toml|(docker-)?compose.*\.ya?ml|(mkdocs|environment|action|codecov)\.ya?ml"
)
"""Matches names of files and directories that do not belong to a trainer, such as `.github`."""

NO_KEY = (
    "check.explicit names this file, but the file shows no clip key of a known trainer. So the effect of the trainer "
    "is unknown."
)
SET_KEY = (
    "Restore the clip key. If the check reads the file in a wrong format, set the right format in check.formats. If "
    "another file sets the clip, or if no trainer reads the file, add the file to check.ignore with a reason."
)

CONFIGURATION = re.compile(r"[^\s=\"']+\.(?:ya?ml|json)\b")
HYDRA = re.compile(r"--config-(?:dir|path)[=\s]+(\S+)(?:[^\S\n]|\\\n)+--config-name[=\s]+([\w.-]+)")

CLIP_HERE = (
    "Clip in this file, with ClipConfig or a function of the framework. If other code clips these gradients, add the "
    "file to check.ignore with a reason."
)

NOT_COUNTED = (
    "These ignored clips do not satisfy the pattern: {places}. If the effect of a clip is unknown, its entry of "
    "check.ignore needs a rule or a threshold. A setting that no code reads never satisfies a pattern."
)


def check(
    clip: Path,
    required: Sequence[str],
    paths: Sequence[Path],
    files: Sequence[Path],
    file_uses: FoundClips,
    ignored: Sequence[ClipUse],
) -> tuple[list[Finding], list[str]]:
    """Return findings and notes for the required paths and patterns whose files have no clip."""
    missing = dict(_paths_without_clip(clip, paths, files, file_uses, ignored))
    is_none = len(missing) == len(paths)
    others = [path for path in missing if OTHER_TOOLS.fullmatch(path.resolve().name) and not is_none]
    notes = [f"{shown(path)} has no clip. No clip is needed, since no trainer reads this path." for path in others]
    findings = [finding for path, finding in missing.items() if path not in others]
    clipping = _files_of([use for use in file_uses.uses if _is_clip(use) and use not in ignored])
    root, outside = clip.resolve().parent, []
    for index, glob in enumerate(required):
        matching = [file for file in files if patterns.matches(glob, file, root)]
        if any(os.path.realpath(file) in clipping for file in matching):
            continue
        if not matching and not _covers(paths, root, glob):
            outside.append(repr(glob))
            continue
        outside_of = _elsewhere(matching, file_uses, ", and widen the pattern to match that file")
        places = [f"{shown(use.path)}:{use.line}" for use in ignored if use.path in matching]
        uncounted = f" {NOT_COUNTED.format(places=', '.join(dict.fromkeys(places)))}" if places else ""
        why = f"No file that matches {glob!r} has a clip (matching files: {len(matching)}).{uncounted}{outside_of}"
        edit = "Restore the clip, or remove the pattern from check.require."
        if not matching:
            why, edit = f"No checked file matches {glob!r}.", patterns.advice(glob, root)
        line = trainer_files.line(clip, ("check", "require", index))
        findings.append(make_finding(ClipUse(clip, line, 1, f'check.require "{glob}"'), "missing", why, edit))
    be, them = ("is", "it") if len(outside) == 1 else ("are", "them")
    skipped = f"check.require: {', '.join(outside)} {be} skipped, because no path that you passed contains {them}."
    notes += [skipped] * bool(outside)
    return findings, notes


def each(
    globs: Sequence[str], project: Project, files: Sequence[Path], file_uses: FoundClips, root: Path
) -> tuple[list[ClipUse], list[str]]:
    """Return (uses, notes). Each file of `check.each` that trains without a clip gets a `ClipUse`.

    A file that relies on a library's trainer to clip gets no `ClipUse`.
    """
    clips = [use for use in file_uses.uses if _is_clip(use) and not use.is_setting]
    clipping = _files_of(clips)
    lines: dict[Path, list[int]] = {}
    for use in (use for use in clips if use.path.suffix == PYTHON):
        lines.setdefault(use.path, []).append(use.line)
    trainings = Trainings(project, lines)
    uses, notes = [], []
    for file in files:
        glob = patterns.first_match(globs, file, root)
        if not glob or file.suffix.lower() not in SOURCES or os.path.realpath(file) in clipping:
            continue
        if (code := trainings.first(file)) is None:
            continue
        line = notebooks.line_of(file, code.line)
        limit = setting_of_base(code.trainer)
        is_compared = limit is not None and any({use.package, use.format} & {*limit.packages} for use in clips)
        if limit is not None and (limit.default or is_compared):
            where = f"{code.trainer}, which clips at {limit.keyword}"
            advice = f"Also pass the file or script that sets {limit.keyword}."
            notes += [f"{shown(file)}:{line} relies on {where}. {advice}"] * (not is_compared)
            continue
        passed = settings.passed(project.readable(file))
        rest = f"the effect of the setting {passed} is unknown" if passed else "has no clip"
        why = f"The file {code.words}, and {rest}."
        uses.append(ClipUse(file, line, 1, f'check.each "{glob}"', why_unknown=why, unclipped=not passed))
    return uses, notes


def _is_clip(use: ClipUse) -> bool:
    return not (use.unused or use.unclipped)


def explicit(globs: Sequence[str], files: Sequence[Path], file_uses: FoundClips, root: Path) -> Iterator[ClipUse]:
    """Yield an entry for each file that matches a pattern of `check.explicit` and has no clip key.

    If the pattern has a wildcard, skip files that do not look like a configuration. A pattern such as "*.sh" also skips
    no shell script.
    """
    shows = _files_of(file_uses.uses)
    with_key = {os.path.realpath(use.path) for use in file_uses.uses if use.has_key}
    for file in files:
        matching = [glob for glob in globs if patterns.matches(glob, file, root)]
        is_script = is_shell(file)
        named = [glob for glob in matching if not WILDCARD.search(glob) or (is_script and is_shell(Path(glob)))]
        is_elsewhere = file in file_uses.elsewhere and not is_script
        known = os.path.realpath(file) in shows or is_elsewhere
        known = known or (is_script and _names_file(file, with_key))
        if not known and (named or (matching and _is_configuration(file))):
            yield ClipUse(file, 1, 1, f'check.explicit "{[*named, *matching][0]}"', why_unknown=NO_KEY)


def _names_file(script: Path, files: Set[str]) -> bool:
    """Return whether a script passes one of the files to a command, as in `--config a.yaml`."""
    code = without_comments(atomic_files.read_text(script, errors="replace"))
    names = CONFIGURATION.findall(code) + [f"{folder}/{name}.yaml" for folder, name in HYDRA.findall(code)]
    return any(file.endswith(f"/{name.removeprefix('./')}") for file in files for name in names)


def _is_configuration(file: Path) -> bool:
    suffix = file.suffix.lower()
    if suffix == PYTHON:
        return trainer_files.may_be_configuration(file)
    return suffix in DOCUMENT_KINDS and OTHER_TOOLS.fullmatch(file.name) is None


def _elsewhere(files: Sequence[Path], file_uses: FoundClips, also: str = "") -> str:
    names = [shown(file) for file in files if file in file_uses.elsewhere]
    if not names:
        return ""
    where = f"is set in another file or in the training script. Also pass that file{also}."
    return f" The clip of {', '.join(names)} {where}"


def _files_of(uses: Sequence[ClipUse]) -> set[str]:
    return {os.path.realpath(file) for use in uses for file in (use.path, *use.users)}


def _paths_without_clip(
    clip: Path, paths: Sequence[Path], files: Sequence[Path], file_uses: FoundClips, ignored: Sequence[ClipUse]
) -> Iterator[tuple[Path, Finding]]:
    reported = [use for use in file_uses.uses if use.unused and use not in ignored]
    off = [use for use in ignored if use.config is not None and is_off(use.config)]
    clips = [use for use in file_uses.uses if _is_clip(use) and use not in off]
    clipping = _files_of([*clips, *reported])
    for path in paths:
        inner = files if len(paths) == 1 else below(path)
        real = {os.path.realpath(file) for file in inner} - {os.path.realpath(clip)}
        if not real & clipping:
            unread = f" Files that could not be read: {file_uses.unread}." if file_uses.unread else ""
            why = f"No file has a clip (checked files: {len(real)}).{_elsewhere(inner, file_uses)}{unread}"
            place = path if path.is_file() else clip
            edit = "Restore the clip, or pass other paths."
            yield path, make_finding(ClipUse(place, 1, 1, f"PATH {shown(path)}"), "missing", why, edit)


def _covers(paths: Sequence[Path], root: Path, glob: str) -> bool:
    fixed = WILDCARD.split(glob)[0]
    folder = root / (fixed if fixed == glob else fixed.rpartition("/")[0])
    return any(Path(os.path.realpath(folder)).is_relative_to(path.resolve()) for path in paths)
