"""Workers that crash, hang or return unreadable results, and faults in unified_clip: each has its verdict."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.parity.cases import ONE_CASE, WORKED, case, dense, suite
from support.tiers import not_editable, sampled

from unified_clip._kit import workers
from unified_clip.parity import run_suite
from unified_clip.parity.call_outcome import CallOutcome, Failure
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.verdict import Verdict, compare_with_exact
from unified_clip.parity.modes import COMPILED, DEVICE, GRAPH, HOST
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.case import Case
from unified_clip.parity.workers import run_worker
from unified_clip.parity.workers.worker import by_kernels_in_graph
from unified_clip.parity.workers.worker_files import WorkItem

RANDOM = [dense(0.01 * np.random.default_rng(seed).standard_normal(5000)) for seed in (1, 2)]
FIRST = case(RANDOM, "clip_grad_norm_", max_norm=0.5, update=True)
SECOND = case([*WORKED, None], "clip_by_global_norm", clip_norm=5.0)


def worker_command(code: str) -> list[str]:
    lines = "import os, sys, time\nimport numpy as np\nimport unified_clip.numpy as uc\n"
    lines += "from unified_clip.parity.workers import worker\nright = uc.clip_grad_norm_\n"
    return [sys.executable, "-X", "faulthandler", "-c", f"{lines}{code}\nworker.main()", "numpy"]


def run_both(code: str, mode: str = HOST, timeout: float = 60.0) -> list[CallOutcome | Failure]:
    results = run_worker.run_worker(worker_command(code), [WorkItem(mode, each) for each in (FIRST, SECOND)], timeout)
    return [results.by_case[mode, FIRST.name], results.by_case[mode, SECOND.name]]


def run_one(code: str, clip_case: Case) -> Verdict:
    outcome = run_worker.run_worker(worker_command(code), [WorkItem(HOST, clip_case)], 60.0).by_case[
        HOST, clip_case.name
    ]
    return compare_with_exact(clip_case, oracle.expect(clip_case), outcome, HOST)


def run_and_judge(code: str) -> list[Verdict]:
    return [
        compare_with_exact(clip_case, oracle.expect(clip_case), outcome, HOST)
        for clip_case, outcome in zip([FIRST, SECOND], run_both(code), strict=True)
    ]


FAULTS = {
    "wrong eps": "from unified_clip._core import rule\nrule.PYTORCH = rule.PADDLE",
    "dropped tensor": "uc.clip_grad_norm_ = lambda grads, max_norm: right(grads[:-1], max_norm)",
    "float32 accumulator": """
def clip(grads, max_norm):
    n = np.sqrt(sum(np.add.accumulate(g * g)[-1] for g in grads))
    for g in grads:
        g *= np.float32(max_norm / (n + 1e-6))
    return n
uc.clip_grad_norm_ = clip""",
    "swapped results": """
def clip(grads, max_norm):
    norm = right(grads, max_norm)
    grads[0][:], grads[1][:] = grads[1].copy(), grads[0].copy()
    return norm
