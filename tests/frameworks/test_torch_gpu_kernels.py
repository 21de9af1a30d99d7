"""The Triton kernels, run by Triton's interpreter on CPU tensors, and compiled for GPUs that need not be there."""

from __future__ import annotations

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
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from torch.utils._python_dispatch import TorchDispatchMode

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*fp_fusion.*:UserWarning"),
]
KERNELS = ("add", "round_sums", "add_exactly", "decide", "scale")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LISTS: list[tuple[tuple[int, ...], ...]] = [((1,),), ((769,), (2,) * 7, (256,), (255,), (257,), (3, 1))]


@pytest.fixture
def table(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of tables, with kernels that the interpreter runs over short chunks."""
    if not kit.exact:
        pytest.skip("about the kernels, which are compared with the host path")
    from unified_clip._backends.torch.gpu import table

    assert table.INTERPRETED, "the kit asks for the interpreter before anything imports Triton"
    monkeypatch.setattr(gpu, "ENABLED", True)
    monkeypatch.setattr(table, "CHUNK", 256)
    monkeypatch.setattr(table, "LANES", 64)
    monkeypatch.setattr(table, "SUM_LANES", 16)
    table._tables.clear()
    yield table
    table._tables.clear()


@pytest.fixture
def launches(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the launches of each kernel."""
    found: Counter[str] = Counter()

    class Counted:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(table.kernels, name)

        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            found[self.name] += 1
            launch: Callable[..., Any] = self.kernel[grid]
            return launch

    for name in KERNELS:
        monkeypatch.setattr(table.kernels, name, Counted(name))
    return found


def parameters(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient.clone()
    return made


def on_both_paths(
    gradients: list[torch.Tensor], clip: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> list[list[Any]]:
    """Return the bits of the norm and of all gradients, from the host path and from the kernels."""
    found = []
    for path in ("", "framework"):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
        held = parameters(gradients)
        norm = clip(held)
        found.append([bits(each) for each in [norm, *(parameter.grad for parameter in held)] if each is not None])
    return found


def bits(tensor: torch.Tensor) -> list[int]:
    """The bits of a tensor; of NaN only that it is NaN."""
    integers = tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    return torch.where(tensor.isnan(), 0x7FC0, integers).flatten().tolist()


def random(shapes: tuple[tuple[int, ...], ...], dtype: str, seed: int = 0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source).to(DTYPES[dtype]) for shape in shapes]


CLIPS: dict[str, Callable[[Any], Any]] = {
    "order 2": lambda held: uc.clip_grad_norm_(held, 5.0),
    "order 1": lambda held: uc.clip_grad_norm_(held, 5.0, 1),
    "nothing to do": lambda held: uc.clip_grad_norm_(held, 1e9),
    "a threshold of 0": lambda held: uc.clip_grad_norm_(held, 0.0),
    "one norm per gradient": uc.GradientClipByNorm(2.0).clip_,
    "TensorFlow's rule": uc.GradientClipByGlobalNorm(2.0).clip_,
}


# -- the host path's bits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", LISTS, ids=lambda shapes: f"{len(shapes)} tensors")
@pytest.mark.parametrize("name", CLIPS)
def test_results_have_the_bits_of_the_host_path(
    name: str, shapes: Any, dtype: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, kernels = on_both_paths(random(shapes, dtype), CLIPS[name], monkeypatch)
    assert kernels == host
    assert set(launches) == set(KERNELS)


@pytest.mark.parametrize("name", CLIPS)
def test_a_list_of_several_dtypes(name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dtype has launches of its own, whatever the order of the tensors."""
    gradients = [random(((70,), (3, 5)), dtype, seed)[seed % 2] for seed, dtype in enumerate([*DTYPES, *DTYPES])]
    host, kernels = on_both_paths(gradients, CLIPS[name], monkeypatch)
    assert kernels == host
    assert launches["add"] == len(DTYPES)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-45, 2.0**-149, 3.4e38, -0.0, 0.0])
@pytest.mark.parametrize("name", CLIPS)
def test_special_values(name: str, value: float, launches: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [torch.tensor([value, 1.0, -value]), torch.full((65,), value)]
    for tensors in (gradients, gradients[1:], [gradients[1][:1]]):
        host, kernels = on_both_paths(tensors, CLIPS[name], monkeypatch)
        assert kernels == host
    assert launches["add"] == 3


def test_gradients_that_do_not_start_at_a_multiple_of_16_bytes(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for path in ("", "framework"):
        monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
        memory = random(((300,),), "bfloat16")[0]
        found.append([bits(uc.clip_grad_norm_(memory_views(memory), 1.0)), bits(memory)])
    assert found[0] == found[1]
    assert launches["scale"] == 1


def memory_views(memory: torch.Tensor) -> list[torch.nn.Parameter]:
    views = [memory[1:100], memory[101:299]]
    held = [torch.nn.Parameter(torch.zeros_like(view)) for view in views]
    for parameter, view in zip(held, views, strict=True):
        parameter.grad = view
    return held


# -- exact rounding

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ARRAYS = st.lists(st.lists(FLOATS, min_size=1, max_size=70), min_size=1, max_size=4)
TIES = [[2.0**24, 2.0**12, 2.0**12, 1.0], [2.0**24, *[2.0**12] * 6, 3.0], [1.0, 2.0**-24], [1.0 + 2.0**-23, 2.0**-24]]
"""Lists whose norm lies in the middle between two float32 numbers: two of order 2, two of order 1."""


def check_rounding(table: ModuleType, values: list[list[float]], p: int, factor: float = 1.0) -> None:
    arrays = [np.array(each, np.float32) * np.float32(factor) for each in values]
    tensors = [torch.from_numpy(array) for array in arrays]
    assert float(table.Table(tensors).norms(p, per_tensor=False)) == reference.norm(arrays, p)
    each = table.Table(tensors).norms(p, per_tensor=True)
    assert each.tolist() == [reference.norm([array], p) for array in arrays]


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("error", [2.0**-40, 2.0**-25.5], ids=["hardly any in doubt", "every other one in doubt"])
@pytest.mark.parametrize("factor", [1.0, 2.0**-100])
def test_ties_go_to_the_even_number(table: ModuleType, factor: float, error: float, p: int) -> None:
    table.ERROR, bound = error, table.ERROR
    try:
        check_rounding(table, TIES, p, factor)
    finally:
        table.ERROR = bound


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("error", [2.0**-40, 2.0**-25.5], ids=["hardly any in doubt", "every other one in doubt"])
@settings(max_examples=12)
@given(values=ARRAYS)
@example([[3.0, 4.0]])
@example([[3.4028234663852886e38], [3.4028234663852886e38] * 3])
@example([[2.0**-149], [2.0**-149] * 3])
def test_a_norm_is_the_nearest_float32_number(table: ModuleType, error: float, p: int, values: Any) -> None:
    table.ERROR, bound = error, table.ERROR
    try:
        check_rounding(table, values, p)
    finally:
        table.ERROR = bound


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("error", "lists"), [(2.0**-40, 20), (2.0**-25.5, 4)], ids=["few in doubt", "many in doubt"])
def test_many_norms_are_the_nearest_float32_numbers(
    table: ModuleType, error: float, lists: int, p: int, dtype: str
) -> None:
    table.ERROR, bound = error, table.ERROR
    random = np.random.default_rng(0)
    try:
        for _ in range(lists):
            scales = 2.0 ** random.uniform(*SCALES[dtype], 40)
            tensors = [
                torch.from_numpy(random.normal(0, scale, 1 + n)).to(DTYPES[dtype]) for n, scale in enumerate(scales)
            ]
            norms = table.Table(tensors).norms(p, per_tensor=True).tolist()
            assert norms == [reference.norm([tensor.double().numpy().astype(np.float32)], p) for tensor in tensors]
    finally:
        table.ERROR = bound


SCALES = {"float32": (-140, 120), "bfloat16": (-100, 120), "float16": (-20, 14)}
"""The exponents of random numbers. Some are subnormal, except in bfloat16: Triton's interpreter reads these wrongly."""


def test_the_exact_sum_decides_a_tie(table: ModuleType) -> None:
    """Without it, the lower number is returned, so the odd one of two would be wrong."""
    tensors = [torch.tensor([2.0**24, *[2.0**12] * 6, 3.0])]
    made = table.Table(tensors)
    assert float(made.norms(2, per_tensor=False)) == 2.0**24 + 4
    doubtful, windows = made._exact(1)
    assert doubtful.tolist() == [1]
    assert not windows.any(), "cleared for the next call"


@pytest.mark.parametrize("per_tensor", [False, True])
def test_norms_do_not_depend_on_chunks_or_lanes(
    table: ModuleType, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = random(((3000,), (129, 7), (1,)), "float32")
    found = []
    for chunk, lanes in ((64, 16), (256, 64), (4096, 1024), (65536, 1024)):
        monkeypatch.setattr(table, "CHUNK", chunk)
        monkeypatch.setattr(table, "LANES", lanes)
        found.append(table.Table(tensors).norms(2, per_tensor=per_tensor).tolist())
    assert found == [found[0]] * 4


# -- launches and copies


class Operations(TorchDispatchMode):
    """PyTorch's operations, other than views of memory."""

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
    class NotLaunched:  # the interpreter copies what a GPU reads where it is
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    for name in KERNELS:
        monkeypatch.setattr(table.kernels, name, NotLaunched())
    tensors = random(LISTS[1], "float32")
    with Operations() as first:
        table.table_of(tensors).norms(2, per_tensor=per_tensor)
    assert "_to_copy" in first.names or "lift_fresh" in first.names, "the first makes the table"
    with Operations() as seen:
        again = table.table_of(tensors)
        norms = again.norms(2, per_tensor=per_tensor)
        again.scale_(torch.full_like(norms, 0.5), per_tensor=per_tensor)
    assert "empty" in seen.names
    assert set(seen.names) <= {"empty", "select", "slice", "full_like", "detach"}


@pytest.mark.parametrize("name", ["order 2", "one norm per gradient"])
def test_launches_do_not_grow_with_the_number_of_gradients(
    name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    for number in (2, 50):
        launches.clear()
        CLIPS[name](parameters(random(((3,),) * number, "float32")))
        assert launches == Counter(KERNELS), number


def test_new_addresses_make_a_new_table(table: ModuleType) -> None:
    first = random(((3,),), "float32")
    made = table.table_of(first)
    assert table.table_of([first[0]]) is made
    second = [first[0].clone()]
    assert table.table_of(second) is not made
    assert table.table_of([first[0].view(torch.bfloat16)]) is not made
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
    assert launches["scale"] == 1


# -- what the kernels leave to PyTorch's operations


OTHERS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "float64": lambda: [torch.ones(3, dtype=torch.float64)],
    "complex": lambda: [torch.ones(3, dtype=torch.complex64)],
    "not contiguous": lambda: [torch.ones(3, 4).t()],
    "empty": lambda: [torch.ones(3), torch.ones(0)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_gradients_take_the_operations_of_pytorch(
    name: str, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    held = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in OTHERS[name]()]
    for parameter, gradient in zip(held, OTHERS[name](), strict=True):
        parameter.grad = gradient
    uc.clip_grad_norm_(held, 1.0)
    assert not launches


def test_too_many_chunks_for_the_error_bound(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.ones(2 * table.CHUNK + 1)]
    monkeypatch.setattr(table, "MAX_CHUNKS", 3)
    assert table.table_of(tensors) is not None
    monkeypatch.setattr(table, "MAX_CHUNKS", 2)
    assert table.table_of(tensors) is None


def test_the_error_bound_holds_for_the_longest_sums(kit: Kit) -> None:
    from unified_clip._backends.torch.gpu import table

    in_a_row = table.CHUNK // table.LANES + table.LANES + table.MAX_CHUNKS // table.SUM_LANES + table.SUM_LANES
    assert in_a_row * 2.0**-53 + 2.0**-50 < table.ERROR


# -- the setting


def start(setting: str, code: str = "") -> subprocess.CompletedProcess[str]:
    script = f"{code}\nimport unified_clip.torch\nfrom unified_clip._backends.torch import gpu\nprint(gpu.ENABLED)"
    environment = {**os.environ, "UNIFIED_CLIP_TRITON": setting}
    return subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("setting", "printed"), [("", "False"), ("0", "False"), ("1", "True")])
def test_the_kernels_are_used_on_request(setting: str, printed: str) -> None:
    assert start(setting).stdout.split() == [printed]


def test_a_wrong_setting_is_an_error() -> None:
    assert "UNIFIED_CLIP_TRITON is 'yes'. Set it to 1 or 0, or leave it unset" in start("yes").stderr


def test_a_request_without_triton_is_an_error() -> None:
    failed = start("1", "import sys; sys.modules['triton'] = None")
    assert "UNIFIED_CLIP_TRITON=1 needs Triton" in failed.stderr
    assert "pip install triton" in failed.stderr


# -- compiled code


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """The instructions of each kernel for three generations of GPUs, from a process without the interpreter."""
    script = Path(__file__).parents[1] / "support" / "gpu_code.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


ARCHITECTURES = (80, 90, 120)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_read_once_and_written_once(compiled: dict[str, Any], dtype: str, architecture: int) -> None:
    """In vectors of 16 bytes, and in their own dtype."""
    size = DTYPES[dtype].itemsize
    code = {name: compiled[f"{name} {dtype} sm_{architecture}"] for name in ("add", "scale")}
    assert code["add"]["bytes read"] == size
    assert code["add"]["bytes written"] == 0
    assert code["scale"]["bytes read"] == size
    assert code["scale"]["bytes written"] == size


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_end_of_a_tensor_is_read_and_written_element_by_element(
    compiled: dict[str, Any], dtype: str, architecture: int
) -> None:
    """A vector with a condition for its first element alone would reach beyond the end."""
    for name in ("add", "add_exactly", "scale"):
        conditional = compiled[f"{name} {dtype} sm_{architecture}"]["conditional"]
        assert [each for each in conditional if each.startswith("ld.global")]
        assert not [each for each in conditional if re.search(r"\.v\d", each)], name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_arithmetic_rounds_to_nearest(compiled: dict[str, Any], dtype: str, architecture: int) -> None:
    """No instruction flushes subnormal numbers, or approximates a root or a quotient."""
    for name in KERNELS:
        code = compiled[f"{name} {dtype} sm_{architecture}"]
        assert code["instructions"]
        assert not [each for each in code["instructions"] if ".ftz" in each or ".approx" in each], name
    assert "sqrt.rn.f64" in compiled[f"round_sums {dtype} sm_{architecture}"]["instructions"]
    if dtype != "float32":
        narrow = "bf16" if dtype == "bfloat16" else "f16"
        assert f"cvt.rn.{narrow}x2.f32" in compiled[f"scale {dtype} sm_{architecture}"]["instructions"]
