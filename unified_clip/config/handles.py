"""Make the clips of optimizers, by the modules of `unified_clip.integrations`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..recording.clip_event import as_mapping
from .selection import names_in


def integration(module: str) -> Any:
    """Return a module of `unified_clip.integrations`. This imports its framework."""
    return importlib.import_module(f"unified_clip.integrations.{module}")


def with_names(make: Callable[[Any], Any], names: Any) -> Any:
    """Return the clip of an optimizer that `make(names)` makes. It checks patterns against all names of the model.

    The optimizer may have only some of the model's parameters.
    names: As for `Clipper`, or a layer of Keras.
    """
    names = as_mapping(names)
    handle = make(names)
    variables = getattr(names, "trainable_variables", None)  # of Keras, whose names are their paths
    handle._clipper.declare_names(names_in(names) if variables is None else [each.path for each in variables])
    return handle
