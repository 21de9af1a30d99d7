"""A training run in Paddle and its port to PyTorch: equal recordings, and the cause of each mistake is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.compare import recordings as compare
from unified_clip.recording import runs
from unified_clip.recording.recorded_run import RecordedCall

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


def norms(line: RecordedCall, of: str) -> list[float]:
    """Sorted, because the frameworks name the parameters differently."""
    return sorted(getattr(parameter, of) for parameter in line.parameters.values())


def test_recordings_are_equal_while_the_gradients_are(out: Path) -> None:
    original, port = (runs.read(out / f"{name}.jsonl").lines for name in ("original", "right"))
    assert len(original) == len(port) == 12
    assert all(line.clipped for line in original)
    pairs = list(zip(original, port, strict=True))
    alike = [norms(old, "norm") == norms(new, "norm") for old, new in pairs]
    first_difference = alike.index(False) if False in alike else len(pairs)
    assert first_difference >= EXACT
    for old, new in pairs[:first_difference]:
        assert len(norms(old, "weight")) == 4
        assert norms(old, "weight") == norms(new, "weight")
        assert (old.norm, old.coef) == (new.norm, new.coef)


@pytest.mark.parametrize("max_ulp", [None, 64])
def test_later_steps_differ_by_rounding_only(out: Path, max_ulp: float | None) -> None:
    comparison = compare.compare(out / "original.jsonl", out / "right.jsonl", max_ulp=max_ulp)
    assert comparison.findings == []
    assert comparison.recipes.steps == 12


@pytest.mark.parametrize(
    ("port", "mistakes"),
    [
        ("per tensor", ["per tensor for global"]),
        ("a call for each", ["per tensor for global"]),
        ("eps", ["another eps of the clip"]),
        ("late", ["clipping after the step"]),
        ("twice", ["clipped twice"]),
        ("threshold", ["another threshold"]),
        ("norm type", ["another norm type", "another eps of the clip"]),  # of clip_grad_norm_
        ("missing", ["left out"]),
        ("sum", ["scaled gradients"]),
    ],
)
def test_a_mistake_in_the_port_is_named_at_the_first_step(out: Path, port: str, mistakes: list[str]) -> None:
    assert [(finding.step, finding.kind) for finding in compared(out, port).findings] == [
        (1, mistake) for mistake in mistakes
    ]


def test_clipping_after_the_step_is_named_with_its_run(out: Path) -> None:
    (finding,) = compared(out, "late").findings
    assert "late.jsonl clips after the optimizer's step, and original.jsonl clips before" in finding.sentence
