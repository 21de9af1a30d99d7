"""The file of a recording: JSON lines, each written whole."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

encode = json.JSONEncoder().encode


class Lines:
    """A new file, which must not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            message = f"{path} is there already, and a file holds one run; name another, or remove it"
            raise FileExistsError(message) from None

    def write(self, line: dict[str, Any]) -> None:
        """Write a line at once, so that a crash leaves every line whole but the last. OSError: no more can follow."""
        text = encode(line)
        if "NaN" in text or "Infinity" in text:  # which is no JSON, or in a name
            text = encode(_finite(line))
        data = text.encode() + b"\n"
        if os.write(self._file, data) < len(data):
            raise OSError("the disk took a part of a line")

    def close(self) -> None:
        os.close(self._file)


def _finite(value: Any) -> Any:
    """The same with NaN and infinities as strings: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
