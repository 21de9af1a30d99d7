"""Limits that an optimizer takes, and clips by itself: `Adam(clipnorm=1.0)`.

`tensorflow_tape` rewrites those of Keras together with their training steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from .. import keras_versions
from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from .function import flag_if_unsupported
from .need_clip import is_need_clip
from .registry import Stage, register

VERSIONS_DIFFER = (
    "Standalone Keras clips by the global norm up to 2.3.1, and each tensor by its own norm from 2.4. "
    "Find out which version the file is for."
)


def is_argument(clip: FoundClip) -> bool:
    return isinstance(clip.node, cst.Arg) and not is_need_clip(clip)


def has_no_function(clip: FoundClip) -> bool:
    return clip.function is None and not is_need_clip(clip)


@register(Stage.JUDGE, matches=is_argument)
def judge(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Flag a limit whose meaning depends on the version, and leave None."""
    for clip in clips:
        assert isinstance(clip.node, cst.Arg)
        if keras_versions.is_standalone_clipnorm(file.module, clip):
            file.flag(clip, VERSIONS_DIFFER)
        elif file.module.code(clip.node.value) == "None":
            file.leave(clip, "None switches clipping off.")
        else:
            flag_if_unsupported(file, clip)


@register(Stage.CALLS, matches=has_no_function, target="drop-in")
def flag_drop_in(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    for clip in clips:
        file.flag(clip, "The optimizer clips by itself: attach a configuration instead.")
