"""Paddle's classes, and Paddle 1.x's two functions."""

from __future__ import annotations

import gc
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from support.kits import Kit
from support.settings_cases import CASES, clip_of

from unified_clip import ClipWarning


def make_param_grads(kit: Kit, *lists: list[float] | None) -> list[tuple[object, object]]:
    return [(kit.parameter(f"p{i}"), None if v is None else kit.tensor(v)) for i, v in enumerate(lists)]


def rounded_gradients(kit: Kit, clipped: list[tuple[object, object]]) -> list[list[float] | None]:
    return [None if g is None else [round(x, 6) for x in kit.array(g).tolist()] for _, g in clipped]


def test_classes_take_and_return_param_grads(kit: Kit) -> None:
    param_grads = make_param_grads(kit, [3.0], None, [4.0])
    clipped = kit.namespace.GradientClipByGlobalNorm(1.0)(param_grads)
    assert type(clipped) is list
    assert all(type(pair) is tuple for pair in clipped)
    assert all(a[0] is b[0] for a, b in zip(clipped, param_grads, strict=True))
    assert rounded_gradients(kit, clipped) == [[0.6], None, [0.8]]
    assert rounded_gradients(kit, param_grads) == [[3.0], None, [4.0]]
    assert rounded_gradients(kit, kit.namespace.GradientClipByNorm(1.0)(iter(param_grads))) == [[1.0], None, [1.0]]
    assert rounded_gradients(kit, kit.namespace.GradientClipByValue(2.0, -1.0)(param_grads)) == [[2.0], None, [2.0]]
    assert kit.namespace.GradientClipByGlobalNorm(1.0)([]) == []


def test_paddles_two_spellings_are_one_class(kit: Kit) -> None:
    for ending in ("ByValue", "ByNorm", "ByGlobalNorm"):
        assert getattr(kit.namespace, f"ClipGrad{ending}") is getattr(kit.namespace, f"GradientClip{ending}")


def test_a_used_up_iterator_warns(kit: Kit) -> None:
    for call in (kit.namespace.GradientClipByGlobalNorm(1.0), kit.namespace.append_gradient_clip_ops):
        with pytest.warns(ClipWarning, match="empty or used up"):
            assert call(iter([])) == []


@pytest.mark.parametrize("value", [False, 0, None, np.False_, ""])
def test_a_falsy_need_clip_excludes_a_parameter(kit: Kit, value: object) -> None:
    parameter = SimpleNamespace(need_clip=value)
    if kit.name == "tensorflow":
        parameter = kit.parameter()
        parameter.need_clip = value
    param_grads = [(parameter, kit.tensor([12.0])), *make_param_grads(kit, [3.0, 4.0])]
    for clip, expected in (
        (kit.namespace.GradientClipByGlobalNorm(1.0), [0.6, 0.8]),
        (kit.namespace.GradientClipByNorm(1.0), [0.6, 0.8]),
        (kit.namespace.GradientClipByValue(1.0), [1.0, 1.0]),
    ):
        clipped = clip(param_grads)
        assert clipped[0][1] is param_grads[0][1]
        assert rounded_gradients(kit, clipped) == [[12.0], expected]


def test_need_clip_of_the_clip_is_a_predicate_on_the_parameter(kit: Kit) -> None:
    param_grads = make_param_grads(kit, [12.0], [3.0, 4.0])
    clip = kit.namespace.GradientClipByGlobalNorm(1.0, need_clip=lambda p: p is not param_grads[0][0])
    assert rounded_gradients(kit, clip(param_grads)) == [[12.0], [0.6, 0.8]]
    with pytest.raises(TypeError, match="need_clip is 'bias'"):
        kit.namespace.GradientClipByNorm(1.0, need_clip="bias")


def test_tensors_in_place_of_param_grads_are_rejected(kit: Kit) -> None:
    clip = kit.namespace.GradientClipByGlobalNorm(1.0)
    for wrong in ([kit.tensor([3.0, 4.0])], [(kit.parameter(),)], kit.tensor([3.0, 4.0]), {"w": kit.tensor([1.0])}, 3):
        with pytest.raises(TypeError, match=r"\(parameter, gradient\) tuple"):
            clip(wrong)
    with pytest.raises(TypeError, match="position 1"):
        clip([*make_param_grads(kit, [3.0]), (kit.parameter(), 4.0)])


def test_clips_can_be_pickled_and_printed(kit: Kit) -> None:
    clip = pickle.loads(pickle.dumps(kit.namespace.GradientClipByGlobalNorm(2.0, group_name="g")))
    assert repr(clip) == "GradientClipByGlobalNorm(clip_norm=2.0, group_name='g')"
    assert repr(kit.namespace.GradientClipByNorm(2)) == "GradientClipByNorm(clip_norm=2.0)"
    assert repr(kit.namespace.GradientClipByValue(2)) == "GradientClipByValue(max=2.0, min=-2.0)"
    assert repr(kit.namespace.ErrorClipByValue(2, 1)) == "ErrorClipByValue(max=2.0, min=1.0)"