uc.clip_grad_norm_ = clip""",
    "other dtype": "uc.clip_grad_norm_ = lambda grads, max_norm: np.float64(right(grads, max_norm))",
    "no norm": "uc.clip_grad_norm_ = lambda grads, max_norm: right(grads, max_norm) and None",
    "step too long": "from unified_clip.parity.adapters import numpy as adapter\nadapter.LEARNING_RATE = 0.75",
}


ALL = ["norm", "coefficient", "tensors", "update"]
SHOWS_AT = dict(zip(FAULTS, (ALL[1:], ALL, ALL, ALL[1:], [], [], ALL[3:]), strict=True))
"""The stages at which a fault shows. A result of another form has no stages."""


@pytest.mark.parametrize("fault", sampled(FAULTS, 3))
def test_a_planted_fault_is_found_at_its_stage(fault: str) -> None:
    first, second = run_and_judge(FAULTS[fault])
    assert (first.kind, second.kind) == ("different", "equal")
    assert [stage for stage, distance in first.stages.items() if distance] == SHOWS_AT[fault]


CLIP = "def clip(grads, max_norm):\n    {}\nuc.clip_grad_norm_ = clip"


@pytest.mark.parametrize(
    ("code", "kind", "detail"),
    [
        ("os.abort()", "crashed", "signal 6 (SIGABRT); .*the process was in clip .*called by call_public_name"),
        ("sys.exit('so long')", "crashed", "exit status 1; .*so long"),
        (
            "sys.stderr.write('sum(x)\\n  ~~^^\\nboom\\n')\n    sys.stderr.flush()\n    os._exit(3)",
            "crashed",
            "sum(x) | boom",
        ),
        ("os._exit(0)", "unreadable", "status 0"),
        ("return 'garbage'", "unreadable", "TypeError: the result has dtype str"),
    ],
)
def test_a_worker_that_dies_is_a_verdict_on_one_case(code: str, kind: str, detail: str) -> None:
    first, second = run_both(CLIP.format(code))
    assert isinstance(first, Failure)
    assert first.kind == kind
    assert all(words in first.detail for words in detail.split(".*"))
    assert isinstance(second, CallOutcome)
    assert compare_with_exact(FIRST, oracle.expect(FIRST), first, HOST).kind == kind


def number_cases(*cases: Case) -> list[Case]:
    return [dataclasses.replace(each, name=str(number)) for number, each in enumerate(cases)]


def failure_kinds(code: str, cases: list[Case], timeout: float = 60.0, mode: str = HOST) -> list[str]:
    results = run_worker.run_worker(worker_command(code), [WorkItem(mode, each) for each in cases], timeout).by_case
    failures = [results[mode, each.name] for each in cases]
    return [each.kind if isinstance(each, Failure) else "" for each in failures]


NORM, GLOBAL_NORM = case(WORKED, "clip_grad_norm_", max_norm=1.0), case(WORKED, "global_norm")


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (CLIP.format("os._exit(3)"), ["", "crashed", "crashed", "not run", "not run"]),
        ("os._exit(3)", ["crashed"] * 5),
    ],
    ids=["at every case but the first", "before the first case"],
)
def test_a_worker_that_fails_is_started_once_more(fault: str, kinds: list[str], tmp_path: Path) -> None:
    count = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
    cases = number_cases(GLOBAL_NORM, NORM, NORM, NORM, GLOBAL_NORM)
    assert failure_kinds(f"{count}\n{fault}", cases) == kinds
    assert len((tmp_path / "starts").read_text()) == (run_worker.STARTS if kinds[0] == "" else 1)


def test_a_crash_in_a_graph_is_a_verdict_on_the_case_that_ran() -> None:
    """Cases that raise an error run first, whatever their place."""
    code = GRAPHS.format("") + "def clip(grads, max_norm):\n    os._exit(3)\nuc.clip_grad_norm_ = clip"
    negative = case(WORKED, "clip_grad_norm_", max_norm=-1.0, raises="ValueError")
    assert failure_kinds(code, number_cases(GLOBAL_NORM, negative, GLOBAL_NORM), mode=GRAPH) == ["", "crashed", ""]


FAILURES = {
    "killed": (CLIP.format("os.kill(os.getpid(), 9)"), "crashed", "signal 9 (SIGKILL): ended from outside"),
    "hangs": (CLIP.format("time.sleep(60)"), "timed out", "no new result in 4 seconds.*the process was in clip"),
    "no memory for NumPy": (CLIP.format("np.empty(1 << 50)"), "out of memory", "Unable to allocate 8.00 PiB"),
    "no memory in C++": (
        CLIP.format("import ctypes\n    ctypes.CDLL('libstdc++.so.6')._Znwm(ctypes.c_size_t(1 << 62))"),
        "out of memory",
        "std::bad_alloc; signal 6 (SIGABRT)",
    ),
    "no memory at the start": ("raise MemoryError", "out of memory", "MemoryError; exit status 1"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAILURES)
def test_a_failed_worker_has_its_reason(fault: str) -> None:
    code, kind, detail = FAILURES[fault]
    first = run_both(code, timeout=4.0 if fault == "hangs" else 60.0)[0]
    assert isinstance(first, Failure)
    assert first.kind == kind
    assert all(words in first.detail for words in detail.split(".*"))


def test_a_worker_that_crashes_at_its_end_is_a_verdict() -> None:
    first, second = run_both("import atexit\natexit.register(os.abort)")
    assert isinstance(first, CallOutcome)
    assert isinstance(second, Failure)
    assert second.kind == "crashed"
    assert "after the last case" in second.detail


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("open(f'{sys.argv[3]}/0.json', 'w').write('garbage')\nos._exit(0)", "JSONDecodeError"),
        ("worker.memmap.append = lambda file, gradient: file.write(b'garbage')", "TypeError"),
        ("worker.memmap.append = lambda file, gradient: {'dtype': 'f4', 'shape': [2], 'start': 0}", "Error"),
        ("worker.versions = lambda packages: []\nworker.run = lambda *arguments: None", "without a result"),
        ("open(f'{sys.argv[3]}/worker.json', 'w').write('garbage')\nos._exit(0)", "Expecting value"),
    ],
)
def test_garbage_is_unreadable(code: str, detail: str) -> None:
    first = run_both(code)[0]
    assert isinstance(first, Failure)
    assert first.kind == "unreadable"
    assert detail in first.detail


GRAPHS = """
from unified_clip.parity.adapters import numpy as adapter_numpy
calls = []
def run_in_graph(self, mode, function, tensors):
    calls.append(len(tensors))
    {}
    return function(tensors)
