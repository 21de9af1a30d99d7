"""PyTorch: compiled graphs on the CPU call the kernels, by two operators, with the bits of the host path."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.kits import in_a_new_process
from support.tiers import nightly, quick

import unified_clip
import unified_clip.torch as uc
from unified_clip._backends.torch import kernel_operators
from unified_clip._native import KERNELS

pytestmark = [
    pytest.mark.skipif(KERNELS is None, reason="this build has no compiled kernels"),
    pytest.mark.usefixtures("kernels_in_new_graphs"),
]

OPERATORS = torch.ops.unified_clip
NORM, KERNEL_NORM, SCALE = OPERATORS.norm, OPERATORS.kernel_norm, OPERATORS.scale_


def gradients(dtype: str = "float32", scale: float = 1.0, seed: int = 0) -> list[torch.Tensor]:
    random = np.random.default_rng(seed)
    arrays = (random.standard_normal(shape) * scale for shape in ((5, 7), (3,), (1,), (2, 1, 4)))
    return [torch.tensor(array).to(getattr(torch, dtype)) for array in arrays]


def parameters(grads: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad.clone()
    return params


def operators_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "unified_clip" in str(node.target))
        return graph.forward

    torch.compile(lambda *arguments_: function(*arguments_), backend=backend, fullgraph=True)(*arguments)
    return names


# -- which graphs


def test_a_graph_measures_and_scales_by_one_operator_each() -> None:
    def clip(params: list[torch.nn.Parameter]) -> Any:
        return uc.clip_grad_norm_(params, 1.0)

    for clip_ in (clip, uc.GradientClipByNorm(1.0).clip_):
        assert operators_of(clip_, parameters(gradients())) == [str(NORM), str(SCALE)]
    assert operators_of(clip, parameters([torch.ones(2, dtype=torch.complex64)])) == []
    functional = lambda grads: uc.clip_by_global_norm(grads, 1.0)  # noqa: E731
    assert operators_of(functional, gradients()) == [str(NORM)]  # products are left to the compiler


def test_views_are_measured_by_kernels_and_scaled_by_pytorchs_operations() -> None:
    params, bucket = parameters(gradients()[:2]), torch.arange(38.0)
    params[0].grad, params[1].grad = bucket[:35].view(5, 7), bucket[35:]
    assert operators_of(lambda items: uc.clip_grad_norm_(items, 1.0), params) == [str(NORM)]


def test_a_setting_switches_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unified_clip.native_available("torch")
    monkeypatch.setattr(kernel_operators, "ENABLED", False)
    assert not unified_clip.native_available("torch")
    assert operators_of(lambda params: uc.clip_grad_norm_(params, 1.0), parameters(gradients())) == []


# -- values


BACKENDS = ["aot_eager", *nightly("inductor")]


def test_dtypes_and_memory_orders_may_differ_in_a_list() -> None:
    grads = [
        torch.arange(6.0).reshape(2, 3).T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(9.0, dtype=torch.float64)[::2],
        torch.ones(3, dtype=torch.bfloat16),
    ]
    for clip in (lambda params: uc.clip_grad_norm_(params, 1.0), uc.GradientClipByNorm(1.0).clip_):
        params, expected = parameters(grads), parameters(grads)
        torch.compile(clip, backend="aot_eager", fullgraph=True)(params)
        clip(expected)
        assert all(torch.equal(actual.grad, reference.grad) for actual, reference in zip(params, expected, strict=True))


# -- derivatives and batches


def sine_of_clipped(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(uc.clip_by_norm(x, 1.0)).sum()


TRANSFORMATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": torch.func.vmap(lambda x: uc.clip_by_norm(x, 1.0)),
    "vmap of grad": torch.func.vmap(torch.func.grad(sine_of_clipped)),
    "jvp": lambda rows: torch.func.jvp(sine_of_clipped, (rows,), (torch.ones_like(rows),)),
    "hessian": lambda rows: torch.func.hessian(sine_of_clipped)(rows[0]),
    "vjp": lambda rows: torch.func.vjp(sine_of_clipped, rows)[1](torch.tensor(1.0)),
}


@pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning")  # from Inductor
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", quick(TRANSFORMATIONS, "vmap of grad", "hessian"))
def test_transformations_in_a_graph_match_eager(name: str, backend: str) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    expected = TRANSFORMATIONS[name](rows)
    compiled = torch.compile(TRANSFORMATIONS[name], backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(rows), expected, rtol=2e-6, atol=1e-7)


# -- the operators themselves


@pytest.mark.parametrize("per_tensor", [False, True])
def test_the_operators_pass_pytorchs_opcheck(per_tensor: bool) -> None:
    grads = gradients()
    torch.library.opcheck(NORM.default, (grads, 2.0, per_tensor))
    torch.library.opcheck(KERNEL_NORM.default, (grads, 2.0, per_tensor))
    coef = torch.full([len(grads)] if per_tensor else [], 0.5, dtype=torch.float64)
    torch.library.opcheck(SCALE.default, (grads, coef, per_tensor))


REJECTED = (ValueError, RuntimeError)
"""PyTorch 2.15 raises RuntimeError for each error of an operator in C++."""


def test_the_operators_reject_other_orders_dtypes_and_coefficients() -> None:
    coef_of_all = torch.ones((), dtype=torch.float64)
    with pytest.raises(REJECTED, match="kernel_norm takes the orders 1 and 2"):
        KERNEL_NORM(gradients(), 3.0, False)
    with pytest.raises(REJECTED, match="take float16, bfloat16, float32 and float64"):
        KERNEL_NORM([torch.ones(2, dtype=torch.int32)], 2.0, False)
    for coef, per_tensor in (
        (coef_of_all.float(), False),
        (coef_of_all, True),
        (torch.ones(4, dtype=torch.float64), False),
    ):
        with pytest.raises(REJECTED, match="scale_ takes a float64 coefficient, or one for each tensor"):
            SCALE(gradients(), coef, per_tensor)


# -- threads, processes


def test_several_threads_may_run_a_compiled_function_at_once() -> None:
    compiled = torch.compile(uc.global_norm, backend="aot_eager", fullgraph=True)
    grads = [torch.randn(300, 400) for _ in range(10)]
    expected = compiled(grads)
    with ThreadPoolExecutor(4) as pool:
        assert all(norm == expected for norm in pool.map(compiled, [grads] * 40))


PROCESS = """
import os
import torch
import unified_clip.torch as uc

compiled = torch.compile(uc.global_norm, backend="aot_eager", fullgraph=True)
grads = [torch.full([400, 400], 2.0) for _ in range(4)]
assert compiled(grads) == 1600.0
child = os.fork()
if child == 0:
    assert compiled(grads) == 1600.0
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("ends with a compiled function alive")
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_compiled_function_survives_fork_and_the_end_of_the_process() -> None:
    assert in_a_new_process(PROCESS).strip() == "ends with a compiled function alive"


# -- torch.export


class Clip(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return uc.clip_by_global_norm([a, b], 1.0)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_needs_no_kernels(strict: bool) -> None:
    grads = gradients()[:2]
    program = torch.export.export(Clip(), tuple(grads), strict=strict)
    assert not any("unified_clip" in str(node.target) for node in program.graph.nodes)
    (clipped, norm), (expected, expected_norm) = program.module()(*grads), uc.clip_by_global_norm(grads, 1.0)
    torch.testing.assert_close(norm, expected_norm, rtol=2.0**-23, atol=0)
    for tensor, expected_tensor in zip(clipped, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=2.0**-22, atol=0)
