"""A training run in Paddle and its port to PyTorch: equal recordings, and the cause of each mistake is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.recording import compare, divergence

pytestmark = pytest.mark.nightly
"""The runs take seconds. In the change tier, `test_torch_compare_ports.py` names the causes of wrong ports."""

PORTED = Path(__file__).parents[1] / "support" / "ported"
EXACT = 1
"""The number of steps in which all sums are exact in any order: see `ported/setting.py`."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    environment = os.environ | CPU_ONLY | {"PYTHONPATH": os.pathsep.join(sys.path)}
    commands = [
        [sys.executable, PORTED / "original.py", out / "original.jsonl"],
        [sys.executable, PORTED / "port.py", out],
    ]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed
    return out


def compared(out: Path, port: str) -> compare.RecordingComparison:
    return compare.compare(out / "original.jsonl", out / f"{port}.jsonl")


def test_recordings_are_equal_while_the_gradients_are(out: Path) -> None:
    comparison = compared(out, "right")
    assert len(comparison.pairs) == 12
    assert all(clip.a.clipped for clip in comparison.pairs)
    first_difference = next(
        (
            index
            for index, pair in enumerate(comparison.pairs)
            if any(a != b for _, a, b in divergence.numbers(pair, "gradient"))
        ),
        len(comparison.pairs),
    )
    assert first_difference >= EXACT
    for pair in comparison.pairs[:first_difference]:
        for stage in ("weight", "norm", "coefficient"):
            compared_numbers = list(divergence.numbers(pair, stage))
            assert compared_numbers
            assert all(a == b for _, a, b in compared_numbers)


def test_later_steps_differ_by_rounding_only(out: Path) -> None:
    comparison = compared(out, "right")
    assert {finding.kind for finding in comparison.findings} <= {"rounding"}
    assert len(comparison.divergences) <= 1
    assert compare.compare(out / "original.jsonl", out / "right.jsonl", max_ulp=64).first is None


@pytest.mark.parametrize(
    ("port", "mistake"),
    [
        ("per tensor", "per tensor for global"),
        ("a call for each", "per tensor for global"),
        ("eps", "another eps of the clip"),
        ("late", "clipping after the step"),
        ("twice", "clipped twice"),
        ("threshold", "another threshold"),
        ("norm type", "another norm type"),
        ("missing", "left out"),
        ("sum", "scaled gradients"),
    ],
)
def test_a_mistake_in_the_port_is_named_at_the_first_step(out: Path, port: str, mistake: str) -> None:
    comparison = compared(out, port)
    assert comparison.first is not None
    assert comparison.first.step == 1
    assert [cause.kind for cause in next(iter(comparison.divergences.values()))] == [mistake]


def test_clipping_after_the_step_is_named_with_its_run(out: Path) -> None:
    (finding,) = compared(out, "late").findings
    assert "late.jsonl clips after the optimizer step, and original.jsonl clips before" in finding.sentence
