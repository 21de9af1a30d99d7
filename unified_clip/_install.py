"""The command that installs an extra of this package, for error messages. docs/install.md is the page for readers."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

PACKAGE_PARENT = Path(__file__).parents[1]
CLONE = "path/to/unified_clip"
"""The placeholder for a clone whose path is unknown."""


def command(extra: str) -> str:
    """Return the `pip install` command for an extra of the installed package.

    The package is not on the package index, so the command names the clone or archive that it was installed from
    (`direct_url.json`, PEP 610).

    Example:
        >>> command("cli").startswith("pip install '") and command("cli").endswith("[cli]'")
        True
    """
    return f"pip install {shlex.quote(f'{_source()}[{extra}]')}"


def _source() -> str:
    if (PACKAGE_PARENT / "pyproject.toml").is_file():  # imported from a clone
        return str(PACKAGE_PARENT)
    try:
        recorded = metadata.distribution("unified_clip").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return CLONE
    if recorded is None:  # pip took it from an index
        return "unified_clip"
    url = urlsplit(json.loads(recorded)["url"])
    path = Path(url2pathname(url.path))
    return str(path) if url.scheme == "file" and path.exists() else CLONE
