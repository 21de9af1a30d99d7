"""Functions that clip gradients: `clip_grad_norm_`. They become unified_clip's functions of the same name."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..clip_call import Arguments, FoundClip
from ..file_rewrite import FileRewrite
from .registry import Stage, register

UNKNOWN_ARGUMENTS = "Its arguments are unknown: {}"


def is_known(clip: FoundClip) -> bool:
    """Return whether a function or class is called or named, and not an argument of an optimizer."""
    return clip.function is not None and clip.function.kind != "any tensor" and not isinstance(clip.node, cst.Arg)


def is_function(clip: FoundClip) -> bool:
    return clip.function is not None and clip.function.kind not in ("class", "program")


def is_replaceable(clip: FoundClip) -> bool:
    """Return whether a function can be replaced in its own framework."""
    return clip.function is not None and clip.function.kind != "class"


@register(Stage.JUDGE, matches=is_known)
def judge(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        flag_if_unsupported(file, clip)


def flag_if_unsupported(file: FileRewrite, clip: FoundClip) -> None:
    """Flag a clip that unified_clip has no replacement for, or whose arguments are unknown."""
    if reason := _problem(clip):
        file.flag(clip, reason)


def _problem(clip: FoundClip) -> str:
    function = clip.function
    if function is None:
        return ""
    if not function.replacement:
        return function.why_not
    if clip.call is None:
        return ""
    arguments = Arguments(clip.call, function.parameters)
    unknown = [each for each in arguments.unknown if each.rstrip("=") not in function.renamed]
    if [each for each in unknown if not each.startswith("*")] or (unknown and function.renamed):
        return UNKNOWN_ARGUMENTS.format(", ".join(unknown))
    if function.name == "paddle.clip" and not {"min", "max"} <= set(arguments.given):
        return "It has one bound only."
    return ""


@register(Stage.CALLS, matches=is_function, target="torch", native=False)
def rename(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.rename(clip, "torch")


@register(Stage.CALLS, matches=is_replaceable, target="drop-in")
def rename_drop_in(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        assert clip.function is not None
        file.rename(clip, clip.function.framework)
