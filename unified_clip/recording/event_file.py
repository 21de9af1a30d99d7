"""The file of a recording: JSON lines, each written whole."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

encode = json.JSONEncoder().encode


class EventFile:
    """Writer of event files. The file must not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            message = f"{path} exists already, and a file has one run. Remove it, or pass another path."
            raise FileExistsError(message) from None

    def write(self, line: dict[str, Any]) -> None:
        """Write a line in one operation, so that a crash tears only the last one. After an OSError, write no more."""
        text = encode(line)
        if "NaN" in text or "Infinity" in text:  # no JSON, or part of a name
            text = encode(_finite(line))
        data = text.encode() + b"\n"
        if os.write(self._file, data) < len(data):
            raise OSError("only a part of a line was written")

    def close(self) -> None:
        os.close(self._file)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by strings: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
