"""The backends of the frameworks. Each backend imports only its own framework."""

from __future__ import annotations

import re
import warnings

from .. import _guard as guard
from ..errors import ClipWarning

OLDEST = {"torch": "2.4", "tensorflow": "2.15", "paddle": "2.6", "jax": "0.5.3", "mlx": "0.32.4", "numpy": "1.26"}
"""The oldest release of each framework that the tests have run with. `pyproject.toml` has the same releases."""


def is_too_old(framework: str, version: str) -> bool:
    """Return False for a version such as 0.0.0, which some builds from source have."""
    installed, oldest = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (version, OLDEST[framework]))
    return any(installed) and installed < oldest


def check_release(framework: str, version: str) -> None:
    """Warn of an old release. A backend calls this function before it uses the framework."""
    if is_too_old(framework, version):
        message = (
            f"{framework} {version} is older than {OLDEST[framework]}, the oldest release that unified_clip supports. "
            f"Some functions may fail. Update {framework}."
        )
        guard.warn(message, lambda message: warnings.warn(message, ClipWarning, stacklevel=4))
