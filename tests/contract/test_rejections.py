"""Invalid arguments raise an error with the place and the remedy, and no gradient changes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

import unified_clip


class Untouched:
    def __init__(self, kit: Kit, *extra: object) -> None:
        self.kit = kit
        self.holders = [*kit.in_place([kit.tensor([30.0, 40.0]), kit.tensor([1.0])]), *extra]
        self.before = [kit.bits(g) for g in kit.kept(self.holders[:2])]

    def check(self) -> None:
        assert [self.kit.bits(g) for g in self.kit.kept(self.holders[:2])] == self.before


@pytest.mark.parametrize(
    ("threshold", "error", "message"),
    [
        (-1, ValueError, "is -1.0. Pass 0 or more"),
        (-1e-30, ValueError, "0 or more"),
        (math.nan, ValueError, "is nan. Pass 0 or more"),
        (np.float32(-2), ValueError, "0 or more"),
        ("1", TypeError, r"is '1' \(str\)\. Pass a number"),
        (None, TypeError, "is None"),
        (True, TypeError, "is True"),
        (1j, TypeError, "Pass a number"),
        ([1.0], TypeError, "Pass a number"),
        (10**400, ValueError, "outside the range of float64"),
        (np.array([1.0, 2.0]), ValueError, r"shape \[2\]"),
        (np.zeros(0), ValueError, r"shape \[0\]"),
        (np.array(True), TypeError, "bool"),
        (np.array(1j), TypeError, "complex"),
        (np.array(-1.0), ValueError, "0 or more"),
    ],
)
def test_thresholds(kit: Kit, threshold: object, error: type[Exception], message: str) -> None:
    namespace = kit.namespace
    for function, what in (
        (namespace.clip_grad_norm_, "max_norm"),
        (namespace.clip_grad_value_, "clip_value"),
        (lambda holders, limit: namespace.clip_grads_with_norm_(holders, limit, 50.0), "max_norm"),
    ):
        gradients = Untouched(kit)
        with pytest.raises(error, match=f"{what} .*{message}"):
            function(gradients.holders, threshold)
        gradients.check()
    for function in (namespace.clip_by_global_norm, namespace.clip_by_norm):
        with pytest.raises(error, match=f"clip_norm .*{message}"):
            function(kit.tensor([3.0]), threshold)


def test_thresholds_that_are_tensors(kit: Kit) -> None:
    known = [(-1.0, "0 or more"), (math.nan, "0 or more")] if kit.reads_tensors else []
    for values, message in [([1.0, 2.0], "shape"), *known]:
        gradients = Untouched(kit)
        with pytest.raises(ValueError, match=message):
            kit.namespace.clip_grad_norm_(gradients.holders, kit.tensor(values))
        gradients.check()


@pytest.mark.parametrize("check", [{"check_numel": 2}, {"check_numel": True}, {"check_replicas": True}])
def test_checks_of_ranks_are_no_checks_of_one_process(kit: Kit, check: dict[str, Any]) -> None:
    """Plain tensors of one process: nothing says which ranks to ask."""
    for name, threshold in (("get_total_norm", []), ("clip_by_global_norm", [1.0])):
        with pytest.raises((TypeError, ValueError), match=r"which ranks|not supported on JAX|distributed gradients"):
            getattr(kit.namespace, name)([kit.tensor([3.0, 4.0])], *threshold, **check)


@pytest.mark.parametrize("norm", [-1, -math.inf, np.float32(-2)])
def test_a_given_norm_is_not_negative(kit: Kit, norm: object) -> None:
    with pytest.raises(ValueError, match=r"use_norm is .*never negative"):
        kit.namespace.clip_by_global_norm([kit.tensor([3.0])], 1.0, use_norm=norm)
    gradients = Untouched(kit)
    with pytest.raises(ValueError, match=r"total_norm is .*never negative"):
        kit.namespace.clip_grads_with_norm_(gradients.holders, 1.0, norm)
    gradients.check()


@pytest.mark.parametrize(
    ("p", "error"),
    [(0, ValueError), (-1, ValueError), (-math.inf, ValueError), (math.nan, ValueError), ("2", ValueError),
     ("fro", ValueError), (None, TypeError), (True, TypeError), (1j, TypeError), ([2], TypeError)],
)  # fmt: skip
def test_norm_types(kit: Kit, p: object, error: type[Exception]) -> None:
    gradients = Untouched(kit)
    with pytest.raises(error, match="norm_type is"):
        kit.namespace.clip_grad_norm_(gradients.holders, 1.0, p)
    with pytest.raises(error, match="norm_type is"):
        kit.namespace.get_total_norm([kit.tensor([1.0])], p)
    gradients.check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_and_booleans_are_no_gradients(kit: Kit, dtype: str) -> None:
    if dtype not in (*kit.integers, "bool"):
        return
    wrong = kit.tensor([1, 0], dtype)
    for function in (
        lambda tensors: kit.namespace.clip_by_global_norm(tensors, 1.0),
        kit.namespace.get_total_norm,
        kit.namespace.global_norm,
    ):
        with pytest.raises(TypeError, match=f"position 1 is {dtype}. Convert it to one of float16"):
            function([kit.tensor([1.0]), wrong])
        with pytest.raises(TypeError, match=rf"position 1 \(parameter 'layer.bias'\) is {dtype}"):
            function({"w": kit.tensor([1.0]), "layer": {"bias": wrong}})
    with pytest.raises(TypeError, match=f"position 0 is {dtype}"):
        kit.namespace.clip_by_norm(wrong, 1.0)
    for name in ("GradientClipByGlobalNorm", "GradientClipByValue"):
        with pytest.raises(TypeError, match=f"position 0.* is {dtype}"):
            getattr(kit.namespace, name)(1.0)([(kit.parameter(), wrong)])
    if not kit.on_parameters:
        gradients = Untouched(kit, wrong)
        with pytest.raises(TypeError, match=f"position 2 is {dtype}"):
            kit.namespace.clip_grad_norm_(gradients.holders, 1.0)
        gradients.check()


def test_what_is_no_tensor(kit: Kit) -> None:
    for wrong in (3.0, 3, 1j):
        with pytest.raises(TypeError, match="position 1 is the plain number"):
            kit.namespace.global_norm([kit.tensor([1.0]), wrong])
        with pytest.raises(TypeError, match="clip_by_norm received the plain number"):
            kit.namespace.clip_by_norm(wrong, 1.0)
    for wrong in ("weights", object(), len):
        with pytest.raises(TypeError, match=r"position 1 is an? (str|object|builtin_function_or_method),"):
            kit.namespace.global_norm([kit.tensor([1.0]), wrong])
        with pytest.raises(TypeError, match=r"position 0 is an? (str|object|builtin_function_or_method),"):
            kit.namespace.get_total_norm(wrong)
    with pytest.raises(TypeError, match=r"clip_by_norm takes one tensor and received a list\. Call clip_by_norm once"):
        kit.namespace.clip_by_norm([kit.tensor([1.0])], 1.0)
    with pytest.raises(TypeError, match="clip_by_value takes one tensor"):
        kit.namespace.clip_by_value([kit.tensor([1.0])], -1.0, 1.0)
    with pytest.raises(TypeError, match="ErrorClipByValue takes one tensor"):
        kit.namespace.ErrorClipByValue(1.0)([kit.tensor([1.0])])
    gradients = Untouched(kit, 3.0)
    with pytest.raises(TypeError, match="position 2 is the plain number"):
        kit.namespace.clip_grad_norm_(gradients.holders, 1.0)
    gradients.check()


def test_masked_arrays_are_rejected_as_a_whole(kit: Kit) -> None:
    for masked in (np.ma.array([3.0, 4.0]), np.ma.array([3.0, 4.0], mask=[False, True])):
        with pytest.raises(
            TypeError,
            match=r"position 1 is a numpy\.ma\..*MaskedArray.* Pass the array that its method filled\(0\) returns",
        ):
            kit.namespace.clip_by_global_norm([kit.tensor([1.0]), masked], 1.0)


def test_a_tensor_of_another_framework_is_named_with_its_namespace(kit: Kit) -> None:
    other = "torch" if kit.name == "paddle" else "paddle"
    tensor = type("Tensor", (), {"__module__": f"{other}.base", "shape": [1], "dtype": "float32"})()
    namespace = kit.namespace
    remedy = rf"a {other} tensor\. Call the functions of unified_clip\.{other}, or pass tensors of {kit.name}$"
    for container in ([kit.tensor([1.0]), tensor], {"a": kit.tensor([1.0]), "b": tensor}):
        with pytest.raises(TypeError, match=rf"^position 1 .*is {remedy}"):
            namespace.global_norm(container)
    for call in (
        lambda: namespace.clip_grad_norm_(tensor, 1.0),
        lambda: namespace.clip_grad_norm_([tensor], 1.0),
        lambda: namespace.clip_by_norm(tensor, 1.0),
        lambda: namespace.clip_by_value(tensor, 1.0, 2.0),
    ):
        with pytest.raises(TypeError, match=remedy):
            call()


Rejection = tuple[Callable[[Kit], object], type[Exception], str]


def by_value(values: object, low: object, high: object, dtype: str = "float32") -> Callable[[Kit], object]:
    """A bound that is an array becomes a tensor."""

    def call(kit: Kit) -> object:
        bounds = (kit.tensor(each, each.dtype.name) if isinstance(each, np.ndarray) else each for each in (low, high))
        return kit.namespace.clip_by_value(kit.tensor(values, dtype), *bounds)

    return call


def by_norm(values: object, axes: object) -> Callable[[Kit], object]:
    return lambda kit: kit.namespace.clip_by_norm(kit.tensor(values), 1.0, axes=axes)


def made(name: str, **options: object) -> Callable[[Kit], object]:
    return lambda kit: getattr(kit.namespace, name)(**options)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


BOUNDS: list[Rejection] = [
    *((by_value([1.0], wrong, 2.0), TypeError, "clip_value_min is") for wrong in ("1", None, True, 1j, [1.0])),
    *((by_value([1.0], -2.0, wrong), TypeError, "clip_value_max is") for wrong in ("1", None, True, 1j, [1.0])),
    (by_value([1.0], 2.0, 1.0), ValueError, r"the lower bound \(2.0\) is above the upper bound \(1.0\)\. Swap them"),
    (by_value([1.0], math.nan, 1.0), ValueError, "NaN"),
    (by_value([1.0], -1.0, math.nan), ValueError, "NaN"),
    *(
        (by_value([0.0, 0.0], np.zeros(shape, np.float32), 1.0), ValueError, "does not broadcast")
        for shape in ((3,), (2, 2), (1, 1, 2))
    ),
    *(
        (by_value([1.0, 2.0], 0.0, np.ones(2, dtype)), TypeError, f"clip_value_max is a tensor of {dtype}")
        for dtype in ("complex64", "bool")
    ),
    (by_value([True], 0, 1, "bool"), TypeError, "bool"),
    (by_value([0, 5], 0.5, 7, "int8"), TypeError, "whole number"),
    (by_value([1, 2], np.int32([0, 1]), np.int32([1, 2]), "int8"), TypeError, "Pass both with the same dtype"),
    (by_value([3 + 4j], -1.0, 1.0, "complex64"), TypeError, "no order"),
]
READ_BOUNDS: list[Rejection] = [
    *(
        (by_value([0.0, 0.0], low, high), ValueError, "above the upper bound")
        for low, high in ((floats(1, 2), floats(2, 1)), (floats(3, 3), 2.0), (0.0, floats(1, -1)))
    ),
    (by_value([1.0, 2.0], np.float32([math.nan]), 1.0), ValueError, "NaN"),
    (by_value([1.0, 2.0], floats(math.nan, 1.0), 1.0), ValueError, "NaN"),
]
"""Their tensors are read, which is not done on GPUs."""

CLASSES: list[Rejection] = [
    *(
        row
        for name in ("GradientClipByValue", "ErrorClipByValue")
        for row in (
            (made(name, max=1.0, min=2.0), ValueError, "Swap"),
            (made(name, max=-1.0), ValueError, "Pass `min` too"),
            (made(name, max=math.nan, min=-1.0), ValueError, "NaN"),
            (made(name, max=1.0, min=math.nan), ValueError, "NaN"),
            *((made(name, max=wrong), TypeError, "max is") for wrong in ("1", None, True)),
        )
    ),
    (made("GradientClipByGlobalNorm", clip_norm=1.0, group_name=3), TypeError, "group_name is 3"),
]
AXES: list[Rejection] = [
    (by_norm([[1.0, 2.0]], 2), ValueError, "axis 2"),
    (by_norm([[1.0, 2.0]], -3), ValueError, "axis -3"),
    *((by_norm([[1.0, 2.0]], axes), ValueError, "twice") for axes in ([0, 0], [0, -2])),
    *((by_norm([[1.0, 2.0]], axes), TypeError, "axes is") for axes in ("0", 0.5, True)),
    (by_norm(2.0, 0), ValueError, r"axes has axis 0, and t has 0 axes\. Leave axes out"),
]


@pytest.mark.parametrize("rejections", [BOUNDS + CLASSES, AXES, READ_BOUNDS], ids=["bounds", "axes", "tensors"])
@where(lambda kit, rejections: kit.reads_tensors or rejections is not READ_BOUNDS)
def test_bounds_and_axes(kit: Kit, rejections: list[Rejection]) -> None:
    for call, error, message in rejections:
        with pytest.raises(error, match=message):
            call(kit)


def test_complex_gradients_have_no_order(kit: Kit) -> None:
    tensor = kit.tensor([3 + 4j], "complex64")
    for clip in (
        lambda: kit.namespace.GradientClipByValue(1.0)([(kit.parameter(), tensor)]),
        lambda: kit.namespace.clip_grad_value_(kit.in_place([tensor]), 1.0),
    ):
        with pytest.raises(TypeError, match="no order"):
            clip()


def test_the_path_setting_is_checked(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    if kit.name == "numpy":
        return
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "pairs")
    with pytest.raises(ValueError, match=r"UNIFIED_CLIP_PATH is 'pairs'\. Set it to 'framework'"):
        kit.namespace.global_norm([kit.tensor([1.0])])


def test_the_package_itself_refuses_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="plain number"):
        unified_clip.global_norm([1.0])
    with pytest.raises(TypeError, match=r"takes one tensor and received a str\. Pass a dense tensor"):
        unified_clip.clip_by_norm("weights", 1.0)


def test_what_cannot_be_iterated_is_refused_with_its_place(kit: Kit) -> None:
    class Symbolic:
        def __iter__(self) -> object:
            raise NotImplementedError("symbolic")  # as Keras's symbolic tensors do

    with pytest.raises(TypeError, match=r"position 1 is a .*Symbolic"):
        kit.namespace.global_norm([kit.tensor([1.0]), Symbolic()])


@where(lambda kit: kit.name in ("torch", "tensorflow", "jax"))
def test_tensors_of_more_axes_than_numpy_has_are_rejected(kit: Kit) -> None:
    ones = importlib.import_module("jax.numpy" if kit.name == "jax" else kit.name).ones
    deep, shallow = ones([1] * 65), ones([1] * 64)
    if kit.exact:  # operations of TensorFlow support fewer
        assert kit.namespace.clip_by_norm(shallow, 0.5).shape == shallow.shape
    for call in (
        lambda: kit.namespace.get_total_norm([deep]),
        lambda: kit.namespace.clip_by_global_norm([deep], 1.0),
        lambda: kit.namespace.clip_by_value(deep, -1.0, 1.0),
        lambda: kit.namespace.clip_by_norm(deep, 1.0, axes=[0]),
    ):
        with pytest.raises(ValueError, match=r"^position 0 has 65 axes, and at most 64 are supported"):
            call()
