"""Clip classes of Paddle: `paddle.nn.ClipGradByNorm`. `paddle_optimizer` rewrites those that optimizers take."""

from __future__ import annotations

from collections.abc import Sequence

from ..catalog import engines
from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from ..find import is_tested
from .registry import Stage, register

ONLY_NAMED = "It is named but not called, so that its use cannot be seen."


def is_class(clip: FoundClip) -> bool:
    return clip.function is not None and clip.function.kind == "class"


@register(Stage.CALLS, matches=is_class, target="torch")
def flag_only_named(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.flag(clip, ONLY_NAMED)


@register(Stage.CALLS, matches=is_class, target="drop-in")
def rename_drop_in(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Rename classes, unless the file uses an engine that tests for Paddle's own."""
    used = [engine for engine in engines() if any(map(engine.has, file.module.used_names))]
    reason = next((engine.why_not for engine in used if is_tested(file.module, engine)), "")
    for clip in clips:
        assert clip.function is not None
        if reason:
            file.flag(clip, reason)
        else:
            file.rename(clip, clip.function.framework)
