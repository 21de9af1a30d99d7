"""Functions that `record` and `verify` watch: how they are hooked, and the coefficients of their results."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import unified_clip
from unified_clip.recorder.clips import NativeCall, line_of, record_call, rows_of
from unified_clip.recorder.guard import Call, Hook
from unified_clip.recorder.hooks import CLIP_CALLS, OUTPUT
from unified_clip.recording import runs
from unified_clip.recording.results import coefficient, result_fields
from unified_clip.tensors.types import Dense

VALUES = np.random.default_rng(3).normal(size=500).astype(np.float32)


def dense(values: np.ndarray, dtype: str = "float32") -> Dense:
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        return Dense(dtype, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    return Dense(dtype, values.astype(dtype))


def scale(before: Dense, coef: float) -> Dense:
    return dense(before.values() * coef, before.dtype)


@pytest.mark.parametrize("coef", [0.3, 0.7071067, 1e-6, 0.99999994, 2.5])
def test_the_coefficient_is_the_only_factor_that_explains_every_product(coef: float) -> None:
    before, used = dense(VALUES), float(np.float32(coef))
    assert coefficient([(before, scale(before, used))], used) == used
    assert coefficient([(before, scale(before, used))], float("nan")) == pytest.approx(used, rel=2**-22)


def test_the_coefficient_of_a_formula_is_not_used_if_the_products_contradict_it() -> None:
    before, used = dense(VALUES), np.float32(0.3)
    for ulps in (-2, 2):
        formula = float(used) * (1 + ulps * 2**-23)
        assert coefficient([(before, scale(before, float(used)))], formula) == pytest.approx(float(used), rel=2**-23)
        assert np.float32(coefficient([(before, scale(before, float(used)))], formula)) != np.float32(formula)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_formula_chooses_the_coefficient_among_those_that_fit_16_bit_products(dtype: str) -> None:
    before = dense(VALUES, dtype)
    assert coefficient([(before, scale(before, 0.3))], 0.3 * (1 + 2**-20)) == 0.3 * (1 + 2**-20)


def test_a_result_that_no_factor_explains_has_no_coefficient() -> None:
    before = dense(VALUES)
    assert coefficient([(before, dense(np.clip(VALUES, -0.5, 0.5)))], 0.5) is None
    assert coefficient([(before, scale(before, coef)) for coef in (0.25, 0.5)], 0.5) is None


def test_gradients_that_all_become_nan_have_the_coefficient_nan() -> None:
    before, lost = dense(VALUES), dense(np.full_like(VALUES, np.nan))
    assert np.isnan(coefficient([(before, lost)], 0.5) or 0.0)
    assert coefficient([(before, lost), (before, scale(before, 0.5))], 0.5) is None


STORED = dense(VALUES[:4].reshape(2, 2))
"""Two rows of a sparse gradient. Both have the index 0."""


def line_with_rows(rule: str, before: list[Dense], coef: float, *, keeps_rows: bool = True) -> dict[str, Any]:
    """Return the line of a call that multiplies gradients by `coef`, the first of which is sparse with these rows. The
    rows are summed after the clip."""
    clipped = scale(STORED, coef)
    summed = [dense(each.values().astype(np.float32).sum(0, keepdims=True)) for each in (STORED, clipped)]
    after = [summed[1] if keeps_rows else scale(summed[0], coef), *(scale(each, coef) for each in before)]
    call, gradients = NativeCall("clip", "tensorflow", rule, 0.5), [summed[0], *before]
    rows = [
        each._replace(stored=gradient)
        for each, gradient in zip(rows_of(call, [gradient.array for gradient in gradients]), gradients, strict=True)
    ]
    rows[0] = rows[0]._replace(sparse_rows=(STORED.array, clipped.array if keeps_rows else None))
    line = line_of(call, rows)
    return line | result_fields(call, line, rows, after)


@pytest.mark.parametrize("keeps_rows", [True, False])
def test_the_coefficient_of_repeated_rows_is_that_of_the_stored_rows(keeps_rows: bool) -> None:
    values = [*VALUES[:4], *VALUES]
    norms = [float(np.float32(np.linalg.norm(np.float64(each)))) for each in (VALUES[:4], VALUES, values)]
    line = line_with_rows("each", [], 0.5 / norms[0], keeps_rows=keeps_rows)
    assert (line["stored_norm"], line["coef"]) == ([norms[0]], [0.5 / norms[0]])
    assert line["norm"] != line["stored_norm"]
    line = line_with_rows("global", [dense(VALUES)], 0.5 / norms[2], keeps_rows=keeps_rows)
    assert (line["stored_norm"], line["coef"]) == (norms[2], 0.5 / norms[2])


@pytest.mark.parametrize(("n", "expected"), [(0.5, 1.0), (2.0, 1 / (2 + 1e-6)), (np.nan, np.nan)])
def test_the_formula_adds_eps_to_the_norm(n: float, expected: float) -> None:
    native = NativeCall("clip", "torch", "global", 1.0, 2.0, 1e-6)
    assert native.coefficient(n) == pytest.approx(expected, rel=1e-15, nan_ok=True)


def record(call: NativeCall, before: list[Dense], after: list[Dense], *more: Any) -> None:
    rows = rows_of(call, [each.array for each in before], *more)
    record_call(call, rows, "train.py:1", results=[OUTPUT.copy(each.array) for each in after])


def test_a_watched_call_is_recorded(tmp_path: Path) -> None:
    before = [dense(np.array([3.0, 4.0])), dense(np.array([[12.0]]))]
    after = [scale(each, 1 / 13) for each in before]
    native = NativeCall("framework.clip", "framework", "global", 1.0, 2.0, 0.0)
    recording = unified_clip.record(tmp_path / "run.jsonl", norms=True, gradients_every=1)
    recording.stores_results = True
    with recording:
        recording.next_step()
        record(native, before, after, [before[0].array, None], ["a", "b"])
    (line,) = runs.read(tmp_path / "run.jsonl").lines
    assert (line.step, line.call, line.rule, line.norm, line.coef) == (1, "framework.clip", "global", 13.0, 1 / 13)
    assert line.watched
    assert line.clipped
    assert {name: (each.shape, each.norm, each.weight) for name, each in line.parameters.items()} == {
        "a": ((2,), 5.0, 5.0),
        "b": ((1, 1), 12.0, None),
    }
    stored = [load_file(tmp_path / str(name)) for name in (line.gradients, line.after)]
    assert [[*each] for each in stored] == [["a", "b"]] * 2
    assert [each["b"].tolist() for each in stored] == [[[12.0]], after[1].array.tolist()]


def test_a_per_tensor_clip_records_each_norm_and_coefficient(tmp_path: Path) -> None:
    before = [dense(np.array([3.0, 4.0])), dense(np.array([0.5]))]
    native = NativeCall("framework.clip", "framework", "each", 1.0, 2.0, 0.0)
    with unified_clip.record(tmp_path / "run.jsonl"):
        record(native, before, [])
    (line,) = runs.read(tmp_path / "run.jsonl").lines
    assert (line.norm, line.coef) == ([5.0, 0.5], [0.2, 1.0])


def test_each_recording_has_what_it_asked_for(tmp_path: Path) -> None:
    """Norms that another recording needs belong to that recording."""
    plain = unified_clip.record(tmp_path / "plain.jsonl")
    norms = unified_clip.record(tmp_path / "norms.jsonl", norms=True)
    stored = unified_clip.record(tmp_path / "stored.jsonl", gradients_every=2)
    call, before = NativeCall("clip", "torch", "global", 1.0), [np.array([3.0, 4.0], np.float32)]
    with plain, norms, stored:
        for _ in range(2):
            record_call(call, rows_of(call, before, [], ["a"]), "train.py:1", 5.5)
    files = [runs.read(tmp_path / f"{name}.jsonl").lines for name in ("plain", "norms", "stored")]
    assert [[line.norm for line in lines] for lines in files] == [[5.5, 5.5], [5.0, 5.0], [5.5, 5.5]]
    assert [[*lines[0].parameters] for lines in files] == [[], ["a"], []]
    assert [[line.gradients for line in lines] for lines in files] == [[None] * 2] * 2 + [
        [None, "stored.step2.safetensors"]
    ]


def test_a_call_inside_another_call_is_not_recorded(tmp_path: Path) -> None:
    observed: list[str] = []

    def clip(name: str, body: Callable[[], object] = lambda: None) -> None:
        def observe(call: Call) -> Iterator[None]:
            observed.append(name)
            yield

        Hook(f"test {name}", "nothing is lost").around(body, CLIP_CALLS.observer(observe))()

    class Clipping(dict[str, np.ndarray]):
        def items(self):  # type: ignore[no-untyped-def]
            clip("inside unified_clip")
            return super().items()

    with unified_clip.record(tmp_path / "run.jsonl"):
        clip("first", lambda: clip("inside the first"))
        clip("second")
        unified_clip.clip_grad_norm_(Clipping(a=np.ones(2)), 1.0)
    assert observed == ["first", "second"]


def test_an_action_follows_an_import_once_and_imports_nothing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("value = 1\n", encoding="utf-8")
    (tmp_path / "broken_module.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    acted = []
    names = ("watched_module", "broken_module", "absent_module")
    Hook("test", "nothing is lost").after_import({name: lambda name=name: acted.append(name) for name in names})  # type: ignore[misc]
    assert acted == []
    assert "watched_module" not in sys.modules
    import watched_module
    import watched_module as again

    assert watched_module.value == 1
    assert again is watched_module
    with pytest.raises(ZeroDivisionError):
        import broken_module  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import absent_module  # noqa: F401
    assert acted == ["watched_module"]
    del sys.modules["watched_module"]


def test_an_action_follows_the_import_of_a_module_that_was_only_looked_for_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow looks for Keras before it imports it."""
    (tmp_path / "sought_module.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    acted: list[str] = []
    Hook("test", "nothing is lost").after_import({"sought_module": lambda: acted.append("sought_module")})
    assert importlib.util.find_spec("sought_module") is not None
    assert acted == []
    import sought_module

    assert (sought_module.value, acted) == (1, ["sought_module"])
    del sys.modules["sought_module"]


# -- comparing


def test_the_end_of_a_recording_waits_for_graphs_that_have_not_reported_their_calls(tmp_path: Path) -> None:
    recording = unified_clip.record(tmp_path / "run.jsonl")
    with recording:
        reports = [NativeCall("framework.clip", "numpy", "global", 1.0)]
        recording.wait_with(lambda: record(reports.pop(), [dense(VALUES)], []) if reports else None)
    assert [line.call for line in runs.read(tmp_path / "run.jsonl").lines] == ["framework.clip"]


def test_nan_hides_whether_a_clip_by_value_changes_anything(tmp_path: Path) -> None:
    call = NativeCall("clip", "torch", "value", (-1.0, 1.0))
    known = [np.array(each, np.float32) for each in ([0.5], [2.0], [np.nan, 0.5])]
    clipped = [line_of(call, rows_of(call, gradients))["clipped"] for gradients in (known[:1], known, known[::2])]
    assert clipped == [False, True, None]
