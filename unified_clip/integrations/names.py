"""Check the parameter names that users pass to integrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._core.types import with_article
from ..recording.clip_event import as_mapping


def checked_names(names: Any, is_parameter: Callable[[Any], bool], title: str) -> Any:
    names = as_mapping(names)
    parameters = dict(names.named_parameters()) if hasattr(names, "named_parameters") else names
    for name, parameter in parameters.items() if isinstance(parameters, Mapping) else ():
        if not is_parameter(parameter):
            kind = f"{type(parameter).__module__}.{type(parameter).__qualname__}".removeprefix("builtins.")
            raise TypeError(
                f"{name!r} in `names` is {with_article(kind)}, not a parameter of {title}. "
                "Pass the model that the optimizer trains, or a dict of name to parameter."
            )
    return names
