"""One call of the kernels computes the norm, the coefficient and the products that the rule computes in steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_clip import _native
from unified_clip._compute.host import HOST
from unified_clip._core.rule import ClipConvention, coefficient

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

COLLECTOR: Any = _native.KERNELS.Collector(np.ndarray, None, None, [], ("", True))
DTYPES = {"float16": 16, "float32": 32, "float64": 64}
CONVENTIONS = st.builds(ClipConvention, eps=st.sampled_from([0.0, 1e-6]), infinite_norm_gives_nan=st.booleans())


@st.composite
def arrays(draw: st.DrawFn) -> list[Any]:
    dtypes = draw(st.lists(st.sampled_from(list(DTYPES)), min_size=1, max_size=4))
    return [
        np.array(draw(st.lists(st.floats(width=DTYPES[dtype]), min_size=1, max_size=5)), dtype)  # type: ignore[arg-type]
        for dtype in dtypes
    ]


def threshold_near(norm: float, factor: float, free: float) -> float:
    """Return norm times a factor, which is where the coefficient starts to differ from 1, or any threshold."""
    near = norm * factor
    return near if factor >= 0 and math.isfinite(near) else free


@given(
    arrays(),
    CONVENTIONS,
    st.sampled_from([-1.0, 0.0, 0.5, 1 - 2**-53, 1.0, 1 + 2**-52, 2.0]),
    st.floats(min_value=0.0, allow_nan=False),
)
def test_one_call_gives_the_bits_of_the_rule(
    gradients: list[Any], convention: ClipConvention, factor: float, free: float
) -> None:
    tensors = COLLECTOR.of_tensors(gradients, False, True)
    norm = tensors.norm(2, tensors.has_float64, 1)
    threshold = threshold_near(norm, factor, free)
    coef = 1.0 if threshold == math.inf else coefficient(HOST, norm, threshold, convention)
    expected = [np.empty_like(gradient) for gradient in gradients]
    tensors.scale(coef, 1, expected)
    announced: list[Any] = []

    result = tensors.clip_(threshold, *convention, 1, lambda n, dtype: np.dtype(dtype).type(n), announced.append)

    assert result.dtype == ("float64" if tensors.has_float64 else "float32")
    assert np.float64(result).tobytes() == np.float64(norm).tobytes()
    assert [gradient.tobytes() for gradient in gradients] == [array.tobytes() for array in expected]
    assert bool(announced) == (coef != 1.0), "autograd is told of a write, and of nothing else"


def test_a_failure_before_the_first_write_leaves_the_gradients() -> None:
    gradient = np.full(3, 10.0, np.float32)

    def fail(tensors: list[Any]) -> None:
        raise RuntimeError("this tensor has no version")

    with pytest.raises(RuntimeError):
        COLLECTOR.of_tensors([gradient], False, True).clip_(1.0, 0.0, False, 1, lambda n, dtype: n, fail)
    assert gradient.tolist() == [10.0] * 3


@pytest.mark.parametrize("setting", ["framework"])
def test_nothing_is_collected_if_the_device_path_is_forced(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", setting)
    assert COLLECTOR.of_tensors([np.ones(2)], False, True) is None
    monkeypatch.delenv("UNIFIED_CLIP_PATH")
    assert COLLECTOR.of_tensors([np.ones(2)], False, True) is not None
