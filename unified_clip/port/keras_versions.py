"""Tell apart the versions of Keras by what a file uses: limits of optimizers changed their meaning."""

from __future__ import annotations

import libcst as cst

from .catalog import KERAS_RULES
from .clip_call import FoundClip
from .source.module import Module

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


def is_standalone_clipnorm(module: Module, found: FoundClip) -> bool:
    """Return whether clipnorm= belongs to standalone Keras, where it changed its meaning after 2.3.1."""
    if not found.name.startswith("keras.") or not found.name.endswith("(clipnorm=)"):
        return False
    return not any(name.startswith(KERAS_3) for name in module.used_names)


def rule(module: Module, found: FoundClip) -> tuple[str, str]:
    """Return rule and family of an optimizer's limit; '' if the version cannot be seen."""
    keyword = found.node.keyword.value if isinstance(found.node, cst.Arg) and found.node.keyword else ""
    if not is_standalone_clipnorm(module, found):
        return KERAS_RULES.get(keyword, ""), "tensorflow"
    given = {each.keyword.value for each in found.call.args if each.keyword} if found.call is not None else set()
    is_old = bool(given & OLD_ARGUMENTS) or any(name.startswith(KERAS_2) for name in module.used_names)
    return ("global_norm", "paddle") if is_old else ("", "")
