"""docs/formats.md: its tables are what the generator writes, and its commands exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from unified_clip.cli import main
from unified_clip.config.formats import FORMATS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "formats.md"
SPEC = spec_from_file_location("formats_table", ROOT / "tools" / "formats_table.py")
assert SPEC
assert SPEC.loader
table = module_from_spec(SPEC)
SPEC.loader.exec_module(table)


def test_the_table_of_keys_has_a_row_for_every_format_that_facts_describe() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Every key\n")[2].partition("\n## ")[0]
    own = {"keras", "optax", "paddle"}
    assert list(dict.fromkeys(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))) == [
        name for name in FORMATS if name not in own
    ]


def test_every_trainer_that_is_not_imported_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Known, not imported\n")[2]
    settings = tomllib.loads(table.UNSUPPORTED.read_text(encoding="utf-8"))["setting"]
    assert len(settings) > 15
    assert all(setting["trainer"] in text for setting in settings)


def test_the_export_prints_the_output_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = r"```console\n\$ unified-clip (.*)\n(note: .*)\n([^$`]*)```"
    ((command, note, printed),) = re.findall(pattern, PAGE.read_text(encoding="utf-8"))
    (tmp_path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr() == (printed, f"{note}\n")


def test_the_page_has_the_formats_of_the_commands() -> None:
    names = re.findall(r"^\$ unified-clip config .*--(?:from|to) (\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) > 1
    assert set(names) <= set(FORMATS)
