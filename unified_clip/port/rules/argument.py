"""Rules for arguments that switch clipping on, such as `Adam(clipnorm=1.0)`, and for `need_clip=False`."""

from __future__ import annotations

from .. import trainer_arguments
from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..to_config import has_several_limits, is_off_in_keras, is_standalone_clipnorm
from .function import flag_if_unsupported
from .registry import RuleOrder, register

VERSIONS_DIFFER = (
    "Standalone Keras up to 2.3.1 clips by the global norm. From 2.4 on, including Keras 3, Keras clips each tensor by "
    "its own norm. To print your version, run `python -c 'import keras; print(keras.__version__)'`. From 2.4 on, "
    'replace clipnorm= by ClipConfig(rule="norm", threshold={}, family="tensorflow").attach_to(optimizer). Up to '
    '2.3.1, write rule="global_norm" and family="paddle" in this call, because these versions clip by the same formula '
    "as Paddle."
)

OFF_IN_KERAS = (
    "A threshold of 0 or less switches clipping off in Keras up to 2.3.1, and in 2.11 and later. Between these "
    "versions, tf.keras sets all gradients to 0, or rejects the threshold. To clip nothing, remove this argument."
)

SEVERAL_LIMITS = (
    "The call passes several of clipnorm, clipvalue and global_clipnorm. Keras 3 rejects this. TensorFlow 2.11 to 2.15 "
    "ignores clipvalue here: remove clipvalue. Older versions and optimizers.legacy clip twice. Standalone Keras, and "
    "TensorFlow up to 2.3, clip by norm first. Later versions clip by value first. Clip twice by hand in this order."
)


def is_need_clip(clip: FoundClip) -> bool:
    return clip.name == "need_clip" or clip.name.endswith("(need_clip=)")


@register(RuleOrder.OFF, matches=lambda clip: clip.setting is not None)
def leave_off(file: FileRewrite, clip: FoundClip) -> None:
    if clip.setting is not None and trainer_arguments.is_off(file.module, clip):
        file.leave(clip, f"A threshold of {clip.setting.off} switches clipping off.")


@register(RuleOrder.JUDGE, matches=lambda clip: clip.argument is not None and not is_need_clip(clip))
def judge_limit(file: FileRewrite, clip: FoundClip) -> None:
    assert clip.argument is not None
    if (threshold := file.module.code(clip.argument.value)) == "None":
        file.leave(clip, "A threshold of None switches clipping off.")
    elif is_off_in_keras(file.module, clip):
        file.flag(clip, OFF_IN_KERAS)
    elif has_several_limits(file.module, clip):
        file.flag(clip, SEVERAL_LIMITS)
    elif is_standalone_clipnorm(file.module, clip):
        file.flag(clip, VERSIONS_DIFFER.format(threshold))
    elif clip.function.name:
        flag_if_unsupported(file, clip)


@register(RuleOrder.CALLS, matches=lambda clip: not clip.kind and not is_need_clip(clip), target="drop-in")
def flag_limit(file: FileRewrite, clip: FoundClip) -> None:
    file.flag(
        clip,
        "With this argument, the optimizer clips gradients. Remove the argument, and call "
        "ClipConfig(...).attach_to(optimizer).",
    )


@register(RuleOrder.CALLS, matches=is_need_clip, target="torch")
def flag_need_clip(file: FileRewrite, clip: FoundClip) -> None:
    if clip.name == "need_clip":
        reason = (
            "Keep this line: unified_clip also reads need_clip from PyTorch's parameters. Check that the parameter in "
            "this line belongs to the PyTorch model."
        )
    else:
        reason = (
            "Remove this argument. Instead, set the attribute need_clip of the parameter to False, as in "
            "layer.bias.need_clip = False for bias_attr=. unified_clip reads this attribute."
        )
    file.flag(clip, reason)


@register(RuleOrder.CALLS, matches=is_need_clip, target="drop-in")
def leave_need_clip(file: FileRewrite, clip: FoundClip) -> None:
    file.leave(clip, "unified_clip reads need_clip, too.")
