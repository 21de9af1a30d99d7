"""The parity adapters: calls inside graphs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kits import Kit
from support.parity.adapter_calls import ARGUMENTS, DENSE, SUITE, adapter_of, outcomes
from support.parity.cases import case

from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import compare_with_exact
from unified_clip.parity.modes import IN_GRAPHS

pytestmark = pytest.mark.graphs


@pytest.fixture
def adapter(kit: Kit) -> Adapter:
    return adapter_of(kit)


@pytest.fixture
def modes(kit: Kit) -> list[str]:
    return [mode for mode in SUITE.frameworks[kit.name].modes if mode in IN_GRAPHS]


@pytest.mark.nightly
def test_a_fault_inside_a_graph_fails_only_its_case(
    kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path
) -> None:
    namespace = kit.namespace

    def per_tensor(t_list: Any, clip_norm: float) -> Any:
        clipped = [None if t is None else namespace.clip_by_norm(t, clip_norm) for t in t_list]
        return clipped, namespace.global_norm(t_list)

    def fails(t: Any, clip_norm: float) -> Any:
        raise KeyError("planted")

    faulty = SimpleNamespace(**vars(namespace) | {"clip_by_global_norm": per_tensor, "clip_by_norm": fails})
    cases = [case(DENSE, name, **ARGUMENTS[name]) for name in ("clip_by_value", "clip_by_global_norm", "clip_by_norm")]
    for mode in modes:
        result = outcomes(adapter, faulty, mode, cases, tmp_path)
        verdicts = [
            compare_with_exact(*judged, mode) for judged in zip(cases, map(oracle.expect, cases), result, strict=True)
        ]
        assert [verdict.kind for verdict in verdicts] == ["equal", "different", "unreadable"]
        assert "planted" in verdicts[2].detail


def test_an_error_inside_a_graph_is_reported(kit: Kit, adapter: Adapter, modes: list[str], tmp_path: Path) -> None:
    a_case = case(DENSE, "clip_by_global_norm", clip_norm=-1.0, raises="ValueError")
    for mode in modes:
        if a_case.is_for_graphs(SUITE.frameworks[kit.name].leaves_out(mode)):
            (result,) = outcomes(adapter, kit.namespace, mode, [a_case], tmp_path)
            assert compare_with_exact(a_case, oracle.expect(a_case), result, mode).kind == "equal"
