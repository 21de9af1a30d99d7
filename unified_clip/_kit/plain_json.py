"""Write NaN and infinities as strings, because JSON has no such numbers."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
