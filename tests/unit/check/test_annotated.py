"""Each case of tests/data/check/cases has the clips that its annotations list, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.annotated import CASES, Case, cases, found

ALL = [(path.stem, case) for path in sorted(CASES.iterdir()) for case in cases(path)]


@pytest.mark.parametrize("case", [case for _, case in ALL], ids=[f"{file}: {case.name}" for file, case in ALL])
def test_the_check_finds_the_annotated_clips(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert found(case) == case.clips
