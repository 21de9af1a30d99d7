"""Every key of every trainer's format in real files, with the expected settings, notes and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from support.config.format_samples import DATA, READ, SAMPLES, Sample, keys_of, row, samples

from unified_clip import ClipConfig, ConfigError
from unified_clip.config.formats import Format
from unified_clip.config.schema import Settings

each_format = pytest.mark.parametrize("trainer", READ.values(), ids=list(READ))
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)


@each_format
def test_every_key_has_a_sample(trainer: Format) -> None:
    row_names = {name for sample in samples(trainer) for name in sample.rows}
    assert row_names, f"tests/data/formats/{trainer.name} has no sample"
    assert row_names == {row(key) for key in keys_of(trainer)}, "of tests/data/formats and of docs/formats.md"


@each_format
def test_every_file_has_an_expected_result(trainer: Format) -> None:
    folder = DATA / trainer.name
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"expected.toml"}
    assert files == {sample.file for sample in samples(trainer)}


@each_format
def test_rejected_keys_have_samples_with_errors_and_other_keys_with_settings(trainer: Format) -> None:
    for key in keys_of(trainer):
        row_samples = [sample for sample in samples(trainer) if row(key) in sample.rows]
        assert all((sample.error is not None) == (key.support == "rejected") for sample in row_samples), key


@each_sample
def test_each_sample_has_its_expected_result(sample: Sample) -> None:
    if sample.error is not None:
        with pytest.raises(ConfigError) as caught:
            ClipConfig.import_from(sample.path, sample.from_)
        assert str(caught.value) == sample.error
        return
    config = ClipConfig.import_from(sample.path, sample.from_)
    data = config.data()
    provenance = data.pop("provenance")
    assert data == sample.settings
    assert provenance.pop("version", None) == sample.version
    assert provenance == {"format": sample.format.name, "file": sample.path.name, "notes": sample.notes}


@each_sample
def test_the_format_of_a_file_is_inferred(sample: Sample) -> None:
    try:
        config = ClipConfig.import_from(sample.path)
        inferred = config.provenance.format if config.provenance else "unified_clip"
    except ConfigError as error:
        message = str(error)
        unknown = "cannot infer the format" in message or "might have the format" in message
        inferred = "unknown" if unknown else sample.format.name
    assert inferred == (sample.format.name if sample.recognised else "unknown")


def is_exported(sample: Sample) -> bool:
    return {key.support for key in keys_of(sample.format) if row(key) in sample.rows} == {"imported and exported"}


@pytest.mark.parametrize("sample", [each for each in SAMPLES if is_exported(each)], ids=str)
def test_imported_settings_are_exported_with_the_same_meaning(sample: Sample, tmp_path: Path) -> None:
    """The test covers samples whose keys are all exported."""
    config = ClipConfig.import_from(sample.path, sample.from_)
    written = tmp_path / sample.path.name
    kinds = {"json": ".json", "yaml": ".yaml", "toml": ".toml"}
    written = written.with_suffix(kinds.get(sample.format.kinds[0], written.suffix))
    written.write_text(config.export_to(sample.format.name, sample.version))
    version = sample.version or str(Version(sample.format.newest))
    again = ClipConfig.import_from(written, f"{sample.format.name}@{version}")
    assert again.meaning == Settings.model_validate(sample.settings).meaning


def test_there_are_300_files_of_20_trainers() -> None:
    files = {sample.path for sample in SAMPLES if sample.shows != "unrelated"}
    assert len(files) >= 300
    assert len({path.parent for path in files}) >= 20
