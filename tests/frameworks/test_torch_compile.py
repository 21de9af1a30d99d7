"""PyTorch: every name inside `torch.compile`, without a graph break, traced once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.kits import Kit, in_a_new_process
from support.tiers import FORMATS_TEXTS, TRACES_HOOKS, quick
from torch._dynamo.testing import CompileCounterWithBackend

import unified_clip.torch as uc
from unified_clip import ClipWarning

Result = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _reset_compiler(kit: Kit) -> Iterator[None]:
    if not kit.exact:
        pytest.skip("graphs always take the device path")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(scale: float, dtype: torch.dtype = torch.float32) -> Result:
    values = [[3.0, 4.0], [[12.0], [0.0]], [0.5]]
    return [torch.tensor(value, dtype=dtype) * scale for value in values]


def parameters(grads: Result) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.zeros_like(each)) for each in grads]
    for parameter, gradient in zip(params, grads, strict=True):
        parameter.grad = gradient
    return params


def copy_gradients(params: list[torch.nn.Parameter]) -> Result:
    return [parameter.grad.clone() for parameter in params]


def tensors_of(result: Any) -> Result:
    if isinstance(result, torch.Tensor):
        return [] if isinstance(result, torch.nn.Parameter) else [result]
    if isinstance(result, str):
        return []
    items = result.values() if isinstance(result, dict) else result or ()
    return [leaf for item in items for leaf in tensors_of(item)]


EXCLUDED_SHAPE = (2, 1)

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "clip_grad_norm_": lambda params: uc.clip_grad_norm_(params, 5.0),
    "clip_grad_norm_ of order 1": lambda params: uc.clip_grad_norm_(params, 5.0, 1),
    "clip_grad_norm_ of order 3": lambda params: uc.clip_grad_norm_(params, 5.0, norm_type=3.0),
    "clip_grad_norm_ of order inf": lambda params: uc.clip_grad_norm_(params, 5.0, "inf"),
    "clip_grad_norm_ to infinity": lambda params: uc.clip_grad_norm_(params, math.inf),
    "clip_grad_norm_ to zero": lambda params: uc.clip_grad_norm_(params, 0),
    "clip_grad_norm_ of a generator": lambda params: uc.clip_grad_norm_((parameter for parameter in params), 5.0),
    "clip_grad_norm_ of names": lambda params: uc.clip_grad_norm_([(f"p{i}", p) for i, p in enumerate(params)], 5.0),
    "clip_grad_norm_ of one": lambda params: uc.clip_grad_norm_(params[0], 2.0),
    "clip_grad_norm_ of one twice": lambda params: uc.clip_grad_norm_([params[0], params[1], params[0]], 5.0),
    "clip_grad_value_": lambda params: uc.clip_grad_value_(params, 2.0),
    "clip_grad_value_ to zero": lambda params: uc.clip_grad_value_(params, 0.0),
    "clip_grads_with_norm_": lambda params: uc.clip_grads_with_norm_(params, 5.0, 10.0),
    "clip_grads_with_norm_ measured": lambda params: uc.clip_grads_with_norm_(
        params, 5.0, uc.get_total_norm([parameter.grad for parameter in params])
    ),
    "GradientClipByValue.clip_": uc.GradientClipByValue(2.0).clip_,
    "GradientClipByNorm.clip_": uc.GradientClipByNorm(2.0).clip_,
    "GradientClipByGlobalNorm.clip_": uc.GradientClipByGlobalNorm(2.0).clip_,
    "need_clip": uc.GradientClipByGlobalNorm(2.0, need_clip=lambda parameter: parameter.shape != EXCLUDED_SHAPE).clip_,
    "a class created in the graph": lambda params: uc.ClipGradByNorm(2.0).clip_(params),
}

PARAMETERS = parameters(gradients(1.0))

FUNCTIONAL: dict[str, Callable[[Any], Any]] = {
    "get_total_norm": uc.get_total_norm,
    "global_norm": uc.global_norm,
    "clip_by_global_norm": lambda grads: uc.clip_by_global_norm(grads, 5.0),
    "clip_by_global_norm with a norm": lambda grads: uc.clip_by_global_norm(grads, 5.0, use_norm=grads[2].abs().sum()),
    "clip_by_global_norm of a dict": lambda grads: uc.clip_by_global_norm({"a": grads[0], "b": {"c": grads[1]}}, 5.0),
    "clip_by_global_norm of a nested list": lambda grads: uc.clip_by_global_norm([grads[:2], {"c": grads[2:]}], 5.0),
    "clip_by_norm": lambda grads: [uc.clip_by_norm(gradient, 2.0) for gradient in grads],
    "clip_by_norm with axes": lambda grads: uc.clip_by_norm(grads[1], 2.0, axes=[1]),
    "clip_by_value": lambda grads: [uc.clip_by_value(gradient, -2.0, 2.0) for gradient in grads],
    "clip_by_value with tensors": lambda grads: uc.clip_by_value(
        grads[0], torch.tensor(-1.0), torch.tensor([1.0, 9.0])
    ),
    "clip_by_value of integers": lambda grads: uc.clip_by_value(grads[0].to(torch.int32), -2, 2),
    "ErrorClipByValue": lambda grads: uc.ErrorClipByValue(2.0)(grads[0]),
    "GradientClipByValue": lambda grads: uc.GradientClipByValue(2.0)([("name", gradient) for gradient in grads]),
    "GradientClipByNorm": lambda grads: uc.GradientClipByNorm(2.0)(list(zip(PARAMETERS, grads, strict=True))),
    "GradientClipByGlobalNorm": lambda grads: uc.GradientClipByGlobalNorm(2.0)(
        [(None, gradient) for gradient in grads]
    ),
    "append_gradient_clip_ops": lambda grads: uc.append_gradient_clip_ops([(None, gradient) for gradient in grads]),
}


def in_place(name: str, params: list[torch.nn.Parameter]) -> Result:
    norm = IN_PLACE[name](params)
    return [*tensors_of(norm), *copy_gradients(params)]


def assert_same_bits(result: Result, expected: Result) -> None:
    """Compare the bits. Norms of float64 gradients may differ by 1e-12."""
    for actual, reference in zip(result, expected, strict=True):
        tolerance = 1e-12 if actual.dtype == torch.float64 else 0.0
        torch.testing.assert_close(actual, reference, rtol=tolerance, atol=0, equal_nan=True)
        assert torch.equal(actual.signbit() & ~actual.isnan(), reference.signbit() & ~reference.isnan()), "0 is not -0"


VALUES = [1.0, 0.01, 1e20, 0.0, math.nan, math.inf, -1.0]


@pytest.mark.parametrize(
    "name",
    quick(IN_PLACE, "clip_grad_norm_", "clip_grad_norm_ of names", "clip_grads_with_norm_ measured", "need_clip"),
)
def test_in_place_functions_are_traced_once_and_match_eager(name: str) -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(IN_PLACE[name], backend=counter, fullgraph=True)
    params = parameters(gradients(1.0))
    for call in range(100):
        grads = gradients(VALUES[call % len(VALUES)])
        for parameter, gradient in zip(params, grads, strict=True):
            parameter.grad = gradient.clone()
        result = [*tensors_of(compiled(params)), *copy_gradients(params)]
        if call < len(VALUES):
            assert_same_bits(result, in_place(name, parameters(grads)))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "name",
    quick(
        FUNCTIONAL, "global_norm", "clip_by_global_norm of a nested list", "clip_by_norm with axes", "ErrorClipByValue"
    ),
)
def test_functional_calls_are_traced_once_and_match_eager(name: str) -> None:
    function, counter = FUNCTIONAL[name], CompileCounterWithBackend("eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for call in range(100):
        grads = gradients(VALUES[call % len(VALUES)])
        result = tensors_of(compiled(grads))
        if call < len(VALUES):
            assert_same_bits(result, tensors_of(function(grads)))
    assert counter.frame_count == (0 if name == "append_gradient_clip_ops" else 1), (
        "without set_gradient_clip, it does nothing"
    )


DTYPES = [torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", quick(DTYPES, torch.bfloat16))
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_", "GradientClipByNorm.clip_"])
def test_other_dtypes_match_eager(name: str, dtype: torch.dtype) -> None:
    compiled = torch.compile(IN_PLACE[name], backend="eager", fullgraph=True)
    for scale in (1.0, 0.3, 0.0, math.nan):
        params = parameters([*gradients(scale, dtype), *gradients(scale)])
        result = [*tensors_of(compiled(params)), *copy_gradients(params)]
        assert_same_bits(result, in_place(name, parameters([*gradients(scale, dtype), *gradients(scale)])))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
def test_bounds_are_rounded_once_to_the_dtype(dtype: torch.dtype) -> None:
    """In bfloat16, 1.00390625 + 2**-30 is nearest to 1.0078125. Rounded to float32 first, it is half-way."""
    bound = 1.00390625 + 2.0**-30
    gradient = torch.tensor([3.0, -3.0], dtype=dtype)
    compiled = torch.compile(lambda x, c: uc.clip_by_value(x, -c, c), backend="eager", fullgraph=True)
    for c in (bound, 2 * bound, 1.0 + 2.0**-11 + 2.0**-30):
        assert_same_bits([compiled(gradient, c)], [uc.clip_by_value(gradient, -c, c)])
        params = parameters([gradient.clone()])
        torch.compile(lambda params_, c=c: uc.clip_grad_value_(params_, c), backend="eager", fullgraph=True)(params)
        assert_same_bits(copy_gradients(params), [uc.clip_by_value(gradient, -c, c)])


THRESHOLD_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "clip_grad_norm_": lambda params, limit: uc.clip_grad_norm_(params, limit),
    "clip_grad_value_": lambda params, limit: uc.clip_grad_value_(params, limit),
    "clip_grads_with_norm_": lambda params, limit: uc.clip_grads_with_norm_(params, limit, 10.0),
    "clip_by_global_norm": lambda params, limit: uc.clip_by_global_norm(
        [parameter.grad for parameter in params], limit
    ),
    "clip_by_norm": lambda params, limit: uc.clip_by_norm(params[0].grad, limit),
    "clip_by_value": lambda params, limit: uc.clip_by_value(params[0].grad, -limit, limit),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", THRESHOLD_CALLS)
def test_a_changing_threshold_is_traced_once_as_a_tensor_and_twice_as_a_number(name: str) -> None:
    function = THRESHOLD_CALLS[name]
    for make_threshold, traces in ((torch.tensor, 1), (float, 2)):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")  # a graph of this backend is for one value of each number
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        for limit in (4.0, 3.0, 1.3, 10.0, 7.0, 11.0, 2.0, 30.0, 0.1, 6.0):  # 10 is a norm below
            compiled_params, eager_params = parameters(gradients(1.0)), parameters(gradients(1.0))
            result = [*tensors_of(compiled(compiled_params, make_threshold(limit))), *copy_gradients(compiled_params)]
            assert_same_bits(result, [*tensors_of(function(eager_params, limit)), *copy_gradients(eager_params)])
        assert counter.frame_count == traces, make_threshold


@FORMATS_TEXTS
def test_a_number_as_threshold_is_checked_inside_a_graph() -> None:
    compiled = torch.compile(lambda params_, limit: uc.clip_grad_norm_(params_, limit), backend="eager", fullgraph=True)
    params = parameters(gradients(1.0))
    for limit in (1.0, 2.0, 3.0):
        compiled(params, limit)
    for limit in (-1.0, math.nan):
        with pytest.raises(Exception, match="Pass 0 or more"):
            compiled(params, limit)
    before = copy_gradients(params)
    compiled(params, math.inf)
    assert_same_bits(copy_gradients(params), before)


@FORMATS_TEXTS
@pytest.mark.parametrize("name", ["clip_grad_norm_", "get_total_norm"])
def test_error_if_nonfinite_is_rejected_when_traced_and_names_the_alternative(name: str) -> None:
    def function(traced: Any) -> Any:
        if name == "get_total_norm":
            return uc.get_total_norm([parameter.grad for parameter in traced], error_if_nonfinite=True)
        return uc.clip_grad_norm_(traced, 1.0, error_if_nonfinite=True)

    params = parameters(gradients(1.0))
    before = copy_gradients(params)
    with pytest.raises(Exception, match="return the norm from the graph, and check the norm outside"):
        torch.compile(function, backend="eager", fullgraph=True)(params)
    assert_same_bits(copy_gradients(params), before)


@FORMATS_TEXTS
def test_a_gradient_in_main_grad_only_is_an_error_when_traced() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    first.grad, second.main_grad = torch.tensor([3.0, 4.0]), torch.ones(2)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="position 1 has a gradient in main_grad"):
        torch.compile(uc.clip_grad_norm_, backend="eager", fullgraph=True)([first, second], 1.0)


@FORMATS_TEXTS
def test_an_expanded_gradient_is_rejected_when_traced() -> None:
    good, wrong = parameters([torch.tensor([30.0])])[0], torch.nn.Parameter(torch.zeros(4))
    wrong.grad = torch.ones(1).expand(4)
    compiled = torch.compile(lambda params_: uc.clip_grad_norm_(params_, 1.0), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="position 1 has elements that overlap in memory"):
        compiled([good, wrong])
    assert good.grad.item() == 30.0


def with_gradients(*grads: torch.Tensor) -> list[torch.nn.Parameter]:
    return parameters([torch.tensor([30.0]), *grads])


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 2, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=False)


GRAPH_BREAKS: dict[str, tuple[Callable[[], list[torch.nn.Parameter]], Callable[[Any], Any]]] = {
    "sparse": (lambda: with_gradients(sparse()), lambda params: uc.clip_grad_norm_(params, 1.0)),
    "sparse, by value": (lambda: with_gradients(sparse()), lambda params: uc.clip_grad_value_(params, 1.0)),
    "sparse, by a class": (lambda: with_gradients(sparse()), lambda params: uc.GradientClipByNorm(1.0).clip_(params)),
    "sparse, by an instance": (
        lambda: with_gradients(sparse()),
        lambda params: uc.GradientClipByGlobalNorm(1.0)([(p, p.grad) for p in params]),
    ),
    "sparse, functional": (
        lambda: with_gradients(sparse()),
        lambda params: uc.clip_by_global_norm([p.grad for p in params], 1.0),
    ),
    "expanded": (lambda: with_gradients(torch.ones(1).expand(4)), lambda params: uc.clip_grad_norm_(params, 1.0)),
    "expanded, by value": (
        lambda: with_gradients(torch.ones(1).expand(4)),
        lambda params: uc.clip_grad_value_(params, 0.1),
    ),
    "expanded, by a class": (
        lambda: with_gradients(torch.ones(1).expand(4)),
        lambda params: uc.GradientClipByNorm(0.1).clip_(params),
    ),
    "expanded, with a norm": (
        lambda: with_gradients(torch.ones(1).expand(4)),
        lambda params: uc.clip_grads_with_norm_(params, 1.0, 30.0),
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
    "finite": (with_gradients, lambda params: uc.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)),
    "no tensor": (with_gradients, lambda params: uc.clip_grad_norm_([*params, "weight"], 1.0)),
    "a negative threshold": (with_gradients, lambda params: uc.clip_grad_norm_(params, -1.0)),
    "a used-up iterator": (with_gradients, lambda params: uc.clip_grad_norm_(iter([]), 1.0)),
}


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


FIRST_CALL = """
import warnings
warnings.simplefilter("error")
import torch
import unified_clip
held = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(4))]
held[0].grad, held[1].grad = torch.tensor([30.0, 40.0]), {gradient}
try:
    norm = torch.compile(lambda given: unified_clip.clip_grad_norm_(given, 1.0), backend="eager")(held)
    print(norm.item(), end=" ")
