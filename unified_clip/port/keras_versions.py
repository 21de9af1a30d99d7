"""Infer the version of Keras from the names in a file: limits of optimizers changed their meaning."""

from __future__ import annotations

import libcst as cst

from .catalog import KERAS_RULES
from .clip_call import FoundClip
from .source.module import Module
from .source.syntax_tree import keyword_of, keywords_of

KERAS_3 = ("keras.ops", "keras.random", "keras.KerasTensor", "keras.Variable", "keras.distribution", "keras.saving")
"""Names that exist only from Keras 3."""

KERAS_2 = (
    "keras.backend.tensorflow_backend",
    "keras.backend.set_session",
    "keras.backend.set_image_dim_ordering",
    "keras.layers.merge",
    "keras.utils.multi_gpu_model",
    "keras.utils.np_utils",
    "tensorflow.ConfigProto",
    "tensorflow.Session",
    "tensorflow.contrib",
    "tensorflow.placeholder",
)
"""Names that Keras 2.4 and TensorFlow 2 removed."""

OLD_ARGUMENTS = {"lr", "decay"}
"""Arguments of optimizers that Keras 3 rejects."""


def is_standalone_clipnorm(module: Module, clip: FoundClip) -> bool:
    """Return whether clipnorm= belongs to standalone Keras, where it changed its meaning after 2.3.1."""
    is_standalone = clip.name.startswith("keras.") and clip.name.endswith("(clipnorm=)")
    return is_standalone and not any(name.startswith(KERAS_3) for name in module.used_names)


def rule(module: Module, clip: FoundClip) -> tuple[str, str]:
    """Return rule and family of an optimizer's limit; '' if the version cannot be seen."""
    assert isinstance(clip.node, cst.Arg)
    if not is_standalone_clipnorm(module, clip):
        return KERAS_RULES.get(keyword_of(clip.node), ""), "tensorflow"
    has_old_argument = clip.call is not None and keywords_of(clip.call).keys() & OLD_ARGUMENTS
    is_old = has_old_argument or any(name.startswith(KERAS_2) for name in module.used_names)
    return ("global_norm", "paddle") if is_old else ("", "")
