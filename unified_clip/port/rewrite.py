"""Port one file: find its clips, apply the rules, and describe the result."""

from __future__ import annotations

from pathlib import Path

from . import suggest
from .catalog import may_clip, words
from .clip_call import FoundClip
from .clip_site import ClipSite, PortedFile, Target
from .file_rewrite import FileRewrite
from .find import find
from .rules import registry
from .rules.registry import Stage
from .source.module import Module
from .source.parse_guard import identifiers
from .source.renames import is_name_taken
from .to_config import UnsureError, meaning, of_family

NAME_TAKEN = "In this file, the name unified_clip stands for something else."
SCALED_THRESHOLD = "Do not multiply the threshold by the loss scale: gradients are unscaled before the clip."


def port(path: Path, content: bytes, target: Target = "torch", native: bool = False) -> PortedFile:
    """Port the clips in a file.

    Args:
        path: Its path.
        content: Its bytes.
        target: "torch", or "drop-in" to keep the framework.
        native: Write PyTorch's own functions, not those of unified_clip. Only for "torch".

    Raises:
        UnreadableError: It is not Python source that can be parsed.
    """
    if not words().search(content):
        return PortedFile(path, content, content)
    names = identifiers(content)
    if names is not None and not may_clip(names):
        return PortedFile(path, content, content)
    module = Module(content, path)
    clips = find(module)
    if not clips:
        return PortedFile(path, content, content)
    file = rewrite(module, clips, target, native)
    sites = sorted((_site(file, clip) for clip in _reported(file)), key=lambda site: (site.line, site.column))
    return PortedFile(path, content, file.to_bytes(), sites)


def rewrite(module: Module, clips: list[FoundClip], target: Target, native: bool) -> FileRewrite:
    """Decide about all clips of a file, and collect the changes."""
    file = FileRewrite(module, clips, target, native)
    registry.apply(file, Stage.OFF)
    _read_thresholds(file)
    registry.apply(file, Stage.JUDGE, Stage.STEPS, Stage.CALLS)
    return file


def _read_thresholds(file: FileRewrite) -> None:
    """Express each clip as a configuration, and flag those that cannot be rewritten for certain."""
    file.rule, is_taken = "", is_name_taken(file.module)
    for clip in file.undecided():
        reason = NAME_TAKEN if is_taken else clip.unsure
        try:
            file.meanings[clip] = meaning(file.module, clip)
        except UnsureError as unsure:
            reason = reason or str(unsure)
        if reason:
            file.flag(clip, reason)


def _reported(file: FileRewrite) -> list[FoundClip]:
    """Return the clips without calls that clamp something other than gradients."""
    left = {clip for clip in file.with_verdict("left") if clip.function is not None and clip.function.quiet}
    return [clip for clip in file.clips if clip not in left]


def _site(file: FileRewrite, clip: FoundClip) -> ClipSite:
    """Describe a clip and what happened to it."""
    decision = file.decisions[clip]
    assert decision.verdict is not None
    is_rewritten, is_flagged = decision.verdict == "rewritten", decision.verdict == "flagged"
    line, column = file.module.position(clip.node)
    before = file.meanings.get(clip)
    checks = list(decision.checks)
    if suggest.scale(file.module, clip) or (before is not None and "scal" in before.threshold):
        checks.append(SCALED_THRESHOLD)
    return ClipSite(
        line=line,
        column=column,
        name=clip.name,
        text=file.module.line(line),
        verdict=decision.verdict,
        meaning=before,
        becomes=decision.becomes,
        becomes_meaning=of_family(before, decision.family) if is_rewritten else None,
        reason=decision.reason,
        suggestion=suggest.lines(file.module, clip, file.target) if is_flagged else (),
        checks=checks if is_rewritten and file.target == "torch" else (),
        rule=decision.rule,
    )
