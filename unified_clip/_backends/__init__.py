"""The backends of the frameworks. Each backend imports only its own framework."""

from __future__ import annotations

import warnings

from ..errors import ClipWarning
from ..recorder import OLDEST, guard, is_too_old


def check_release(framework: str, version: str) -> None:
    """Warn of an old release. A backend calls this function before it uses the framework."""
    if is_too_old(framework, version):
        message = (
            f"{framework} {version} is older than {OLDEST[framework]}, the oldest release that unified_clip supports. "
            f"Some functions may fail. Update {framework}."
        )
        guard.warn(message, lambda message: warnings.warn(message, ClipWarning, stacklevel=4))
