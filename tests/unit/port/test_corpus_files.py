"""tests/data/port: the list of expected clips agrees with the files that it names."""

from __future__ import annotations

import ast
import re
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[2] / "data" / "port"
SOURCES = HOME / "sources"
FILES: list[dict[str, Any]] = tomllib.loads((HOME / "expected.toml").read_text(encoding="utf-8"))["file"]
READ = [file for file in FILES if not file["error"]]
WITH_ERROR = [file for file in FILES if file["error"]]

each_read = pytest.mark.parametrize("file", READ, ids=[file["path"] for file in READ])


def words_of(name: str) -> set[str]:
    """Return the words of the last segment of a name: {'Adam', 'clipnorm'} of 'keras.optimizers.Adam(clipnorm=)'."""
    return set(re.findall(r"\w+", name.rpartition(".")[2] if "..." not in name else name))


def written_in(source: bytes) -> dict[int, Counter[str]]:
    lines: dict[int, Counter[str]] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
                lines.setdefault(node.lineno, Counter())[word] += 1
            case ast.Dict(keys=keys):
                for key in keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        lines.setdefault(key.lineno, Counter())[key.value] += 1
    return lines


def test_every_file_is_listed_once() -> None:
    assert [file["path"] for file in FILES] == sorted(path.name for path in SOURCES.glob("*"))
    assert len(FILES) >= 55


@each_read
def test_a_file_that_is_read_is_python(file: dict[str, Any]) -> None:
    assert isinstance(ast.parse((SOURCES / file["path"]).read_bytes()), ast.Module)


@pytest.mark.parametrize("file", WITH_ERROR, ids=[file["path"] for file in WITH_ERROR])
def test_a_rejected_file_is_not_python_and_has_no_sites(file: dict[str, Any]) -> None:
    with pytest.raises(SyntaxError):
        ast.parse((SOURCES / file["path"]).read_bytes())
    assert "site" not in file


@each_read
def test_a_site_is_written_at_its_line(file: dict[str, Any]) -> None:
    written = written_in((SOURCES / file["path"]).read_bytes())
    for site in file.get("site", []):
        expected = {site["as"]} if "as" in site else words_of(site["name"])
        assert expected & written.get(site["line"], Counter()).keys(), site


@each_read
def test_sites_are_in_order_and_none_is_listed_more_often_than_it_is_written(file: dict[str, Any]) -> None:
    sites = file.get("site", [])
    assert [site["line"] for site in sites] == sorted(site["line"] for site in sites)
    written = written_in((SOURCES / file["path"]).read_bytes())
    for (line, name, alias), count in Counter((s["line"], s["name"], s.get("as")) for s in sites).items():
        words = {alias} if alias else words_of(name)
        assert count <= max(written[line][word] for word in words), f"line {line}: {name}"


@each_read
def test_a_site_has_verdicts_and_a_reason(file: dict[str, Any]) -> None:
    for site in file.get("site", []):
        assert set(site) - {"as"} == {"line", "name", "torch", "drop-in", "why"}
        assert {site["torch"], site["drop-in"]} <= {"rewritten", "flagged", "left"}
        assert site["why"].strip()


def test_all_verdicts_of_both_targets_occur() -> None:
    verdicts = Counter((site["torch"], site["drop-in"]) for file in READ for site in file.get("site", []))
    all_verdicts = ("rewritten", "flagged", "left")
    assert verdicts.keys() >= {(verdict, verdict) for verdict in all_verdicts}
    assert verdicts.keys() >= {("flagged", "rewritten"), ("rewritten", "flagged")}


@pytest.mark.parametrize(
    ("path", "beginning", "contained", "ending"),
    [
        ("tabbed_trainer_torch.py", b"# -*-", b"\n\t\t\tself.opt.zero_grad()\n", b"\n"),
        ("keras_clipnorm_loop.py", b"import tensorflow as tf\r\n", b"clipvalue=0.25,\r\n", b"main()\r\n"),
        ("char_rnn_session_tf1.py", b"\xef\xbb\xbf#!", b"\n", b"\n"),
        ("paddle_latin1.py", b"# -*- coding: latin-1 -*-", "étape".encode("latin-1"), b"\n"),
        ("fgsm_attack_tf2.py", b"import", b"\n", b".shape)"),
        ("empty.py", b"", b"", b""),
    ],
)
def test_line_ends_and_encodings_of_the_corpus_are_unchanged(
    path: str, beginning: bytes, contained: bytes, ending: bytes
) -> None:
    source = (SOURCES / path).read_bytes()
    assert source.startswith(beginning)
    assert contained in source
    assert source.endswith(ending)


def test_the_corpus_has_comments_and_strings_that_name_a_clip() -> None:
    """A search in the text would find these names, which are not code."""
    with tokenize.open(SOURCES / "only_comments.py") as file:
        assert "tf.clip_by_global_norm(" in file.read()
    assert not written_in((SOURCES / "only_comments.py").read_bytes())
