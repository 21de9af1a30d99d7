"""The corpus of tests/data/port: the clips of each file, their verdicts, and the expected patches.

After an intended change, `python tests/unit/port/test_corpus.py` writes the expected patches. Read their diff.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from unified_clip._kit.parse import UnreadableSourceError
from unified_clip.port.port_files import port
from unified_clip.port.ported_clip import UNUSED, PortedFile, Target

CORPUS = Path(__file__).parents[2] / "data" / "port"
FILES: list[dict[str, Any]] = tomllib.loads((CORPUS / "expected.toml").read_text(encoding="utf-8"))["file"]
READ = [file["path"] for file in FILES if not file["error"]]
SITES = {file["path"]: file.get("site", []) for file in FILES}


TARGETS: tuple[Target, ...] = ("torch", "drop-in")

with_each_target = pytest.mark.parametrize("target", TARGETS)
with_each_file = pytest.mark.parametrize("name", READ)


@cache
def port_file(name: str, target: Target) -> PortedFile:
    path = CORPUS / "sources" / name
    return port(path, path.read_bytes(), target)


@with_each_target
@with_each_file
def test_each_clip_is_found_and_judged(name: str, target: Target) -> None:
    sites = [(site.line, site.name, site.verdict) for site in port_file(name, target).sites]
    assert sites == [(site["line"], site["name"], site[target]) for site in SITES[name]]


@pytest.mark.parametrize("file", [file for file in FILES if file["error"]], ids=lambda file: file["path"])
def test_files_that_are_not_python_3_are_rejected_with_a_reason(file: dict[str, Any]) -> None:
    path = CORPUS / "sources" / file["path"]
    with pytest.raises(UnreadableSourceError, match=file["error"]):
        port(path, path.read_bytes())


@with_each_target
@with_each_file
def test_each_file_has_its_expected_patch(name: str, target: Target) -> None:
    expected = CORPUS / target / f"{name}.patch"
    assert patch(port_file(name, target)) == (expected.read_bytes() if expected.exists() else b"")


@with_each_target
def test_a_patch_is_stored_for_each_file_with_a_rewritten_clip(target: Target) -> None:
    rewritten = [f"{name}.patch" for name in READ if any(site[target] == "rewritten" for site in SITES[name])]
    assert sorted(path.name for path in (CORPUS / target).iterdir()) == rewritten


@with_each_target
def test_stored_patches_apply_to_their_sources(target: Target, tmp_path: Path) -> None:
    shutil.copytree(CORPUS / "sources", tmp_path, dirs_exist_ok=True)
    patches = sorted((CORPUS / target).iterdir())
    subprocess.run(["git", "apply", "--whitespace=nowarn", *patches], cwd=tmp_path, check=True, capture_output=True)
    for name in READ:
        assert (tmp_path / name).read_bytes() == port_file(name, target).after


@pytest.mark.nightly
@with_each_target
@with_each_file
def test_the_result_is_python_and_a_second_run_changes_nothing(name: str, target: Target) -> None:
    result = port_file(name, target)
    assert ast.parse(result.after)
    assert port(result.path, result.after, target).after == result.after


@with_each_target
def test_no_name_becomes_undefined(target: Target, tmp_path: Path) -> None:
    for name in READ:
        (tmp_path / name).write_bytes(port_file(name, target).after)
    before = undefined_names(CORPUS / "sources")
    after = undefined_names(tmp_path)
    assert {name: names - before[name] for name, names in after.items()} == {name: Counter() for name in after}


@with_each_target
@with_each_file
def test_comments_are_kept(name: str, target: Target) -> None:
    result = port_file(name, target)
    assert comments(result.before) == comments(result.after)


@with_each_target
@with_each_file
def test_a_file_without_a_rewritten_clip_is_unchanged(name: str, target: Target) -> None:
    result = port_file(name, target)
    rewritten = [site for site in result.sites if site.verdict == "rewritten"]
    assert result.is_changed == bool(rewritten)


@with_each_target
@with_each_file
def test_flagged_clips_have_a_reason_and_rewritten_ones_a_name(name: str, target: Target) -> None:
    for site in port_file(name, target).sites:
        assert bool(site.becomes) == (site.verdict == "rewritten")
        assert bool(site.reason) == (site.verdict != "rewritten")
        assert site.verdict == "flagged" or not site.suggestion
        assert site.rule != UNUSED or (site.meaning, site.suggestion) == (None, [])


def test_the_corpus_lists_every_file_and_all_verdicts_of_both_targets() -> None:
    assert [file["path"] for file in FILES] == sorted(path.name for path in (CORPUS / "sources").glob("*"))
    verdicts = {(site["torch"], site["drop-in"]) for name in READ for site in SITES[name]}
    assert verdicts >= {(verdict, verdict) for verdict in ("rewritten", "flagged", "left")}
    assert verdicts >= {("flagged", "rewritten")}


def test_a_text_search_would_find_clips_that_are_not_code() -> None:
    assert b"tf.clip_by_global_norm(" in (CORPUS / "sources" / "only_comments.py").read_bytes()
    assert SITES["only_comments.py"] == []


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
    source = (CORPUS / "sources" / path).read_bytes()
    assert source.startswith(beginning)
    assert contained in source
    assert source.endswith(ending)


def undefined_names(folder: Path) -> dict[str, Counter[str]]:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "F821",
        "--output-format=json",
    ]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    names: dict[str, Counter[str]] = {path.name: Counter() for path in folder.iterdir()}
    for finding in json.loads(done.stdout):
        if finding["code"] == "F821":
            names[Path(finding["filename"]).name][finding["message"]] += 1
    return names


def comments(source: bytes) -> Counter[str]:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def patch(result: PortedFile) -> bytes:
    before, after = (content.splitlines(True) for content in (result.before, result.after))
    name = result.path.name.encode()
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, b"a/" + name, b"b/" + name)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


if __name__ == "__main__":
    for target in TARGETS:
        folder = CORPUS / target
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file in READ:
            if content := patch(port_file(file, target)):
                (folder / f"{file}.patch").write_bytes(content)
