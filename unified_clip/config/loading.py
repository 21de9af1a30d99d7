"""Check that a document is a configuration of this package."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .documents import Document, shown
from .schema import VERSION, Settings
from .validation import first_error


def checked(document: Document) -> dict[str, Any]:
    """The data of a document, found to be settings."""
    data = document.data
    if not isinstance(data, dict):
        raise ConfigError(f"{document.name}: it holds no table, but {shown(data)}; it needs at least a rule")
    data = {key: value for key, value in data.items() if key != "$schema"}
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise document.wrong(
            ["version"], f"it is {version}, and this unified_clip knows version {VERSION}; install a later unified_clip"
        )
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        raise first_error(error, document, Settings) from None
    return data
