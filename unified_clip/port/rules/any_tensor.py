"""Functions that clamp any tensor: `tf.clip_by_value`, `Tensor.clamp_`. Only clips of gradients are ported."""

from __future__ import annotations

from collections.abc import Sequence

from ..clip_call import Arguments, FoundClip
from ..file_rewrite import FileRewrite
from .function import UNKNOWN_ARGUMENTS, flag_if_unsupported
from .paddle_class import ONLY_NAMED
from .registry import Stage, register

LIKE_GRADIENT = "Its name is that of a gradient, but it cannot be traced to one."
MADE_OF_GRADIENT = "The clipped expression contains a gradient, but it may not be one itself."
NO_GRADIENT = "The clipped tensor is no gradient that can be traced."


def clips_any_tensor(clip: FoundClip) -> bool:
    return clip.function is not None and clip.function.kind == "any tensor"


@register(Stage.JUDGE, matches=clips_any_tensor)
def judge(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Leave what clips no gradient, and flag what may clip one."""
    for clip in clips:
        _judge(file, clip)


def _judge(file: FileRewrite, clip: FoundClip) -> None:
    call, function = clip.call, clip.function
    assert function is not None
    if call is None:
        file.flag(clip, ONLY_NAMED)
        return
    arguments = Arguments(call, function.parameters)
    tensor = clip.tensor or arguments.value(function.parameters[0])
    if tensor is not None and file.gradients.is_gradient(tensor):
        flag_if_unsupported(file, clip)
    elif tensor is None and arguments.unknown:
        file.flag(clip, UNKNOWN_ARGUMENTS.format(", ".join(arguments.unknown)))
    elif tensor is not None and function.name != "paddle.clip" and file.gradients.has_gradient_name(tensor):
        file.flag(clip, LIKE_GRADIENT)
    elif tensor is not None and file.gradients.contains_gradient(tensor):
        file.flag(clip, MADE_OF_GRADIENT)
    else:
        file.leave(clip, NO_GRADIENT)
