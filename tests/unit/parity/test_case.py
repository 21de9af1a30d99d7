"""`unified-clip parity --case NAME` runs one case of a suite. The report prints this command under a difference."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.parity.cases import suite
from support.parity.runs import (
    CASES,
    FRAMEWORKS,
    NORM_OFF,
    fake_workers,
    run_suite_with,
    unchanged_outcome,
    wrong_outcome,
)

from unified_clip import cli
from unified_clip.parity import run_suite
from unified_clip.parity.call_outcome import Failure
from unified_clip.parity.modes import HOST, NATIVE
from unified_clip.parity.report import build
from unified_clip.parity.suite import load, select


def test_every_wrong_result_can_be_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_suite_with(tmp_path, wrong_outcome).as_json()
    all_results = [
        result for entry in data["cases"] for modes in entry["frameworks"].values() for result in modes.values()
    ]
    wrong_results = [entry for entry in all_results if entry["verdict"] != "equal"]
    assert len(wrong_results) == 7
    for entry in wrong_results:
        with fake_workers(wrong_outcome):
            assert cli.main(shlex.split(entry["reproduce"])[1:]) in (1, 3)
        printed = capsys.readouterr().out
        numbers = entry["details"] or {}
        assert all(numbers[side]["hex"] in printed for side in ("exact", "ours", "native") if numbers.get(side))
        assert numbers or "crashed: \\x1b[31mred" in printed


def test_several_cases_are_run_and_no_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = suite(tmp_path, CASES, frameworks=FRAMEWORKS)
    before = sorted(path.name for path in tmp_path.iterdir())
    names = [NORM_OFF, "worked example: clip_grad_value_(clip_value=0.25)"]
    chosen = [argument for name in [*names, NORM_OFF] for argument in ("--case", name)]
    with fake_workers(unchanged_outcome):
        assert cli.main(["parity", "--suite", str(where), *chosen]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line in names] == names
    assert "\nPASS: " in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_pattern_chooses_several_cases(tmp_path: Path) -> None:
    whole = load.read(suite(tmp_path, CASES, frameworks=FRAMEWORKS))
    every_name = [case.name for case in whole.cases]
    worked = [name for name in every_name if name.startswith("worked example: ")]
    assert 1 < len(worked) < len(every_name)

    def chosen(*names: str) -> list[str]:
        return [case.name for case in select.only_cases(whole, names, whole).cases]

    assert chosen("worked example: *") == worked
    assert chosen(worked[1], "worked *") == [worked[1], *(name for name in worked if name != worked[1])]
    assert chosen("*") == every_name


KNOWN = """
[[known]]
framework = "torch"
function = "torch.get_total_norm"
size = {size}
cases = ["worked example: *", "<script>*"]
reason = "it is half as large again"
"""


@pytest.mark.parametrize(("size", "status"), [(0.5, 0), (0.25, 1)])
def test_a_known_difference_is_judged_and_its_entry_may_show_in_other_cases(
    size: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = KNOWN.format(size=0.5).replace("worked example", "another list")
    where = suite(tmp_path, CASES, KNOWN.format(size=size) + stale, frameworks=FRAMEWORKS)

    def half_as_large_again(framework: str, mode: str, case: Any, outcome: Any) -> Any:
        return wrong_outcome(framework, mode, case, outcome) if mode == NATIVE else outcome

    with fake_workers(half_as_large_again):
        assert cli.main(["parity", "--suite", str(where), "--case", NORM_OFF]) == status
    (native,) = re.findall(r"torch, framework's function: (.*)", capsys.readouterr().out)
    verdict = "known: numbers differ" if status == 0 else "different: numbers differ by 50 %"
    assert native.startswith(f"torch.get_total_norm: {verdict}")
    assert native.endswith(": listed as 'it is half as large again'")


def test_an_entry_is_not_stale_if_a_case_that_may_show_its_difference_has_crashed(tmp_path: Path) -> None:
    def crashes(framework: str, mode: str, case: Any, outcome: Any) -> Any:
        return Failure("crashed", "") if mode == NATIVE and case.name == NORM_OFF else outcome

    read = load.read(suite(tmp_path, CASES, KNOWN.format(size=0.5), frameworks=FRAMEWORKS))
    for change, count in ((unchanged_outcome, 1), (crashes, 0)):
        with fake_workers(change):
            assert len(run_suite.run(read).known) == count


def test_the_command_names_a_suite_elsewhere_and_quotes_every_name() -> None:
    name = "it's: a case"
    command = build.command("my suite", "--case", name, "--frameworks", "jax")
    expected = ["unified-clip", "parity", "--suite", "my suite", "--case", name, "--frameworks", "jax"]
    assert shlex.split(command) == expected
    assert shlex.split(build.command("parity", "--case", name)) == ["unified-clip", "parity", "--case", name]
    assert HOST not in command


@pytest.mark.parametrize("chosen", [[], ["--frameworks", "numpy,torch"]])
def test_the_command_to_accept_repeats_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: list[str]
) -> None:
    where = str(suite(tmp_path, CASES, KNOWN.format(size=0.5), frameworks=FRAMEWORKS))
    with fake_workers(unchanged_outcome):  # the listed difference has gone
        assert cli.main(["parity", "--suite", where, *chosen, "--out", str(tmp_path / "report")]) == 1
        (command,) = re.findall(r"`(.*--accept)`", capsys.readouterr().out)
        arguments = shlex.split(command)
        assert arguments[1:] == ["parity", "--suite", where, *chosen, "--accept"]
