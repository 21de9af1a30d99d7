"""PyTorch: every name inside `torch.compile`, without a graph break, traced once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.kits import Kit, in_a_new_process
from support.tiers import quick
from torch._dynamo.testing import CompileCounterWithBackend

import unified_clip.torch as uc
from unified_clip import ClipWarning

Result = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _on_its_own(kit: Kit) -> Iterator[None]:
    if not kit.exact:
        pytest.skip("graphs take the device path anyhow")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(scale: float, dtype: torch.dtype = torch.float32) -> Result:
    """Of norms 5, 12 and 0.5, times `scale`."""
    values = [[3.0, 4.0], [[12.0], [0.0]], [0.5]]
    return [torch.tensor(each, dtype=dtype) * scale for each in values]


def parameters(given: Result) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros_like(each)) for each in given]
    for parameter, gradient in zip(made, given, strict=True):
        parameter.grad = gradient
    return made


def kept(holders: list[torch.nn.Parameter]) -> Result:
    return [holder.grad.clone() for holder in holders]


def leaves(result: Any) -> Result:
    """The tensors in what a name returned, but for parameters."""
    if isinstance(result, torch.Tensor):
        return [] if isinstance(result, torch.nn.Parameter) else [result]
    if isinstance(result, str):
        return []
    items = result.values() if isinstance(result, dict) else result or ()
    return [leaf for item in items for leaf in leaves(item)]


LEFT_OUT = (2, 1)
"""The shape of the gradient that `need_clip` leaves out."""

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "clip_grad_norm_": lambda given: uc.clip_grad_norm_(given, 5.0),
    "clip_grad_norm_ of order 1": lambda given: uc.clip_grad_norm_(given, 5.0, 1),
    "clip_grad_norm_ of order 3": lambda given: uc.clip_grad_norm_(given, 5.0, norm_type=3.0),
    "clip_grad_norm_ of order inf": lambda given: uc.clip_grad_norm_(given, 5.0, "inf"),
    "clip_grad_norm_ to infinity": lambda given: uc.clip_grad_norm_(given, math.inf),
    "clip_grad_norm_ to zero": lambda given: uc.clip_grad_norm_(given, 0),
    "clip_grad_norm_ of a generator": lambda given: uc.clip_grad_norm_((each for each in given), 5.0),
    "clip_grad_norm_ of names": lambda given: uc.clip_grad_norm_([(f"p{i}", p) for i, p in enumerate(given)], 5.0),
    "clip_grad_norm_ of one": lambda given: uc.clip_grad_norm_(given[0], 2.0),
    "clip_grad_norm_ of one twice": lambda given: uc.clip_grad_norm_([given[0], given[1], given[0]], 5.0),
    "clip_grad_value_": lambda given: uc.clip_grad_value_(given, 2.0),
    "clip_grad_value_ to zero": lambda given: uc.clip_grad_value_(given, 0.0),
    "clip_grads_with_norm_": lambda given: uc.clip_grads_with_norm_(given, 5.0, 10.0),
    "clip_grads_with_norm_ measured": lambda given: uc.clip_grads_with_norm_(
        given, 5.0, uc.get_total_norm([each.grad for each in given])
    ),
    "GradientClipByValue.clip_": uc.GradientClipByValue(2.0).clip_,
    "GradientClipByNorm.clip_": uc.GradientClipByNorm(2.0).clip_,
    "GradientClipByGlobalNorm.clip_": uc.GradientClipByGlobalNorm(2.0).clip_,
    "need_clip": uc.GradientClipByGlobalNorm(2.0, need_clip=lambda parameter: parameter.shape != LEFT_OUT).clip_,
    "a class made in the graph": lambda given: uc.ClipGradByNorm(2.0).clip_(given),
}

HELD = parameters(gradients(1.0))

FUNCTIONAL: dict[str, Callable[[Any], Any]] = {
    "get_total_norm": uc.get_total_norm,
    "global_norm": uc.global_norm,
    "clip_by_global_norm": lambda given: uc.clip_by_global_norm(given, 5.0),
    "clip_by_global_norm with a norm": lambda given: uc.clip_by_global_norm(given, 5.0, use_norm=given[2].abs().sum()),
    "clip_by_global_norm of a dict": lambda given: uc.clip_by_global_norm({"a": given[0], "b": {"c": given[1]}}, 5.0),
    "clip_by_global_norm of a nested list": lambda given: uc.clip_by_global_norm([given[:2], {"c": given[2:]}], 5.0),
    "clip_by_norm": lambda given: [uc.clip_by_norm(each, 2.0) for each in given],
    "clip_by_norm with axes": lambda given: uc.clip_by_norm(given[1], 2.0, axes=[1]),
    "clip_by_value": lambda given: [uc.clip_by_value(each, -2.0, 2.0) for each in given],
    "clip_by_value with tensors": lambda given: uc.clip_by_value(
        given[0], torch.tensor(-1.0), torch.tensor([1.0, 9.0])
    ),
    "clip_by_value of integers": lambda given: uc.clip_by_value(given[0].to(torch.int32), -2, 2),
    "ErrorClipByValue": lambda given: uc.ErrorClipByValue(2.0)(given[0]),
    "GradientClipByValue": lambda given: uc.GradientClipByValue(2.0)([("name", each) for each in given]),
    "GradientClipByNorm": lambda given: uc.GradientClipByNorm(2.0)(list(zip(HELD, given, strict=True))),
    "GradientClipByGlobalNorm": lambda given: uc.GradientClipByGlobalNorm(2.0)([(None, each) for each in given]),
    "append_gradient_clip_ops": lambda given: uc.append_gradient_clip_ops([(None, each) for each in given]),
}


def in_place(name: str, holders: list[torch.nn.Parameter]) -> Result:
    norm = IN_PLACE[name](holders)
    return [*leaves(norm), *kept(holders)]


def same(got: Result, wanted: Result) -> None:
    """The same bits, or 1e-12 apart where float64 is all there is to compute in."""
    for one, other in zip(got, wanted, strict=True):
        tolerance = 1e-12 if one.dtype == torch.float64 else 0.0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=0, equal_nan=True)
        assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan()), "0 is not -0"


VALUES = [1.0, 0.01, 1e20, 0.0, math.nan, math.inf, -1.0]


@pytest.mark.parametrize(
    "name",
    quick(IN_PLACE, "clip_grad_norm_", "clip_grad_norm_ of names", "clip_grads_with_norm_ measured", "need_clip"),
)
def test_names_in_place_trace_once_and_do_as_eagerly(name: str) -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(IN_PLACE[name], backend=counter, fullgraph=True)
    held = parameters(gradients(1.0))
    for call in range(100):
        given = gradients(VALUES[call % len(VALUES)])
        for parameter, gradient in zip(held, given, strict=True):
            parameter.grad = gradient.clone()
        got = [*leaves(compiled(held)), *kept(held)]
        if call < len(VALUES):
            same(got, in_place(name, parameters(given)))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "name",
    quick(
        FUNCTIONAL, "global_norm", "clip_by_global_norm of a nested list", "clip_by_norm with axes", "ErrorClipByValue"
    ),
)
def test_functional_names_trace_once_and_do_as_eagerly(name: str) -> None:
    function, counter = FUNCTIONAL[name], CompileCounterWithBackend("eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for call in range(100):
        given = gradients(VALUES[call % len(VALUES)])
        got = leaves(compiled(given))
        if call < len(VALUES):
            same(got, leaves(function(given)))
    assert counter.frame_count == (0 if name == "append_gradient_clip_ops" else 1), "with nothing set it does nothing"


DTYPES = [torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", quick(DTYPES, torch.bfloat16))
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_", "GradientClipByNorm.clip_"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    compiled = torch.compile(IN_PLACE[name], backend="eager", fullgraph=True)
    for scale in (1.0, 0.3, 0.0, math.nan):
        given = parameters([*gradients(scale, dtype), *gradients(scale)])
        got = [*leaves(compiled(given)), *kept(given)]
        same(got, in_place(name, parameters([*gradients(scale, dtype), *gradients(scale)])))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
def test_bounds_are_rounded_once(dtype: torch.dtype) -> None:
    """1.00390625 + 2**-30 is the nearest to 1.0078125 of bfloat16, and half-way where it passes through float32."""
    bound = 1.00390625 + 2.0**-30
    given = torch.tensor([3.0, -3.0], dtype=dtype)
    compiled = torch.compile(lambda x, c: uc.clip_by_value(x, -c, c), backend="eager", fullgraph=True)
    for c in (bound, 2 * bound, 1.0 + 2.0**-11 + 2.0**-30):
        same([compiled(given, c)], [uc.clip_by_value(given, -c, c)])
        holders = parameters([given.clone()])
        torch.compile(lambda held, c=c: uc.clip_grad_value_(held, c), backend="eager", fullgraph=True)(holders)
        same(kept(holders), [uc.clip_by_value(given, -c, c)])


BY_A_LIMIT: dict[str, Callable[[Any, Any], Any]] = {
    "clip_grad_norm_": lambda given, limit: uc.clip_grad_norm_(given, limit),
    "clip_grad_value_": lambda given, limit: uc.clip_grad_value_(given, limit),
    "clip_grads_with_norm_": lambda given, limit: uc.clip_grads_with_norm_(given, limit, 10.0),
    "clip_by_global_norm": lambda given, limit: uc.clip_by_global_norm([each.grad for each in given], limit),
    "clip_by_norm": lambda given, limit: uc.clip_by_norm(given[0].grad, limit),
    "clip_by_value": lambda given, limit: uc.clip_by_value(given[0].grad, -limit, limit),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", BY_A_LIMIT)
def test_a_threshold_that_changes_is_traced_once_as_a_tensor_and_twice_as_a_number(name: str) -> None:
    function = BY_A_LIMIT[name]
    for kind, traces in ((torch.tensor, 1), (float, 2)):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")  # which keeps to numbers that operations were made for
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        for limit in (4.0, 3.0, 1.3, 10.0, 7.0, 11.0, 2.0, 30.0, 0.1, 6.0):  # 10 is a norm below
            ours, wanted = parameters(gradients(1.0)), parameters(gradients(1.0))
            got = [*leaves(compiled(ours, kind(limit))), *kept(ours)]
            same(got, [*leaves(function(wanted, limit)), *kept(wanted)])
        assert counter.frame_count == traces, kind


def test_a_threshold_is_checked_in_a_graph_where_it_is_a_number() -> None:
    compiled = torch.compile(lambda given, limit: uc.clip_grad_norm_(given, limit), backend="eager", fullgraph=True)
    held = parameters(gradients(1.0))
    for limit in (1.0, 2.0, 3.0):
        compiled(held, limit)
    for limit in (-1.0, math.nan):
        with pytest.raises(Exception, match="Pass 0 or more"):
            compiled(held, limit)
    before = kept(held)
    compiled(held, math.inf)
    same(kept(held), before)


@pytest.mark.parametrize("name", ["clip_grad_norm_", "get_total_norm"])
def test_error_if_nonfinite_is_refused_when_traced_with_the_alternative(name: str) -> None:
    def function(given: Any) -> Any:
        if name == "get_total_norm":
            return uc.get_total_norm([each.grad for each in given], error_if_nonfinite=True)
        return uc.clip_grad_norm_(given, 1.0, error_if_nonfinite=True)

    held = parameters(gradients(1.0))
    before = kept(held)
    with pytest.raises(Exception, match="return the norm from the graph, and check the norm outside"):
        torch.compile(function, backend="eager", fullgraph=True)(held)
    same(kept(held), before)


def test_a_gradient_in_main_grad_only_is_an_error_when_traced() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    first.grad, second.main_grad = torch.tensor([3.0, 4.0]), torch.ones(2)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="position 1 has a gradient in main_grad"):
        torch.compile(uc.clip_grad_norm_, backend="eager", fullgraph=True)([first, second], 1.0)


def test_an_expanded_gradient_is_refused_when_traced() -> None:
    good, wrong = parameters([torch.tensor([30.0])])[0], torch.nn.Parameter(torch.zeros(4))
    wrong.grad = torch.ones(1).expand(4)
    compiled = torch.compile(lambda given: uc.clip_grad_norm_(given, 1.0), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="position 1 has elements that overlap in memory"):
        compiled([good, wrong])
    assert good.grad.item() == 30.0


def holding(*given: torch.Tensor) -> list[torch.nn.Parameter]:
    return parameters([torch.tensor([30.0]), *given])


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 2, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=False)


LEFT_TO_EAGER: dict[str, tuple[Callable[[], list[torch.nn.Parameter]], Callable[[Any], Any]]] = {
    "sparse": (lambda: holding(sparse()), lambda held: uc.clip_grad_norm_(held, 1.0)),
    "sparse, by value": (lambda: holding(sparse()), lambda held: uc.clip_grad_value_(held, 1.0)),
    "sparse, by a class": (lambda: holding(sparse()), lambda held: uc.GradientClipByNorm(1.0).clip_(held)),
    "sparse, by an instance": (
        lambda: holding(sparse()), lambda held: uc.GradientClipByGlobalNorm(1.0)([(each, each.grad) for each in held]),
    ),
    "sparse, functional": (
        lambda: holding(sparse()), lambda held: uc.clip_by_global_norm([each.grad for each in held], 1.0),
    ),
    "expanded": (lambda: holding(torch.ones(1).expand(4)), lambda held: uc.clip_grad_norm_(held, 1.0)),
    "expanded, by value": (lambda: holding(torch.ones(1).expand(4)), lambda held: uc.clip_grad_value_(held, 0.1)),
    "expanded, by a class": (
        lambda: holding(torch.ones(1).expand(4)), lambda held: uc.GradientClipByNorm(0.1).clip_(held),
    ),
    "expanded, with a norm": (
        lambda: holding(torch.ones(1).expand(4)), lambda held: uc.clip_grads_with_norm_(held, 1.0, 30.0),
    ),
    "not finite": (
        lambda: holding(torch.tensor([math.inf])), lambda held: uc.clip_grad_norm_(held, 1.0, error_if_nonfinite=True),
    ),
    "jagged": (
        holding,
        lambda held: uc.clip_by_norm(torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), 1.0),
    ),
    "gradients for parameters": (holding, lambda held: uc.clip_grad_norm_([each.grad for each in held], 1.0)),
    "finite": (holding, lambda held: uc.clip_grad_norm_(held, 1.0, error_if_nonfinite=True)),
    "no tensor": (holding, lambda held: uc.clip_grad_norm_([*held, "weight"], 1.0)),
    "a negative threshold": (holding, lambda held: uc.clip_grad_norm_(held, -1.0)),
    "a used-up iterator": (holding, lambda held: uc.clip_grad_norm_(iter([]), 1.0)),
}  # fmt: skip


def outcome(function: Callable[[Any], Any], held: list[torch.nn.Parameter]) -> tuple[str, Result]:
    """What was raised, warned or returned, and the gradients."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            said, result = "", leaves(function(held))
        except Exception as error:  # whatever it is, it is compared
            said, result = f"{type(error).__name__}: {error}", []
    said += "".join(str(each.message) for each in warned if issubclass(each.category, ClipWarning))
    return said, [each.to_dense() for each in (*result, *kept(held))]


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", LEFT_TO_EAGER)
def test_what_a_graph_cannot_take_is_done_as_eagerly_where_the_graph_may_break(name: str, backend: str) -> None:
    make, function = LEFT_TO_EAGER[name]
    compiled = torch.compile(lambda held: function(held), backend=backend)
    for _ in range(2):
        (said, got), (wanted_said, wanted) = outcome(compiled, make()), outcome(function, make())
        assert said == wanted_said
        same(got, wanted)


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
def test_the_first_call_of_a_name_for_all_frameworks_may_be_in_a_compiled_function(gradient: str, printed: str) -> None:
    assert in_a_new_process(FIRST_CALL.format(gradient=gradient)).strip() == printed


