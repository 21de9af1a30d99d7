"""How this package was installed: the command that installs an extra, and the place of the documentation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

PACKAGE_PARENT = Path(__file__).parents[2]
CLONE = "path/to/unified_clip"


def command(extra: str) -> str:
    """Return the `pip install` command for an extra.

    Example:
        >>> command("cli").startswith("pip install '") and "[cli]" in command("cli")
        True
    """
    source = _source()
    if source is None:
        return _placeholder(extra, "unified_clip was not imported from a clone")
    if isinstance(source, str):
        return _pip(f"unified_clip[{extra}]{source and f' @ {source}'}")
    return _pip(f"{source}[{extra}]") if source.exists() else _placeholder(extra, f"{source} no longer exists")


def documentation() -> str:
    """Return the place of the pages that messages name, such as docs/config.md."""
    source = _source()
    if isinstance(source, Path) and (source / "docs").is_dir():
        return str(source / "docs")
    return f"in the source code of unified_clip{f', {source}' if source and isinstance(source, str) else ''}"


def _source() -> Path | str | None:
    """Return the clone, the address that pip installed from, "" for an index, or None if the source is unknown."""
    if (PACKAGE_PARENT / "pyproject.toml").is_file():  # imported from a clone
        return PACKAGE_PARENT
    from importlib import metadata  # here, to save other commands the 60 ms of these imports
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        recorded = metadata.distribution("unified_clip").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if recorded is None:  # pip took it from an index
        return ""
    source = json.loads(recorded)
    url = urlsplit(source["url"])
    return Path(url2pathname(url.path)) if url.scheme == "file" else _address(source)


def _pip(requirement: str) -> str:
    return f"pip install {shlex.quote(requirement)}"


def _placeholder(extra: str, why: str) -> str:
    return f"{_pip(f'{CLONE}[{extra}]')} (replace {CLONE} by the path of your clone: {why})"


def _address(source: Any) -> str:
    address = str(source["url"])
    if version_control := source.get("vcs_info"):
        address = f"{version_control['vcs']}+{address}@{version_control['commit_id']}"
    subdirectory = source.get("subdirectory")
    return f"{address}#subdirectory={subdirectory}" if subdirectory else address
