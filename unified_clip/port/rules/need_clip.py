"""`need_clip=False`: parameters that Paddle excludes from clipping."""

from __future__ import annotations

from collections.abc import Sequence

from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from .registry import Stage, register


def is_need_clip(clip: FoundClip) -> bool:
    return clip.name == "need_clip" or clip.name.endswith("(need_clip=)")


@register(Stage.CALLS, matches=is_need_clip, target="torch")
def flag(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.flag(clip, "Set need_clip = False on PyTorch's parameters: unified_clip reads that attribute.")


@register(Stage.CALLS, matches=is_need_clip, target="drop-in")
def leave(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.leave(clip, "unified_clip supports it as it is.")
