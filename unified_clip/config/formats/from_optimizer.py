"""Read the clip settings of an optimizer. This module imports no framework."""

from __future__ import annotations

import sys
from typing import Any

from packaging.version import Version

from ..._core.types import with_article
from ...errors import ConfigError
from ..documents import Document
from .base import Imported
from .trainers.keras import KERAS, NAMES
from .trainers.paddle import ARGUMENTS, PADDLE, PER_GROUP

KERAS_BASES = ("Optimizer", "OptimizerV2")
"""Before Keras 2.11, the base class of optimizers is OptimizerV2."""


def data(optimizer: Any) -> dict[str, Any]:
    modules = [base.__module__ for base in type(optimizer).__mro__]
    packages = {module.partition(".")[0] for module in modules}
    for package, read in (("keras", _keras), ("tf_keras", _keras), ("paddle", _paddle)):
        if package in packages:
            version = sys.modules[package].__version__
            imported = read(optimizer, version)
            provenance = {"format": package.removeprefix("tf_"), "version": version, "notes": imported.notes}
            return {**imported.settings, "provenance": provenance}
    name = _class_of(optimizer)
    message = f"{name} is not an optimizer of Keras or Paddle. Pass such an optimizer."
    if "torch" in packages:
        message = (
            f"{name} does not clip. In PyTorch, the training loop or the trainer clips. Pass the loop's threshold to "
            "ClipConfig, or import the trainer's configuration: ClipConfig.import_from(FILE)."
        )
    elif "optax" in packages:
        message = (
            f"{name} does not expose its clip settings. Pass the threshold of its clip, such as "
            "optax.clip_by_global_norm, to ClipConfig."
        )
    raise TypeError(message)


def _class_of(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _inner(optimizer: Any) -> Any:
    for attribute in ("inner_optimizer", "_inner_opt"):
        inner = getattr(optimizer, attribute, None)
        if inner is not None:
            return _inner(inner)
    return optimizer


def _keras(optimizer: Any, version: str) -> Imported:
    is_optimizer = any(
        base.__name__ in KERAS_BASES and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(optimizer).__mro__
    )
    if not is_optimizer:
        raise TypeError(
            f"{_class_of(optimizer)} is not a Keras optimizer. Pass the optimizer, such as model.optimizer."
        )
    optimizer = _inner(optimizer)
    config = {name: getattr(optimizer, name, None) for name in NAMES}
    legacy = {"is_legacy_optimizer": True} if ".legacy." in type(optimizer).__module__ else {}
    return KERAS.read(Document(type(optimizer).__name__, "", "python", config | legacy), Version(version))


def _paddle(optimizer: Any, _: str) -> Imported:
    optimizer = _inner(optimizer)
    name = type(optimizer).__name__
    if not hasattr(optimizer, "_grad_clip"):
        raise TypeError(
            f"{_class_of(optimizer)} is not a paddle.optimizer.Optimizer. Pass the optimizer that updates the model's "
            "parameters, not an object that wraps the optimizer."
        )
    clip = optimizer._grad_clip
    groups = [group for group in optimizer._param_groups or [] if isinstance(group, dict)]
    if any(group.get("grad_clip", clip) is not clip for group in groups):
        raise ConfigError(
            f"the parameter groups of {name} have different grad_clip values. Write a clip configuration with `groups`."
        )
    if clip is None:
        return Imported({"rule": "none"})
    notes = [PER_GROUP] if len(groups) > 1 else []
    parameters = [tensor for group in groups for tensor in group["params"]] or optimizer._parameter_list or []
    if not all(getattr(parameter, "need_clip", True) for parameter in parameters):
        notes.append("Some parameters have need_clip=False, so Paddle does not clip them. Name them in `exclude`.")
    return Imported(_settings(clip, name), notes)


def _settings(clip: Any, owner: str) -> dict[str, Any]:
    kind = type(clip)
    package = kind.__module__.partition(".")[0]
    if package not in ("paddle", "unified_clip") or kind.__name__ not in ARGUMENTS:
        name = with_article(f"{kind.__module__}.{kind.__qualname__}")
        raise ConfigError(
            f"the grad_clip of {owner} is {name}, which unified_clip cannot import. If a rule of unified_clip has "
            "the same effect, write a clip configuration with that rule."
        )
    if getattr(clip, "need_clip", None) is not None:
        raise ConfigError(
            f"the grad_clip of {owner} selects parameters by its argument need_clip. Write a clip configuration with "
            "`exclude`."
        )
    name = kind.__name__
    values = {key: getattr(clip, key) for key in ARGUMENTS[name] if hasattr(clip, key)}
    arguments = Document(f"{owner}, {name}", "", "python", values)
    if package == "paddle":
        return PADDLE.settings_of(name, arguments)
    if name.endswith("Value"):
        return PADDLE.bounds(arguments, "max", "min")
    return PADDLE.settings("global_norm" if name.endswith("GlobalNorm") else "norm", clip.clip_norm)
