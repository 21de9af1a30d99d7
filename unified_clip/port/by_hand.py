"""List what users still have to port by hand: names of the old framework, and code between a clip and its step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from .catalog import FRAMEWORKS
from .file_rewrite import FileRewrite
from .found_clip import FoundClip
from .ported_clip import UNUSED
from .source.module import Module
from .source.syntax_tree import Target

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


def remaining(file: FileRewrite) -> list[str]:
    clips = [clip for clip in file.clips if file.sites[clip].verdict != "left" and file.sites[clip].rule != UNUSED]
    lines = dict.fromkeys(line for clip in clips for line in _between_clip_and_step(file.module, clip))
    is_mixed = file.target == "torch" and bool(file.with_verdict("rewritten"))
    return [*(_old_names(file.module, {clip.node for clip in clips}) if is_mixed else ()), *lines]


def _old_names(module: Module, clips: set[cst.CSTNode]) -> Iterator[str]:
    lines: dict[str, int] = {}
    for node in module.nodes:
        is_whole = isinstance(node, Target) and not isinstance(module.parents.get(node), cst.Attribute)
        if is_whole and node not in clips and module.enclosing(node, cst.Import, cst.ImportFrom) is None:
            name = module.full_name(node)
            if "." in name and FRAMEWORKS.get(name.partition(".")[0], "PyTorch") != "PyTorch":
                lines.setdefault(name, module.position(node)[0])
    if lines:
        shown = [f"{name} (line {line})" for name, line in [*lines.items()][:SHOWN]]
        frameworks = " and ".join(sorted({FRAMEWORKS[name.partition(".")[0]] for name in lines}))
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        yield f"the code still uses {frameworks}, so it does not run yet. Port {', '.join(shown)}{more}."


def _between_clip_and_step(module: Module, clip: FoundClip) -> Iterator[str]:
    function = module.enclosing(clip.node, cst.FunctionDef)
    if clip.kind not in ("in place", "functional", "any tensor") or not clip.function.rule:
        return
    line = module.end(clip.call or clip.node)
    lines: list[str] = []
    for statement in (node for node in module.nodes if isinstance(node, cst.SimpleStatementLine)):
        place = module.position(statement)[0]
        if place > line and module.enclosing(statement, cst.FunctionDef) is function:
            code = module.code(statement)
            lines += [text.format(place, module.position(clip.node)[0]) for name, text in BETWEEN if name.search(code)]
            if STEP.search(code):
                yield from lines
                return
