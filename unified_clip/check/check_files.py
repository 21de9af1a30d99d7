"""Compare all configuration files and Python files with one clip configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from typing import cast

from .._kit import atomic_files
from .._kit.display import counted
from ..config.check_rules import CheckRules
from ..config.clip_config import ClipConfig
from ..config.explain import compare, describe
from ..config.formats import FORMATS, placement
from ..config.formats.engines import DEEPSPEED
from ..config.schema import is_off
from ..port.ported_clip import SET_OUTSIDE
from ..source.project import Project
from . import command_lines, files_to_check, trainer_files
from .clip_use import ARGUMENT_FORMATS, ClipUse, FoundClips, of_unread_file, shown
from .judge import Judge, clip_result, headline, make_finding
from .model import CheckReport, Clip, Counts, Finding, Result
from .python import notebooks, source_files
from .python.notebooks import NOTEBOOK
from .rules import accepted, patterns, required, settings
from .rules.entries import Entries, applied, shows_clip
from .trainer_files import SOURCES

BY_TRAINER = ("hf", "axolotl", "llama_factory", "transformers", "trl")

CONFIGURATIONS = re.compile(r"conf(ig)?s?/")
"""Matches the files of a Hydra program whose code is in another folder, such as src."""

SET_IN_FILES = (
    "The source does not set this clip. The check compares the clip in {files}, and assumes that the "
    "trainer gets its arguments from there. Options on a command line override a file."
)

ENGINE_FILE = (
    "The settings in {file} decide whether the clip has an effect, and the check does not read that file. Also pass "
    "the file, or add the clip to check.ignore with a reason."
)

LEFT_TO_TRAINER = (
    "HF's Trainer clips at max_grad_norm of TrainingArguments. If you train without Trainer, set gradient_clipping in "
    "this file to your threshold: Accelerate clips at 1.0 by default, and the check does not compare this default."
)


def check(
    clip: Path,
    paths: Sequence[Path],
    files: Sequence[Path],
    advance: Callable[[int], None] = lambda count: None,
    *,
    nearest: bool = False,
) -> CheckReport:
    """Compare every clip in `files` with a clip configuration. `paths` are the paths that the user passed."""
    config = ClipConfig.load(clip)
    entries = Entries(clip, config.check or CheckRules())
    trainer_files.check_rules(clip, entries.rules)
    reports = [file for file in files if files_to_check.is_report(file)]
    files = [file for file in files if file not in reports]
    advance(len(reports))
    project = Project([path for path in files if path.suffix.lower() in SOURCES], cache(notebooks.python_source))
    file_uses = _read(project, files, config, entries, advance)
    known = {use.path for use in file_uses.uses} | {*file_uses.elsewhere}
    known |= {file for file in files if file.suffix.lower() in SOURCES or files_to_check.unreadable(file)}
    names = {file.name for file in files}
    uses = settings.compared(file_uses.uses, config, entries.root)
    file_uses.uses = [_as_run(use, config, names) for use in uses]
    without_clips = list(required.each(entries, project, files, file_uses))
    judge = Judge(config, clip)
    baseline = accepted.read(clip)
    judged = _judge_all(judge, baseline, file_uses, without_clips, entries, nearest=nearest)
    missing, notes = required.check(clip, entries.rules.require, paths, files, file_uses, judged.unverified)
    findings = [*judged.findings, *missing, *entries.unused(files, paths), *baseline.stale(files)]
    return CheckReport(
        version=1,
        config=shown(clip),
        wanted=describe.sentences(config),
        headline=headline(findings, len(judged.ignored), judged.clips, clip.name),
        clips=sorted(judged.clips, key=_place),
        findings=sorted(findings, key=_place),
        ignored=judged.ignored,
        accepted=judged.accepted,
        notes=[
            *notes,
            *file_uses.notes,
            *judge.notes,
            *files_to_check.notes(reports, paths, [file for file in files if file not in known]),
        ],
        counts=Counts(
            files=len(files),
            trainers=file_uses.trainers,
            sources=file_uses.sources,
            clips=len(file_uses.uses),
            unread=file_uses.unread,
        ),
    )


def _as_run(use: ClipUse, config: ClipConfig, names: Set[str]) -> ClipUse:
    """Return a clip with what other settings make of it. names: the names of the checked files."""
    if use.config is None:
        return use
    if use.engine_file and PurePath(use.engine_file).name not in names:
        return replace(use, config=None, why_unknown=ENGINE_FILE.format(file=use.engine_file))
    return replace(use, config=compare.with_own_action(use.config, config))


@dataclass
class _JudgedClips:
    findings: list[Finding] = field(default_factory=list)
    ignored: list[Finding] = field(default_factory=list)
    accepted: list[Finding] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    unverified: list[ClipUse] = field(default_factory=list)
    """The ignored and accepted clips that do not satisfy `check.require`."""


def _judge_all(
    judge: Judge,
    baseline: accepted.Accepted,
    file_uses: FoundClips,
    without_clips: Sequence[ClipUse],
    entries: Entries,
    *,
    nearest: bool,
) -> _JudgedClips:
    judged = _JudgedClips()

    def add(use: ClipUse, finding: Finding) -> Result:
        finding = applied(entries, use, finding, judge.config)
        if finding.ignored is not None:
            judged.ignored.append(finding)
            return "ignored"
        if baseline.takes(finding):
            judged.accepted.append(finding)
            return "accepted"
        judged.findings.append(finding)
        return cast("Result", finding.kind)

    results: list[tuple[ClipUse, Result]] = []
    for use in file_uses.uses:
        allowed = entries.of_file("nearest", use.path)
        result, finding = judge.judge(use, nearest=nearest or bool(allowed))
        entries.use("nearest", *(index for index, _ in allowed if result != "same"))
        result = add(use, finding) if finding is not None else result
        is_unsure = result == "accepted" or (result == "ignored" and not shows_clip(entries, use))
        judged.unverified += [use] if is_unsure else []
        results.append((use, result))
    of_settings = {(use.path, use.line): result for use, result in results if not use.settings}
    for use, result in results:
        read = [of_settings.get(place, result) for place in use.settings]
        judged.clips.append(clip_result(use, next((each for each in read if each not in ("same", "near")), result)))
    for use in without_clips:
        add(use, make_finding(use, "missing", use.why_unknown, required.CLIP_HERE))
    return judged


def _place(entry: Clip | Finding) -> tuple[str, int, int]:
    return entry.path, entry.line, entry.column


def _read(
    project: Project, files: Sequence[Path], config: ClipConfig, entries: Entries, advance: Callable[[int], None]
) -> FoundClips:
    file_uses = FoundClips()
    sources, configurations, others = list[Path](), set[Path](), list[Path]()
    for path in files:
        uses: list[ClipUse] = []
        if problem := files_to_check.unreadable(path):
            _add_unreadable(path, problem, file_uses)
        elif path.suffix.lower() != NOTEBOOK and (
            (format_ := entries.format_of(path)) or trainer_files.may_be_configuration(path)
        ):
            uses = trainer_files.read(path, format_)
            _add_configuration(path, uses, file_uses)
            is_of_trainer = any(use.format or use.clip == "configuration" for use in uses)
            if path.suffix.lower() not in SOURCES and (command_lines.is_shell(path) or not is_of_trainer):
                others.append(path)
        if path.suffix.lower() in SOURCES and not problem:
            configurations |= {path} if uses else set()
            sources.append(path)
        else:
            advance(1)
    file_uses.notes += _notes_on_other_files(file_uses)
    uses = source_files.read(project, sources, advance, configurations)
    readers = settings.Readers(project, config, entries, sources, uses)
    uses = [*uses, *_settings(readers, files, others, file_uses.uses, configurations)]
    of_sources = list(notebooks.with_cells(uses))
    file_uses.uses = _without_left(file_uses, of_sources, project, entries.root)
    file_uses.sources = len({use.path for use in of_sources} & {use.path for use in file_uses.uses})
    return file_uses


def _settings(
    readers: settings.Readers,
    files: Sequence[Path],
    others: Sequence[Path],
    of_trainers: Sequence[ClipUse],
    configurations: Set[Path],
) -> Iterator[ClipUse]:
    """Yield the settings that clips read, or that are named like a clip, except those that another clip compares.

    others: The files that no known trainer reads.
    """
    clips, sources, unknown = readers.clips, {*readers.sources}, {*others}
    known = {*configurations, *(use.path for use in clips)}
    compared = {place for use in clips for place in use.origins}
    settled = {place for use in clips for place in use.settled}
    arguments = {(use.path, use.line, use.clip.rpartition("(")[2]) for use in clips if use.config is not None}
    names = {name.encode() for use in clips for name in (use.attribute, use.option) if name}
    names |= {name.strip(b"_") for name in names}
    names |= {name.replace(b"_", b"-") for name in names}
    for path in files:
        is_source = path in sources
        text = readers.project.read(path) if is_source else atomic_files.read_bytes(path) if path in unknown else b""
        may_set_clip = text and (trainer_files.may_name_clip(path) or any(name in text for name in names))
        if not (may_set_clip or readers.entries.of_file("key", path)):
            continue
        is_known = is_source and path in known and b"ml_collections" not in text
        of_trainer = {name for use in of_trainers if use.path == path for name in _options_of(use)}
        kind: settings.Kind = "declared" if not may_set_clip else "of clips" if is_known else "all"
        for use in settings.named(readers, path, of_trainer, kind):
            is_compared = (path, use.line) in compared or (path, use.line, f"{use.attribute}=)") in arguments
            is_compared |= (path, use.line, use.column) in settled
            if use.is_declared or not is_compared:
                yield use


def _options_of(use: ClipUse) -> Iterator[str]:
    """Yield the options of a script that its trainer reads."""
    trainer = FORMATS.get(use.format)
    if trainer is not None and use.document is not None and use.document.kind == "args":
        yield from (str(keys[-1]).replace("-", "_") for keys in placement.read_paths(use.document, trainer))


def _add_unreadable(path: Path, problem: str, file_uses: FoundClips) -> None:
    file_uses.unread += 1
    if trainer_files.names_clip(path):
        change = "Split the file" if problem.startswith(files_to_check.TOO_LARGE) else "Make the file readable"
        advice = "or compare its clips with the clip configuration by hand, and add it to check.ignore with a reason."
        why = f"The file is not read. {problem} {change}, {advice}"
        file_uses.uses.append(of_unread_file(path, "file", why))
    else:
        file_uses.notes.append(f"{shown(path)} is not read. {problem} The file mentions no clip.")


def _add_configuration(path: Path, uses: Sequence[ClipUse], file_uses: FoundClips) -> None:
    file_uses.trainers += bool(uses)
    file_uses.uses += [use for use in uses if not use.set_elsewhere]
    for use in (use for use in uses if use.set_elsewhere):
        file_uses.elsewhere.append(path)
        file_uses.without_clip.setdefault(use.set_elsewhere, []).append(path)


def _notes_on_other_files(file_uses: FoundClips) -> Iterator[str]:
    for why, [path, *more] in file_uses.without_clip.items():
        sets = f"and {counted(len(more), 'more file')} set" if more else "sets"
        yield f"{shown(path)} {sets} no clip: {why} Also check the file or script that sets the clip."


def _without_left(file_uses: FoundClips, of_sources: Sequence[ClipUse], project: Project, root: Path) -> list[ClipUse]:
    """Leave out the clips whose threshold another checked file or trainer sets, with a note. If that file clips, the
    script is one of its users."""
    uses, kept, users = [*file_uses.uses, *of_sources], list[ClipUse](), dict[int, list[Path]]()
    own = {use.path for use in of_sources if use.is_own}
    has_trainer = any(use.format in BY_TRAINER or use.package in BY_TRAINER for use in uses)
    for use in uses:
        note = LEFT_TO_TRAINER if has_trainer and _is_left_to_trainer(use) else ""
        if SET_OUTSIDE in use.why_unknown:
            files = _files_that_set(use, uses, root, is_hydra=b"hydra" in project.read(use.path))
            if files and (use.path not in own or all(each.config and is_off(each.config) for each in files)):
                note = SET_IN_FILES.format(files=" and ".join(dict.fromkeys(map(_line, files))))
                for each in files:
                    users.setdefault(id(each), []).extend([use.path] if each.config and not is_off(each.config) else [])
        if note:
            file_uses.notes.append(f"{_line(use)} {use.clip}: {note}")
            file_uses.elsewhere.append(use.path)
        else:
            kept.append(use)
    return [replace(use, users=(*use.users, *users.get(id(use), ()))) for use in kept]


def _files_that_set(use: ClipUse, uses: Sequence[ClipUse], root: Path, *, is_hydra: bool) -> Sequence[ClipUse]:
    """Return the clips in files from which the arguments of a trainer such as `Trainer(**cfg.trainer)` come, if all of
    them are known."""
    files = _files_of_trainer(use, uses, root, is_hydra=is_hydra)
    return files if all(each.config is not None for each in files) else []


def _is_left_to_trainer(use: ClipUse) -> bool:
    """Return whether a file of Accelerate leaves the threshold of DeepSpeed to the trainer."""
    if use.format != "accelerate" or use.engine != DEEPSPEED or use.document is None:
        return False
    place = placement.first_read(use.document, FORMATS["accelerate"])
    return use.by_default or use.document.get(*place) == "auto"


def _line(use: ClipUse) -> str:
    return f"{shown(use.path)}:{use.line}"


def _files_of_trainer(use: ClipUse, uses: Sequence[ClipUse], root: Path, *, is_hydra: bool) -> list[ClipUse]:
    """Return the clips in files of the same trainer near a script. A script with Hydra can also read `conf/**`."""
    format_ = ARGUMENT_FORMATS.get(use.package)
    of_trainer = [each for each in uses if each.format == format_ != ""]
    near = [each for each in of_trainer if patterns.is_near(each.path, use.path, root)]
    if near or not is_hydra:
        return near
    return [each for each in of_trainer if CONFIGURATIONS.match(patterns.relative(each.path, root))]
