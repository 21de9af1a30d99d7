"""An extension of griffe, which reads docstrings for mkdocstrings. Examples become code, names of pages become links,
and functions lose the parameter that `Framework.bind` fills."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"`?docs/([\w/]+\.md)`?", r"[docs/\1](../\1)", text)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.module.path.startswith("unified_clip._api.") and "framework" in func.parameters:
            del func.parameters["framework"]
