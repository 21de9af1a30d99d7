"""PyTorch: in compiled graphs, a short form of `clip_grad_norm_` does for plain gradients what the body does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.tiers import FORMATS_TEXTS
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

import unified_clip.torch as uc
from unified_clip._api import torch_functions
from unified_clip._backends.torch import traced_bodies
from unified_clip._native import KERNELS

pytestmark = [
    pytest.mark.skipif(KERNELS is None, reason="this build has no compiled kernels"),
    pytest.mark.usefixtures("kernels_in_new_graphs"),
]

Parameters = list[torch.nn.Parameter]


def parameters(count: int = 3, dtype: torch.dtype = torch.float32) -> Parameters:
    result = [torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype)) for _ in range(count)]
    for number, parameter in enumerate(result):
        parameter.grad = torch.arange(6.0).reshape(2, 3).to(dtype) - number
    return result


def with_gradient(gradient: torch.Tensor) -> Parameters:
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return [*parameters(1), parameter]


def one_excluded() -> Parameters:
    result = parameters()
    result[1].need_clip = False  # type: ignore[attr-defined]
    return result


def one_without_gradient() -> Parameters:
    result = parameters()
    result[1].grad = None
    return result


def two_with_one_gradient() -> Parameters:
    result = parameters(2)
    result[1].grad = result[0].grad
    return result


def one_twice() -> Parameters:
    result = parameters(2)
    return [*result, result[0]]


def expanded() -> Parameters:
    return with_gradient(torch.from_dlpack(torch.ones(1, 1).expand(1, 4)))


def views_of_one_bucket() -> Parameters:
    result, bucket = parameters(2), torch.arange(12.0)
    result[0].grad, result[1].grad = bucket[:6].view(2, 3), bucket[6:].view(2, 3)
    return result


LISTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "float32": (parameters, True),
    "bfloat16": (lambda: parameters(dtype=torch.bfloat16), True),
    "float64": (lambda: parameters(dtype=torch.float64), True),
    "two dtypes": (lambda: [*parameters(), *parameters(1, torch.float64)], True),
    "a tuple": (lambda: tuple(parameters()), True),
    "one without a gradient": (one_without_gradient, True),
    "one excluded": (one_excluded, True),
    "complex": (lambda: parameters(dtype=torch.complex64), False),
    "one gradient twice": (two_with_one_gradient, False),
    "one parameter twice": (one_twice, False),
    "views of one bucket": (views_of_one_bucket, False),
    "an expanded gradient": (expanded, False),
    "an empty gradient": (lambda: with_gradient(torch.zeros(0)), False),
    "a dict": (lambda: dict(enumerate(parameters())), False),
    "one parameter": (lambda: parameters(1)[0], False),
    "no gradient": (lambda: [torch.nn.Parameter(torch.zeros(2))], False),
    "nothing": (list, False),
}
"""By name: a function that returns parameters, and whether the short form clips them."""


def gradients(container: Any) -> list[torch.Tensor]:
    items = container.values() if isinstance(container, dict) else container
    items = [items] if isinstance(items, torch.Tensor) else items
    return [parameter.grad for parameter in items if parameter.grad is not None]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    results: list[bool] = []
    short = traced_bodies.SHORT_BODIES[torch_functions.clip_grad_norm_]

    @torch.compiler.assume_constant_result
    def note(is_short: bool) -> bool:
        results.append(is_short)
        return is_short

    def noted(*arguments: Any, **options: Any) -> Any:
        result, arguments, options = short(*arguments, **options)
        note(result is not None)
        return result, arguments, options

    monkeypatch.setitem(traced_bodies.SHORT_BODIES, torch_functions.clip_grad_norm_, noted)
    return results


def outcome(function: Callable[..., Any], container: Any) -> Any:
    try:
        return function(container)
    except Exception as error:
        return str(error)


OPTIONS: list[tuple[dict[str, Any], bool]] = [
    ({"max_norm": 2}, True),
    ({"max_norm": 0}, True),
    ({"max_norm": -0.0}, True),
    ({"max_norm": 1.0, "norm_type": 2, "foreach": False}, True),
    ({"max_norm": 1.0, "norm_type": 1}, False),
    ({"max_norm": 1.0, "norm_type": "2"}, False),
    ({"max_norm": 1.0, "error_if_nonfinite": True}, False),
    ({"max_norm": math.inf}, False),
    ({"max_norm": math.nan}, False),
    ({"max_norm": -1.0}, False),
    ({"max_norm": True}, False),
    ({"max_norm": "1"}, False),
    ({"max_norm": torch.tensor(1.0)}, False),
    ({"max_norm": 1.0, "process_group": None}, False),
]
CASES = [(make, {"max_norm": 1.0}, is_short) for make, is_short in LISTS.values()]
CASES += [(parameters, options, is_short) for options, is_short in OPTIONS]


@pytest.mark.filterwarnings("ignore::unified_clip.ClipWarning")
@pytest.mark.parametrize(("make", "options", "is_short"), CASES, ids=[*LISTS, *(str(each) for each, _ in OPTIONS)])
def test_the_short_form_does_what_the_body_does(
    make: Callable[[], Any], options: dict[str, Any], is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = counted(monkeypatch)
    container, expected = make(), make()

    def clip(items: Any) -> Any:
        return uc.clip_grad_norm_(items, **options)

    expected_norm = outcome(clip, expected)
    fails = isinstance(expected_norm, str)
    breaks = fails or "error_if_nonfinite" in options
    norm = outcome(torch.compile(clip, backend="aot_eager", fullgraph=not breaks), container)
    assert set(traces) == {is_short}
    if fails:
        assert norm == expected_norm
    else:
        assert norm.dtype == expected_norm.dtype
        assert torch.equal(norm, expected_norm)
    for gradient, expected_gradient in zip(gradients(container), gradients(expected), strict=True):
        assert torch.equal(gradient, expected_gradient)
        assert gradient.is_complex() or torch.equal(gradient.signbit(), expected_gradient.signbit())


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_iterator_is_read_once(is_plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = counted(monkeypatch)
    items, expected = (parameters() if is_plain else views_of_one_bucket() for _ in range(2))
    clip = torch.compile(lambda: uc.clip_grad_norm_(iter(items), 1.0), backend="aot_eager", fullgraph=True)
    assert torch.equal(clip(), uc.clip_grad_norm_(expected, 1.0))
    assert traces == [is_plain]
    assert all(map(torch.equal, gradients(items), gradients(expected)))


@FORMATS_TEXTS
def test_a_gradient_in_main_grad_only_is_an_error() -> None:
    items = one_without_gradient()
    items[1].main_grad = torch.ones(2, 3)  # type: ignore[attr-defined]
    clip = torch.compile(lambda: uc.clip_grad_norm_(items, 1.0), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="position 1 has a gradient in main_grad"):
        clip()


def test_another_threshold_needs_no_third_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = counted(monkeypatch)
    clip = torch.compile(uc.clip_grad_norm_, backend="aot_eager", fullgraph=True)
    for threshold in (1.0, 2.0, 3.5, 0.25):
        items, expected = parameters(), parameters()
        assert torch.equal(clip(items, threshold), uc.clip_grad_norm_(expected, threshold))
        assert all(map(torch.equal, gradients(items), gradients(expected)))
    assert traces == [True, True]  # PyTorch treats a number as constant until it changes


def test_need_clip_may_change_between_steps() -> None:
    items = parameters()
    clip = torch.compile(uc.clip_grad_norm_, backend="aot_eager", fullgraph=True)
    clip(items, 100.0)
    items[1].need_clip = False  # type: ignore[attr-defined]
    expected = one_excluded()
    assert torch.equal(clip(items, 1.0), uc.clip_grad_norm_(expected, 1.0))
    assert all(map(torch.equal, gradients(items), gradients(expected)))


def test_a_graph_checks_fewer_values_than_with_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks() -> int:
        torch._dynamo.reset()
        items = parameters()

        def step() -> torch.Tensor:
            return uc.clip_grad_norm_(items, 1.0)

        torch.compile(step, backend="eager", fullgraph=True)()
        (entry,) = _debug_get_cache_entry_list(step)
        return str(entry.guard_manager).count("\n")

    short = checks()
    monkeypatch.delitem(traced_bodies.SHORT_BODIES, torch_functions.clip_grad_norm_)
    assert short < 0.6 * checks()
