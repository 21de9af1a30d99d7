"""Validate a document as a clip configuration."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .documents import Document, format_value
from .schema import VERSION, Settings
from .validation import first_error


def validated(document: Document) -> dict[str, Any]:
    """Return the data of a document. Raise ConfigError unless it is valid."""
    data = document.data
    if not isinstance(data, dict):
        raise ConfigError(f"{document.name}: it is {format_value(data)}. Give a table with at least a rule.")
    data = {key: value for key, value in data.items() if key != "$schema"}
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise document.wrong(
            ["version"], f"it is {version}. This unified_clip supports version {VERSION}. Install a later unified_clip."
        )
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        raise first_error(error, document, Settings) from None
    return data
