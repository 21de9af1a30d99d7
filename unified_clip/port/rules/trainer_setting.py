"""Limits that a trainer takes, and clips by itself: `max_grad_norm=`, `gradient_clip_val=`."""

from __future__ import annotations

from collections.abc import Sequence

from .. import trainer_arguments
from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from .registry import Stage, register


def is_trainer_setting(clip: FoundClip) -> bool:
    return clip.setting is not None


@register(Stage.OFF, matches=is_trainer_setting)
def leave_off(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Leave settings of None and 0. `find` gives the others their reason."""
    for clip in clips:
        if trainer_arguments.is_off(file.module, clip):
            file.leave(clip, "None and 0 switch clipping off.")
