"""The Triton kernels, run by Triton's interpreter on CPU tensors, and compiled for GPUs."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support import interpreter, reference
from support.kits import Kit
from support.tiers import nightly, quick, sampled
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*fp_fusion.*:UserWarning"),
]
KERNELS = ("add", "round_sums", "add_exactly", "decide", "change")
DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
}  # fmt: skip
COMPLEX = {"complex64": torch.complex64, "complex128": torch.complex128}
SHAPES: tuple[tuple[int, ...], ...] = ((769,), (2,) * 7, (256,), (255,), (257,), (3, 1))


@pytest.fixture
def table(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if not kit.exact:
        pytest.skip("compares the kernels with the host path")
    from unified_clip._backends.torch.gpu import table

    assert table.INTERPRETED, "the kit asks for the interpreter before anything imports Triton"
    interpreter.patch_once(monkeypatch)
    monkeypatch.setattr(gpu, "ENABLED", True)
    monkeypatch.setattr(table, "CHUNK", 256)
    monkeypatch.setattr(table, "LANES", 64)
    monkeypatch.setattr(table, "SUM_LANES", 16)
    table._tables.clear()
    yield table
    table._tables.clear()


@pytest.fixture
def launches(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()

    class Counted:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(table.kernels, name)

        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            counts[self.name] += 1
            launch: Callable[..., Any] = self.kernel[grid]
            return launch

    for name in KERNELS:
        monkeypatch.setattr(table.kernels, name, Counted(name))
    return counts


def parameters(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient.clone()
    return params


def bits_of_both_paths(
    gradients: list[torch.Tensor], clip: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> list[list[Any]]:
    results = []
    for path in ("", "framework"):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
        params = parameters(gradients)
        result = clip(params)
        results.append(
            [bits_of(item) for item in [*tree_leaves(result), *(p.grad for p in params)] if item is not None]
        )
    return results


def bits_of(tensor: torch.Tensor) -> list[int]:
    """Return the bits of a tensor. All NaN are equal."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    integers = tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    return torch.where(tensor.isnan(), 0x7FC0, integers).flatten().tolist()


def random(shapes: tuple[tuple[int, ...], ...], dtype: str, seed: int = 0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    if dtype in COMPLEX:
        return [torch.randn(shape, generator=source, dtype=torch.complex128).to(COMPLEX[dtype]) for shape in shapes]
    return [torch.randn(shape, generator=source, dtype=torch.float64).to(DTYPES[dtype]) for shape in shapes]


def functional(clip: Callable[[list[torch.Tensor]], Any]) -> Callable[[Any], Any]:
    return lambda params: clip([parameter.grad for parameter in params])


def param_grads(params: Any) -> list[Any]:
    return [(None, parameter.grad) for parameter in params]


SUMS, CHANGE = {"add", "round_sums"}, {"change"}
CLIPS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "order 2": (lambda params: uc.clip_grad_norm_(params, 5.0), set(KERNELS)),
    "order 1": (lambda params: uc.clip_grad_norm_(params, 5.0, 1), set(KERNELS)),
    "order inf": (lambda params: uc.clip_grad_norm_(params, 0.5, math.inf), SUMS | CHANGE),
    "nothing to do": (lambda params: uc.clip_grad_norm_(params, 1e9), set(KERNELS)),
    "a threshold of 0": (lambda params: uc.clip_grad_norm_(params, 0.0), set(KERNELS)),
    "one norm per gradient": (uc.GradientClipByNorm(2.0).clip_, set(KERNELS)),
    "TensorFlow's rule": (uc.GradientClipByGlobalNorm(2.0).clip_, set(KERNELS)),
    "values": (lambda params: uc.clip_grad_value_(params, 0.3), CHANGE),
    "values of one sign": (uc.GradientClipByValue(0.7, 0.0).clip_, CHANGE),
    "no value but 0": (lambda params: uc.clip_grad_value_(params, 0.0), CHANGE),
    "new tensors": (functional(lambda grads: uc.clip_by_global_norm(grads, 2.0)), set(KERNELS)),
    "new tensors, nothing to do": (functional(lambda grads: uc.clip_by_global_norm(grads, 1e9)), set(KERNELS)),
    "new tensors by a given norm": (
        functional(lambda grads: uc.clip_by_global_norm(grads, 2.0, use_norm=7.0)[0]), CHANGE
    ),
    "new tensors, one by one": (functional(lambda grads: [uc.clip_by_norm(g, 0.5) for g in grads]), set(KERNELS)),
    "new tensors, one norm per gradient": (lambda ps: uc.GradientClipByNorm(2.0)(param_grads(ps)), set(KERNELS)),
    "new tensors, values": (functional(lambda grads: [uc.clip_by_value(g, -0.1, 0.7) for g in grads]), CHANGE),
    "new tensors, values of pairs": (lambda params: uc.GradientClipByValue(0.3)(param_grads(params)), CHANGE),
}  # fmt: skip