adapter_numpy.FrameworkAdapter.run_in_graph = run_in_graph
worker.check_path = lambda adapter, ops, mode: None
worker.MOST_GRAPHS = 2
"""


def test_a_graph_of_several_cases_that_fails_is_a_verdict() -> None:
    first, second = run_both(GRAPHS.format("if len(calls) == 1: raise MemoryError('so large')"), GRAPH)
    assert first == Failure("out of memory", "fails in a graph with 1 other case, but not alone: MemoryError: so large")
    assert isinstance(second, CallOutcome)


def test_a_case_that_cannot_be_in_a_graph_is_a_verdict_on_that_case() -> None:
    first, second = run_both(
        GRAPHS.format("if not any(each is None for each in tensors) or len(calls) == 1: raise ValueError('no')"), GRAPH
    )
    assert first == Failure("unreadable", "ValueError: no")
    assert isinstance(second, CallOutcome)


def test_a_framework_that_is_not_installed_is_missing() -> None:
    code = """
import importlib
def absent(name):
    raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
importlib.import_module = absent"""
    assert run_both(code) == [Failure("missing", "No module named 'numpy'")] * 2


def test_a_worker_rejects_a_mode_whose_path_is_not_taken() -> None:
    first = run_both("", mode=DEVICE)[0]  # NumPy has the host path only
    assert isinstance(first, Failure)
    assert "mode 'device' (device path): the backend did not take this path" in first.detail


# -- errors and warnings

NEGATIVE = case([dense([3.0])], "clip_grad_norm_", max_norm=-1.0, raises="ValueError")
WARNS, SILENT = (case([dense([3.0])], "clip_grad_norm_", max_norm=1.0, warns=warns) for warns in (True, False))
WARNING = CLIP.format(
    "import warnings, unified_clip; warnings.warn('x', unified_clip.ClipWarning); return right(grads, max_norm)"
)
OTHER = """
right = uc.clip_by_global_norm
def clip(grads, clip_norm):
    clipped, norm = right(grads, clip_norm)
    return {}, norm
