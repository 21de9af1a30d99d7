"""The pairs of `unified-clip bench` do the same work: unified_clip and the framework return about the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit, in_a_new_process
from support.tiers import why_no_graphs

from unified_clip.bench import lists
from unified_clip.bench.gradients import create_gradients, rough_norm
from unified_clip.bench.measure import Pair
from unified_clip.bench.options import DTYPES, DTYPES_OF
from unified_clip.bench.pairs import FRAMEWORKS
from unified_clip.parity.suite.call_form import leaves

pytestmark = pytest.mark.nightly

NATIVES = {"numpy": 2, "torch": 3, "tensorflow": 5, "paddle": 3, "jax": 3}
"""The number of functions of the framework that are measured."""


@pytest.fixture(autouse=True)
def _measured(kit: Kit) -> None:
    if kit.name not in FRAMEWORKS:
        pytest.skip(f"{kit.name} is not measured")
    if kit.name == "jax" and why_no_graphs("jax"):
        pytest.skip("JAX is measured in graphs")


@pytest.fixture(params=DTYPES)
def dtype(kit: Kit, request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in DTYPES_OF[kit.name]:
        pytest.skip(f"{name} is not measured on {kit.name}")
    return name


def outcome(kit: Kit, pair: Pair, call: Callable[[Any], Any]) -> list[np.ndarray]:
    inputs = pair.prepare()
    result = call(inputs)
    tensors = [*leaves(result), *(kit.kept(inputs) if pair.in_place else [])]
    return [kit.array(tensor).astype(np.float64) for tensor in tensors]


def test_unified_clip_and_the_frameworks_functions_agree(kit: Kit, dtype: str) -> None:
    arrays = create_gradients(lists.LISTS["10x10"], dtype)
    norm, pairs = rough_norm(arrays), FRAMEWORKS[kit.name].pairs(arrays)
    for limit in (norm / 2, 2 * norm):
        for pair in (*pairs.clips(limit), *pairs.in_graphs(limit)):
            results = outcome(kit, pair, pair.unified)
            gradients = [array for array in results if array.shape == (10,) and array.any()]
            assert np.linalg.norm(gradients) == pytest.approx(min(norm, limit), rel=0.02)
            assert len(gradients) == 10
            check_native(kit, pair, results)
    check_native(kit, pairs.norm, outcome(kit, pairs.norm, pairs.norm.unified))
    if why_no_graphs(kit.name):
        return  # these releases have fewer functions
    natives = [pair for pair in [*pairs.clips(norm), *pairs.in_graphs(norm), pairs.norm] if pair.native]
    assert len(natives) == (0 if (kit.name, dtype) == ("paddle", "bfloat16") else NATIVES[kit.name])


def check_native(kit: Kit, pair: Pair, results: list[np.ndarray]) -> None:
    if pair.native:
        for unified, native in zip(results, outcome(kit, pair, pair.native), strict=True):
            np.testing.assert_allclose(unified, native, rtol=0.03)


def test_the_framework_uses_as_many_threads_as_it_is_told(kit: Kit) -> None:
    code = f"""
from unified_clip._backends.{kit.name} import BACKEND
from unified_clip.bench.pairs import FRAMEWORKS
FRAMEWORKS["{kit.name}"].use_threads(3)
print(BACKEND.threads())
"""
    assert in_a_new_process(code).strip() == ("3" if kit.name in ("torch", "tensorflow") else "None")
