"""The corpus of tests/data/port: what is found in each file, what becomes of it, and what is left as it was.

After an intended change, `python tests/unit/port/test_corpus.py` writes the expected patches anew. Read their diff.
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
from typing import Any, NamedTuple

import pytest
from support.tiers import quick

from unified_clip.port.clip_site import PortedFile, Target
from unified_clip.port.rewrite import port
from unified_clip.port.rules.registry import rules
from unified_clip.port.source.parse_guard import UnreadableError

HOME = Path(__file__).parents[2] / "data" / "port"
FILES: list[dict[str, Any]] = tomllib.loads((HOME / "expected.toml").read_text(encoding="utf-8"))["file"]
READ = [file["path"] for file in FILES if not file["refused"]]
SITES = {file["path"]: file.get("site", []) for file in FILES}


class Way(NamedTuple):
    """How files are ported."""

    target: Target
    native: bool = False

    @property
    def name(self) -> str:
        return "native" if self.native else self.target


WAYS = (Way("torch"), Way("drop-in"), Way("torch", native=True))

each_way = pytest.mark.parametrize("way", quick(WAYS, *WAYS[:2]), ids=[way.name for way in WAYS])
each_file = pytest.mark.parametrize("name", READ)


@cache
def ported(name: str, way: Way) -> PortedFile:
    path = HOME / "sources" / name
    return port(path, path.read_bytes(), way.target, way.native)


@pytest.mark.parametrize("target", ["torch", "drop-in"])
@each_file
def test_each_clip_is_found_and_judged(name: str, target: Target) -> None:
    found = [(site.line, site.name, site.verdict) for site in ported(name, Way(target)).sites]
    assert found == [(site["line"], site["name"], site[target]) for site in SITES[name]]


@pytest.mark.parametrize("file", [file for file in FILES if file["refused"]], ids=lambda file: file["path"])
def test_what_is_no_python_3_is_refused_with_a_reason(file: dict[str, Any]) -> None:
    path = HOME / "sources" / file["path"]
    with pytest.raises(UnreadableError, match=file["refused"]):
        port(path, path.read_bytes())


@each_way
@each_file
def test_a_file_becomes_what_is_expected(name: str, way: Way) -> None:
    expected = HOME / way.name / f"{name}.patch"
    assert patch(ported(name, way)) == (expected.read_bytes() if expected.exists() else b"")


@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_patch_is_stored_for_each_file_with_a_rewritten_clip(target: Target) -> None:
    rewritten = [f"{name}.patch" for name in READ if any(site[target] == "rewritten" for site in SITES[name])]
    assert sorted(path.name for path in (HOME / target).iterdir()) == rewritten


@each_way
def test_stored_patches_apply_to_their_sources(way: Way, tmp_path: Path) -> None:
    shutil.copytree(HOME / "sources", tmp_path, dirs_exist_ok=True)
    patches = sorted((HOME / way.name).iterdir())
    subprocess.run(["git", "apply", "--whitespace=nowarn", *patches], cwd=tmp_path, check=True, capture_output=True)
    for name in READ:
        assert (tmp_path / name).read_bytes() == ported(name, way).after


@each_way
def test_no_more_is_expected_than_there_are_files(way: Way) -> None:
    assert {path.name for path in (HOME / way.name).iterdir()} <= {f"{name}.patch" for name in READ}


@pytest.mark.nightly
@each_way
@each_file
def test_the_result_is_python_and_running_it_again_changes_nothing(name: str, way: Way) -> None:
    result = ported(name, way)
    assert ast.parse(result.after)
    assert port(result.path, result.after, way.target, way.native).after == result.after


@each_way
def test_no_name_is_undefined_that_was_not_before(way: Way, tmp_path: Path) -> None:
    for name in READ:
        (tmp_path / name).write_bytes(ported(name, way).after)
    before = undefined(HOME / "sources")
    after = undefined(tmp_path)
    assert {name: found - before[name] for name, found in after.items()} == {name: Counter() for name in after}


@each_way
@each_file
def test_comments_survive(name: str, way: Way) -> None:
    result = ported(name, way)
    assert comments(result.before) == comments(result.after)


@each_way
@each_file
def test_a_file_that_is_not_rewritten_stays_byte_for_byte(name: str, way: Way) -> None:
    result = ported(name, way)
    rewritten = [site for site in result.sites if site.verdict == "rewritten"]
    assert result.is_changed == bool(rewritten)


@each_way
@each_file
def test_what_is_flagged_has_a_reason_and_what_is_rewritten_a_name(name: str, way: Way) -> None:
    for site in ported(name, way).sites:
        assert bool(site.becomes) == (site.verdict == "rewritten")
        assert bool(site.reason) == (site.verdict != "rewritten")
        assert site.verdict == "flagged" or not site.suggestion


@pytest.mark.nightly
def test_every_rule_decides_about_a_clip_of_the_corpus() -> None:
    used = {site.rule for way in WAYS for name in READ for site in ported(name, way).sites}
    assert [rule.name for rule in rules() if rule.name not in used] == []


def undefined(folder: Path) -> dict[str, Counter[str]]:
    """What ruff says of names that are not defined, by file."""
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
    found: dict[str, Counter[str]] = {path.name: Counter() for path in folder.iterdir()}
    for each in json.loads(done.stdout):
        if each["code"] == "F821":
            found[Path(each["filename"]).name][each["message"]] += 1
    return found


def comments(source: bytes) -> Counter[str]:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def patch(result: PortedFile) -> bytes:
    """Return the change of a file as `git apply` takes it; nothing for a file that does not change."""
    before, after = (content.splitlines(True) for content in (result.before, result.after))
    name = result.path.name.encode()
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, b"a/" + name, b"b/" + name)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


if __name__ == "__main__":
    for each in WAYS:
        folder = HOME / each.name
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file in READ:
            if content := patch(ported(file, each)):
                (folder / f"{file}.patch").write_bytes(content)
