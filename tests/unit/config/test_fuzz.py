"""Random configuration files are read, or rejected with a ConfigError that names the place."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.config.format_samples import DATA

from unified_clip import ClipConfig, ConfigError
from unified_clip.cli import main
from unified_clip.config import documents
from unified_clip.config.formats import FORMATS
from unified_clip.config.formats.base import OwnFormat
from unified_clip.config.schema import Group, Settings

KINDS = {"toml": tomlkit.dumps, "yaml": yaml.safe_dump, "json": json.dumps}
ODD_KEYS = ("x[0]", "tagged-union[Constant]", "tagged-union", "function-before[", "constant", "linear", "start")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize(
    ("path", "named"),
    [
        ([], ""),
        (["groups", 0], "groups 1, "),
        (["provenance"], "provenance."),
        (["threshold"], "threshold."),
        (["groups", 0, "threshold"], "groups 1, threshold."),
    ],
)
def test_an_unknown_key_of_any_spelling_is_named_with_its_place(
    kind: str, key: str, path: list[Any], named: str
) -> None:
    limit = {"schedule": "constant", "value": 1.0}
    group = {"name": "head", "include": ["head.*"], "threshold": dict(limit)}
    data: dict[str, Any] = {"rule": "norm", "threshold": limit, "groups": [group], "provenance": {"format": "hf"}}
    table: Any = data
    for part in path:
        table = table[part]
    table[key] = 1
    with pytest.raises(ConfigError) as caught:
        ClipConfig.loads(KINDS[kind](data), kind)
    assert re.match(rf"the text, line \d+, {re.escape(named + key)}: there is no such key. ", str(caught.value))


NUMBERS = st.sampled_from(
    [0, 1, -1, 2.5, 1e308, 10**25, True, False, None, "", "inf", "auto", "norm", "value", "head.*"]
)
KEYS = st.sampled_from(
    sorted(
        {*ODD_KEYS, *Settings.model_fields, *Group.model_fields, "schedule", "end", "steps", "values", "boundaries"}
        | {part for trainer in FORMATS.values() for key in trainer.clip_keys for part in key}
        | {"config", "fp16", "opt_kwargs", "optimizer", "param_groups", "inner_optimizer", "compile_config"}
    )
)
ANYTHING = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
TABLES = st.dictionaries(KEYS, ANYTHING, max_size=5)


def reads_or_rejects(text: str, kind: str) -> None:
    """Read a text as a clip configuration, and as a file of every trainer that has files of this kind."""
    with contextlib.suppress(ConfigError):
        ClipConfig.loads(text, kind)
    for trainer in FORMATS.values():
        if kind in trainer.kinds:
            with contextlib.suppress(ConfigError):
                document = documents.parse(text, kind, "the text")
                trainer.recognises(document)
                trainer.read(document, None)


@pytest.mark.nightly
@given(TABLES, st.sampled_from(["rule", "schedule"]), st.sampled_from(["yaml", "json"]))
def test_any_tables_are_read_or_rejected(data: dict[str, Any], key: str, kind: str) -> None:
    reads_or_rejects(KINDS[kind](data), kind)
    with contextlib.suppress(ConfigError):
        ClipConfig.loads(
            KINDS[kind]({"rule": "global_norm", "threshold": {"schedule": "linear", **data}, **data}), kind
        )


SEEDS = [
    (path.read_text(encoding="utf-8"), documents.DOCUMENT_KINDS.get(path.suffix, "own"))
    for path in sorted(DATA.rglob("*.*"))
    if path.name != "expected.toml"
]
FRAGMENTS = (
    *(
        '"',
        "'",
        "[",
        "]",
        "{",
        "}",
        ":",
        "=",
        "\n",
        "\t",
        "#",
        "&a ",
        "*a",
        "<<: ",
        "? ",
        "- ",
        "| ",
        "!!int ",
        "!!set ",
    ),
    *(
        "!!binary ",
        "---\n",
        "null",
        "~",
        "inf",
        ".nan",
        "1e999",
        "0x",
        "1979-13-01",
        "\x00",
        "\x85",
        "\ud7ff",
        "9" * 5000,
    ),
)


@pytest.mark.nightly
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(FRAGMENTS)), min_size=1, max_size=3))
def test_any_text_is_read_or_rejected(seed: tuple[str, str], inserted: list[tuple[float, str]]) -> None:
    text, kind = seed
    for place, fragment in inserted:
        at = int(place * len(text))
        text = text[:at] + fragment + text[at:]
    if kind != "own":
        reads_or_rejects(text, kind)
        return
    for trainer in FORMATS.values():
        if isinstance(trainer, OwnFormat):
            with contextlib.suppress(ConfigError):
                trainer.read(trainer.parse(text, "the text"), None)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("toml", "rule = 'none'\n[[sample]]\na = 1\n", "line 2, sample: there is no such key"),
        ("toml", "rule = 'none'\n\n[sample.one]\na = 1\n", "line 3, sample: there is no such key"),
        ("toml", "rule = 'none'\n[one]\na = 1\n[one]\n", "line 4: "),
        ("toml", "rule = 'none'\n\nname = 1979-13-01\n", "line 3: "),
        ("yaml", "rule: none\nname: \x00\n", "line 2: the character '\\x00' is not allowed in YAML"),
        ("json", '{"rule":\n"none",\n"x[0]": 1}', "line 3, x[0]: there is no such key"),
    ],
)
def test_a_rejected_key_has_its_line(
    kind: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"clip.{kind}"
    path.write_text(text, encoding="utf-8")
    for command in (["config", "import"], ["config", "export", "--to", "hf"], ["explain"]):
        assert main([*command, str(path), *(["--from", "unified_clip"] if command[-1] == "import" else [])]) == 2
        error = capsys.readouterr().err
        assert re.match(rf"unified-clip: error UC10[24]: clip\.{kind}, {re.escape(message)}", error)


def test_a_keras_configuration_that_is_no_table_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "adam.json"
    path.write_text('{"class_name": "Adam",\n"config": "auto"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^adam\.json, line 2, config: 'auto' is not a table"):
        ClipConfig.import_from(path, "keras@3.15.1")
