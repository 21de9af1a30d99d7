"""Random and adversarial lists for the CUDA kernels, on an emulated GPU, against exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import emulated_gpu
from support.gpu_cases import OPERATIONS, check
from support.tiers import nightly

from unified_clip._compute import cuda


@pytest.fixture(params=[90, 89], ids=["fast float64", "slow float64"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the number of launches, in its attribute `value`. GPUs differ in the speed of float64."""
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    monkeypatch.setenv("EMULATED_CAPABILITY", str(request.param))
    emulated_gpu.install_for_torch(monkeypatch)
    monkeypatch.setattr(cuda, "FAST_FROM", 0)
    return emulated_gpu.variable("emulated_launches")


SEEDS = [0, *nightly(*range(1, 13))]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_lists(launches: Any, seed: int, operation: str) -> None:
    random = np.random.default_rng([seed, OPERATIONS.index(operation)])
    for _ in range(CASES if seed else 12):
        launched = launches.value
        check(random, operation, 8 * emulated_gpu.THREADS)
        assert launches.value > launched, "the case is one of the kernels"


CASES = 30
"""The cases of each test of the nightly tier: 12 seeds, 8 operations and 2 kinds of GPU give 5,760. Each launches."""


def test_the_nightly_tier_has_5000_cases() -> None:
    assert 2 * (len(SEEDS) - 1) * len(OPERATIONS) * CASES >= 5000
