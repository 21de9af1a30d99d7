"""Numbers that JSON has no way to write."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """NaN and infinities, in dicts, lists and tuples too, as the strings "nan", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
