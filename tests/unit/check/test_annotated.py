"""Each case of tests/data/check/cases has the clips that its annotations list, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.annotated import CASES, cases, found


def test_the_check_finds_the_annotated_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases are one test, so that each change runs all of them."""
    all_cases = [case for path in sorted(CASES.iterdir()) for case in cases(path)]
    for number, case in enumerate(all_cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert (case.name, found(case)) == (case.name, case.clips)
