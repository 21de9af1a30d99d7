"""PyTorch: norms over several ranks stay on the device, tested in Triton's interpreter and on fake GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import reference
from support.processes import torch_on_device as on_device
from support.processes.torch_on_device import THRESHOLD
from support.processes.torch_sharded_terms import NUMBER
from support.processes.worlds import World
from support.tiers import nightly, quick
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu, process_group, sharded
from unified_clip._distributed import on_device as agreements

pytest.importorskip("triton")

Worlds = Callable[[int], World]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with on_device.worlds() as of:
        yield of


random = np.random.default_rng(0).standard_normal
GRADIENTS: dict[str, list[np.ndarray]] = {
    "any": [random((17, 9)), random(5), random((1, 3))],
    "a tie": [np.array([2.0**24, *[2.0**12] * 6, 3.0])],
    "a tie of many": [np.array([2.0**24, 2.0**12, 2.0**12, *[2.0**-3] * 70])],
    "the smallest": [np.array([1.0, 1.0, 2.0, 3.0]) * 2.0**-149],
    "the largest": [np.array([3e38, 1e38, 1.0])],
    "zero": [np.zeros(4)],
    "NaN on one rank": [np.array([1.0, 2.0, 3.0, math.nan])],
    "inf on one rank": [np.array([math.inf, 2.0, 3.0, 4.0])],
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", *nightly("bfloat16", "float16")])
@pytest.mark.parametrize("p", [2.0, *nightly(1.0, math.inf)])
@pytest.mark.parametrize("name", quick(GRADIENTS, "any", "a tie", "NaN on one rank"))
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_the_norm_has_the_bits_of_one_process(worlds: Worlds, size: int, name: str, p: float, dtype: str) -> None:
    arrays = [array.astype(np.float32) for array in GRADIENTS[name]]
    rounded = [torch.from_numpy(array).to(getattr(torch, dtype)).float().numpy() for array in arrays]
    norm = reference.norm(rounded, p)
    results = worlds(size).run(on_device.clips, arrays, p, dtype)
    check_clips(results, norm)
    for first, *_ in results:
        if (name, p, dtype) == ("a tie", 2.0, "float32"):
            assert len(first.collectives) == 2, "exact sums decide"
    coef = reference.coefficient(norm, THRESHOLD, 1e-6)
    expected = [reference.array(reference.scaled(reference.array(a, dtype), coef), dtype) for a in rounded]
    for array, after in zip(expected, results[0][1].after, strict=True):
        np.testing.assert_array_equal(after, array.astype(np.float32))


def check_clips(results: list[list[on_device.Clip]], norm: float, all_reduces: int = 2) -> None:
    """The first clip of each rank is read on the host, and later ones stay on the device, with the same bits."""
    for first, *later in results:
        assert (str(first.norm), first.stays) == (str(norm), False)
        for clip in later:
            assert (str(clip.norm), clip.stays, clip.collectives) == (str(norm), True, ["all_reduce"] * all_reduces)
            assert all(map(same_bits, clip.after, first.after))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("p", [2.0, math.inf, *nightly(1.0)])
@pytest.mark.parametrize("name", quick(GRADIENTS, "any", "a tie", "NaN on one rank"))
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_norms_of_partial_sums_stay_on_the_device(worlds: Worlds, size: int, name: str, p: float) -> None:
    """One all-reduce sums the partial gradients, between the two of the norm."""
    arrays = [array.astype(np.float32) for array in GRADIENTS[name]]
    check_clips(worlds(size).run(on_device.clips, arrays, p, "float32", "terms of a sum"), reference.norm(arrays, p), 3)


@pytest.mark.parametrize(
    ("layout", "reads"), [("row", True), *(pytest.param(*parameters, marks=pytest.mark.nightly) for parameters in
    (("mean", True), ("row", False)))]
)  # fmt: skip
@pytest.mark.parametrize("p", [2.0, *nightly(1.0, math.inf)])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_partial_gradients_beside_shards(worlds: Worlds, size: int, p: float, layout: str, reads: bool) -> None:
    """The last two clips have no `Partial` gradients. The ranks then all-reduce zeros.

    reads: Whether kernels of rank 1 read its gradients.
    """
    results = worlds(size).run(on_device.clips_of_terms, layout, p, reads)
    terms = [[clips[0][0].terms[number] for clips in results] for number in range(NUMBER)]
    sums = [np.sum(rank_terms, 0, np.float64) / (size if layout == "mean" else 1) for rank_terms in terms]
    shards = np.concatenate([clips[0][0].terms[NUMBER] for clips in results])
    norm = reference.norm([*(array.astype(np.float32) for array in sums), shards], p)
    of_shards = reference.norm([shards], p)
    for clips in results:
        (first, _), *_ = clips
        outcomes = [(clip.norm, stays, clip.error) for clip, stays in clips]
        assert outcomes == [
            (norm, False, ""),
            (norm, True, ""),
            (norm, True, ""),
            (of_shards, False, ""),
            (of_shards, True, ""),
        ]
        assert [clip.all_reduces for clip, _ in clips[1:3]] == [3, 3]
        assert clips[4][0].all_reduces == 3
        for clip, _ in clips[1:3]:
            assert all(map(same_bits, clip.after, first.after))


@pytest.mark.parametrize("change", ["without the first", "without any", "another threshold", "integers"])
def test_if_partial_gradients_differ_the_norm_is_nan_and_the_next_call_raises(worlds: Worlds, change: str) -> None:
    """A rank with other `Partial` gradients reads its norm on the host, and still joins the all-reduce."""
    for rank, (before, during, after) in enumerate(worlds(2).run(on_device.clips_with_faulty_terms, change)):
        assert before.error == ""
        assert math.isnan(during.norm)
        at_once = {"another threshold": "", "integers": "position 7"}.get(change, "ranks make different calls")
        assert during.error.startswith(at_once if rank else "")
        assert bool(during.error) == (rank == 1 and change != "another threshold")
        assert "call 2 on this process group" in after.error
        assert after.all_reduces == 0


def test_partial_gradients_of_two_lists_are_never_summed(worlds: Worlds) -> None:
    for *agreed, during, after in worlds(2).run(on_device.terms_of_other_lists):
        assert [clip.error for clip in agreed] == [""] * 4
        assert all(map(math.isfinite, [clip.norm for clip in agreed]))
        assert math.isnan(during.norm)
        assert during.error == ""
        assert "the ranks made different calls at call 5 on this process group" in after.error


WIDE = {
    **{name: GRADIENTS[name] for name in ("any", "zero", "NaN on one rank", "inf on one rank")},
    "a tie": [np.array([2.0**53, *[2.0**26] * 6, 3.0])],
    "nearly a tie": [np.array([2.0**53, *[2.0**26] * 6, 3.0, 2.0**-20])],
    "the smallest": [np.array([1.0, 1.0, 2.0, 3.0]) * 2.0**-1074],
    "small": [np.array([1.0, 1.0, 2.0, 3.0]) * 1.3 * 2.0**-405],
    "the largest": [np.array([1e308, 5e307, 1.0])],
    "too large": [np.array([1.7e308, 1.7e308, 1.0, 1.7e308])],
    "inf on one rank, NaN on another": [np.array([math.inf, 2.0, 3.0, math.nan])],
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("p", [2.0, math.inf, *nightly(1.0)])
@pytest.mark.parametrize("name", quick(WIDE, "any", "a tie", "too large", "inf on one rank, NaN on another"))
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_float64_norms_stay_on_the_device(worlds: Worlds, size: int, name: str, p: float) -> None:
    norm = reference.norm(WIDE[name], p)
    results = worlds(size).run(on_device.clips, WIDE[name], p, "float64")
    check_clips(results, norm)
    coef = reference.coefficient(norm, THRESHOLD, 1e-6)
    for array, after in zip(WIDE[name], results[0][1].after, strict=True):
        np.testing.assert_array_equal(after, reference.scaled(array, coef))


@pytest.mark.parametrize("dense", [[True, True], [True, False], [False, True]], ids=str)
@pytest.mark.parametrize(
    ("dtypes", "p", "special"),
    [
        (["float64", "float32"], 2.0, []), (["float32", "float64"], math.inf, []), (["float64", "float64"], 1.0, []),
        (["float64", "float64"], 2.0, [math.inf]), (["float64", "float64"], 2.0, [math.nan]),
        (["float64", "float64"], math.inf, [math.nan]), (["float32", "float32"], math.inf, [math.inf]),
    ],
)  # fmt: skip
def test_ranks_with_gradients_that_kernels_cannot_read_send_exact_sums(
    worlds: Worlds, dtypes: list[str], p: float, special: list[float], dense: list[bool]
) -> None:
    arrays = [np.array([3.0, 0.1, 2.0**-30]), np.array([*special, 1.0, 2.0 / 3.0])]
    arrays = [reference.array(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
    norm = reference.norm(arrays, p)
    for clips in worlds(2).run(on_device.clips_of_dtypes, arrays, p, dtypes, dense):
        assert [(str(clip.norm), clip.error, clip.stays) for clip in clips] == [
            (str(norm), "", stays) for stays in (False, True)
        ]


@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_norms_of_ranks_with_different_parameters_stay_on_the_device(worlds: Worlds, size: int) -> None:
    """Each rank is a pipeline stage. A stage may have other gradients at a later call."""
    stages = [[random((5, 3)).astype(np.float32), random(2 + rank).astype(np.float32)] for rank in range(size)]
    fewer = [stage[:-1] if rank == 1 else stage for rank, stage in enumerate(stages)]
    expected = [
        reference.norm([array for stage in stage_list for array in stage]) for stage_list in (stages, stages, fewer)
    ]
    for clips in worlds(size).run(on_device.clips_of_stages, stages):
        assert [(clip.norm, clip.stays, clip.error) for clip in clips] == [
            (norm, stays, "") for norm, stays in zip(expected, (False, True, True), strict=True)
        ]


@pytest.mark.parametrize(
    ("p", "dtype"), [(2.0, "float32"), *(pytest.param(*parameters, marks=pytest.mark.nightly) for parameters in
    ((1.0, "bfloat16"), (math.inf, "float64"), (2.0, "float64")))]
)  # fmt: skip
def test_complete_gradients_need_no_other_rank(worlds: Worlds, p: float, dtype: str) -> None:
    arrays = [reference.array(array, dtype) for array in GRADIENTS["any"]]
    wide = "float64" if dtype == "float64" else "float32"
    for clips in worlds(2).run(on_device.clips_of_copies, [array.astype(wide) for array in arrays], p, dtype):
        for clip in clips:
            assert (clip.norm, clip.collectives, clip.error) == (reference.norm(arrays, p), [], "")


def test_norms_of_complex_gradients_stay_on_the_device(worlds: Worlds) -> None:
    arrays = [(array + 1j * array[::-1]).astype(np.complex64) for array in GRADIENTS["any"]]
    norm = reference.norm([array.view(np.float32) for array in arrays])
    assert worlds(2).run(on_device.norms_of_complex, arrays) == [[(norm, False), (norm, True)]] * 2


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "other thresholds",
            "the ranks made different calls at call 2 on this process group. Set UNIFIED_CLIP_TRITON=0",
        ),
        (
            "one rank rejects",
            "a rank raised an error at call 2 on this process group, so this call returned NaN as the norm. Restart",
        ),
        (
            "one rank checks",
            "the ranks made different calls at call 2 on this process group. Set UNIFIED_CLIP_TRITON=0",
        ),
        (
            "one rank has float64",
            "the ranks made different calls at call 2 on this process group. Set UNIFIED_CLIP_TRITON=0",
        ),
        (
            "one rank has complex",
            "at call 2 on this process group, a gradient was complex, so this call returned NaN as the norm. At the",
        ),
    ],
)
def test_if_calls_differ_the_norm_is_nan_and_the_next_call_raises(worlds: Worlds, fault: str, message: str) -> None:
    arrays = [array.astype(np.float32) for array in GRADIENTS["any"]]
    for rank, (before, during, after) in enumerate(worlds(2).run(on_device.clips_with_fault, arrays, fault)):
        assert (before.norm, before.error) == (reference.norm(arrays, on_device.order_of(fault)), "")
        assert math.isnan(during.norm)
        raises_at_once = {
            "one rank rejects": "max_norm is -1.0",
            "one rank checks": "ranks make different calls",
            "one rank has float64": "ranks make different calls",
        }
        expected = raises_at_once.get(fault, "") if rank else ""
        assert during.error.startswith(expected)
        assert bool(during.error) == bool(expected)
        assert np.isnan(during.after[0]).any(), "gradients show that the norm is unknown"
        assert after.error.startswith(message)
        assert not after.collectives
        np.testing.assert_array_equal(after.after[0], arrays[0])


class WaitDetector(TorchDispatchMode):
    """Fail if the host waits for a device: if it reads a number, or if a copy is not asynchronous."""

    READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, result = function.overloadpacket.__name__, function(*args, **kwargs)
        assert name not in self.READS
        tensors = [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
        if name in ("_to_copy", "copy_") and len({tensor.device.type for tensor in (*tensors, result)}) > 1:
            assert kwargs.get("non_blocking"), f"the host waits for {name}"
            if result.device.type == "cpu":
                self.elements.append(result.numel())
        return result


DECLARED: dict[str, Any] = {
    "replicated": "replicated", "distinct": "distinct", "function": lambda parameter: True,
    "patterns": {"0": "replicated", "*": "distinct"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("captures", "ownership", "dtype", "p", "ranks", "terms"),
    [
        (False, "replicated", torch.float32, 2.0, 2, 0),
        (True, "replicated", torch.bfloat16, 2.0, 2, 0),
        (False, "distinct", torch.float32, 2.0, 2, 0),
        (False, "function", torch.float16, 1.0, 2, 0),
        (False, "patterns", torch.float32, 2.0, 2, 0),
        (False, "replicated", torch.complex64, 2.0, 2, 0),
        (False, "replicated", torch.float64, 2.0, 2, 0),
        (True, "distinct", torch.float64, 1.0, 2, 0),
        (False, "replicated", torch.float32, math.inf, 2, 0),
        (True, "distinct", torch.float64, math.inf, 2, 0),
        (False, "replicated", torch.float32, 2.0, 1, 0),
        (True, "replicated", torch.float64, 2.0, 1, 0),
        (False, "replicated", torch.float32, 2.0, 2, 3),
        (True, "replicated", torch.bfloat16, 1.0, 2, 3),
        (False, "distinct", torch.float32, math.inf, 2, 3),
    ],
)
def test_no_rank_waits_for_its_gpu(
    captures: bool, ownership: str, dtype: torch.dtype, p: float, ranks: int, terms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Fake tensors have no values, so reading one is an error. The kernels are not launched.

    terms: The number of elements of a `Partial` gradient.
    """
    from unified_clip._backends.torch.gpu import kernels, table

    gpu_0, wide = torch.device("cuda", 0), "float64" if dtype == torch.float64 else "float32"
    stub = object.__new__(table.Table)
    stub.device, stub.chunks, stub._parts = gpu_0, 3, []
    reduced: list[torch.Tensor] = []
    for name in set(kernels.__all__) - {"INF", "STATE"}:
        monkeypatch.setattr(kernels, name, NotLaunched())
    for target, name, value in (
        (gpu, "ENABLED", True),
        (gpu, "table_of", lambda tensors, per_tensor=None: stub if per_tensor is None else None),
        (table, "INTERPRETED", False),
        (table, "_on", lambda device: nullcontext()),
        (agreements, "agreed_dtype", lambda group, parameters: wide),
        (process_group, "most_terms", lambda group: terms),
        (dist, "all_reduce", lambda tensor, op, group: reduced.append(tensor)),
        (sharded.TorchShards, "are_simulated", lambda shards: False),
        (torch.Tensor, "pin_memory", lambda tensor: tensor),
        (torch.cuda, "is_current_stream_capturing", lambda: captures),
        (torch.cuda, "current_stream", lambda device: device),
        (torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None, synchronize=None, query=None)),
    ):
        monkeypatch.setattr(target, name, value)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        world: Any = dist.group.WORLD
        world.bound_device_id = gpu_0
        mesh = DeviceMesh("cuda", list(range(ranks)), _init_backend=False, _rank=0)
        monkeypatch.setattr(DeviceMesh, "mesh", property(lambda mesh: np.arange(ranks)))  # not fake, on the host
        with FakeTensorMode():
            params = [
                torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="cuda")) for shape in ((1000, 2000), (3,))
            ]
            for parameter in params:
                parameter.grad = torch.empty_like(parameter)
            if terms:
                own = torch.empty(terms, dtype=dtype, device="cuda")
                params.append(torch.nn.Parameter(DTensor.from_local(own, mesh, [Partial()], run_check=False)))
                params[-1].grad = DTensor.from_local(own.clone(), mesh, [Partial()], run_check=False)
            named = [(str(number), parameter) for number, parameter in enumerate(params)]
            keywords = {"process_group": world, "ownership": DECLARED[ownership]}
            with WaitDetector() as detector:
                if dtype.is_complex:  # fake tensors of a GPU cannot be written by PyTorch's operations
                    norm = uc.get_total_norm([parameter.grad for parameter in params], p, **keywords)
                else:
                    norm = uc.clip_grad_norm_(named, 1.0, p, **keywords)
        assert (norm.device, norm.dtype) == (gpu_0, getattr(torch, wide))
        assert [tensor.device for tensor in reduced] == ([gpu_0] * (2 + bool(terms)) if ranks > 1 else [])
        assert [tensor.dtype for tensor in reduced[1:-1]] == [torch.float64] * bool(terms)
        compares = ranks > 1 and not captures
        assert detector.elements == ([reduced[0].numel() - agreements.FLAGS] if compares else [])
        assert (world in agreements._UNREAD) == compares, "the next call reads what the ranks compared"
    finally:
        table._captured.clear()
        dist.destroy_process_group()


class NotLaunched:
    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None