PER_TENSOR_CALLS = ("new tensors, one by one", "new tensors, values")


# -- the host path's bits


@pytest.mark.parametrize("dtype", quick(DTYPES, "float32", "bfloat16"))
@pytest.mark.parametrize("name", CLIPS)
def test_results_have_the_bits_of_the_host_path(
    name: str, dtype: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, kernels = CLIPS[name]
    host, results = bits_of_both_paths(random(SHAPES, dtype), clip, monkeypatch)
    assert results == host
    assert set(launches) == kernels


@pytest.mark.parametrize("name", CLIPS)
def test_each_dtype_of_a_list_has_its_own_launches(
    name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = [random(((70,), (3, 5)), dtype, seed)[seed % 2] for seed, dtype in enumerate([*DTYPES, *DTYPES])]
    clip, kernels = CLIPS[name]
    host, results = bits_of_both_paths(gradients, clip, monkeypatch)
    assert results == host
    if name not in PER_TENSOR_CALLS:
        assert {launches[kernel] for kernel in kernels - {"round_sums", "decide"}} == {len(DTYPES)}


@pytest.mark.parametrize("dtype", quick(COMPLEX, "complex64"))
@pytest.mark.parametrize("name", [name for name in CLIPS if "values" not in name and "value" not in name])
def test_complex_gradients_have_the_bits_of_the_host_path(
    name: str, dtype: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read pairs of real numbers. Norms of other orders need magnitudes, and take PyTorch's operations."""
    gradients = random(SHAPES, dtype)
    clip, kernels = CLIPS[name]
    if name in ("order 1", "order inf"):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
        clip(parameters(gradients))
        assert set(launches) == CHANGE
        return
    host, results = bits_of_both_paths(gradients, clip, monkeypatch)
    assert results == host
    assert set(launches) == kernels


def test_a_list_may_have_complex_and_real_gradients(launches: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [random(((70,),), dtype, seed)[0] for seed, dtype in enumerate([*DTYPES, *COMPLEX, "float32"])]
    for name in ("order 2", "one norm per gradient", "new tensors"):
        host, results = bits_of_both_paths(gradients, CLIPS[name][0], monkeypatch)
        assert results == host
    assert set(launches) == set(KERNELS)


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX])
def test_a_list_may_have_empty_gradients(dtype: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = random(((0,), (70,), (3, 0)), dtype)
    for name in ("order 2", "one norm per gradient", "new tensors"):
        host, results = bits_of_both_paths(gradients, CLIPS[name][0], monkeypatch)
        assert results == host
    assert set(launches) == set(KERNELS)


SPECIAL = [(value, "float32") for value in (math.nan, -math.inf, 1e-45, 3.4e38, -0.0)]
SPECIAL += [(value, "float64") for value in (math.nan, -math.inf, 5e-324, 1e-160, 1e200, 1.7e308, -0.0)]


@pytest.mark.parametrize(("value", "dtype"), sampled(SPECIAL, 3))
@pytest.mark.parametrize("name", ["order 2", "order inf", "one norm per gradient", "values of one sign", "new tensors"])
def test_special_values_have_the_bits_of_the_host_path(
    name: str, value: float, dtype: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = [torch.tensor([value, 1.0, -value], dtype=DTYPES[dtype]), torch.full((65,), value, dtype=DTYPES[dtype])]
    clip, kernels = CLIPS[name]
    for tensors in (gradients, gradients[1:], [gradients[1][:1]]):
        host, results = bits_of_both_paths(tensors, clip, monkeypatch)
        assert results == host
    assert set(launches) == kernels


def test_gradients_that_do_not_start_at_a_multiple_of_16_bytes(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for path in ("", "framework"):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
        memory = random(((300,),), "bfloat16")[0]
        results.append([bits_of(uc.clip_grad_norm_(memory_views(memory), 1.0)), bits_of(memory)])
    assert results[0] == results[1]
    assert launches["change"] == 1


def memory_views(memory: torch.Tensor) -> list[torch.nn.Parameter]:
    views = [memory[1:100], memory[101:299]]
    params = [torch.nn.Parameter(torch.zeros_like(view)) for view in views]
    for parameter, view in zip(params, views, strict=True):
        parameter.grad = view
    return params


# -- exact rounding

TIES = {
    "float32": [[2.0**24, 2.0**12, 2.0**12, 1.0], [2.0**24, *[2.0**12] * 6, 3.0], [1.0, 2.0**-24],
                [1.0 + 2.0**-23, 2.0**-24]],
    "float64": [[2.0**53, 2.0**27, 1.0], [2.0**53, *[2.0**27] * 3, 3.0], [1.0, 2.0**-53],
                [1.0 + 2.0**-52, 2.0**-53]],
}  # fmt: skip
"""Lists whose norm is half-way between two numbers: two of order 2, two of order 1."""


def assert_correctly_rounded(
    table: ModuleType, values: list[list[float]], p: int, dtype: str, factor: float = 1.0
) -> None:
    arrays = [np.array(numbers, dtype) * np.array(factor, dtype) for numbers in values]
    tensors = [torch.from_numpy(array) for array in arrays]
    assert float(table.table_of(tensors).norms(p, per_tensor=False)) == reference.norm(arrays, p)
    numbers = table.table_of(tensors).norms(p, per_tensor=True)
    assert numbers.tolist() == [reference.norm([array], p) for array in arrays]


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("doubt", [None, 2.0**-1.5], ids=["hardly any in doubt", "every other one in doubt"])
@pytest.mark.parametrize(
    "scaled",
    [
        ("float32", 1.0),
        ("float64", 1.0),
        *nightly(("float32", 2.0**-100), ("float64", 2.0**-600), ("float64", 2.0**900)),
    ],
    ids=lambda scaled: f"{scaled[0]} times {scaled[1]:g}",
)
def test_ties_go_to_the_even_number(
    table: ModuleType, scaled: tuple[str, float], doubt: float | None, p: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, factor = scaled
    if doubt:
        name, bits = ("ERROR", 24) if dtype == "float32" else ("WIDE_ERROR", 53)
        monkeypatch.setattr(table, name, doubt * 2.0**-bits)
    assert_correctly_rounded(table, TIES[dtype], p, dtype, factor)


def test_a_tie_needs_the_exact_sum(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exact sum, the lower number is returned."""
    monkeypatch.setattr(table.kernels, "decide", NotLaunched())
    for dtype, values in TIES.items():
        tensors = [torch.tensor(values[1], dtype=DTYPES[dtype])]
        expected = reference.norm([tensors[0].numpy()])
        assert float(table.table_of(tensors).norms(2, per_tensor=False)) < expected


class NotLaunched:
    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("dtype", TIES)
@pytest.mark.parametrize("p", [1, 2])
def test_sums_that_are_not_in_doubt_are_rounded_correctly(
    table: ModuleType, p: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table.kernels, "add_exactly", NotLaunched())
    monkeypatch.setattr(table.kernels, "decide", NotLaunched())
    tensors = random(((150,),) * 12, dtype)
    norms = table.table_of(tensors).norms(p, per_tensor=True)
    assert norms.tolist() == [reference.norm([tensor.numpy()], p) for tensor in tensors]


@pytest.mark.parametrize("dtype", quick(TIES, "float32"))
@pytest.mark.parametrize("p", [1, 2])
def test_exact_sums_of_numbers_of_all_sizes(
    table: ModuleType, p: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large error bound leaves every norm in doubt. The exact sums have bits in many windows."""
    monkeypatch.setattr(table, "ERROR" if dtype == "float32" else "WIDE_ERROR", 2.0**-10)
    least, largest = (-149, 127) if dtype == "float32" else (-1074, 1022)
    values = [[2.0**least], [2.0**least, 2.0**largest], [2.0 ** (least + 7)] * 3]
    values += [(1.7 * 2.0 ** np.arange(least + start, largest, (largest - least) // 4)).tolist() for start in (1, 5)]
    assert_correctly_rounded(table, values, p, dtype)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_norms_do_not_depend_on_chunks_or_lanes(
    table: ModuleType, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = random(((3000,), (129, 7), (1,)), "float32")
    results = []
    for chunk, lanes in ((64, 16), (256, 64), (4096, 1024), (65536, 1024)):
        monkeypatch.setattr(table, "CHUNK", chunk)
        monkeypatch.setattr(table, "LANES", lanes)
        table._tables.clear()
        results.append(table.table_of(tensors).norms(2, per_tensor=per_tensor).tolist())
    assert results == [results[0]] * 4


@pytest.mark.parametrize("per_tensor", quick([False, True], False))
def test_exact_norms_do_not_depend_on_the_number_of_programs(
    table: ModuleType, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "ERROR", 2.0**-10)  # all are in doubt
    tensors = random(((700,), (129, 3), (1,)), "float32")
    norms = []
    for programs in (1, 2, 3, table.EXACT_PROGRAMS):
        monkeypatch.setattr(table, "EXACT_PROGRAMS", programs)
        norms.append(table.table_of(tensors).norms(2, per_tensor=per_tensor).tolist())
    groups = [[tensor.numpy()] for tensor in tensors] if per_tensor else [[tensor.numpy() for tensor in tensors]]
    expected = [reference.norm(group) for group in groups]
    assert norms == [expected if per_tensor else expected[0]] * 4


@pytest.mark.nightly
def test_a_list_of_5000_tensors_takes_one_launch_per_kernel(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = random(tuple((1 + index % 3,) for index in range(5000)), "bfloat16")
    host, results = bits_of_both_paths(gradients, CLIPS["order 2"][0], monkeypatch)
    assert results == host
    assert launches == Counter(KERNELS)


# -- launches and copies


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("per_tensor", [False, True])
def test_a_second_clip_of_a_list_copies_nothing(
    table: ModuleType, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KERNELS:  # the interpreter copies what a GPU reads where it is
        monkeypatch.setattr(table.kernels, name, NotLaunched())
    tensors = random(SHAPES, "float32")
    with Operations() as first:
        table.table_of(tensors).norms(2, per_tensor=per_tensor)
    assert "_to_copy" in first.names or "lift_fresh" in first.names, "the first makes the table"
    with Operations() as second:
        again = table.table_of(tensors)
        norms = again.norms(2, per_tensor=per_tensor)
        for launch in again.products(torch.full_like(norms, 0.5), per_tensor=per_tensor):
            launch()
    assert "empty" in second.names
    assert set(second.names) <= {"empty", "select", "slice", "full_like", "detach"}


@pytest.mark.parametrize("name", [name for name in CLIPS if name not in PER_TENSOR_CALLS])
def test_launches_do_not_grow_with_the_number_of_gradients(
    name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    for number in (2, 9):
        launches.clear()
        clip, kernels = CLIPS[name]
        clip(parameters(random(((3,),) * number, "float32")))
        assert launches == Counter(kernels), number


MIXED: dict[str, list[torch.Tensor]] = {
    "one empty": [torch.empty(0)],
    "one empty float64": [torch.empty(0, dtype=torch.float64)],
    "complex": [torch.ones(3, dtype=torch.complex64)],
    "both": [torch.ones(3, dtype=torch.complex64), torch.empty(0)],
}


@pytest.mark.parametrize("name", MIXED)
def test_launches_of_per_tensor_norms_do_not_grow_with_the_number_of_gradients(
    name: str, table: ModuleType, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with empty and complex gradients. An empty float64 gradient is a list of its own, which has no chunks."""
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    for kernel in KERNELS:  # the interpreter takes long
        monkeypatch.setattr(getattr(table.kernels, kernel), "kernel", NotLaunched())
    kernels = Counter(KERNELS) + Counter(["round_sums", "decide"] if "float64" in name else [])
    dtype = "complex64" if name == "complex" else "float32"
    for clip in (CLIPS["one norm per gradient"][0], CLIPS["new tensors, one norm per gradient"][0]):
        for number in (2, 9, 40):
            launches.clear()
            clip(parameters(random(((3,),) * number, dtype) + MIXED[name]))
            assert launches == kernels, number


def test_an_empty_gradient_of_another_dtype_adds_no_launch(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = [*random(((0,),), "float64"), *random(((70,), (3,)), "float32"), *random(((0,),), "bfloat16")]
    for name in ("order 2", "one norm per gradient", "new tensors", "new tensors, one norm per gradient"):
        launches.clear()
        host, results = bits_of_both_paths(gradients, CLIPS[name][0], monkeypatch)
        assert results == host
        assert launches["add"] == launches["change"] == 1, name


def test_new_addresses_make_a_new_table(table: ModuleType) -> None:
    first = random(((3,),), "float32")
    first_table = table.table_of(first)
    assert table.table_of([first[0]]) is first_table
    second = [first[0].clone()]
    assert table.table_of(second) is not first_table
    assert table.table_of([first[0].view(torch.bfloat16)]) is not first_table
    kept = [random(((3,),), "float32") for _ in range(table.MAX_TABLES + 3)]
    for tensors in kept:
        table.table_of(tensors)
    assert len(table._tables) == table.MAX_TABLES


def test_a_write_bumps_the_versions_that_autograd_checks(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    (parameter,) = parameters([torch.ones(3)])
    before = parameter.grad._version
    uc.clip_grad_norm_([parameter], 1.0)
    assert parameter.grad._version > before
    assert launches["change"] == 1


# -- gradients that kernels do not support


NOT_SUPPORTED: dict[str, Callable[[], list[torch.Tensor]]] = {
    "not contiguous": lambda: [torch.ones(3, 4).t()],
    "only empty": lambda: [torch.ones(0)],
    "conjugated": lambda: [torch.ones(3, dtype=torch.complex64).conj()],
    "negative": lambda: [torch.ones(3, dtype=torch.complex64).conj().imag],
}


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_gradients_that_kernels_do_not_support_take_pytorchs_operations(
    name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    params = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in NOT_SUPPORTED[name]()]
    for parameter, gradient in zip(params, NOT_SUPPORTED[name](), strict=True):
        parameter.grad = gradient
    uc.clip_grad_norm_(params, 1.0)
    assert not launches


def test_a_list_with_too_many_chunks_has_no_table(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    enough, too_few = [torch.ones(2 * table.CHUNK + 1)], [torch.ones(2 * table.CHUNK + 1)]
    monkeypatch.setattr(table, "MAX_CHUNKS", 3)
    assert table.table_of(enough) is not None
    monkeypatch.setattr(table, "MAX_CHUNKS", 2)
    assert table.table_of(too_few) is None


def test_the_error_bounds_cover_the_longest_sums(kit: Kit) -> None:
    from unified_clip._backends.torch.gpu import table
    from unified_clip._backends.torch.gpu.kernels.sums import NARROW_LEAST

    in_a_row = table.CHUNK // table.LANES + table.LANES + table.MAX_CHUNKS // table.SUM_LANES + table.SUM_LANES
    assert in_a_row * 2.0**-53 + 2.0**-50 < table.ERROR
    assert (in_a_row * 2.0**-53) ** 2 + 2.0**-100 < table.WIDE_ERROR / 2
    in_a_lane = table.CHUNK // table.LANES
    in_float32 = (in_a_lane + 4) ** 2 * 2.0**-48 + table.LANES * 3 * 2.0**-48
    lost_bits = table.MAX_CHUNKS * table.CHUNK * 2.0**-148 / NARROW_LEAST.value
    assert in_float32 + table.ERROR + lost_bits < table.NARROW_ERROR


# -- the setting


@pytest.mark.parametrize(("setting", "is_enabled"), [("", False), ("0", False), ("1", True)])
def test_the_kernels_are_used_on_request(setting: str, is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_TRITON", setting)
    assert gpu._is_enabled() is is_enabled


@pytest.mark.nightly
def test_the_setting_is_read_at_import() -> None:
    script = "import unified_clip.torch\nfrom unified_clip._backends.torch import gpu\nprint(gpu.ENABLED)"
    environment = {**os.environ, "UNIFIED_CLIP_TRITON": "1"}
    started = subprocess.run([sys.executable, "-P", "-c", script], env=environment, capture_output=True, check=True)
    assert started.stdout.split() == [b"True"]


def test_a_wrong_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_TRITON", "yes")
    with pytest.raises(ValueError, match=r"UNIFIED_CLIP_TRITON is 'yes'\. Set it to 1 or 0, or leave it unset"):
        gpu._is_enabled()


def test_a_request_without_triton_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_TRITON", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"UNIFIED_CLIP_TRITON=1 needs Triton.*pip install triton"):
        gpu._is_enabled()


# -- compiled code


@functools.cache
def compiled_code(architecture: int) -> dict[str, Any]:
    """Return the instructions of each kernel for a generation of GPUs, from a process without the interpreter."""
    script = Path(__file__).parents[1] / "support" / "gpu_code.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(script), str(architecture)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    code: dict[str, Any] = json.loads(run.stdout)
    return code


def kernels_for(architecture: int, dtype: str, kernel: str = "") -> dict[str, Any]:
    kernels = {
        name: code
        for name, code in compiled_code(architecture).items()
        if name.startswith(kernel) and code["dtype"] == dtype
    }
    assert kernels
    return kernels


ARCHITECTURES = [90, *nightly(80, 86, 89, 100, 120)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_read_once_and_written_once(dtype: str, architecture: int) -> None:
    size = DTYPES[dtype].itemsize
    for kernel, written in (("add,", 0), ("change", size)):
        for name, code in kernels_for(architecture, dtype, kernel).items():
            assert (code["bytes read"], code["bytes written"]) == (size, written), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_end_of_a_tensor_is_read_and_written_element_by_element(dtype: str, architecture: int) -> None:
    """A vector would reach beyond the end. Tensors that do not start at a multiple of 16 bytes have no vectors."""
    for name, code in kernels_for(architecture, dtype).items():
        conditional = code["conditional"]
        assert f"ld.global.b{8 * DTYPES[dtype].itemsize}" in conditional, name
        assert not [instruction for instruction in conditional if re.search(r"\.v\d", instruction)], name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_arithmetic_rounds_to_nearest(architecture: int) -> None:
    """No instruction flushes subnormal numbers, or approximates a root or a quotient."""
    for name, code in compiled_code(architecture).items():
        arithmetic = [
            instruction for instruction in code["instructions"] if re.match(r"(add|sub|mul|fma)\b.*\.f\d", instruction)
        ]
        assert all(".rn." in instruction for instruction in arithmetic), f"{name}: the assembler may fuse others"
        assert code["instructions"]
        assert not [
            instruction for instruction in code["instructions"] if re.search(r"\.ftz|\.approx|\.full", instruction)
        ], name
        if "order 2" in name and name.startswith(("round_sums", "decide")):
            assert "sqrt.rn.f64" in code["instructions"], name
    for dtype, narrow in (("bfloat16", "bf16"), ("float16", "f16")):
        if f"change, {dtype}" in compiled_code(architecture):
            assert f"cvt.rn.{narrow}x2.f32" in compiled_code(architecture)[f"change, {dtype}"]["instructions"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_float32_sums_use_no_float64(dtype: str, architecture: int) -> None:
    """Products only convert the coefficient or the bounds, once per chunk."""
    for name, code in kernels_for(architecture, dtype).items():
        wide = {instruction for instruction in code["instructions"] if ".f64" in instruction}
        if "in float32" in name:
            assert not wide, name
        elif name.startswith("change"):
            assert wide == {"cvt.rn.f32.f64"}, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_squares_take_one_instruction_of_float64_each(dtype: str, architecture: int) -> None:
    """A fused addition loses the error of a square, so only sums that need no error use it."""
    for name, code in kernels_for(architecture, dtype, "add, order 2").items():
        is_fused = any(instruction.startswith("fma.rn.f64") for instruction in code["instructions"])
        assert is_fused == ("float64" not in name and "in float32" not in name), name
