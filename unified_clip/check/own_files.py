"""Recognise unified_clip's own files by their content: clip configurations, and reports of `config check`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.clip_config import ClipConfig
from ..config.documents import KINDS
from ..errors import ConfigError
from .clip_use import shown
from .model import TITLES, CheckReport

KEY = re.compile(r"^\W*(rule|threshold|check|adaptive|groups)\b", re.MULTILINE)
"""Matches a key of a clip configuration, also of one with mistakes."""

REPORT_WORDS = re.compile(rb'"headline"|"unified-clip"|"clip-|^\s*\[\s*\]\s*$')
"""Matches text that each report as JSON contains. A report for GitLab without findings is an empty list."""

KEYS = {"version", "config", "wanted", "headline", "clips", "findings", "notes"}
"""The keys of every report as JSON."""


def may_be_clip_configuration(path: Path) -> bool:
    """Return whether a file is a clip configuration, or may be one with mistakes. Return True if there is no file."""
    if path.is_dir() or path.suffix.lower() not in KINDS:
        return not path.exists()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return KEY.search(text) is not None or is_clip_configuration(path)


def is_clip_configuration(path: Path) -> bool:
    """Return whether a file is a valid clip configuration."""
    if path.suffix.lower() not in KINDS or not path.is_file():
        return False
    try:
        ClipConfig.load(path)
    except ConfigError:
        return False
    return True


def is_report(path: Path) -> bool:
    """Return whether a file is a report of `unified-clip config check` as JSON, SARIF or for GitLab."""
    try:
        content = path.read_bytes() if path.suffix.lower() in KINDS else b""
        data = json.loads(content) if REPORT_WORDS.search(content) else None
    except (OSError, ValueError, RecursionError):
        return False
    return _is_json(data) or _is_sarif(data) or _is_gitlab(data)


def _is_json(data: Any) -> bool:
    return isinstance(data, dict) and KEYS <= data.keys() <= CheckReport.model_fields.keys()


def _is_sarif(data: Any) -> bool:
    try:
        (run,) = data["runs"]
        rules = run["tool"]["driver"]["rules"]
        is_own = run["tool"]["driver"]["name"] == "unified-clip" and {each["id"] for each in rules} <= _rules()
    except (KeyError, TypeError, ValueError):
        return False
    return is_own and data.keys() == {"$schema", "version", "runs"}


def _is_gitlab(data: Any) -> bool:
    keys = {"description", "check_name", "fingerprint", "severity", "location"}
    return isinstance(data, list) and all(
        isinstance(each, dict) and each.keys() == keys and each["check_name"] in _rules() for each in data
    )


def _rules() -> set[str]:
    return {f"clip-{kind}" for kind in TITLES}


def note(reports: Sequence[Path]) -> list[str]:
    """Return a list with one note that names the reports that the check does not read. Return [] if there are none."""
    names = ", ".join(map(shown, reports))
    return [f"Not read, because they are reports of unified-clip config check: {names}."] if reports else []
