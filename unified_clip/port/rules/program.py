"""Functions of Paddle's static programs: `set_gradient_clip`, `append_gradient_clip_ops`."""

from __future__ import annotations

from collections.abc import Sequence

from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from .registry import Stage, register


def is_program(clip: FoundClip) -> bool:
    return clip.function is not None and clip.function.kind == "program"


@register(Stage.CALLS, matches=is_program, target="torch")
def flag(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.flag(clip, "It belongs to a static program of Paddle, which PyTorch does not have: clip in the step.")
