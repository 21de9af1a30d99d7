"""Every name on every framework: functions with the same signature and docstring, and examples that run as printed."""

from __future__ import annotations

import copy
import doctest
import functools
import importlib
import inspect
import pickle
import typing

import numpy as np
import pytest
from support.kits import Kit, in_a_new_process
from support.tiers import quick_on

import unified_clip

SIGNATURES = {
    "clip_grad_norm_": ["parameters", "max_norm", "norm_type=2.0", "error_if_nonfinite=False", "foreach=None"],
    "clip_grad_value_": ["parameters", "clip_value", "foreach=None"],
    "get_total_norm": ["tensors", "norm_type=2.0", "error_if_nonfinite=False", "foreach=None"],
    "clip_grads_with_norm_": ["parameters", "max_norm", "total_norm", "foreach=None"],
    "clip_by_global_norm": ["t_list", "clip_norm", "use_norm=None", "name=None"],
    "clip_by_norm": ["t", "clip_norm", "axes=None", "name=None"],
    "clip_by_value": ["t", "clip_value_min", "clip_value_max", "name=None"],
    "global_norm": ["t_list", "name=None"],
    "GradientClipByValue": ["max", "min=None", "need_clip=None"],
    "GradientClipByNorm": ["clip_norm", "need_clip=None"],
    "GradientClipByGlobalNorm": ["clip_norm", "group_name='default_group'", "auto_skip_clip=False", "need_clip=None"],
    "ClipGradByValue": ["max", "min=None", "need_clip=None"],
    "ClipGradByNorm": ["clip_norm", "need_clip=None"],
    "ClipGradByGlobalNorm": ["clip_norm", "group_name='default_group'", "auto_skip_clip=False", "need_clip=None"],
    "ErrorClipByValue": ["max", "min=None"],
    "set_gradient_clip": ["clip", "param_list=None", "program=None"],
    "append_gradient_clip_ops": ["params_grads"],
}


FUNCTIONS = [name for name in SIGNATURES if name[0].islower()]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_same(kit: Kit, name: str) -> None:
    for namespace in (unified_clip, kit.namespace):
        parameters = [
            p.name if p.default is p.empty else f"{p.name}={p.default!r}"
            for p in inspect.signature(getattr(namespace, name)).parameters.values()
            if p.kind is not p.KEYWORD_ONLY
        ]
        assert parameters == SIGNATURES[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_are_functions_of_their_module_with_annotations(kit: Kit, name: str) -> None:
    function = getattr(kit.namespace, name)
    assert inspect.isfunction(function)
    assert (function.__module__, function.__qualname__) == (kit.namespace.__name__, name)
    annotations = typing.get_type_hints(function)
    assert annotations.keys() == {*inspect.signature(function).parameters, "return"}
    assert "~" not in str(inspect.signature(function)), "a type variable"


def test_nothing_else_is_public(kit: Kit) -> None:
    assert set(dir(kit.namespace)) == set(kit.namespace.__all__) == set(SIGNATURES)
    assert set(unified_clip.__all__) == set(SIGNATURES) | {
        "ClipWarning", "ConfigError", "NonFiniteNormError", "NotRepresentableError", "PartlyClippedError",
        "native_available", "record",
    }  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_name_is_documented_once_for_all_frameworks(kit: Kit, name: str) -> None:
    text = getattr(unified_clip, name).__doc__
    assert getattr(kit.namespace, name).__doc__ == text
    for part in ("Source:", "Raises:", "Example:", ">>> import unified_clip as uc"):
        assert part in text
    for parameter in inspect.signature(getattr(kit.namespace, name)).parameters:
        assert f"    {parameter}: " in text
    if kit.name == "numpy":
        (test,) = doctest.DocTestFinder(recurse=False).find(getattr(unified_clip, name), name, globs={})
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0


def test_the_package_loads_no_framework(kit: Kit) -> None:
    code = (
        "import sys; from unified_clip import clip_grad_norm_, GradientClipByNorm; "
        "print([m for m in ('torch', 'tensorflow', 'paddle', 'jax', 'keras', 'numpy') if m in sys.modules])"
    )
    assert in_a_new_process(code) == "[]\n"


@functools.cache
def printed_by_a_new_process(namespace: str) -> list[str]:
    without_jax = "from unified_clip._kit import workers; workers.import_tensorflow(); "
    code = (
        f"{without_jax if namespace == 'tensorflow' else ''}import sys; import unified_clip.{namespace} as uc; "
        "print(*(m for m in ('torch', 'tensorflow', 'paddle', 'jax') if m in sys.modules)); "
        "print(float(uc.global_norm([])))"
    )
    return in_a_new_process(code).splitlines()


@quick_on("numpy", "torch", "paddle")
def test_a_namespace_loads_its_own_framework_only(kit: Kit) -> None:
    assert set(printed_by_a_new_process(kit.name)[-2].split()) <= {kit.name}


def test_a_namespace_is_a_module_of_its_own(kit: Kit) -> None:
    assert importlib.import_module(f"unified_clip.{kit.name}") is kit.namespace


def test_an_empty_list_is_measured_first_thing_in_a_process(kit: Kit) -> None:
    assert printed_by_a_new_process(kit.name)[-1] == "0.0"


def test_names_and_instances_can_be_pickled_and_copied(kit: Kit) -> None:
    for function in (kit.namespace.clip_by_norm, unified_clip.clip_by_norm):
        for same in (pickle.loads(pickle.dumps(function)), copy.deepcopy(function)):
            np.testing.assert_allclose(kit.array(same(kit.tensor([3.0, 4.0]), 1.0)), [0.6, 0.8], rtol=1e-6)
    clip = pickle.loads(pickle.dumps(kit.namespace.GradientClipByNorm(1.0)))
    assert clip.clip_norm == 1.0


def test_a_wrong_call_is_told_in_the_names_that_the_user_knows(kit: Kit) -> None:
    with pytest.raises(TypeError, match=r"^clip_by_norm\(\) missing a required argument: 'clip_norm'"):
        kit.namespace.clip_by_norm(kit.tensor([1.0]))
    for name in ("body", "framework"):
        with pytest.raises(TypeError, match=rf"^clip_by_norm\(\) got an unexpected keyword argument '{name}'"):
            kit.namespace.clip_by_norm(kit.tensor([1.0]), 1.0, **{name: 1})
    with pytest.raises(TypeError, match=r"^clip_by_norm\(\) too many positional arguments"):
        kit.namespace.clip_by_norm(kit.tensor([1.0]), 1.0, None, None, "auto")
