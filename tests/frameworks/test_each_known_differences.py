"""`parity/known.toml` lists exactly the differences of the framework's own functions: no entry is missing or stale."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from support.kits import Kit

from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.known import entries, match
from unified_clip.parity.known.entries import KnownDifference
from unified_clip.parity.modes import NATIVE
from unified_clip.parity.results import NativeResult
from unified_clip.parity.suite import load, select
from unified_clip.parity.workers import run_worker
from unified_clip.parity.workers.worker_files import WorkItem

pytestmark = [pytest.mark.nightly, pytest.mark.graphs]  # the list is of releases whose graphs are supported

SUITE = Path(__file__).parents[2] / "parity"


@pytest.fixture(scope="module")
def listed(kit: Kit, request: pytest.FixtureRequest) -> list[KnownDifference]:
    if not kit.exact or request.config.getoption("--framework") != kit.name:
        pytest.skip("natives have one path, and are run as they come")
    entries = [entry for entry in load.read(SUITE).known if entry.framework == kit.name]
    if not entries:
        pytest.skip(f"{kit.name} has no functions of its own in the suite")
    return entries


class Ran(NamedTuple):
    differences: dict[tuple[str, str], NativeResult]


@pytest.fixture(scope="module")
def ran(kit: Kit, listed: list[KnownDifference]) -> Ran:
    chosen = select.only_frameworks(load.read(SUITE), [kit.name])
    cases = [case for case in chosen.cases if not case.options.frameworks or kit.name in case.options.frameworks]
    came = run_worker.run_worker(
        run_worker.command(kit.name), [WorkItem(NATIVE, case) for case in cases], chosen.timeout
    )
    differences: dict[tuple[str, str], NativeResult] = {}
    for case in cases:
        item = WorkItem(NATIVE, case)
        outcome = came.by_case[NATIVE, case.name]
        judged = judge_result(item, oracle.expect(case), outcome, chosen.frameworks[kit.name], ())
        if judged.native is not None:
            differences[kit.name, case.name] = judged.native
    return Ran(differences)


def problems(known: list[KnownDifference], ran: Ran) -> list[str]:
    judgements, results = match.match_deviations(known, ran.differences)
    return [*filter(None, (problem for _, problem in judgements.values())), *(r.problem for r in results if r.problem)]


def test_the_list_is_true(listed: list[KnownDifference], ran: Ran) -> None:
    assert problems(listed, ran) == []


def test_no_entry_can_be_spared(listed: list[KnownDifference], ran: Ran) -> None:
    for entry in listed:
        left = [other for other in listed if other is not entry]
        assert problems(left, ran), entry.reason


def test_an_entry_that_does_not_show_is_wrong(listed: list[KnownDifference], ran: Ran) -> None:
    for kind in (0.1, *entries.KINDS):
        more = listed[0].model_copy(update={"size": kind, "function": "*", "cases": ["four by 32: *"]})
        assert any("no case shows this difference" in each for each in problems([*listed, more], ran)), kind