uc.clip_by_global_norm = clip"""
BOTH = case([dense([3.0]), dense([4.0])], "clip_by_global_norm", clip_norm=1.0)


@pytest.mark.parametrize(
    ("clip_case", "code", "detail"),
    [
        (NEGATIVE, "", ""),
        (NEGATIVE, CLIP.format("return 1.0"), "raised nothing"),
        (
            NEGATIVE,
            CLIP.format("raise KeyError(object())"),
            "raised KeyError: <object object>, but should raise ValueError",
        ),
        (NEGATIVE, CLIP.format("grads[0] *= 0\n    raise ValueError('no')"), "had already changed gradients"),
        (SILENT, CLIP.format("raise ValueError('no such\\n\\nthing')"), "raised ValueError: no such"),
        (WARNS, WARNING, ""),
        (WARNS, "", "issued no ClipWarning"),
        (SILENT, WARNING, "issued a ClipWarning"),
        (BOTH, OTHER.format("tuple(clipped)"), "returned a tuple instead of a list"),
        (BOTH, OTHER.format("clipped[1:]"), "1 gradient instead of 2"),
    ],
)
def test_wrong_behaviour_is_a_difference(clip_case: Case, code: str, detail: str) -> None:
    verdict = run_one(code, clip_case)
    assert verdict.kind == ("different" if detail else "equal")
    assert detail in verdict.detail


GLOBAL = BOTH
BELOW_THRESHOLD = case([dense([3.0]), dense([4.0])], "clip_by_global_norm", clip_norm=9.0)
CLASS = case([dense([3.0]), dense([4.0])], "GradientClipByGlobalNorm", clip_norm=9.0)
SCALED = """Scale.is_identity = lambda self: False
Scale.results = lambda self: [{} for v in self.path._tensors]"""


@pytest.mark.parametrize(
    ("clip_case", "code", "detail"),
    [
        (
            GLOBAL,
            "HostPath.scale = lambda self, coef: (scale(self, coef), self._list.scale_(coef, 1))[0]",
            "changed its input gradients",
        ),
        (BELOW_THRESHOLD, "HostPath.unchanged = lambda self: self._tensors", "shares memory with an input"),
        (
            CLASS,
            SCALED.format("v[:]"),
            "returned a tensor that shares memory with an input",
        ),
        (
            CLASS,
            SCALED.format("v.copy()"),
            "gradient 0 came back as a new object, although its coefficient is 1",
        ),
    ],
    ids=["written", "shared", "a view", "a copy"],
)
def test_functional_names_do_not_change_their_input(clip_case: Case, code: str, detail: str) -> None:
    """Results of functions share no memory with the input. Classes return the same object or a new object."""
    lines = "from unified_clip._compute.host import HostPath\nscale = HostPath.scale\n"
    lines += "from unified_clip._core.rule import Scale\n"
    verdict = run_one(lines + code, clip_case)
    assert verdict.kind == "different"
    assert detail in verdict.detail


# -- how a worker is started


@not_editable
def test_the_users_search_path_comes_before_the_package_and_other_packages_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package of the user must not hide the one in the user's directory."""
    site, own = tmp_path / "site", tmp_path / "own"
    shutil.copytree(workers.PACKAGE, site / "unified_clip", ignore=shutil.ignore_patterns("__pycache__", "_native"))
    for directory in (site, own):
        directory.mkdir(exist_ok=True)
        (directory / "acme.py").write_text(f"WHERE = {str(directory)!r}\n", encoding="utf-8")
    monkeypatch.setattr(workers, "PACKAGE", site / "unified_clip")
    monkeypatch.setenv("PYTHONPATH", str(own))
    assert imported_from(tmp_path) == [str(own), str(site / "unified_clip")]
    (own / "unified_clip").mkdir()  # another copy of the package, which the worker must not import
    (own / "unified_clip/__init__.py").touch()
    assert imported_from(tmp_path)[1] == str(site / "unified_clip")


