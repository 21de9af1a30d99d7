"""PyTorch: every name inside `torch.compile`, without a graph break, traced once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.kits import TorchKit, in_a_new_process
from support.tiers import FORMATS_TEXTS, TRACES_HOOKS, quick
from torch._dynamo.testing import CompileCounterWithBackend

import unified_clip
import unified_clip.torch as uc
from unified_clip import ClipWarning

Result = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(scale: float, dtype: torch.dtype = torch.float32) -> Result:
    values = [[3.0, 4.0], [[12.0], [0.0]], [0.5]]
    return [torch.tensor(value, dtype=dtype) * scale for value in values]


parameters = TorchKit().in_place


def copy_gradients(params: list[torch.nn.Parameter]) -> Result:
    return [parameter.grad.clone() for parameter in params]


def tensors_of(result: Any) -> Result:
    if isinstance(result, torch.Tensor):
        return [] if isinstance(result, torch.nn.Parameter) else [result]
    if isinstance(result, str):
        return []
    items = result.values() if isinstance(result, dict) else result or ()
    return [leaf for item in items for leaf in tensors_of(item)]


PARAMETERS = parameters(gradients(1.0))

FORMS: dict[str, Callable[[Any], Any]] = {
    "the package's own function": lambda params: unified_clip.clip_grad_norm_(params, 5.0),
    "a generator": lambda params: uc.clip_grad_norm_((parameter for parameter in params), 5.0),
    "names": lambda params: uc.clip_grad_norm_([(f"p{i}", p) for i, p in enumerate(params)], 5.0),
    "a measured norm": lambda params: uc.clip_grads_with_norm_(
        params, 5.0, uc.get_total_norm([p.grad for p in params])
    ),
    "need_clip": uc.GradientClipByGlobalNorm(2.0, need_clip=lambda parameter: parameter.shape != (2, 1)).clip_,
    "a class created in the graph": lambda params: uc.ClipGradByNorm(2.0).clip_(params),
    "a nested container": lambda params: uc.clip_by_global_norm({"a": [p.grad for p in params[:2]], "b": {}}, 5.0),
    "axes": lambda params: uc.clip_by_norm(params[1].grad, 2.0, axes=[1]),
    "bounds that are tensors": lambda params: uc.clip_by_value(
        params[0].grad, torch.tensor(-1.0), torch.tensor([1.0, 9.0])
    ),
    "integers": lambda params: uc.clip_by_value(params[0].grad.to(torch.int32), -2, 2),
    "parameters in pairs": lambda params: uc.GradientClipByNorm(2.0)([(p, p.grad) for p in params]),
}
"""Forms of calls that test_each_compiled.py and test_torch_short_bodies.py do not have."""


def assert_same_bits(result: Result, expected: Result) -> None:
    """Compare the bits. Norms of float64 gradients may differ by 1e-12."""
    for actual, reference in zip(result, expected, strict=True):
        tolerance = 1e-12 if actual.dtype == torch.float64 else 0.0
        torch.testing.assert_close(actual, reference, rtol=tolerance, atol=0, equal_nan=True)
        assert torch.equal(actual.signbit() & ~actual.isnan(), reference.signbit() & ~reference.isnan()), "0 is not -0"


VALUES = [1.0, 0.01, 1e20, 0.0, math.nan, math.inf, -1.0]


@pytest.mark.parametrize("name", quick(FORMS, "names", "a measured norm", "need_clip", "a nested container", "axes"))
def test_a_form_of_a_call_is_traced_once_and_matches_eager(name: str) -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(FORMS[name], backend=counter, fullgraph=True)
    params = parameters(gradients(1.0))
    for value in VALUES:
        expected = parameters(gradients(value))
        for parameter, other in zip(params, expected, strict=True):
            parameter.grad = other.grad.clone()
        result = [*tensors_of(compiled(params)), *copy_gradients(params)]
        assert_same_bits(result, [*tensors_of(FORMS[name](expected)), *copy_gradients(expected)])
    assert counter.frame_count == 1


def with_gradients(*grads: torch.Tensor) -> list[torch.nn.Parameter]:
    return parameters([torch.tensor([30.0]), *grads])


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 2, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=False)


GRAPH_BREAKS: dict[str, tuple[Callable[[], list[torch.nn.Parameter]], Callable[[Any], Any]]] = {
    "sparse": (lambda: with_gradients(sparse()), lambda params: uc.clip_grad_norm_(params, 1.0)),
    "sparse, by a class": (lambda: with_gradients(sparse()), uc.GradientClipByNorm(1.0).clip_),
    "sparse, functional": (
        lambda: with_gradients(sparse()), lambda params: uc.clip_by_global_norm([p.grad for p in params], 1.0)
    ),
    "not finite": (
        lambda: with_gradients(torch.tensor([math.inf])),
        lambda params: uc.clip_grad_norm_(params, 1.0, error_if_nonfinite=True),
    ),
    "jagged": (
        with_gradients,
        lambda params: uc.clip_by_norm(torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), 1.0),
    ),
    "gradients for parameters": (with_gradients, lambda params: uc.clip_grad_norm_([p.grad for p in params], 1.0)),
    "no tensor": (with_gradients, lambda params: uc.clip_grad_norm_([*params, "weight"], 1.0)),
    "a used-up iterator": (with_gradients, lambda params: uc.clip_grad_norm_(iter([]), 1.0)),
}  # fmt: skip


def outcome(function: Callable[[Any], Any], params: list[torch.nn.Parameter]) -> tuple[str, Result]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            messages, result = "", tensors_of(function(params))
        except Exception as error:  # every error is compared
            messages, result = f"{type(error).__name__}: {error}", []
    messages += "".join(str(item.message) for item in warned if issubclass(item.category, ClipWarning))
    return messages, [item.to_dense() for item in (*result, *copy_gradients(params))]


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", GRAPH_BREAKS)
def test_calls_that_break_the_graph_match_eager(name: str, backend: str) -> None:
    make_params, function = GRAPH_BREAKS[name]
    compiled = torch.compile(lambda params: function(params), backend=backend)
    for _ in range(2):
        (messages, result), (expected_messages, expected) = (
            outcome(compiled, make_params()),
            outcome(function, make_params()),
        )
        assert messages == expected_messages
        assert_same_bits(result, expected)


@FORMATS_TEXTS
def test_a_clip_warning_is_the_only_warning_of_a_graph() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager")(torch.tensor([3.0]))
    assert [warning.category for warning in warned] == [ClipWarning]
    with pytest.raises(Exception, match="takes parameters, but the tensor at"):
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager", fullgraph=True)(torch.tensor([3.0]))


def test_set_gradient_clip_applies_inside_a_graph() -> None:
    uc.set_gradient_clip(uc.GradientClipByNorm(2.0))
    try:
        pairs = list(zip(PARAMETERS, gradients(1.0), strict=True))
        compiled = torch.compile(uc.append_gradient_clip_ops, backend="eager", fullgraph=True)
        assert_same_bits(tensors_of(compiled(pairs)), tensors_of(uc.append_gradient_clip_ops(pairs)))
    finally:
        uc.set_gradient_clip(None)


@TRACES_HOOKS
def test_a_hook_is_part_of_the_graph() -> None:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        inner = x * torch.tensor([3.0, 0.25])
        inner.register_hook(uc.ErrorClipByValue(0.5))
        return (inner * torch.tensor([4.0, 0.1])).sum()

    loss(leaf).backward()
    torch.testing.assert_close(leaf.grad, torch.tensor([1.5, 0.025]))


IMPORT_LATE = """
import sys

