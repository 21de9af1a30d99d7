"""Work that ends its process, in a module that a new process can import."""

from __future__ import annotations

import os
from pathlib import Path

from unified_clip.port.ported_clip import PortedFile


def unless_it_kills(path: Path) -> PortedFile:
    if path.name == "kills.py":
        os._exit(1)
    return PortedFile(path, b"", b"")