def test_a_warning_is_the_only_one() -> None:
    """And, where the graph must not break, stands in the error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager")(torch.tensor([3.0]))
    assert [each.category for each in warned] == [ClipWarning]
    with pytest.raises(Exception, match="takes parameters, but none of the tensors that you"):
        torch.compile(lambda x: uc.clip_grad_norm_([x], 1.0), backend="eager", fullgraph=True)(torch.tensor([3.0]))


@pytest.mark.nightly
def test_a_break_in_the_graph_of_a_step_leaves_its_other_parts_compiled() -> None:
    counter = CompileCounterWithBackend("eager")

    @torch.compile(backend=counter)
    def step(held: list[torch.nn.Parameter], x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        uc.clip_grad_norm_(held, 1.0, error_if_nonfinite=True)
        return y + 1

    held = holding()
    assert step(held, torch.tensor(1.0)) == 3.0
    same(kept(held), [torch.tensor([30.0 / (30.0 + 1e-6)])])
    assert counter.frame_count == 2


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_that_are_views_or_have_other_steps_than_their_parameter(backend: str) -> None:
    def make() -> list[torch.nn.Parameter]:
        channels_last = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        bucket = torch.arange(20.0)
        views = [bucket[:6].view(2, 3), bucket[6:18].view(3, 4)[:, 1:3], bucket[18:]]
        return parameters([channels_last.to(memory_format=torch.channels_last), torch.ones(2, 3).T, *views])

    held, wanted = make(), make()
    for parameter in held:
        parameter.data = parameter.data.contiguous()
    compiled = torch.compile(lambda given: uc.clip_grad_norm_(given, 1.0), backend=backend, fullgraph=True)
    same([compiled(held), *kept(held)], [uc.clip_grad_norm_(wanted, 1.0), *kept(wanted)])


def test_a_parameter_that_is_left_out_has_no_gradient_or_is_frozen() -> None:
    def make() -> list[torch.nn.Parameter]:
        given = parameters([*gradients(1.0), torch.tensor([100.0])])
        given[3].need_clip = False
        unused, frozen = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        return [*given, unused, frozen]

    held = make()
    norm = torch.compile(lambda given: uc.clip_grad_norm_(given, 1.0), backend="eager", fullgraph=True)(held)
    wanted = make()
    same([norm, *kept(held[:4])], [uc.clip_grad_norm_(wanted, 1.0), *kept(wanted[:4])])
    assert held[3].grad.item() == 100.0


def test_a_settings_of_paddle_1_is_applied() -> None:
    uc.set_gradient_clip(uc.GradientClipByNorm(2.0))
    try:
        pairs = list(zip(HELD, gradients(1.0), strict=True))
        compiled = torch.compile(uc.append_gradient_clip_ops, backend="eager", fullgraph=True)
        same(leaves(compiled(pairs)), leaves(uc.append_gradient_clip_ops(pairs)))
    finally:
        uc.set_gradient_clip(None)


def test_derivatives_pass_through_a_graph() -> None:
    at = torch.tensor([3.0, 4.0], requires_grad=True)
    compiled = torch.compile(lambda x: uc.clip_by_global_norm([x], 1.0)[0][0], backend="aot_eager", fullgraph=True)
    compiled(at).sum().backward()
    torch.testing.assert_close(at.grad, torch.tensor([0.032, -0.024]))
    transformed = torch.compile(
        torch.func.vmap(torch.func.grad(lambda x: uc.clip_by_norm(x, 1.0).sum())), backend="eager", fullgraph=True
    )
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(transformed(rows), torch.tensor([[0.032, -0.024], [1.0, 1.0], [1.0, 1.0]]))


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
def test_everything_in_one_graph_of_the_default_backend() -> None:
    """Which makes other loops of the same operations."""
    names = [name for name in FUNCTIONAL if name not in ("append_gradient_clip_ops", "ErrorClipByValue")]

    def measured(given: Result) -> list[Any]:
        return [FUNCTIONAL[name](given) for name in names]

    def clipped(held: list[list[torch.nn.Parameter]]) -> list[Any]:
        return [function(each) for function, each in zip(IN_PLACE.values(), held, strict=True)]

    torch_compiled = torch.compile(measured, fullgraph=True)
    given = gradients(1.0)
    for one, other in zip(leaves(torch_compiled(given)), leaves(measured(given)), strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-23, atol=0)
    ours, wanted = ([parameters(gradients(1.0)) for _ in IN_PLACE] for _ in range(2))
    norms = leaves(torch.compile(clipped, fullgraph=True)(ours)), leaves(clipped(wanted))
    for one, other in zip(
        [*norms[0], *(each for held in ours for each in kept(held))],
        [*norms[1], *(each for held in wanted for each in kept(held))],
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=2.0**-23, atol=0)


def test_a_training_step_is_traced_once() -> None:
    """The model, its gradients, the clip and the step in one graph, for as many steps as one likes."""
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
def test_the_compiler_is_imported_by_programs_that_compile_only() -> None:
    assert in_a_new_process(IMPORT_LATE) == f"5.0 False\n{torch.tensor([0.6, 0.8]).tolist()} 5.0 True\n"
