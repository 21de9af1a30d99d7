"""What differs between releases of NumPy. Each line names the release that made it unnecessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

byte_bounds: Callable[[Any], tuple[int, int]] = (
    np.lib.array_utils.byte_bounds if hasattr(np.lib, "array_utils") else np.byte_bounds  # type: ignore[attr-defined]  # until NumPy 2.0
)
