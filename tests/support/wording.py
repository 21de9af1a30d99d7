"""Snapshots of messages. To write them again, set UPDATE_WORDING=1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def check_wording(file: str, messages: Mapping[str, str]) -> None:
    """Compare messages with the lines of tests/data/parity/FILE, one for each name."""
    path, text = DATA / "parity" / file, "".join(f"{name}: {message}\n" for name, message in messages.items())
    if "UPDATE_WORDING" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
