"""A fixture that writes a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.clip_configs import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written
