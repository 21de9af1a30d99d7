"""The rows of trainers: a row with a mistake is an error, and a new row needs no code."""

from __future__ import annotations

import pytest
from packaging.version import Version

from unified_clip.config import documents
from unified_clip.config.formats.rows import RowFormat
from unified_clip.config.schema import Settings
from unified_clip.errors import ConfigError
from unified_clip.facts import trainer_rows

ROW = """
title = "New trainer"
kinds = ["yaml"]
source = "train.py"
newest = "1.0"
recognise = [["steps"]]

[[clip]]
key = "optim.clip"
default = 5

[[refuse]]
when = [{key = "optim.clip", is = [0]}, "!debug"]
say = "0 is {value} here."
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('newest = "1.0"', 'newest = "1.0"\nnewer = "2.0"', r"a\.toml, newer: Extra inputs are not permitted"),
        ('newest = "1.0"', "newest = 1.0", r"a\.toml, newest: Input should be a valid string"),
        ("default = 5", 'default = "five"', r"a\.toml, clip\.0\.default\.int: "),
        ("default = 5", "defualt = 5", r"a\.toml, clip\.0\.defualt: Extra inputs are not permitted"),
        ("is = [0]", "equals = 0", r"a\.toml, refuse\.0\.when\.0.*\.equals: Extra inputs are not permitted"),
        (
            'key = "optim.clip"\ndefault',
            'key = "clip *.clip"\ndefault',
            r"a\.toml, clip\.0\.key: .*write \"\*\" into `at`",
        ),
        ('kinds = ["yaml"]', 'kinds = ["xml"]', r"a\.toml, kinds\.0: Input should be 'yaml', "),
        ('source = "train.py"', "", r"a\.toml, source: Field required"),
        ('newest = "1.0"', 'newest = "1.0"\nlike = "b"', r"a\.toml: like = 'b', but there is no b\.toml"),
    ],
)
def test_a_row_with_a_mistake_is_rejected_with_its_place(old: str, new: str, problem: str) -> None:
    assert old in ROW
    with pytest.raises(trainer_rows.RowError, match=problem):
        trainer_rows.read({"a": ROW.replace(old, new)})


def test_a_new_row_needs_no_code() -> None:
    trainer = RowFormat(trainer_rows.read({"new": ROW})["new"])

    def document(text: str) -> documents.Document:
        return documents.parse(text, "yaml", "a.yaml")

    assert trainer.recognises(document("steps: 1\n"))
    assert not trainer.recognises(document("optim: {}\n"))
    assert trainer.read(document("optim: {clip: 2}\n"), None).settings["threshold"] == 2.0
    imported = trainer.read(document("steps: 1\n"), None)
    assert imported.notes == ["The file does not set clip. By default, New trainer clips at 5."]
    with pytest.raises(ConfigError, match=r"^a\.yaml, line 1, optim\.clip: 0 is 0 here\.$"):
        trainer.read(document("optim: {clip: 0}\n"), None)
    assert trainer.read(document("debug: 1\noptim: {clip: 0}\n"), None).settings == {"rule": "none"}
    written = trainer.write(Settings(rule="global_norm", threshold=0.5), Version("1.0"))
    assert written == {"optim": {"clip": 0.5}}


def test_a_row_like_another_has_its_entries_first() -> None:
    own = 'like = "a"\ntitle = "B"\n\n[[clip]]\nkey = "clip"\n'
    row = trainer_rows.read({"a": ROW, "b": own})["b"]
    assert (row.name, row.title, row.newest) == ("b", "B", "1.0")
    assert [clip.key for clip in row.clip] == [(("clip",),), (("optim", "clip"),)]
