"""A list or a table where a trainer's file has a value about clipping is read, or an error of unified_clip."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from unified_clip import ClipConfig, ConfigError

SAMPLES = Path(__file__).parents[2] / "data" / "formats"
ABOUT_CLIPS = ("clip", "grad", "mode", "type", "norm", "algorithm", "run", "threshold", "deepspeed")


def places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*place, key)
        yield from places(value, (*place, key))


def changed(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    data = copy.deepcopy(data)
    table = data
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    return data


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # notes about other values
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_no_import_crashes(tmp_path: Path, suffix: str) -> None:
    tried = 0
    for sample in sorted(SAMPLES.glob(f"*/*{suffix}")):
        try:
            data = yaml.safe_load(sample.read_text(encoding="utf-8"))
        except yaml.YAMLError:
            continue
        for place in places(data):
            if not any(word in str(place).lower() for word in ABOUT_CLIPS):
                continue
            for value in ([1, "norm"], {"a": 1}):
                file = tmp_path / sample.name
                try:
                    file.write_text(json.dumps(changed(data, place, value)), encoding="utf-8")
                except TypeError:  # a date
                    continue
                tried += 1
                try:
                    ClipConfig.import_from(file, sample.parent.name)
                except ConfigError:
                    pass
                except Exception as error:
                    raise AssertionError(f"{sample}, {place} = {value!r}") from error
    assert tried > 200
