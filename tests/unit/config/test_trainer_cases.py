"""Short files of trainers in `tests/data/trainer_cases.toml`, with the expected settings, notes and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.trainer_cases import CASES, Case, result

from unified_clip.config.formats import FORMATS


@pytest.mark.filterwarnings("ignore")  # the notes are compared
@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.from_}" for number, case in enumerate(CASES)])
def test_a_short_file_has_its_expected_result(case: Case, tmp_path: Path) -> None:
    assert result(case, tmp_path) == case.expected


def test_each_format_has_a_sample_or_a_case_of_a_misplaced_and_of_an_absent_key() -> None:
    from support.config.format_samples import READ, SAMPLES

    formats = {name for name, trainer in READ.items() if trainer.clip_keys}
    assert {*FORMATS} - formats == {"optax", "paddle"}, "Python source"
    for shows in ("misplaced", "absent"):
        shown = {sample.format.name for sample in SAMPLES if sample.shows == shows}
        shown |= {case.from_.partition("@")[0] for case in CASES if case.shows == shows}
        assert formats - shown <= ({"megatron", "mmengine"} if shows == "absent" else set())


@pytest.mark.parametrize("case", [case for case in CASES if case.shows], ids=lambda case: case.from_)
def test_a_misplaced_key_is_an_error_and_an_absent_key_a_note(case: Case) -> None:
    if case.shows == "absent":
        assert "default" in " ".join(case.expected["notes"])
    else:
        assert "settings" not in case.expected
