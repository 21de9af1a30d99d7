"""Every way to clip of every trainer in real files, with the expected settings, notes and errors."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from support.config.format_samples import DATA, READ, SAMPLES, Sample, samples
from support.config.trainer_cases import CASES, result

from unified_clip import ClipConfig, ConfigError
from unified_clip.config.formats import Format, Imported, rows
from unified_clip.config.schema import Settings
from unified_clip.facts.trainer_rows import Clip, Trainer, When, trainers

each_format = pytest.mark.parametrize("trainer", READ.values(), ids=list(READ))
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)


@pytest.fixture
def read_ways(monkeypatch: pytest.MonkeyPatch) -> list[Clip]:
    """The ways to clip of facts/trainers by which the sections of files were read."""
    ways: list[Clip] = []
    original = rows._Reading.read

    def read(reading: rows._Reading) -> Imported:
        ways.append(reading.way)
        return original(reading)

    monkeypatch.setattr(rows._Reading, "read", read)
    return ways


@pytest.mark.filterwarnings("ignore")  # the notes are compared
def test_every_way_and_text_of_the_facts_has_a_sample(read_ways: list[Clip], tmp_path: Path) -> None:
    for sample in SAMPLES:
        with contextlib.suppress(ConfigError):
            ClipConfig.import_from(sample.path, sample.from_)
    for case in CASES:
        result(case, tmp_path)
    texts = [text for entry in SAMPLES for text in (*entry.notes, entry.error)]
    texts += [text for case in CASES for text in (*case.expected.get("notes", ()), case.expected.get("error"))]
    printed = " ".join(" ".join(filter(None, texts)).split())
    missing = []
    for name, trainer in trainers().items():
        own = [way for way in trainer.clip if not any(earlier == () for earlier in conditions_before(trainer, way))]
        missing += [f"{name}: {way.layout} {way.key}" for way in own if way not in read_ways]
        owners: list[Trainer | Clip] = [trainer, *trainer.clip]
        said = [rule.say for owner in owners for rule in (*owner.refuse, *owner.note)]
        missing += [f"{name}: {text}" for text in said if not re.search(pattern(text), printed)]
    assert missing == []


def conditions_before(trainer: Trainer, way: Clip) -> list[When]:
    """Return the conditions of the earlier ways in the same layouts. An empty one always holds."""
    earlier = itertools.takewhile(lambda other: other is not way, trainer.clip)
    return [other.when for other in earlier if other.layout in ("", way.layout)]


def pattern(text: str) -> str:
    return re.sub(r"\\\{[^}]*\\\}", ".*", re.escape(" ".join(text.split())))


@each_format
def test_every_file_has_an_expected_result(trainer: Format) -> None:
    folder = DATA / trainer.name
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"expected.toml"}
    assert files == {sample.file for sample in samples(trainer)}


def test_each_sample_has_its_expected_result() -> None:
    """All samples are one test, so that each change runs all of them."""
    for sample in SAMPLES:
        version = {"version": sample.version} if sample.version else {}
        provenance = {"format": sample.format.name, "file": sample.path.name, "notes": sample.notes} | version
        try:
            result: Any = ClipConfig.import_from(sample.path, sample.from_).data()
        except ConfigError as error:
            result = str(error)
        assert result == (sample.error or {**(sample.settings or {}), "provenance": provenance}), sample


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


@each_format
def test_imported_settings_are_exported_with_the_same_meaning(
    trainer: Format, read_ways: list[Clip], tmp_path: Path
) -> None:
    """The test covers files that clip in a way that is exported."""
    exported = 0
    for sample in samples(trainer):
        read_ways.clear()
        if sample.error is not None:
            continue
        config = ClipConfig.import_from(sample.path, sample.from_)
        if not all(way.export and way.key for way in read_ways) or (config.adaptive and trainer.row.export.no_agc):
            continue
        if config.threshold == 0 and sample.version is None and trainer.name == "keras":
            continue  # an export without a version is for Keras 3, which reads 0 as off
        exported += 1
        written = tmp_path / Path(sample.file).name
        kinds = {"json": ".json", "yaml": ".yaml", "toml": ".toml"}
        written = written.with_suffix(kinds.get(trainer.kinds[0], written.suffix))
        written.write_text(config.export_to(trainer.name, sample.version))
        version = sample.version or str(Version(trainer.newest))
        again = ClipConfig.import_from(written, f"{trainer.name}@{version}")
        assert again.meaning == Settings.model_validate(sample.settings).meaning, sample
    assert exported


def test_there_are_300_files_of_20_trainers() -> None:
    files = {sample.path for sample in SAMPLES if sample.shows != "unrelated"}
    assert len(files) >= 300
    assert len({path.parent for path in files}) >= 20
