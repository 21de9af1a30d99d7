"""A recording has the same numbers on every framework, and does not change results."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.tiers import where

import unified_clip
from unified_clip._compute import kernels
from unified_clip._core.types import Deferred
from unified_clip._kit import safetensors_files

NUMBERS = [[3.0, -4.0], [[0.25, 12.0], [-0.5, 1.0]], [2.0]]


def gradients(kit: Kit, numbers: Any = NUMBERS) -> list[Any]:
    return [kit.tensor(values) for values in numbers]


def make_param_grads(kit: Kit, numbers: Any = NUMBERS) -> list[Any]:
    return [(kit.parameter(name), gradient) for name, gradient in zip("ab", gradients(kit, numbers), strict=False)]


def test_a_list_of_gradients_takes_the_names_of_the_parameters_in_order(kit: Kit, tmp_path: Path) -> None:
    named = dict(zip("wbc", gradients(kit), strict=True))
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, names=named):
        kit.namespace.clip_by_global_norm(gradients(kit), 2.0)
    (line,) = events_of(tmp_path / "run.jsonl")
    assert list(line["parameters"]) == ["w", "b", "c"]


def test_names_that_do_not_match_the_gradients_warn(kit: Kit, tmp_path: Path) -> None:
    named = dict(zip("wbc", reversed(gradients(kit)), strict=True))
    with (
        unified_clip.record(tmp_path / "run.jsonl", norms=True, names=named),
        pytest.warns(unified_clip.ClipWarning, match="names= does not match the gradients of clip_by_global_norm"),
    ):
        kit.namespace.clip_by_global_norm(gradients(kit), 2.0)
    warning, line = events_of(tmp_path / "run.jsonl")
    assert warning["warning"].startswith("names= does not match the gradients of clip_by_global_norm")
    assert list(line["parameters"]) == ["0", "1", "2"]


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def norm(*arrays: Any) -> float:
    return float(reference.norm([np.array(array, np.float32) for array in arrays], 2))


def close_on_device(kit: Kit, expected: Any) -> Any:
    return expected if kit.exact else pytest.approx(expected, rel=2e-7)


TOTAL = norm(*NUMBERS)
CALLS: dict[str, tuple[Callable[[Kit], Any], dict[str, Any]]] = {
    "clip_grad_norm_": (
        lambda kit: kit.namespace.clip_grad_norm_(kit.in_place(gradients(kit)), 2.0),
        {"rule": "global", "norm": TOTAL, "coef": 2 / (TOTAL + 1e-6), "clipped": True, "eps": 1e-6, "norm_type": 2.0},
    ),
    "clip_by_global_norm": (
        lambda kit: kit.namespace.clip_by_global_norm(gradients(kit), 2.0),
        {"rule": "global", "norm": TOTAL, "coef": 2 / TOTAL, "clipped": True, "eps": 0.0, "threshold": 2.0},
    ),
    "clip_grad_norm_, below the limit": (
        lambda kit: kit.namespace.clip_grad_norm_(kit.in_place(gradients(kit)), 100.0),
        {"norm": TOTAL, "coef": 1.0, "clipped": False, "nan": 0, "inf": 0},
    ),
    "clip_grad_norm_, measuring only": (
        lambda kit: kit.namespace.clip_grad_norm_(kit.in_place(gradients(kit)), math.inf),
        {"threshold": "inf", "norm": TOTAL, "coef": 1.0, "clipped": False},
    ),
    "clip_grads_with_norm_": (
        lambda kit: kit.namespace.clip_grads_with_norm_(kit.in_place(gradients(kit)), 1.0, 4.0),
        {"norm": 4.0, "coef": 1 / (4 + 1e-6), "nan": None, "inf": None},
    ),
    "clip_by_global_norm, a limit and a norm of 0": (
        lambda kit: kit.namespace.clip_by_global_norm(gradients(kit), 0.0, use_norm=0.0),
        {"norm": 0.0, "coef": 0.0, "clipped": True},
    ),
    "clip_grad_value_": (
        lambda kit: kit.namespace.clip_grad_value_(kit.in_place(gradients(kit)), 2.5),
        {"rule": "value", "threshold": [-2.5, 2.5], "norm": None, "coef": None, "clipped": None, "nan": None},
    ),
    "clip_by_norm": (
        lambda kit: kit.namespace.clip_by_norm(gradients(kit)[0], 1.0),
        {"rule": "each", "norm": [5.0], "coef": [0.2]},
    ),
    "clip_by_norm of slices": (
        lambda kit: kit.namespace.clip_by_norm(kit.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, axes=1),
        {"rule": "slices", "norm": [5.0, 0.5], "coef": [0.2, 1.0], "clipped": True},
    ),
    "GradientClipByNorm": (
        lambda kit: kit.namespace.GradientClipByNorm(4.0)(make_param_grads(kit)),
        {"rule": "each", "norm": [5.0, norm(NUMBERS[1])], "coef": [0.8, 4 / norm(NUMBERS[1])], "eps": 0.0},
    ),
    "GradientClipByNorm.clip_": (
        lambda kit: kit.namespace.GradientClipByNorm(4.0).clip_(kit.in_place(gradients(kit))),
        {"rule": "each", "norm": [norm(each) for each in NUMBERS]},
    ),
    "GradientClipByGlobalNorm": (
        lambda kit: kit.namespace.GradientClipByGlobalNorm(1.0)(make_param_grads(kit)),
        {"rule": "global", "norm": norm(*NUMBERS[:2]), "coef": 1 / norm(*NUMBERS[:2])},
    ),
    "ErrorClipByValue": (
        lambda kit: kit.namespace.ErrorClipByValue(1.0)(kit.tensor([3.0])),
        {"rule": "value", "threshold": [-1.0, 1.0]},
    ),
}

WITH_NORMS: dict[str, dict[str, Any]] = {
    "clip_grads_with_norm_": {"norm": TOTAL, "passed_norm": 4.0},
    "clip_by_global_norm, a limit and a norm of 0": {"norm": TOTAL, "passed_norm": 0.0},
}
"""With recorded norms, `norm` is the norm of the gradients, not the one that the caller passes."""


@pytest.mark.parametrize("norms", [False, True])
def test_every_call_is_a_clip_event_with_exact_numbers(kit: Kit, tmp_path: Path, norms: bool) -> None:
    with unified_clip.record(tmp_path / "run.jsonl", norms=norms):
        for call, _ in CALLS.values():
            call(kit)
        kit.namespace.get_total_norm(gradients(kit))
    events = events_of(tmp_path / "run.jsonl")
    assert [line["step"] for line in events] == list(range(1, len(CALLS) + 1))
    for line, (name, (_, expected)) in zip(events, CALLS.items(), strict=True):
        assert line["call"] == name.split(",")[0].split(" ")[0]
        assert line["framework"] == kit.name
        assert line["seconds"] > 0
        for key, value in (expected | WITH_NORMS.get(name, {}) if norms else expected).items():
            if key in ("norm", "coef") and value is not None:
                value = close_on_device(kit, value)
            if not (norms and key in ("clipped", "nan", "inf") and value is None):  # the recorded norms decide these
                assert line[key] == value, (name, key)


@pytest.mark.parametrize("name", ["GradientClipByGlobalNorm", "GradientClipByNorm"])
def test_each_group_of_a_call_is_a_clip_event_of_the_same_step(kit: Kit, tmp_path: Path, name: str) -> None:
    param_grads = make_param_grads(kit)
    uc, kind = kit.namespace, getattr(kit.namespace, name)
    uc.set_gradient_clip(kind(1.0), [parameter for parameter, _ in param_grads[:1]])
    uc.set_gradient_clip(kind(2.0), [parameter for parameter, _ in param_grads[1:]])
    with unified_clip.record(tmp_path / "run.jsonl"):
        uc.append_gradient_clip_ops(param_grads)
    assert [(line["step"], line["call"], line["threshold"]) for line in events_of(tmp_path / "run.jsonl")] == [
        (1, "append_gradient_clip_ops", 1.0),
        (1, "append_gradient_clip_ops", 2.0),
    ]


def test_norms_of_gradients_and_weights_have_names(kit: Kit, tmp_path: Path) -> None:
    numbers = [[3.0, -4.0], [0.25, 12.0]]
    param_grads = make_param_grads(kit, numbers)
    named = {"first": param_grads[0][0], "second": param_grads[1][0]}
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, names=named):
        kit.namespace.GradientClipByGlobalNorm(1.0)(param_grads)
    (line,) = events_of(tmp_path / "run.jsonl")
    for entry, gradient, weight in zip(line["parameters"].values(), numbers, named.values(), strict=True):
        assert set(entry.pop("sample")) == set(np.ravel(gradient))
        assert set(entry.pop("weight_sample")) == set(np.ravel(kit.array(weight)).tolist())
    assert line["parameters"] == {
        "first": {"shape": [2], "norm": 5.0, "weight": close_on_device(kit, norm(kit.array(named["first"])))},
        "second": {
            "shape": [2],
            "norm": close_on_device(kit, norm(numbers[1])),
            "weight": close_on_device(kit, norm(kit.array(named["second"]))),
        },
    }


def test_nan_and_inf_are_counted_on_the_host_path(kit: Kit, tmp_path: Path) -> None:
    bad = [kit.tensor([math.nan, math.inf, 1.0]), kit.tensor([math.nan])]
    with unified_clip.record(tmp_path / "run.jsonl"):
        kit.namespace.clip_grad_norm_(kit.in_place(bad), 1.0)
        kit.namespace.clip_by_global_norm([kit.tensor([3e38, 3e38])], 1.0)
    first, second = events_of(tmp_path / "run.jsonl")
    assert (first["norm"], first["coef"]) == ("nan", "nan")
    assert (second["norm"], second["coef"]) == ("inf", "nan")
    on_host = [(2, 1), (0, 0)] if kit.exact else [(None, None)] * 2
    assert [(line["nan"], line["inf"]) for line in (first, second)] == on_host


def test_a_failed_call_is_a_clip_event_with_its_error(kit: Kit, tmp_path: Path) -> None:
    holders = kit.in_place([kit.tensor([math.nan])])
    with unified_clip.record(tmp_path / "run.jsonl"):
        with pytest.raises(unified_clip.NonFiniteNormError):
            kit.namespace.clip_grad_norm_(holders, 1.0, error_if_nonfinite=True)
        kit.namespace.clip_grad_norm_(kit.in_place(gradients(kit)), 1.0)
    failed, good = events_of(tmp_path / "run.jsonl")
    assert failed["error"].startswith("NonFiniteNormError: the total norm of order 2 is NaN")
    assert "error" not in good
    assert [failed["step"], good["step"]] == [1, 2]


def test_a_call_with_wrong_arguments_is_no_clip_event(kit: Kit, tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        for options in ({"max_nrom": 1.0}, {"max_norm": 1.0, "framework": 1}, {}):
            with pytest.raises(TypeError, match=r"^clip_grad_norm_\(\) "):
                kit.namespace.clip_grad_norm_(kit.in_place([kit.tensor([3.0])]), **options)
        kit.namespace.clip_grad_norm_(kit.in_place([kit.tensor([3.0])]), max_norm=1.0)
    assert [event["step"] for event in events_of(tmp_path / "run.jsonl")] == [1]


@pytest.mark.parametrize("norms", [False, True])
def test_recording_does_not_change_results(kit: Kit, tmp_path: Path, norms: bool) -> None:
    def results() -> list[bytes]:
        in_place = kit.in_place(gradients(kit))
        total = kit.namespace.clip_grad_norm_(in_place, 2.0)
        clipped, again = kit.namespace.clip_by_global_norm(gradients(kit), 2.0)
        per_tensor = [gradient for _, gradient in kit.namespace.GradientClipByNorm(2.0)(make_param_grads(kit))]
        return [kit.bits(tensor) for tensor in (total, again, *kit.kept(in_place), *clipped, *per_tensor)]

    without_recording = results()
    with unified_clip.record(tmp_path / "run.jsonl", norms=norms, gradients_every=1 if norms else None):
        assert results() == without_recording


def test_gradients_are_stored_before_clipping(kit: Kit, tmp_path: Path) -> None:
    wide = "float16" if "float64" not in kit.floating else "float64"
    numbers = {"a": ([3.0, 4.0], "float32"), "b": ([[1.0, 2.0]], "bfloat16"), "c": ([0.5], wide)}
    with unified_clip.record(tmp_path / "run.jsonl", gradients_every=2, names=list(numbers)) as run:
        for _ in range(4):
            run.next_step()
            holders = kit.in_place([kit.tensor(values, dtype) for values, dtype in numbers.values()])
            kit.namespace.clip_grad_norm_(holders, 1.0)
    assert [line.get("gradients") for line in events_of(tmp_path / "run.jsonl")] == [
        None, "run.step2.safetensors", None, "run.step4.safetensors",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir())[1:] == ["run.step2.safetensors", "run.step4.safetensors"]
    expected = {
        name: (dtype, kernels.storage(reference.array(values, dtype))[0]) for name, (values, dtype) in numbers.items()
    }
    safetensors_files.write(tmp_path / "expected.safetensors", expected)
    assert (tmp_path / "run.step4.safetensors").read_bytes() == (tmp_path / "expected.safetensors").read_bytes()


@where(lambda kit: kit.has_sparse)
def test_sparse_gradients_are_measured_with_summed_rows_and_not_stored(kit: Kit, tmp_path: Path) -> None:
    grads = {"embedding": kit.sparse([1, 1, 0], [[1.5], [1.5], [4.0]], 3), "bias": kit.tensor([12.0])}
    with unified_clip.record(tmp_path / "run.jsonl", norms=True, gradients_every=1):
        kit.namespace.clip_by_global_norm(grads, 1.0)
    (line,) = events_of(tmp_path / "run.jsonl")
    assert line["norm"] == 13.0
    assert line["parameters"]["embedding"] == {"shape": [3, 1], "norm": 5.0}
    stored = (tmp_path / line["gradients"]).read_bytes()
    assert b'"bias"' in stored
    assert b"embedding" not in stored


@where(lambda kit: os.environ.get("UNIFIED_CLIP_PATH") == "framework" and kit.name != "numpy")
def test_clip_events_on_a_device_are_written_one_call_later(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = type(importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND).__mro__
    backend: Any = next(class_ for class_ in classes if "read_later" in vars(class_))  # the class that defines it
    original, begun, fetched = backend.read_later, [], []

    def read_later(self: Any, scalars: Any) -> Deferred:
        number, deferred = len(begun), original(self, scalars)
        begun.append(number)

        def values() -> list[Any]:
            assert len(begun) > number + 1 or over, "fetched while the device may still compute"
            fetched.append(number)
            return deferred.values()

        return Deferred(values, deferred.ready)

    monkeypatch.setattr(backend, "read_later", read_later)
    over = False
    with unified_clip.record(tmp_path / "run.jsonl"):
        for call in range(3):
            kit.namespace.clip_grad_norm_(kit.in_place(gradients(kit)), 1.0)
            assert len(events_of(tmp_path / "run.jsonl")) == len(fetched) == call
        over = True
    assert [line["norm"] for line in events_of(tmp_path / "run.jsonl")] == [close_on_device(kit, TOTAL)] * 3
