"""Each case of tests/data/port/cases has the results that it lists, and the properties of all ported code."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.port.cases import CASES, TARGETS, Case, as_text, cases, port_case, result

from unified_clip import cli
from unified_clip.port.catalog import clip_pattern, may_clip
from unified_clip.port.find import identifiers
from unified_clip.port.port_files import port
from unified_clip.port.ported_clip import Target
from unified_clip.source.module import Module

ALL = [case for path in sorted(CASES.iterdir()) for case in cases(path)]
EACH = [(case, target) for case in ALL for target in TARGETS[case.name]]


def each_case() -> Iterator[tuple[str, Case, Target]]:
    """All cases are one test, so that each change runs all of them."""
    for case, target in EACH:
        yield f"{case.file}: {case.title} ({target})", case, target


def test_a_case_has_the_results_that_it_lists() -> None:
    for name, case, target in each_case():
        assert (name, *result(case, target)) == (name, case.annotated, case.parts)


def test_ported_code_keeps_all_comments_and_each_clip_has_a_reason_or_a_replacement() -> None:
    for name, case, target in each_case():
        ported = port_case(case, target)
        assert comments(ported.after) == comments(ported.before), name
        assert ported.is_changed == any(site.verdict == "rewritten" for site in ported.sites), name
        assert port(ported.path, ported.before, target, edit=False).sites == ported.sites, name
        for site in ported.sites:
            assert bool(site.becomes) == (site.verdict == "rewritten"), name
            assert bool(site.reason) == (site.verdict != "rewritten"), name
            assert site.verdict == "flagged" or not site.suggestion, name


def test_the_result_is_python_and_a_second_run_changes_nothing() -> None:
    for name, case, target in each_case():
        ported = port_case(case, target)
        assert ast.parse(ported.after), name
        if ported.is_changed:
            assert port(ported.path, ported.after, target).after == ported.after, name


@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_no_name_becomes_undefined(target: Target, tmp_path: Path) -> None:
    undefined = []
    for when in ("before", "after"):
        folder = tmp_path / when
        folder.mkdir()
        for number, (case, of) in enumerate(EACH):
            if of == target:
                (folder / f"{number:04}.py").write_bytes(getattr(port_case(case, target), when))
        undefined.append(undefined_names(folder))
    before, after = undefined
    assert before
    assert {name: new for name in after if (new := after[name] - before[name])} == {}


def undefined_names(folder: Path) -> defaultdict[str, Counter[str]]:
    options = ["--isolated", "--no-cache", "--select=F821", "--output-format=json"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for finding in json.loads(done.stdout):
        if finding["code"] == "F821":
            names[Path(finding["filename"]).name][finding["message"]] += 1
    return names


def comments(source: bytes) -> Counter[str]:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def has_clip(case: Case) -> bool:
    return case.annotated != case.source.splitlines()


def test_no_file_with_a_clip_is_skipped_by_its_text() -> None:
    with_clip = [case for case in ALL if has_clip(case)]
    assert len(with_clip) > 400
    assert [case for case in with_clip if not clip_pattern().search(case.source.encode())] == []
    assert [case for case in with_clip if not may_clip(identifiers(Module(case.source)))] == []


def test_the_command_lists_each_clip_of_many_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {}
    for number, case in enumerate(case for case in ALL if case.name != "drop-in"):
        if has_clip(case) and "unified_clip" not in case.source:
            path = tmp_path / f"case_{number:04}.py"
            path.write_text(case.source, encoding="utf-8")
            expected[path.name] = [mark.split()[0] for line in case.annotated for mark in marks(line)]
    assert cli.main(["port", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {Path(file["path"]).name: [clip["verdict"] for clip in file["clips"]] for file in report["files"]}
    assert found == expected
    assert "rewrite the flagged clips by hand" in report["next"]


def marks(line: str) -> list[str]:
    _, _, found = line.partition("  # clip: ")
    return found.split("; ") if found else []


@pytest.mark.parametrize("path", sorted(CASES.iterdir()), ids=lambda path: path.stem)
def test_the_cases_are_written_as_they_are_read(path: Path) -> None:
    assert as_text([*cases(path)]) == path.read_text(encoding="utf-8")
