"""The scripts of `examples/`: one configuration and the same data on four frameworks give the same clip records.

The steps, the thresholds and the numbers that follow from the norm are equal. The norms agree within the rounding of
`unified-clip compare`, 64 ULP, because each framework computes tanh and sums differently.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unified_clip import ClipConfig
from unified_clip.compare import recordings as compare
from unified_clip.config.schedules import threshold_at
from unified_clip.recording import rounding

pytestmark = pytest.mark.nightly

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("train_*.py") if path.stem != "train_adaptive")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("records")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "KERAS_BACKEND": "tensorflow"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    paths = {script: directory / f"{script}.jsonl" for script in SCRIPTS}
    for script, path in paths.items():
        command = [sys.executable, str(EXAMPLES / f"{script}.py"), str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert printed.returncode == 0, printed.stderr
        assert "'clip_rate': 0.8" in printed.stdout
    return paths


def lines(path: Path) -> list[dict[str, Any]]:
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])
    return [line for line in entries if "call" in line]


def test_there_is_a_script_for_each_framework(records: dict[str, Path]) -> None:
    frameworks = {script: {line["framework"] for line in lines(path)} for script, path in records.items()}
    assert frameworks == {
        "train_keras": {"tensorflow"},
        "train_optax": {"jax"},
        "train_paddle": {"paddle"},
        "train_torch": {"torch"},
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_step_has_the_threshold_of_the_file_and_the_coefficient_of_the_rule(
    script: str, records: dict[str, Path]
) -> None:
    config = ClipConfig.load(EXAMPLES / "clip.toml")
    steps = lines(records[script])
    assert [line["step"] for line in steps] == list(range(1, 21))
    for line in steps:
        assert line["threshold"] == threshold_at(config.threshold, line["step"] - 1)
        assert (line["norm_type"], line["eps"], line["dtype"]) == (2.0, 1e-6, "float32")
        assert line["coef"] == min(1.0, line["threshold"] / (line["norm"] + 1e-6))
        assert line["clipped"] == (line["coef"] < 1)
        assert len(line["parameters"]) == 2
        assert not any("bias" in name for name in line["parameters"])
    assert sum(line["clipped"] for line in steps) == 16


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script != "train_keras"])
def test_the_recordings_agree_with_those_of_the_other_frameworks(script: str, records: dict[str, Path]) -> None:
    comparison = compare.compare(records["train_keras"], records[script], max_ulp=rounding.ROUNDING)
    assert not comparison.findings, comparison
