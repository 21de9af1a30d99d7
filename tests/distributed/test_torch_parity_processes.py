"""PyTorch: the parity suite on several processes, and its verdicts on faults that are planted in one process."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from support.parity.cases import case, dense

from unified_clip.parity import modes
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import Verdict, compare_with_exact
from unified_clip.parity.modes import PROCESSES
from unified_clip.parity.suite.case import Case
from unified_clip.parity.workers import run_worker
from unified_clip.parity.workers.worker_files import WorkItem

GRADIENTS = [
    dense(np.random.default_rng(size).standard_normal((size, 3))) if size else dense(0.5) for size in (5, 1, 7, 0, 2, 4)
]

FAULTS = """
import atexit, os
from unittest import mock
import torch.distributed as dist
import unified_clip.torch as uc
from unified_clip._backends.torch.sharded import TorchShards
from unified_clip.parity.workers import worker

right = uc.clip_grad_norm_

def clip(parameters, max_norm):
    fault = FAULTS[int(max_norm)]
    if fault == "copies are counted":
        with mock.patch.object(TorchShards, "owned", lambda shards, indices: [shards.values[each] for each in indices]):
            return right(parameters, max_norm)
    norm = right(parameters, max_norm)
    if dist.get_rank() == 1:
        if fault == "another norm":
            norm *= 2
        if fault == "another copy":
            parameters[3].grad.mul_(2)  # which is plain
        if fault == "it raises":
            raise KeyError("planted")
        if fault == "it ends":
            os._exit(3)
        if fault == "it ends badly at last":
            atexit.register(os._exit, 3)
    return norm

uc.clip_grad_norm_ = clip
worker.main()
"""

VERDICTS = {
    "none": ("equal", ""),
    "copies are counted": ("different", "norm off by"),
    "another norm": ("different", "the result on rank 1 differs from the result on rank 0"),
    "another copy": ("different", "the result on rank 1 differs from the result on rank 0"),
    "it raises": ("crashed", "at different steps: rank 0 reached the end of a call, rank 1 reached KeyError"),
    "it ends": ("crashed", "exit status 1; the last lines of stderr: "),
    "none again": ("equal", ""),
    "it ends badly at last": (
        "crashed",
        "the worker failed after the last case, perhaps because of an earlier case: exit status 1",
    ),
}
"""By fault of the second process, or of both: the verdict, and a text in its detail."""


def judge_cases(worker: list[str], mode: str, cases: list[Case]) -> list[Verdict]:
    results = run_worker.run_worker(worker, [WorkItem(mode, case) for case in cases], 120.0).by_case
    return [compare_with_exact(case, oracle.expect(case), results[mode, case.name], mode) for case in cases]


@pytest.fixture(scope="module")
def with_faults() -> dict[str, Verdict]:
    worker = [sys.executable, "-c", f"FAULTS = {list(VERDICTS)}\n{FAULTS}", "torch"]
    cases = [case(GRADIENTS, "clip_grad_norm_", max_norm=float(number)) for number in range(len(VERDICTS))]
    last = [*VERDICTS].index("it ends")  # one more crash, and the cases behind it do not run
    parts = (judge_cases(worker, "processes_2", part) for part in (cases[:last], cases[last:]))
    return dict(zip(VERDICTS, itertools.chain(*parts), strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("fault", VERDICTS)
def test_a_fault_of_one_process_gets_the_verdict_of_its_case(with_faults: dict[str, Verdict], fault: str) -> None:
    kind, detail = VERDICTS[fault]
    assert with_faults[fault].kind == kind
    assert detail in with_faults[fault].detail


@pytest.mark.nightly
def test_several_processes_return_the_bits_of_one_process() -> None:
    cases = [
        case(GRADIENTS, name, **arguments, update=True)
        for name, arguments in {
            "clip_grad_norm_": {"max_norm": 1.0},
            "clip_by_norm": {"clip_norm": 0.5},
            "GradientClipByGlobalNorm": {"clip_norm": 100.0},
            "clip_grad_value_": {"clip_value": 0.5},
        }.items()
    ]
    cases.append(case(GRADIENTS, "clip_grad_norm_", max_norm=-1.0, raises="ValueError"))
    assert [verdict.kind for verdict in judge_cases(run_worker.command("torch"), "processes_4", cases)] == [
        "equal"
    ] * len(cases)


@pytest.mark.nightly
def test_plain_tensors_in_place_of_distributed_ones_are_reported() -> None:
    code = "from unified_clip.parity.adapters import torch, torch_dtensor\n"
    code += "from unified_clip.parity.workers import worker\n"
    code += "torch_dtensor.ShardedAdapter.make_all = torch.FrameworkAdapter.make_all\nworker.main()"
    (verdict,) = judge_cases([sys.executable, "-c", code, "torch"], "processes_2", [case(GRADIENTS, "global_norm")])
    assert verdict.kind == "crashed"
    assert "(2 processes): a distributed tensor was taken for a plain one" in verdict.detail


def test_only_frameworks_with_distributed_tensors_have_the_modes() -> None:
    assert set(PROCESSES) <= set(modes.modes_of("torch"))
    assert not set(PROCESSES) & set(modes.modes_of("tensorflow"))
