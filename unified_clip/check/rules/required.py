from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...config.clip_config import ClipConfig
from ...config.schema import is_off
from ...port.catalog import setting_of
from ...source.module import Module
from ...source.project import Project
from ...source.tree import last_name, shortened
from .. import trainer_files
from ..clip_use import ClipUse, FoundClips, shown
from ..files_to_check import below
from ..judge import make_finding
from ..model import Finding
from ..python import notebooks
from ..trainer_files import SOURCES
from . import patterns
from .entries import Entries

WILDCARD = re.compile(r"[*?]")
OTHER_TOOLS = re.compile(
    r"\..*|(package(-lock)?|(ts|js)config(\..*)?|tokenizer(_config)?|vocab|special_tokens_map|(generation|preprocessor)_config)"
    r"\.json|(pyproject|Cargo|netlify)\.toml|(docker-)?compose.*\.ya?ml|(mkdocs|environment|action|codecov)\.ya?ml"
)
"""Matches names of files and directories that do not belong to a trainer, such as `.github`."""

GRADIENTS = ("backward", "grad", "gradient", "gradients", "minimize", "value_and_grad")
"""The last names of functions and methods that compute gradients."""

OTHERS = ("numpy", "scipy", "sympy")
"""The packages in which functions of these names train nothing."""

ENGINES = {"colossalai", "deepspeed"}
"""The packages of engines, which clip as their configuration files say."""

FITTING = {"keras", "keras_core", "keras_hub", "lightning", "pytorch_lightning", "tensorflow", "tf_keras"}
"""The packages whose objects train by the method `fit`."""

WITHOUT_CLIP = "The file trains: it calls {code}. Neither this file nor a checked file that it imports has a clip."
CLIP_HERE = (
    "Clip in this file, with ClipConfig or a function of the framework. If other code clips these gradients, add the "
    "file to check.ignore with a reason."
)

NOT_COUNTED = (
    "These ignored or accepted clips do not satisfy the pattern: {places}. To let a clip of unknown effect satisfy it, "
    "add the clip to check.ignore with a rule or a threshold."
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
    clipping = _files_of([use for use in file_uses.uses if use not in ignored])
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


def each(entries: Entries, project: Project, files: Sequence[Path], file_uses: FoundClips) -> Iterator[ClipUse]:
    """Yield a `ClipUse` for each file of `check.each` that trains and reaches no clip.

    A file reaches the clips in itself, and in the modules of the project that it imports.
    """
    clipping = _files_of([use for use in file_uses.uses if not use.is_setting])
    for file in files:
        globs = entries.of_file("each", file)
        entries.use("each", *(index for index, _ in globs))
        module = project.readable(file) if globs and file.suffix.lower() in SOURCES else None
        code = _training(module) if module is not None else None
        if module is None or code is None:
            continue
        reached = {os.path.realpath(each.path) for each in project.reached_from(module) if each.path}
        if not reached & clipping:
            why = WITHOUT_CLIP.format(code=shortened(code.func))
            line = notebooks.line_of(file, code.lineno)
            yield ClipUse(file, line, 1, f'check.each "{globs[0][1]}"', config=ClipConfig(rule="none"), why_unknown=why)


def _training(module: Module) -> ast.Call | None:
    """Return the first call that computes gradients or starts a trainer, such as `Trainer(...).train()`, or None."""
    if module.packages & ENGINES:
        return None
    fits = bool(module.packages & FITTING) or any(setting_of(module.full_name(call.func)) for call in module.calls)
    for call in module.calls:
        package, name = module.full_name(call.func).partition(".")[0], last_name(call.func)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        owner = owner.func if isinstance(owner, ast.Call) else owner
        starts = name == "LightningCLI"
        if owner is not None:
            starts = (name == "fit" and fits) or (name == "train" and last_name(owner).lower().endswith("trainer"))
        if starts or (name in GRADIENTS and package not in OTHERS):
            return call
    return None


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
    off = [use for use in ignored if use.config is not None and is_off(use.config)]
    clipping = _files_of([use for use in file_uses.uses if use not in off])
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
