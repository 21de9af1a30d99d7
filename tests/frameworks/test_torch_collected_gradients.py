"""PyTorch: lists of parameters that the compiled kernels collect in one pass. The results are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.tiers import READS_TENSORS

import unified_clip
import unified_clip.torch as uc
from unified_clip._backends.torch import backend
from unified_clip._backends.torch.backend import BACKEND

pytestmark = pytest.mark.skipif(not unified_clip.native_available(), reason="about the compiled kernels")


def parameter(gradient: torch.Tensor | None) -> torch.nn.Parameter:
    if gradient is None:
        return torch.nn.Parameter(torch.zeros(2))
    made = torch.nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device))
    made.grad = gradient
    return made


PLAIN = [
    torch.tensor([3.0, 4.0]),
    None,
    torch.randn(3, 4).T,
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(7).to(torch.float16),
    torch.randn(7).to(torch.bfloat16),
    torch.tensor(2.0),
    torch.randn(5, 6)[1:3],
]


@READS_TENSORS
def test_plain_parameters_are_taken_whole() -> None:
    path = BACKEND.collect_parameters([parameter(gradient) for gradient in PLAIN])
    assert path is not None
    assert len(path.tensors) == len(PLAIN) - 1
    assert BACKEND.collect_parameters((parameter(PLAIN[0]), None)) is not None


def named(gradient: torch.Tensor) -> object:
    return ("weight", parameter(gradient))


def left_out(gradient: torch.Tensor) -> object:
    made = parameter(gradient)
    made.need_clip = False
    return made


def inner(gradient: torch.Tensor) -> object:
    made = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    made.grad = gradient
    return made.add_(torch.ones(2, requires_grad=True))


def in_main_grad() -> object:
    made = parameter(None)
    made.main_grad = torch.ones(2)  # type: ignore[attr-defined]
    return made


def made_in_inference_mode() -> object:
    with torch.inference_mode():
        return parameter(torch.ones(3))


class OwnTensor(torch.Tensor):
    pass


class OwnParameter(torch.nn.Parameter):
    pass


SPECIAL: dict[str, Callable[[], object]] = {
    "a name and a parameter": lambda: named(torch.ones(2)),
    "a tensor that is no parameter": lambda: torch.ones(2),
    "a parameter of another type": lambda: OwnParameter(torch.ones(2)),
    "a parameter to be left out": lambda: left_out(torch.ones(2)),
    "a parameter that has become a result": lambda: inner(torch.ones(2)),
    "an empty gradient": lambda: parameter(torch.zeros(0, 3)),
    "a gradient of another type": lambda: parameter(torch.ones(2).as_subclass(OwnTensor)),
    "a sparse gradient": lambda: parameter(torch.ones(3).to_sparse()),
    "a negative view": lambda: parameter(torch.tensor([1 + 2j]).conj().imag),
    "a complex gradient": lambda: parameter(torch.tensor([1 + 2j])),
    "an expanded gradient": lambda: parameter(torch.ones(1).expand(4)),
    "a gradient with gaps": lambda: parameter(torch.ones(4, 6)[:, ::2]),
    "a gradient on no device": lambda: parameter(torch.ones(2, device="meta")),
    "a gradient in main_grad": in_main_grad,
    "inference mode": made_in_inference_mode,
    "a gradient of 65 axes": lambda: parameter(torch.ones([1] * 65)),
    "zeros without memory": lambda: parameter(torch._efficientzerotensor((2,))),
}


@pytest.mark.parametrize("path", ["", "framework"], ids=["host", "device"])
@pytest.mark.parametrize("name", SPECIAL)
def test_one_that_is_special_has_all_of_them_looked_at(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "inference mode" and not path:
        pytest.skip("the compiled kernels write it")
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    assert BACKEND.collect_parameters([parameter(torch.ones(2)), SPECIAL[name]()]) is None


def test_a_parameter_that_has_become_a_result_is_left_out() -> None:
    result, other = inner(torch.tensor([30.0, 40.0])), parameter(torch.tensor([3.0]))
    assert uc.clip_grad_norm_([result, other], 1.0).item() == 3.0


@READS_TENSORS
def test_memory_that_is_shared_is_looked_at() -> None:
    base = torch.ones(6)
    one = parameter(base[:3])
    for other in (one, parameter(base[:3]), parameter(base[2:5])):
        assert BACKEND.collect_parameters([one, other]) is None
    assert BACKEND.collect_parameters([one, parameter(base[3:])]) is not None


def test_nothing_that_watches_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [parameter(torch.ones(2))]
    with torch.autograd.forward_ad.dual_level():
        assert BACKEND.collect_parameters(given) is None
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert BACKEND.collect_parameters(given) is None
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    whole = BACKEND.collect_parameters(given)
    assert whole is not None
    assert not whole.on_host


@READS_TENSORS
def test_a_subnormal_norm_is_kept_in_a_thread_that_flushes_them() -> None:
    tensor_list = backend.COLLECTOR.of_tensors([torch.ones(2)], False, False)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        norm = tensor_list.number(1e-40, False)
    finally:
        torch.set_flush_denormal(False)
    assert norm.item() == torch.tensor(1e-40).item() != 0
