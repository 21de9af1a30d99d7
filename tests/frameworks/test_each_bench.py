"""The pairs of `unified-clip bench` do the same work: unified_clip and the framework return about the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit, in_a_new_process
from support.tiers import why_no_graphs

from unified_clip.bench import lists, measure, worker
from unified_clip.bench.gradients import create_gradients, rough_norm
from unified_clip.bench.measure import Pair
from unified_clip.bench.options import DTYPES, DTYPES_OF, Options
from unified_clip.bench.pairs import FRAMEWORKS
from unified_clip.parity.suite.call_form import leaves

pytestmark = pytest.mark.nightly

NATIVES = {
    ("numpy", "float32"): ["plain NumPy"] * 2,
    ("torch", "float32"): [
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm_ (torch.compile)",
        "torch.nn.utils.get_total_norm",
    ],
    ("tensorflow", "float32"): [
        "tf.clip_by_global_norm",
        "tf.clip_by_global_norm (XLA)",
        "tf.clip_by_global_norm (in tf.function)",
        "tf.clip_by_global_norm (in XLA)",
        "tf.linalg.global_norm",
    ],
    ("paddle", "float32"): [
        "paddle.nn.ClipGradByGlobalNorm",
        "paddle.nn.utils.clip_grad_norm_",
        "paddle.nn.ClipGradByGlobalNorm (static program)",
    ],
    ("paddle", "bfloat16"): [],
    ("jax", "float32"): [
        "optax.clip_by_global_norm (jit)",
        "optax.clip_by_global_norm (both in jit)",
        "optax.tree.norm (jit)",
    ],
}


@pytest.fixture(autouse=True)
def _measured(kit: Kit) -> None:
    if kit.name not in FRAMEWORKS:
        pytest.skip(f"{kit.name} is not measured")
    if kit.name == "jax" and why_no_graphs("jax"):
        pytest.skip("JAX is measured in graphs")
    if not kit.exact:
        pytest.skip("what is measured chooses its path itself")


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
    natives = [pair.native_name for pair in [*pairs.clips(norm), *pairs.in_graphs(norm), pairs.norm] if pair.native]
    assert natives == NATIVES.get((kit.name, dtype), NATIVES[kit.name, "float32"])


def check_native(kit: Kit, pair: Pair, results: list[np.ndarray]) -> None:
    if pair.native:
        for unified, native in zip(results, outcome(kit, pair, pair.native), strict=True):
            np.testing.assert_allclose(unified, native, rtol=0.03)


@pytest.mark.graphs
def test_the_worker_measures_every_pair(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LEAST", 2)
    monkeypatch.setattr("unified_clip.bench.options.GROWTH", {"tensors": {1001: [(1,)] * 1001}})
    in_use = FRAMEWORKS[kit.name]._replace(
        use_threads=lambda threads: None
    )  # TensorFlow can no longer change the number of threads
    monkeypatch.setitem(FRAMEWORKS, kit.name, in_use)  # type: ignore[arg-type]
    options = Options(frameworks=[kit.name], lists=["10x10"], dtypes=["float32"], seconds=0.0)
    first, one, growth = worker.results(kit.name, options)
    assert set(first["versions"]) == set(FRAMEWORKS[kit.name].packages)
    measured = [each["native"] for each in one["results"] if each["native_ms"]]
    assert set(measured) == set(NATIVES[kit.name, "float32"])
    assert {each["native"] for each in one["memory"]} <= set(measured)
    assert bool(one["memory"]) == kit.writable
    compiled = kit.name == "jax"
    assert (growth["growth"][0]["native_ms"] is None) == compiled, "XLA takes too long for so many"


def test_the_framework_uses_as_many_threads_as_it_is_told(kit: Kit) -> None:
    code = f"""
from unified_clip._backends.{kit.name} import BACKEND
from unified_clip.bench.pairs import FRAMEWORKS
FRAMEWORKS["{kit.name}"].use_threads(3)
print(BACKEND.threads())
"""
    assert in_a_new_process(code).strip() == ("3" if kit.name in ("torch", "tensorflow") else "None")
