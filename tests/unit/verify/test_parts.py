"""Functions of `unified-clip verify`: recordings, names, distances, and what is printed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from unified_clip._kit.safetensors_files import write
from unified_clip.recorder.clips import NativeCall
from unified_clip.recording.clip_event import merge_groups
from unified_clip.recording.recorded_run import Header, RecordedCall, RecordedRun
from unified_clip.recording.results import line_of_tensors
from unified_clip.tensors.types import Dense
from unified_clip.verify import normalize, rejections, report, step_pairing
from unified_clip.verify.compare import Verification
from unified_clip.verify.errors import VerifyError
from unified_clip.verify.launch.outputs import ScriptRun, StepOutput
from unified_clip.verify.launch.script import Script
from unified_clip.verify.step_comparison import Number, StepComparison, TensorComparison

SCRIPT = Script("old", Path("old.py"), "step", "old.py:step")


def dense(*values: float) -> Dense:
    return Dense("float32", np.array(values, np.float32))


def step_with_norm_distance(step: int, ulps: float) -> StepComparison:
    return StepComparison(step, [], [], [Number("norm", ulps, 0.0, ulps)], TensorComparison())


# -- comparing


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"w": dense(1)}, {"w": dense(1), "b": dense(2)}, "yields 'b' at step 2 but not at step 1. Yield the same"),
        ({"w": dense(1), "b": dense(2)}, {"w": dense(1)}, "yields 'b' at step 1 but not at step 2. Yield the same"),
        (
            {"w": dense(1)},
            {"w": dense(1, 2)},
            r"yields 'w' in the shape \(1,\) at step 1, but in the shape \(2,\) at step 2",
        ),
    ],
)
def test_steps_with_other_parameters_are_rejected(
    first: dict[str, Dense], second: dict[str, Dense], message: str
) -> None:
    outputs = [StepOutput(each, None, None) for each in (first, second)]
    with pytest.raises(VerifyError, match=message):
        rejections.reject_changing_outputs(ScriptRun(SCRIPT, outputs, Path(), True))
    rejections.reject_changing_outputs(ScriptRun(SCRIPT, outputs[:1] * 2, Path(), True))


# -- recordings


@pytest.mark.parametrize(
    ("clipped", "expected"),
    [((True, None), True), ((None, True), True), ((False, None), None), ((None, False), None), ((False, False), False)],
)
def test_merged_calls_have_clipped_if_one_of_them_has(
    clipped: tuple[bool | None, bool | None], expected: bool | None
) -> None:
    fields = {"rule": "value", "threshold": [-1.0, 1.0], "eps": None, "dtype": "float32", "norm": None, "coef": None}
    groups = [{**fields, "nan": 0, "inf": 0, "count": 1, "clipped": each} for each in clipped]
    (merged,) = merge_groups(groups)
    assert merged["clipped"] is expected


# -- names


def recording_of(output: StepOutput, *lines: dict[str, Any], directory: Path = Path()) -> normalize.NormalizedRecording:
    run = ScriptRun(SCRIPT, [output], directory, yields=True)
    header = Header.model_validate({"unified_clip": "1", "schema": 3, "started": "now", "norms": True})
    recorded = RecordedRun(path=directory, header=header, lines=[], incomplete_line=False, name="a", recorded=0)
    result = normalize.NormalizedRecording(run, recorded, 1)
    fields: dict[str, Any] = {"step": 1, "call": "clip", "rule": "global", "norm_type": 2.0, "norm": 10.0, "coef": 0.5}
    result.lines = [RecordedCall.model_validate({**fields, **line}) for line in lines]
    return result


def test_gradients_that_a_call_has_not_changed_are_not_called_unclipped() -> None:
    gradients = {"a": dense(3.0, 4.0)}
    parameters = {"0": {"shape": [2], "norm": 5.0}}
    for clipped in (False, True):
        fields = {"rule": "value", "norm": None, "coef": None, "clipped": clipped, "parameters": parameters}
        recording = recording_of(StepOutput(gradients, gradients, None), fields)
        normalize.name_gradients(recording)
        assert [*recording.lines[0].parameters] == ["a"]
        assert recording.unclipped == ({1} if clipped else set())


def test_gradients_of_the_only_shape_or_columns_have_their_parameters() -> None:
    """The values of a sparse gradient with repeated rows have other rows than the gradient."""
    shapes = {"w": (2, 2), "e": (5, 3), "f": (7, 4), "g": (8, 4), "a": (2,), "b": (2,)}
    weights = {name: Dense("float32", np.ones(shape, np.float32)) for name, shape in shapes.items()}
    clipped = {"0": [2, 2], "1": [3, 3], "2": [9, 4], "b": [2]}
    parameters = {name: {"shape": shape, "norm": 9.0} for name, shape in clipped.items()}
    recording = recording_of(StepOutput(weights, None, None), {"parameters": parameters})
    normalize.name_gradients(recording)
    assert [*recording.lines[0].parameters] == ["w", "e", "2", "b"]


@pytest.mark.parametrize(
    ("shape", "rule", "gradient", "counts"),
    [
        ([2], "value", [3.0, 4.0], True),
        ([2], "value", [4.0, 3.0], False),
        ([3], "each", [3.0, 4.0, 5.0], False),
        ([2], "each", [4.0, 3.0], True),
    ],
)
def test_a_function_for_any_tensor_is_recorded_if_it_clips_a_gradient(
    tmp_path: Path, shape: list[int], rule: str, gradient: list[float], counts: bool
) -> None:
    """A clip by value must return a gradient. For a clip by norm, the shape of a parameter is enough."""
    write(tmp_path / "after", {"0": ("float32", np.array(gradient, np.float32))})
    norms: dict[str, Any] = {"norm": [20.0], "coef": [0.5]} if rule == "each" else {"norm": None, "norm_type": None}
    norms |= {"coef": None} if rule == "value" else {}
    fields = {"rule": rule, "after": "after", "parameters": {"0": {"shape": shape, "norm": 20.0}}, **norms}
    of_two = {"a": dense(3.0, 4.0)}
    recording = recording_of(StepOutput(of_two, of_two, None), fields, directory=tmp_path)
    normalize.name_gradients(recording)
    assert bool(recording.lines) is counts
    assert dict(recording.not_gradients) == ({} if counts else {"clip": 1})


# -- distances


@pytest.mark.parametrize(
    ("gradients", "names", "expected"),
    [
        ((1e-9, -1e-9), (), {"k"}), ((1e-9, 0.0), (), {"k"}), ((1e-4, -1e-4), (), set()), ((1e-9, 1.0), (), set()),
        ((0.0, 0.0), ("k",), set()), ((1e-9, 1e-9), (), set()), ((1e-9, 1e-9), ("k",), {"k"}),
    ],
)  # fmt: skip
def test_a_gradient_far_below_the_total_norm_is_noise(
    gradients: tuple[float, float], names: Sequence[str], expected: set[str]
) -> None:
    recordings = []
    for gradient in gradients:
        values = {"w": dense(3.0), "k": dense(gradient)}
        recordings.append(recording_of(StepOutput({"w": dense(1.0), "k": dense(0.0)}, values, None)))
    pairing = step_pairing.StepPairing(recordings[0], recordings[1], {}, {})
    assert pairing.noise(1, names) == expected


def test_updates_by_noise_are_not_compared_up_to_twice_the_other_updates() -> None:
    ones = np.ones(1)
    pairs = [
        step_pairing.TensorPair(name, size * ones, -size * ones, 1.0, 1.0) for name, size in (("w", 1.0), ("k", 2.0))
    ]
    assert [pair.name for pair in step_pairing.without_noise(pairs, {"k"})] == ["w"]
    large = pairs[1]._replace(old=3 * ones)
    assert [pair.name for pair in step_pairing.without_noise([pairs[0], large], {"k"})] == ["w", "k"]


@pytest.mark.parametrize(
    ("off", "coarse", "ulps"),
    [(4, 1.0, 4), (5, 1.0, 5 * 2**19), (5, 2.0**16, 5), (2**18 + 1, 2.0**16, (2**18 + 1) * 2**6)],
)
def test_an_update_beyond_rounding_of_its_parameter_is_measured_by_its_own_size(
    off: int, coarse: float, ulps: float
) -> None:
    """The update is 2**-19, and a ULP of the parameter 1 is 2**-23."""
    update = np.array([2.0**-19])
    assert step_pairing.tensor_distance(update, update - off * 2.0**-23, 1.0, coarse).ulps == ulps


@pytest.mark.parametrize(
    ("dtypes", "size"),
    [(("float64", "float64"), 2.0**-52), (("float64", "float32"), 2.0**-23), (("bfloat16",) * 2, 2.0**-23)],
)
def test_distances_are_in_ulp_of_float64_if_both_sides_are_in_float64(dtypes: Sequence[str], size: float) -> None:
    one, ulp = np.ones(1), step_pairing.coarsest_ulp(dtypes)
    assert step_pairing.tensor_distance(one, one + size, 1.0, ulp).ulps == 1


def test_nan_on_one_side_is_no_rounding() -> None:
    one, nan = (recording_of(StepOutput({"w": dense(1.0)}, {"w": dense(each)}, None)) for each in (1.0, math.nan))
    pairing = step_pairing.StepPairing(one, nan, {}, {})
    assert pairing.distance(list(pairing.gradients(1)), {}) == math.inf


# -- what is printed


def test_a_stage_that_was_compared_at_no_step_is_not_reported_as_the_same() -> None:
    far = [step_pairing.ParameterDistance(0.0, 0.0, "a")]
    rows = [
        step_with_norm_distance(1, 0),
        dataclasses.replace(step_with_norm_distance(2, 0), parameters=TensorComparison(update=far)),
    ]
    verification = cast(Verification, SimpleNamespace(rows=rows))
    assert report._uncompared(verification) == ", except the clipped gradients, which were not compared"
    rows = [dataclasses.replace(each, parameters=each.parameters._replace(tensors=far)) for each in rows]
    verification = cast(Verification, SimpleNamespace(rows=rows))
    assert report._uncompared(verification) == ""


# -- watching


def test_nan_in_both_tensors_is_equal() -> None:
    values = np.array([1.0, math.nan])
    assert step_pairing.tensor_distance(values, values.copy(), 1.0) == (0.0, 0.0)
    assert step_pairing.tensor_distance(values, np.array([1.0, 2.0]), 1.0).ulps == math.inf


def test_nan_and_infinities_are_counted_separately() -> None:
    before = [dense(math.nan, math.inf, math.nan), dense(1.0)]
    with np.errstate(invalid="ignore"):
        line = line_of_tensors(NativeCall("clip", "torch", "value", (-1.0, 1.0)), ["a", "b"], before, before)
    assert (line["nan"], line["inf"]) == (2, 1)