@pytest.mark.parametrize("name", ["GradientClipByNorm", "GradientClipByGlobalNorm"])
def test_thresholds_are_checked_at_construction(kit: Kit, name: str) -> None:
    make = getattr(kit.namespace, name)
    for wrong in ("1", None, True, [1.0], 1j, np.True_, np.array(True), np.complex64(1)):
        with pytest.raises(TypeError, match="clip_norm is"):
            make(wrong)
    for wrong in (-1, math.nan, 10**400):
        with pytest.raises(ValueError, match="clip_norm is"):
            make(wrong)
    for shape in (2, 0):
        with pytest.raises(ValueError, match="shape"):
            make(kit.tensor(np.ones(shape)))


# -- set_gradient_clip and append_gradient_clip_ops


@pytest.fixture(autouse=True)
def _no_settings(kit: Kit) -> object:
    yield
    kit.namespace.set_gradient_clip(None)


def test_what_is_set_for_all_and_for_single_parameters(kit: Kit) -> None:
    for title, (gradients, settings, expected) in CASES.items():
        pairs = {name: (kit.parameter(name), kit.tensor([value])) for name, value in gradients.items()}
        if title == "one needs no clip":
            if kit.name not in ("torch", "tensorflow", "paddle"):
                continue  # parameters are arrays, which have no attributes
            pairs["c"][0].need_clip = False
        kit.namespace.set_gradient_clip(None)
        for setting, names in settings:
            listed = None if names is None else [pairs[name][0] for name in names]
            kit.namespace.set_gradient_clip(clip_of(kit.namespace, setting), param_list=listed)
        given = [*pairs.values(), (kit.parameter(), None)]
        clipped = kit.namespace.append_gradient_clip_ops(given)
        assert rounded_gradients(kit, clipped) == [*([value] for value in expected), None], title
        assert settings or all(one[1] is other[1] for one, other in zip(clipped, given, strict=True))


def test_settings_refer_to_parameters_weakly(kit: Kit) -> None:
    from unified_clip._api.settings import SETTINGS

    before = len(SETTINGS._own)
    parameter = kit.parameter()
    kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0), param_list=[parameter])
    assert len(SETTINGS._own) == before + 1
    del parameter
    gc.collect()
    assert len(SETTINGS._own) == before


def test_a_name_in_place_of_a_parameter_with_its_own_clip_is_an_error(kit: Kit) -> None:
    parameter, gradient = kit.parameter(), kit.tensor([3.0, 4.0])
    kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0), param_list=[parameter])
    with pytest.raises(ValueError, match=r"the clip of 'weight' is unknown, because .* Pass the parameter in place"):
        kit.namespace.append_gradient_clip_ops([("weight", gradient)])
    ((_, clipped),) = kit.namespace.append_gradient_clip_ops([(parameter, gradient)])
    np.testing.assert_allclose(kit.array(clipped), [0.6, 0.8], rtol=1e-6)
    kit.namespace.set_gradient_clip(None, param_list=[parameter])
    ((_, unchanged),) = kit.namespace.append_gradient_clip_ops([("weight", gradient)])
    np.testing.assert_array_equal(kit.array(unchanged), [3.0, 4.0])


def test_invalid_settings_are_rejected(kit: Kit) -> None:
    with pytest.raises(TypeError, match="Pass GradientClipByValue"):
        kit.namespace.set_gradient_clip(1.0)
    for wrong in ("weight", 3, kit.parameter(), {"weight": kit.parameter()}):
        with pytest.raises(TypeError, match="param_list is"):
            kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0), param_list=wrong)
    with pytest.raises(TypeError, match="position 1 of param_list has the type str"):
        kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0), param_list=[kit.parameter(), "weight"])
    if kit.name != "paddle":
        with pytest.raises(TypeError, match="static programs of Paddle"):
            kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0), program=object())


def test_an_error_in_append_gradient_clip_ops_changes_no_gradient(kit: Kit) -> None:
    kit.namespace.set_gradient_clip(kit.namespace.GradientClipByNorm(1.0))
    param_grads = [*make_param_grads(kit, [3.0]), (kit.parameter(), kit.tensor([3], "int32"))]
    with pytest.raises(TypeError, match=r"position 1.*int32"):
        kit.namespace.append_gradient_clip_ops(param_grads)
    assert rounded_gradients(kit, param_grads[:1]) == [[3.0]]


def test_parameters_in_place_of_gradients_are_rejected(kit: Kit) -> None:
    if not kit.on_parameters:
        return
    for call in (kit.namespace.GradientClipByGlobalNorm(1.0), kit.namespace.append_gradient_clip_ops):
        with pytest.raises(TypeError, match=r"position 0 of params_grads is a \(gradient, parameter\) tuple"):
            call([(kit.tensor([3.0]), kit.parameter())])
