"""A list or a table instead of a clip setting in a trainer's file is read, or rejected with unified_clip's error."""

from __future__ import annotations

import ast
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


def change_value(data: Any, place: tuple[Any, ...], value: Any) -> Any:
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
                    file.write_text(json.dumps(change_value(data, place, value)), encoding="utf-8")
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", ["['norm']", "{'a': 1}", "('norm', 1)", "{1, 2}", "None", "-1", "b''"])
def test_no_import_of_a_configuration_in_python_crashes(tmp_path: Path, value: str) -> None:
    tried = 0
    for sample in sorted(SAMPLES.glob("mm*/*.py")):
        try:
            count = len(list(_named(ast.parse(sample.read_text(encoding="utf-8")))))
        except SyntaxError:
            continue
        for index in range(count):
            tree = ast.parse(sample.read_text(encoding="utf-8"))
            node = list(_named(tree))[index]
            node.value = ast.parse(value, mode="eval").body
            file = tmp_path / sample.name
            file.write_text(ast.unparse(tree), encoding="utf-8")
            tried += 1
            try:
                ClipConfig.import_from(file, sample.parent.name)
            except ConfigError:
                pass
            except Exception as error:
                raise AssertionError(f"{sample}: {ast.unparse(node)}") from error
    assert tried > 50


def _named(tree: ast.Module) -> Iterator[ast.keyword | ast.Assign]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword | ast.Assign):
            name = node.arg if isinstance(node, ast.keyword) else ast.unparse(node.targets[0])
            if any(word in str(name).lower() for word in (*ABOUT_CLIPS, "optim", "strategy")):
                yield node
