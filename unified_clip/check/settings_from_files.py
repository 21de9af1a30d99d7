"""Check scripts in which a trainer such as LightningCLI reads the clip from a configuration file."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from ..config.formats import FORMATS
from ..port.catalog import settings
from . import patterns
from .advice import is_of_trainer
from .clip_use import ARGUMENT_FORMATS, ClipUse, shown
from .notebooks.cells import source_of

READS = "{function} reads {keyword} from a configuration file or the command line."
NOTE = (
    "{place} {function} reads {keyword} from a file. The clip in {files} agrees with {own}. Options on a command line "
    "override the file. The check sees only the command lines in checked files."
)


OWN_DEFAULT = (
    "{place} sets the default of {option} to {value}. The check assumes timm's own default, {usual}, in timm's files "
    "and scripts. So the check might miss a difference."
)
PASSED = (
    "{place} passes {argument}={value} to {function}. So the same setting in timm's files and scripts possibly has no "
    "effect."
)
RESTORE = (
    "Restore timm's code. Or compare this clip with the clip configuration by hand, and add the clip to check.ignore "
    "with a reason."
)
DEFAULTS = {"clip_grad": None, "clip_mode": "norm"}
COMPUTED = ast.Constant | ast.UnaryOp | ast.BinOp | ast.IfExp
"""Expressions that change a setting, unlike `args.clip_grad`."""


def problem(use: ClipUse) -> str:
    """Return why this Python script of timm clips otherwise than its options and files say."""
    source = source_of(use.path) if use.package == "timm" else None
    for call in source.calls if source is not None else ():
        place, function = f"Line {call.lineno}", ast.unparse(call.func)
        passed = {each.arg: each.value for each in call.keywords}
        options = [each.value for each in call.args if isinstance(each, ast.Constant)]
        for name, usual in DEFAULTS.items():
            option = f"--{name.replace('_', '-')}"
            is_default = option in options or function.endswith("set_defaults")
            value = passed.get("default" if option in options else name)
            same = usual if is_default else "norm"
            if value is None or (isinstance(value, ast.Constant) and value.value == same):
                continue
            code = ast.unparse(value)
            if is_default:
                return OWN_DEFAULT.format(place=place, option=option, value=code, usual=repr(usual))
            if isinstance(value, COMPUTED):
                return PASSED.format(place=place, argument=name, value=code, function=function)
    return ""


def _parts(use: ClipUse) -> tuple[str, str]:
    function, _, keyword = use.clip.partition("(")
    return function, keyword.rstrip("=)")


def reads_file(use: ClipUse) -> bool:
    return use.is_set_outside and any(_parts(use)[0] in each.elsewhere for each in settings())


def files_of(use: ClipUse, uses: Sequence[ClipUse], root: Path) -> list[ClipUse]:
    return [
        each
        for each in uses
        if is_of_trainer(use, each.format) or (each.is_callback and each.config is not None)
        if not each.must_be_off
        if any(patterns.is_near(file, use.path, root) for file in each.files)
    ]


def why(use: ClipUse, files: Sequence[ClipUse], own: str) -> str:
    function, keyword = _parts(use)
    title = FORMATS[ARGUMENT_FORMATS[use.package]].title
    reason = READS.format(function=function, keyword=keyword)
    if not files:
        return f"{reason} No checked file near this script is a configuration of {title}."
    return f"{reason} The clips in these files near the script differ from {own}: {_names(files)}."


def note(use: ClipUse, files: Sequence[ClipUse], own: str) -> str:
    function, keyword = _parts(use)
    return NOTE.format(
        place=f"{shown(use.path)}:{use.line}", function=function, keyword=keyword, files=_names(files), own=own,
    )  # fmt: skip


def _names(files: Sequence[ClipUse]) -> str:
    return " and ".join(dict.fromkeys(f"{shown(each.path)}:{each.line}" for each in files))
