"""Port one file: find its clips, apply the rules, and return the new code with a result for each clip."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ..source.module import Module
from ..source.tree import Target as NameNode
from ..source.tree import is_simple
from . import suggested_code
from .catalog import FRAMEWORKS, clip_pattern, may_clip
from .file_rewrite import FileRewrite, is_name_taken
from .find import find, identifiers
from .found_clip import FoundClip
from .ported_clip import UNUSED, PortedClip, PortedFile, Target
from .rules import registry
from .rules.registry import RuleOrder
from .to_config import UnsureError, meaning

STEP = re.compile(r"\.(step|apply_gradients|minimize)\(")
BETWEEN = (
    (
        re.compile(r"(?i)all_?reduce"),
        "line {} adds up gradients after the clip in line {}, so each process clips its own gradients. To clip the "
        "sum, clip after that line.",
    ),
    (
        re.compile(r"(?i)weight_?decay|decay_?weight"),
        "line {} applies weight decay after the clip in line {}. Keep this order.",
    ),
)
SHOWN = 3


def port(
    path: Path, content: bytes, target: Target = "torch", *, edit: bool = True, module: Module | None = None
) -> PortedFile:
    """Port the clips of one file. With `edit=False`, only report them, which takes less time.

    module: The parsed file, if it is parsed already.
    """
    module = module or Module(content, path)
    if not clip_pattern().search(content) or not may_clip(identifiers(module)):
        return PortedFile(path, content, content)
    clips = find(module)
    file = FileRewrite(module, clips, target)
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
    return PortedFile(path, content, file.edits.to_bytes(), sites, _remaining(file))


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


def _remaining(file: FileRewrite) -> list[str]:
    """List names of the old framework, and code between a clip and its step, that users still have to port by hand."""
    clips = [clip for clip in file.clips if file.sites[clip].verdict != "left" and file.sites[clip].rule != UNUSED]
    lines = dict.fromkeys(line for clip in clips for line in _between_clip_and_step(file.module, clip))
    is_mixed = file.target == "torch" and bool(file.with_verdict("rewritten"))
    return [*(_old_names(file.module, {clip.node for clip in clips}) if is_mixed else ()), *lines]


def _old_names(module: Module, clips: set[ast.AST]) -> Iterator[str]:
    lines: dict[str, int] = {}
    for node in module.nodes:
        is_whole = isinstance(node, NameNode) and not isinstance(module.parents.get(node), ast.Attribute)
        if is_whole and node not in clips and module.enclosing(node, ast.Import, ast.ImportFrom) is None:
            name = module.full_name(node)
            if "." in name and FRAMEWORKS.get(name.partition(".")[0], "PyTorch") != "PyTorch":
                lines.setdefault(name, module.position(node)[0])
    if lines:
        shown = [f"{name} (line {line})" for name, line in [*lines.items()][:SHOWN]]
        frameworks = " and ".join(sorted({FRAMEWORKS[name.partition(".")[0]] for name in lines}))
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        yield f"the code still uses {frameworks}, so it does not run yet. Port {', '.join(shown)}{more}."


def _between_clip_and_step(module: Module, clip: FoundClip) -> Iterator[str]:
    function = module.enclosing_definition(clip.node)
    if clip.kind not in ("in place", "functional", "any tensor") or not clip.function.rule:
        return
    line = module.end(clip.call or clip.node)
    lines: list[str] = []
    for statement in (node for node in module.nodes if is_simple(node)):
        place = module.position(statement)[0]
        if place > line and module.enclosing_definition(statement) is function:
            code = module.code(statement)
            lines += [text.format(place, module.position(clip.node)[0]) for name, text in BETWEEN if name.search(code)]
            if STEP.search(code):
                yield from lines
                return
