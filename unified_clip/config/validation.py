from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .documents import Document, format_value
from .documents.model_errors import first_error
from .schema import VERSION, Settings


def settings_data(document: Document) -> dict[str, Any]:
    data = document.data
    if not isinstance(data, dict):
        remedy = 'Give keys and values, such as {"rule": "norm", "threshold": 1.0}.'  # both YAML and JSON
        raise ConfigError(f"{document.name} contains {format_value(data)}, which is not a table. {remedy}")
    for keys, _, _ in document.duplicates:
        line = document.line(keys)
        raise ConfigError(f"{document.name}, line {line}: the key {keys[-1]!r} occurs twice. Remove one.")
    data = {key: value for key, value in data.items() if key != "$schema"}
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise document.wrong(
            ["version"],
            f"this release of unified_clip supports configurations of version {VERSION}, not of version {version}. "
            "Install a later release.",
        )
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        raise first_error(error, document, Settings) from None
    return data
