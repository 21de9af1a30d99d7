"""The worker of `unified-clip bench`, which measures one framework. frameworks/test_each_bench.py tests the pairs."""

from __future__ import annotations

import numpy as np
import pytest
from support.bench import OPTIONS

from unified_clip import native_available
from unified_clip.bench import lists, worker

pytestmark = pytest.mark.nightly


def test_a_worker_measures_lists_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lists.LISTS, "10x10", [(10,)] * 10)  # type: ignore[arg-type]
    monkeypatch.setattr(worker, "LONG", 99)
    first, one = worker.results("numpy", OPTIONS)
    compiled = {"numpy": native_available()}
    assert first == {"versions": {"numpy": np.__version__}, "compiled_kernels": compiled}
    labels = {"framework": "numpy", "list": "10x10", "dtype": "float32"}
    assert [each["what"] for each in one["results"]] == ["clipped", "not clipped", "norm alone"]
    assert all(each.items() >= labels.items() for key in ("results", "limits", "memory") for each in one[key])
    assert one["limits"][0]["bytes"] == 400


def test_short_lists_have_no_limits() -> None:
    _, one = worker.results("numpy", OPTIONS)
    assert one["limits"] == []