except Exception as error:
    print(type(error).__name__, end=" ")
print(round(held[0].grad[0].item(), 4))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("gradient", "printed"),
    [
        ("torch.ones(1).expand(4)", "ValueError 30.0"),
        ("torch.sparse_coo_tensor([[0]], [0.0], (4,), check_invariants=False)", "50.0 0.6"),
    ],
    ids=["expanded", "sparse"],
)
def test_the_first_call_of_a_top_level_function_may_be_compiled(gradient: str, printed: str) -> None:
    assert in_a_new_process(FIRST_CALL.format(gradient=gradient)).strip() == printed


@FORMATS_TEXTS
def test_a_clip_warning_is_the_only_warning_of_a_graph() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager")(torch.tensor([3.0]))
    assert [warning.category for warning in warned] == [ClipWarning]
    with pytest.raises(Exception, match="takes parameters, but the tensor at"):
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager", fullgraph=True)(torch.tensor([3.0]))


@pytest.mark.nightly
def test_a_graph_break_leaves_the_rest_of_the_step_compiled() -> None:
    counter = CompileCounterWithBackend("eager")

    @torch.compile(backend=counter)
    def step(params: list[torch.nn.Parameter], x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        uc.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
        return y + 1

    params = with_gradients()
    assert step(params, torch.tensor(1.0)) == 3.0
    assert_same_bits(copy_gradients(params), [torch.tensor([30.0 / (30.0 + 1e-6)])])
    assert counter.frame_count == 2


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_may_be_views_or_have_other_strides_than_their_parameter(backend: str) -> None:
    def make_params() -> list[torch.nn.Parameter]:
        channels_last = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        bucket = torch.arange(20.0)
        views = [bucket[:6].view(2, 3), bucket[6:18].view(3, 4)[:, 1:3], bucket[18:]]
        return parameters([channels_last.to(memory_format=torch.channels_last), torch.ones(2, 3).T, *views])

    params, eager_params = make_params(), make_params()
    for parameter in params:
        parameter.data = parameter.data.contiguous()
    compiled = torch.compile(lambda traced: uc.clip_grad_norm_(traced, 1.0), backend=backend, fullgraph=True)
    assert_same_bits(
        [compiled(params), *copy_gradients(params)],
        [uc.clip_grad_norm_(eager_params, 1.0), *copy_gradients(eager_params)],
    )


def test_excluded_frozen_and_unused_parameters_are_unchanged() -> None:
    def make_params() -> list[torch.nn.Parameter]:
        params = parameters([*gradients(1.0), torch.tensor([100.0])])
        params[3].need_clip = False
        unused, frozen = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        return [*params, unused, frozen]

    params = make_params()
    norm = torch.compile(lambda params: uc.clip_grad_norm_(params, 1.0), backend="eager", fullgraph=True)(params)
    eager_params = make_params()
    assert_same_bits(
        [norm, *copy_gradients(params[:4])], [uc.clip_grad_norm_(eager_params, 1.0), *copy_gradients(eager_params[:4])]
    )
    assert params[3].grad.item() == 100.0


def test_set_gradient_clip_applies_inside_a_graph() -> None:
    uc.set_gradient_clip(uc.GradientClipByNorm(2.0))
    try:
        pairs = list(zip(PARAMETERS, gradients(1.0), strict=True))
        compiled = torch.compile(uc.append_gradient_clip_ops, backend="eager", fullgraph=True)
        assert_same_bits(tensors_of(compiled(pairs)), tensors_of(uc.append_gradient_clip_ops(pairs)))
    finally:
        uc.set_gradient_clip(None)


def test_derivatives_pass_through_a_compiled_clip() -> None:
    point = torch.tensor([3.0, 4.0], requires_grad=True)
    compiled = torch.compile(lambda x: uc.clip_by_global_norm([x], 1.0)[0][0], backend="aot_eager", fullgraph=True)
    compiled(point).sum().backward()
    torch.testing.assert_close(point.grad, torch.tensor([0.032, -0.024]))
    transformed = torch.compile(
        torch.func.vmap(torch.func.grad(lambda x: uc.clip_by_norm(x, 1.0).sum())), backend="eager", fullgraph=True
    )
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(transformed(rows), torch.tensor([[0.032, -0.024], [1.0, 1.0], [1.0, 1.0]]))


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


@pytest.mark.nightly
def test_all_calls_fit_in_one_graph_of_the_default_backend() -> None:
    names = [name for name in FUNCTIONAL if name not in ("append_gradient_clip_ops", "ErrorClipByValue")]

    def measured(grads: Result) -> list[Any]:
        return [FUNCTIONAL[name](grads) for name in names]

    def clipped(param_lists: list[list[torch.nn.Parameter]]) -> list[Any]:
        return [function(params) for function, params in zip(IN_PLACE.values(), param_lists, strict=True)]

    torch_compiled = torch.compile(measured, fullgraph=True)
    grads = gradients(1.0)
    for actual, reference in zip(tensors_of(torch_compiled(grads)), tensors_of(measured(grads)), strict=True):
        torch.testing.assert_close(actual, reference, rtol=2.0**-23, atol=0)
    compiled_params, eager_params = ([parameters(gradients(1.0)) for _ in IN_PLACE] for _ in range(2))
    norms = tensors_of(torch.compile(clipped, fullgraph=True)(compiled_params)), tensors_of(clipped(eager_params))
    for actual, reference in zip(
        [*norms[0], *(params for param_lists in compiled_params for params in copy_gradients(param_lists))],
        [*norms[1], *(params for param_lists in eager_params for params in copy_gradients(param_lists))],
        strict=True,
    ):
        torch.testing.assert_close(actual, reference, rtol=2.0**-23, atol=0)


def test_a_training_step_is_traced_once() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True)
    def update(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
        norm = uc.clip_grad_norm_(parameters, 0.5)
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
        return norm

    losses = []
    data = torch.randn(64, 4)
    for _ in range(100):
        loss = (model(data) - data.sum(1, keepdim=True)).pow(2).mean()
        model.zero_grad()
        loss.backward()
        update(list(model.parameters()))
        total = uc.get_total_norm([parameter.grad for parameter in model.parameters()])
        assert float(total) <= 0.5 * (1 + 2**-22)
        losses.append(loss.item())
    assert counter.frame_count == 1
    assert losses[-1] < losses[0] / 10


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
