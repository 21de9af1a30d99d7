"""Adaptive thresholds of tensors (AdaGC) and units (AGC) have the same bits on every framework."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import adaptive_tensors as oracle
from support import reference
from support.kits import Kit, rejects_adaptive
from support.tiers import quick

from unified_clip import ClipConfig, adaptive, record


@pytest.fixture(autouse=True)
def _adaptive(kit: Kit, request: pytest.FixtureRequest) -> None:
    if rejects_adaptive(kit):
        if "adagc" in request.node.name:
            with pytest.raises(TypeError, match="adaptive thresholds"):
                adagc().clipper()(tensors(kit, oracle.gradients([1.0, 2.0])))
        pytest.skip("MLX rejects adaptive thresholds here")


def adagc(**settings: Any) -> ClipConfig:
    return ClipConfig(rule="norm", adaptive={"rule": "adagc", **settings})


def tensors(kit: Kit, arrays: Any) -> list[Any]:
    return [None if array is None else kit.tensor(array) for array in arrays]


def check(kit: Kit, results: Any, expected: Any) -> None:
    for result, array in zip(results, expected, strict=True):
        assert (result is None) == (array is None)
        if array is not None:
            np.testing.assert_array_equal(kit.array(result), array)


@pytest.mark.parametrize("settings", quick(oracle.SETTINGS, oracle.SETTINGS[1]))
def test_adagc_has_the_bits_of_the_recursion_and_resumes_from_a_json_file(kit: Kit, settings: dict[str, Any]) -> None:
    clip = adagc(**settings).clipper()
    state: Any = None
    for step, (norms, (coefs, state)) in enumerate(  # noqa: B007
        zip(oracle.NORMS, oracle.adagc(oracle.NORMS, **settings), strict=True)
    ):
        if step in (2, 110):
            saved = json.loads(json.dumps(clip.state_dict()))
            clip = adagc(**settings).clipper()
            clip.load_state_dict(saved)
        results = clip(tensors(kit, oracle.gradients(norms)))
        check(kit, results, oracle.scaled(norms, coefs))
        present = [coef for coef in coefs if coef is not None]
        np.testing.assert_equal(clip.last.parts[""].coef, np.min(present))
    assert clip.state_dict() == {
        "version": 1, "step": 200, "adaptive": {"": {"rule": "adagc", "state": state}}
    }  # fmt: skip


def test_adagc_in_place_and_with_a_largest_threshold(kit: Kit) -> None:
    clip = adagc(warmup_steps=8).model_copy(update={"threshold": 0.25, "family": "paddle"}).clipper()
    expected = oracle.adagc(oracle.NORMS[:60], warmup_steps=8, eps=0.0, limit=0.25)
    for norms, (coefs, state) in zip(oracle.NORMS, expected, strict=False):
        holders = kit.in_place(tensors(kit, oracle.gradients(norms)))
        clip.clip_(holders)
        check(kit, kit.kept(holders), oracle.scaled(norms, coefs))
        assert clip.state_dict()["adaptive"][""]["state"] == state


def test_adagc_rejects_another_number_of_tensors(kit: Kit) -> None:
    clip = adagc().clipper()
    clip(tensors(kit, oracle.gradients([1.0, 2.0])))
    before = clip.state_dict()
    with pytest.raises(ValueError, match="the norms of 2 tensors, but the call has 3"):
        clip(tensors(kit, oracle.gradients([1.0, 2.0, 3.0])))
    assert clip.state_dict() == before


@pytest.mark.parametrize("nonfinite", ["zero", "skip"])
def test_adagc_with_nonfinite_and_groups(kit: Kit, nonfinite: str) -> None:
    group = {"name": "first", "include": ["a"], "adaptive": {"rule": "adagc", "warmup_steps": 2}}
    clip = ClipConfig(rule="norm", threshold=1.0, nonfinite=nonfinite, groups=[group]).clipper()
    norms = [2.0, 1.0, 1.5, math.nan, 9.0]
    recursion = list(oracle.adagc([[norm, None] for norm in norms], warmup_steps=2))
    for norm, (coefs, state) in zip(norms, recursion, strict=True):
        first, second = oracle.gradients([norm, 4.0])
        results = clip({"a": kit.tensor(first), "b": kit.tensor(second)})
        assert clip.state_dict()["adaptive"]["first"]["state"] == state
        if not math.isfinite(norm):
            assert [None if result is None else kit.array(result).any() for result in results.values()] == (
                [None, None] if nonfinite == "skip" else [False, False]
            )
        else:
            check(kit, [results["a"]], [oracle.scaled([norm], [coefs[0]])[0]])
            assert clip.last.parts[""].coef == 1 / (4 + 1e-6)


SHAPES = [(), (5,), (1, 6), (4, 3), (2, 3, 4), (2, 3, 2, 4)]


def arrays(seed: int, scale: float) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    result = [(scale * chance.standard_normal(shape) * chance.choice([0.02, 1, 8], shape[:1])[:, None].T.ravel()[0]
              if shape else np.asarray(scale)) for shape in SHAPES]  # fmt: skip
    arrays = [np.asarray(array, np.float32) for array in result]
    arrays[3][1] = 0
    arrays[5][1] *= 1e-4
    return arrays


SETTINGS = [
    {"clip_factor": 0.1},
    {"convention": "optax", "clip_factor": 0.05},
    {"convention": "composer", "clip_factor": 0.1},
    {"clip_factor": 1e-4, "eps": 1e-4, "smallest_norm": 0.5},
]


@pytest.mark.parametrize("settings", quick(SETTINGS, SETTINGS[1], SETTINGS[3]))
def test_agc_has_the_bits_of_its_definition(kit: Kit, settings: dict[str, Any]) -> None:
    clip = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", **settings}).clipper()
    gradients, parameters = arrays(0, 1.0), arrays(1, 1.0)
    gradients[5][0, 0, 0, 0], gradients[4][1, 1, 1] = np.nan, np.inf
    parameters[3][0] = 0
    expected = [oracle.agc(*pair, **settings) for pair in zip(gradients, parameters, strict=True)]
    results = clip(tensors(kit, gradients), parameters=tensors(kit, parameters))
    check(kit, results, expected)
    assert math.isnan(clip.last.parts[""].coef)
    finite = [index for index in range(len(SHAPES)) if index < 4]
    clip([kit.tensor(gradients[index]) for index in finite], parameters=[kit.tensor(parameters[i]) for i in finite])
    assert 0 <= clip.last.parts[""].coef < 1


def test_agc_takes_parameters_by_name_and_has_a_largest_threshold(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", eps=0.0, threshold=1e-4, adaptive={"rule": "agc"}, exclude=["head"]).clipper()
    gradients, parameters = arrays(2, 1.0)[2:4], arrays(3, 1.0)[2:4]
    named = dict(zip(("body", "head"), tensors(kit, gradients), strict=True))
    results = clip(named, parameters=dict(zip(("head", "body"), reversed(tensors(kit, parameters)), strict=True)))
    check(kit, [results["body"]], [oracle.agc(gradients[0], parameters[0], limit=1e-4)])
    assert results["head"] is named["head"]


def parameter_of(kit: Kit, array: np.ndarray) -> Any:
    if kit.name == "torch":
        import torch

        return torch.nn.Parameter(kit.tensor(array))
    import paddle

    assign = paddle.nn.initializer.Assign(array)
    return paddle.create_parameter(array.shape, "float32", default_initializer=assign)


def test_agc_in_place_takes_the_parameters_that_it_gets(kit: Kit) -> None:
    clip, gradients, parameters = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc"}), arrays(4, 1), arrays(5, 1)
    if not kit.on_parameters:
        with pytest.raises(TypeError, match="agc needs the parameters, but the gradient at position 0 has none"):
            clip.clip_(kit.in_place(tensors(kit, gradients)))
        return
    expected = [oracle.agc(*pair) for pair in zip(gradients, parameters, strict=True)]
    holders = [parameter_of(kit, array) for array in parameters]
    for holder, array in zip(holders, gradients, strict=True):
        holder.grad = kit.tensor(array)
    clip.clip_(holders)
    check(kit, kit.kept(holders), expected)


def test_agc_of_pairs_takes_their_parameters(kit: Kit) -> None:
    clip, gradient = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc"}), np.array([3.0, -4.0], np.float32)
    parameter = kit.parameter()
    ((_, result),) = clip.pairs([(parameter, kit.tensor(gradient))])
    check(kit, [result], [oracle.agc(gradient, kit.array(parameter))])


def test_agc_rejects_what_does_not_fit(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", adaptive={"rule": "agc"})
    gradient = kit.tensor([[1.0, 2.0]])
    for parameters, message in [
        (None, "agc needs the parameters, but the gradient at position 0 has none"),
        ([gradient, gradient], "`parameters` has 2 entries, but there are 1 gradients"),
        ([kit.tensor([1.0, 2.0])], "has the shape .1, 2., but its parameter has .2,."),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            clip([gradient], parameters=parameters)
    with pytest.raises(ValueError, match="`parameters` has no key 'a'"):
        clip({"a": gradient}, parameters={"b": gradient})
    if kit.has_sparse:
        with pytest.raises(TypeError, match=r"is sparse\. The adaptive rule agc does not support sparse gradients"):
            clip([kit.sparse([0], [[1.0, 2.0]], 3)], parameters=[kit.tensor(np.zeros((3, 2)))])


def test_a_recording_has_the_norms_and_coefficients_of_units_and_tensors(kit: Kit, tmp_path: Path) -> None:
    gradients, parameters = arrays(0, 1.0)[1:4:2], arrays(1, 1.0)[1:4:2]
    clip = adagc(warmup_steps=1).clipper()
    with record(tmp_path / "run.jsonl"):
        adaptive.clip_by_unit_norm(tensors(kit, gradients), tensors(kit, parameters))
        clip(tensors(kit, gradients))
    _, *lines = map(json.loads, (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines())
    result = [(line["call"], line["rule"], len(line["norm"]), line["threshold"] is None) for line in lines]
    assert sorted(result) == sorted([
        ("clip_by_unit_norm", "each", 1, False), ("clip_by_unit_norm", "slices", 4, True),
        ("ClipConfig", "each", 1, False), ("ClipConfig", "each", 1, False),
    ])  # fmt: skip
    (units,) = [line for line in lines if line["rule"] == "slices"]
    assert units["norm"] == [reference.norm([row]) for row in gradients[1]]
    limits = [0.01 * max(reference.norm([row]), 1e-3) for row in parameters[1]]
    assert units["coef"] == [reference.coefficient(*pair) for pair in zip(units["norm"], limits, strict=True)]