def imported_from(directory: Path) -> list[str]:
    code = "import os, acme, unified_clip; print(acme.WHERE, os.path.dirname(unified_clip.__file__), sep='\\n')"
    with (directory / "out").open("w+b") as stdout:
        with workers.Worker([sys.executable, "-c", code], stdout=stdout) as worker:
            assert worker.wait(60.0).code == 0
        stdout.seek(0)
        return stdout.read().decode().splitlines()


def test_a_missing_interpreter_has_the_verdict_missing(tmp_path: Path) -> None:
    results = run_worker.run_worker(
        run_worker.command("numpy", str(tmp_path / "python")), [WorkItem(HOST, SECOND)], 60.0
    )
    failure = results.by_case[HOST, SECOND.name]
    assert isinstance(failure, Failure)
    assert failure.kind == "missing"
    assert "cannot be started: No such file or directory" in failure.detail


def is_running(process: int) -> bool:
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text(encoding="utf-8").split(") ")[1][0] != "Z"


def test_processes_that_a_worker_started_end_with_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n", encoding="utf-8")
    python.chmod(0o755)
    results = run_worker.run_worker(run_worker.command("numpy", str(python)), [WorkItem(HOST, SECOND)], 1.0)
    failure = results.by_case[HOST, SECOND.name]
    assert isinstance(failure, Failure)
    assert failure.kind == "timed out"
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    assert not is_running(child)


@pytest.mark.parametrize(
    ("framework", "mode", "arguments", "gradient", "exact"),
    [
        ("jax", COMPILED, {}, dense([1.0]), True),
        ("tensorflow", GRAPH, {"norm_type": 1}, dense([1.0]), True),
        ("tensorflow", COMPILED, {}, dense([1.0]), False),
        ("jax", HOST, {}, dense([1.0]), False),
        ("jax", COMPILED, {"norm_type": 3}, dense([1.0]), False),
        ("jax", COMPILED, {"axes": [0]}, dense([1.0]), False),
        ("jax", COMPILED, {}, dense([1.0], "complex64"), False),
        ("mlx", COMPILED, {}, dense([1.0]), False),
    ],
)
def test_a_norm_in_a_graph_has_to_be_exact_where_the_kernels_compute_it(
    framework: str, mode: str, arguments: dict[str, Any], gradient: Any, exact: bool
) -> None:
    for in_graphs in (False, True):
        backend: Any = SimpleNamespace(name=framework, kernels_in_graphs=lambda by_kernels=in_graphs: by_kernels)
        by_kernels = by_kernels_in_graph(backend, mode, {"arguments": arguments}, [None, gradient])
        assert by_kernels == (exact and in_graphs)


@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(
    ("norm", "fault"),
    [
        ("norm", ""),
        ("norm.double()", "the norm is float64 instead of float32"),
        ("norm.reshape(1)", "the norm has the shape [1] instead of []"),
        ("norm.item()", "a number instead of a 0-d float32 tensor"),
    ],
)
def test_the_norm_of_a_users_function_has_the_form_of_unified_clips(tmp_path: Path, norm: str, fault: str) -> None:
    pytest.importorskip("torch")
    code = "import torch\n\ndef measure(grads):\n"
    code += f"    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))\n    return {norm}\n"
    (tmp_path / "form.py").write_text(code, encoding="utf-8")
    functions = "[frameworks.torch]\nmodes = ['native']\n[frameworks.torch.functions]\nglobal_norm = 'form.py:measure'"
    report = run_suite.run(suites.read(suite(tmp_path, ONE_CASE, frameworks=functions)))
    result = report.cases[0].natives["torch"]
    assert result.kind == ("form" if fault else "")
    assert fault in result.detail
    assert result.norm == pytest.approx(0.0, abs=1e-6)


def test_a_worker_that_lacks_a_package_of_this_library_names_what_to_install() -> None:
    first, _ = run_both("raise ModuleNotFoundError(\"No module named 'pydantic'\")")
    assert isinstance(first, Failure)
    assert first.kind == "crashed"
    assert first.detail.endswith(f"No module named 'pydantic'. Install unified_clip[cli] for {sys.executable}")
