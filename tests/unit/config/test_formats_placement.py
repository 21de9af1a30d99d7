"""A clip key at a place that its trainer does not read is an error, never a default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.config.format_samples import SAMPLES, Sample


def write_file(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def samples_with(key: str) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.shows == key]


@pytest.mark.parametrize("sample", samples_with("misplaced"), ids=str)
def test_a_sample_with_a_misplaced_clip_key_names_its_line(sample: Sample) -> None:
    assert sample.error is not None
    assert re.match(rf"{re.escape(sample.file)}, line \d+, [^:]+: {re.escape(sample.format.title)} ", sample.error)


@pytest.mark.parametrize("sample", samples_with("unrelated"), ids=str)
def test_a_sample_without_any_key_of_the_trainer_has_an_error(sample: Sample) -> None:
    assert f"no key shows that this is a file of {sample.format.title}. If the file belongs" in str(sample.error)


@pytest.mark.parametrize("sample", samples_with("absent"), ids=str)
def test_a_sample_without_a_clip_key_has_a_note(sample: Sample) -> None:
    assert "default" in " ".join([*sample.notes, sample.error or ""])