import torch
import unified_clip.torch as uc

parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
parameter.grad = parameter.detach().clone()
print(uc.clip_grad_norm_([parameter], 1.0).item(), "torch._dynamo" in sys.modules)


@torch.compile(backend="eager", fullgraph=True)
def clip(gradient):
    return uc.clip_by_global_norm([gradient], 1.0)


clipped, norm = clip(torch.tensor([3.0, 4.0]))
print(clipped[0].tolist(), norm.item(), "torch._dynamo" in sys.modules)
"""


@pytest.mark.nightly
def test_only_programs_that_compile_import_the_compiler() -> None:
    assert in_a_new_process(IMPORT_LATE) == f"5.0 False\n{torch.tensor([0.6, 0.8]).tolist()} 5.0 True\n"


@pytest.mark.nightly
def test_functions_for_all_frameworks_need_no_eager_call_before() -> None:
    """The lookup of the framework is no part of a graph."""
    code = """
import torch, unified_clip
from unified_clip import adaptive

linear = torch.nn.Linear(2, 2)
linear.weight.grad, linear.bias.grad = torch.ones(2, 2), torch.ones(2)
calls = [
    lambda: adaptive.clip_by_unit_norm([torch.ones(3, 2)], [torch.ones(3, 2)])[0].sum(),
    lambda: unified_clip.clip_by_global_norm({"a": torch.ones(2), "b": (torch.ones(3), None)}, 1.0)[1].square(),
    lambda: unified_clip.clip_grad_norm_(linear.parameters(), 1.0).square(),
]
print(*(round(torch.compile(call, fullgraph=True, backend="eager")().item(), 3) for call in calls))
"""
    assert in_a_new_process(code) == "0.06 5.0 6.0\n"
