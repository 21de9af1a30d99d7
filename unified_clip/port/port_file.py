"""Port one file: find its clips, apply the rules, and return the new code with a result for each clip."""

from __future__ import annotations

from pathlib import Path

from . import by_hand, suggested_code
from .catalog import clip_pattern, may_clip
from .file_rewrite import FileRewrite
from .find import find
from .found_clip import FoundClip
from .ported_clip import UNUSED, PortedClip, PortedFile, Target
from .rules import registry
from .rules.registry import RuleOrder
from .source.identifiers import identifiers
from .source.module import Module
from .source.renames import is_name_taken
from .to_config import UnsureError, meaning


def port(
    path: Path, content: bytes, target: Target = "torch", native: bool = False, *, edit: bool = True
) -> PortedFile:
    """Port the clips of one file. With `edit=False`, only report them, which takes less time."""
    names = identifiers(content)  # parses the file
    if not clip_pattern().search(content) or not may_clip(names):
        return PortedFile(path, content, content)
    module = Module(content, path)
    clips = find(module)
    file = FileRewrite(module, clips, target, native)
    registry.apply(file, RuleOrder.OFF)
    _set_meanings(file)
    registry.apply(file, RuleOrder.JUDGE, RuleOrder.STEPS, RuleOrder.CALLS)
    # Calls that clamp something other than gradients are not reported.
    reported = (clip for clip in clips if not (clip.function.quiet and file.sites[clip].verdict == "left"))
    sites = [_completed(file, clip) for clip in reported]
    sites.sort(key=lambda site: (site.line, site.column))
    if not edit:
        return PortedFile(path, content, content, sites)
    file.renames.apply()
    return PortedFile(path, content, file.edits.to_bytes(), sites, by_hand.remaining(file))


def _set_meanings(file: FileRewrite) -> None:
    file.rule = taken = ""
    if is_name_taken(file.module):
        taken = "This file uses the name unified_clip for another variable, function or import. Rename it."
    for clip in file.with_verdict(None):
        reason = taken or clip.why_not
        try:
            file.sites[clip].meaning = meaning(file.module, clip)
        except UnsureError as error:
            reason = reason or str(error)
        if reason:
            file.flag(clip, reason)


def _completed(file: FileRewrite, clip: FoundClip) -> PortedClip:
    site = file.sites[clip]
    if site.verdict == "flagged" and site.rule != UNUSED:
        site.suggestion = suggested_code.suggested_lines(file.module, clip, file.target, file.gradients)
    if site.verdict != "rewritten" or file.target != "torch":
        site.checks = []
    elif suggested_code.loss_scale_of(file.module, clip) or (
        site.meaning is not None and "scal" in site.meaning.threshold
    ):
        site.checks.append("Do not multiply the threshold by the loss scale: gradients are unscaled before the clip.")
    return site
