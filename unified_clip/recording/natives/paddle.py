"""Record the clips of unified_clip's classes in static programs of Paddle. Other calls of them record themselves."""

from __future__ import annotations

from ... import paddle
from ...recorder.hooks import CLIP_CALLS, HOOKS
from ...recorder.paddle2 import clip_by_unified_clip


def install() -> None:
    for kind in (paddle.GradientClipByGlobalNorm, paddle.GradientClipByNorm, paddle.GradientClipByValue):
        HOOKS.wrap([(kind, "__call__")], f"a call of {kind.__name__}", CLIP_CALLS.observer(clip_by_unified_clip))
