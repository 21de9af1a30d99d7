"""`parity/known.toml` is true and strict: each entry shows, none can be spared, one that does not show is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from kits import Kit

from unified_clip.parity import launch, natives, oracle, suite
from unified_clip.parity.launch import NATIVE
from unified_clip.parity.natives import Difference, Known

SUITE = Path(__file__).parents[2] / "parity"


@pytest.fixture(scope="module")
def known(kit: Kit, request: pytest.FixtureRequest) -> list[Known]:
    if not kit.exact or request.config.getoption("--framework") != kit.name:
        pytest.skip("natives have one path, and are run as they come")
    entries = [entry for entry in suite.read(SUITE).known if entry.framework == kit.name]
    if not entries:
        pytest.skip(f"{kit.name} has no functions of its own in the suite")
    return entries


@pytest.fixture(scope="module")
def found(kit: Kit, known: list[Known]) -> dict[tuple[str, str], Difference]:
    """The differences of the framework's own functions, in a process of their own, as in a parity run."""
    chosen = suite.only(suite.read(SUITE), [kit.name])
    cases = [case for case in chosen.cases if not case.frameworks or kit.name in case.frameworks]
    results = launch.run(launch.command(kit.name), [launch.Run(NATIVE, case) for case in cases], chosen.timeout).results
    measured = {case.name: natives.measure(case, oracle.expect(case), results[NATIVE, case.name]) for case in cases}
    return {(kit.name, name): difference for name, difference in measured.items() if difference}


def problems(known: list[Known], found: dict[tuple[str, str], Difference]) -> list[str]:
    _, wrong, shown = natives.judge(known, found)
    return [*wrong.values(), *(each.problem for each in shown if each.problem)]


def test_the_list_is_true(known: list[Known], found: dict[tuple[str, str], Difference]) -> None:
    assert problems(known, found) == []


def test_no_entry_can_be_spared(known: list[Known], found: dict[tuple[str, str], Difference]) -> None:
    for entry in known:
        left = [other for other in known if other is not entry]
        assert any("no known difference says so" in problem for problem in problems(left, found)), entry.reason


def test_an_entry_that_does_not_show_is_wrong(known: list[Known], found: dict[tuple[str, str], Difference]) -> None:
    for kind in natives.KINDS:
        more = dataclasses.replace(known[0], kind=kind, function="*", cases=["four by 32: *"])
        assert "it shows nowhere" in problems([*known, more], found), kind
