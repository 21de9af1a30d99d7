"""An error leaves no gradient half clipped: every operation of a framework's adapter fails in turn."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import nightly, where

import unified_clip
from unified_clip import PartlyClippedError


class FailingOperations:
    def __init__(self) -> None:
        self.at, self.count, self.failed = 0, 0, ""

    def start(self, at: int) -> None:
        self.at, self.count, self.failed = at, 0, ""

    def wrap(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.failed = name
                raise OperationError(name)
            return operation(*args, **kwargs)

        return counted


class OperationError(Exception):
    pass


@pytest.fixture(params=["", "framework"])
def failing(request: pytest.FixtureRequest, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> FailingOperations:
    if request.param:
        monkeypatch.setenv("UNIFIED_CLIP_PATH", request.param)
    importlib.import_module(f"unified_clip.{kit.name}")
    operations_ = FailingOperations()
    package = f"unified_clip._backends.{kit.name}"
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")]
    wrapped = 0
    for module in modules:
        classes = [
            class_
            for class_ in vars(module).values()
            if inspect.isclass(class_) and class_.__module__ == module.__name__
        ]
        for owner in (module, *classes):
            for name, function in list(vars(owner).items()):
                is_own = inspect.isfunction(function) and function.__module__ == module.__name__
                if is_own and not name.startswith("__") and not inspect.isgeneratorfunction(function):
                    monkeypatch.setattr(owner, name, operations_.wrap(name, function))
                    wrapped += 1
    assert wrapped >= 10, "the functions of the backend are found"
    for name in OPERATIONS.get(kit.name, ()):
        monkeypatch.setattr(f"{kit.name}.{name}", operations_.wrap(name, getattr(sys.modules[kit.name], name)))
    return operations_


def dense(kit: Kit) -> list[Any]:
    values = [[30.0, 40.0], [1.0, -2.0, 3.0], [[5.0]]]
    dtypes = ["float32", kit.floating[-1], "float16"]
    return [kit.tensor(numbers, dtype) for numbers, dtype in zip(values, dtypes, strict=True)]


def mixed(kit: Kit) -> list[Any]:
    """Return gradients that include sparse, complex and empty ones, which take the slow paths."""
    grads = [*dense(kit), None, kit.tensor(np.zeros((0, 2)))]
    if kit.has_sparse:
        grads[1:1] = [kit.sparse([1, 1, 2], [[3.0], [4.0], [24.0]], 4)]
        grads.append(kit.sparse([0, 0], [[1.0], [1.0]], 2))
    if kit.complex:
        grads.append(kit.tensor(np.array([3 + 4j]), kit.complex[0]))
    return grads


def bits_of(kit: Kit, gradient: Any) -> bytes | None:
    if gradient is None:
        return None
    is_dense = hasattr(gradient, "shape") and not _is_sparse(gradient)
    return kit.bits(gradient) if is_dense else kit.dense(gradient).tobytes()


def _is_sparse(gradient: Any) -> bool:
    named = type(gradient).__name__ in ("IndexedSlices", "BCOO")
    rows = getattr(gradient, "is_selected_rows", None)
    return named or bool(getattr(gradient, "is_sparse", False) is True) or bool(rows is not None and rows())


def config(**settings: Any) -> Any:
    pytest.importorskip("pydantic", reason="ClipConfig needs the extra `config`")
    return unified_clip.ClipConfig(**settings)


def by_groups(rules: list[dict[str, Any]], **settings: Any) -> Callable[[Kit, Any], Any]:
    def clip(kit: Kit, holders: list[Any]) -> Any:
        named = {f"layer{index}": holder for index, holder in enumerate(holders)}
        groups = [{"name": f"group{index}", "include": [f"layer{index}"], **rule} for index, rule in enumerate(rules)]
        clipper = config(groups=groups, rule="global_norm", threshold=1.0, **settings).clipper()
        try:
            return clipper.clip_(named)
        finally:
            holders[:] = named.values()

    return clip


def by_value(**settings: Any) -> Callable[[Kit, Any], Any]:
    return lambda kit, holders: config(rule="value", threshold=2.0, **settings).clip_(holders)


CLIPS: dict[str, Callable[[Kit, Any], Any]] = {
    "clip_grad_norm_": lambda kit, holders: kit.namespace.clip_grad_norm_(holders, 1.0),
    "clip_grad_norm_ of order 1": lambda kit, holders: kit.namespace.clip_grad_norm_(holders, 1.0, 1),
    "clip_grads_with_norm_": lambda kit, holders: kit.namespace.clip_grads_with_norm_(holders, 1.0, 9.0),
    "GradientClipByGlobalNorm": lambda kit, holders: kit.namespace.GradientClipByGlobalNorm(1.0).clip_(holders),
    "GradientClipByNorm": lambda kit, holders: kit.namespace.GradientClipByNorm(1.0).clip_(holders),
    "clip_grad_value_": lambda kit, holders: kit.namespace.clip_grad_value_(holders, 2.0),
    "GradientClipByValue": lambda kit, holders: kit.namespace.GradientClipByValue(2.0).clip_(holders),
    "groups": by_groups([{"rule": "norm", "threshold": 1.0}, {"rule": "global_norm", "threshold": 2.0}]),
    "groups, zero": by_groups([{"rule": "norm", "threshold": 1.0}], nonfinite="zero"),
    "groups by value, zero": by_value(nonfinite="zero"),
}
OPERATIONS = {
    "torch": ("_foreach_mul_", "_foreach_copy_", "_foreach_mul", "_foreach_clamp_min_", "_foreach_clamp_max_"),
    "paddle": ("assign",),
}

WRITES = ("_foreach_mul_", "_foreach_copy_", "_foreach_clamp_min_", "_foreach_clamp_max_", "assign")
FUNCTIONS = ("_write", "_write_products", "_zero_where", "_change", "_on")
"""Functions that write gradients on the device path one by one. On PyTorch, they allocate no memory."""


def assert_no_failure_changes_gradients(
    kit: Kit, failing: FailingOperations, make: Callable[[], list[Any]], clip: Callable[[Any], Any]
) -> None:
    failing.start(0)
    expected = [bits_of(kit, gradient) for gradient in make()]
    for number in range(1, 5000):
        failing.start(0)
        holders = kit.in_place(make())
        failing.start(number)
        error = None
        try:
            clip(holders)
        except Exception as raised:
            error = raised
        failed = failing.failed
        failing.start(0)
        after = [bits_of(kit, gradient) for gradient in kit.kept(holders)]
        if not failed:
            assert error is None
            assert after != expected
            return
        if isinstance(error, PartlyClippedError):
            assert failed in (*WRITES, *FUNCTIONS), failed
            assert "Discard them" in str(error)
            continue
        if error is None:  # the backend tried another operation
            continue
        assert isinstance(error, OperationError), (failed, error)
        assert after == expected, f"{failed} failed, and a gradient was written"
    raise AssertionError("the call never ends")


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("make", [dense, *nightly(mixed)])
def test_an_operation_that_fails_leaves_all_gradients_unchanged(
    kit: Kit, failing: FailingOperations, name: str, make: Callable[[Kit], list[Any]]
) -> None:
    if "alue" in name and make is mixed:
        not_complex = [
            gradient
            for gradient in make(kit)
            if gradient is None or "complex" not in str(getattr(gradient, "dtype", ""))
        ]
        length = len(not_complex)
        assert_no_failure_changes_gradients(
            kit, failing, lambda: mixed(kit)[:length], lambda holders: CLIPS[name](kit, holders)
        )
        return
    assert_no_failure_changes_gradients(kit, failing, lambda: make(kit), lambda holders: CLIPS[name](kit, holders))


class FrozenDict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise OperationError(f"{key} is fixed")


class WriteOnceDict(dict[str, Any]):
    sealed = False

    def __setitem__(self, key: str, value: Any) -> None:
        if self.sealed:
            raise OperationError(f"{key} is sealed")
        self.sealed = True
        super().__setitem__(key, value)


@where(lambda kit: not kit.writable)
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_containers_are_restored_if_one_rejects_an_item(kit: Kit, name: str) -> None:
    first, second, third = kit.tensor([3.0]), kit.tensor([4.0]), kit.tensor([5.0])
    container, frozen = [first, {"a": second}], FrozenDict(b=third)
    with pytest.raises(OperationError):
        getattr(kit.namespace, name)([container, frozen], 1.0)
    assert container[0] is first
    assert container[1]["a"] is second
    sealing = WriteOnceDict(b=second)
    with pytest.raises(PartlyClippedError, match="b is fixed"):
        getattr(kit.namespace, name)([container, sealing, frozen], 1.0)
    assert container[0] is first
    assert sealing["b"] is not second  # which could not be undone


def test_a_failed_skip_removes_no_gradient(kit: Kit, failing: FailingOperations) -> None:
    clip = config(rule="global_norm", threshold=1.0, nonfinite="skip")
    assert_no_failure_changes_gradients(
        kit, failing, lambda: [kit.tensor([np.inf]), kit.tensor([1.0])], lambda holders: clip.clip_(holders)
    )
