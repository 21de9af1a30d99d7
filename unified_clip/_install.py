"""Build the command that installs an extra of this package, for error messages."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

PACKAGE_PARENT = Path(__file__).parents[1]
CLONE = "path/to/unified_clip"


def command(extra: str) -> str:
    """Return the `pip install` command for an extra.

    Example:
        >>> command("cli").startswith("pip install '") and "[cli]" in command("cli")
        True
    """
    if (PACKAGE_PARENT / "pyproject.toml").is_file():  # imported from a clone
        return _pip(f"{PACKAGE_PARENT}[{extra}]")
    from importlib import metadata  # here, to save other commands the 60 ms of these imports
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        recorded = metadata.distribution("unified_clip").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return _placeholder(extra, "unified_clip was not imported from a clone")
    if recorded is None:  # pip took it from an index
        return _pip(f"unified_clip[{extra}]")
    source = json.loads(recorded)
    url = urlsplit(source["url"])
    if url.scheme != "file":
        return _pip(f"unified_clip[{extra}] @ {_address(source)}")
    path = Path(url2pathname(url.path))
    return _pip(f"{path}[{extra}]") if path.exists() else _placeholder(extra, f"{path} no longer exists")


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
