"""Check parameter names that users pass to integrations: a model, or a dict of name to parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def check_names(names: Any, is_parameter: Callable[[Any], bool], title: str) -> None:
    """Raise TypeError if a value in a model, or in a dict, is not a parameter of the framework `title`."""
    is_model = callable(getattr(names, "named_parameters", None))
    parameters = dict(names.named_parameters()) if is_model else names
    for name, parameter in parameters.items() if isinstance(parameters, Mapping) else ():
        if not is_parameter(parameter):
            raise TypeError(
                f"names is a {_type(names)}, and its {name!r} is a {_type(parameter)}, not a parameter of {title}. "
                "Pass the model that the optimizer trains, or a dict of name to its parameters."
            )


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
