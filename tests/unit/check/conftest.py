"""The fixture of the tests of `unified-clip config check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, Check

from unified_clip import ClipConfig
from unified_clip.check import check_files, files_to_check
from unified_clip.check.model import CheckReport


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)

    def call(files: dict[str, str], clip: str = CLIP_CONFIG, *paths: str) -> CheckReport:
        for name, text in {**files, "clip.toml": clip}.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        chosen = [Path(path) for path in paths or (".",)]
        rules = ClipConfig.load("clip.toml").check
        declared = [key.path for key in rules.key] if rules else []
        files_of_paths = files_to_check.files(chosen, Path("clip.toml"), declared)
        return check_files.check(Path("clip.toml"), chosen, files_of_paths)

    return call
