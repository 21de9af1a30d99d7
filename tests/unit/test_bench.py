"""`unified-clip bench`: what is measured, how, and what is made of it. The pairs are tests/contract/test_bench.py's."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from unified_clip import cli, native_available
from unified_clip._install import command
from unified_clip.bench import cli as bench_cli
from unified_clip.bench import lists, measure, plot, report, run, worker
from unified_clip.bench.measure import LEAST, MOST, WARM_UP, Pair
from unified_clip.bench.pairs import FRAMEWORKS

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
JOB = {
    "lists": ["10x10"],
    "dtypes": ["float32", "bfloat16"],
    "threads": 2,
    "seconds": 0.0,
    "growth": False,
    "device": "cpu",
}


# -- the lists


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [("GPT-2", 148, 124_439_808), ("ResNet-50", 161, 25_557_032), ("Llama-7B-layer", 9, 202_383_360)],
)
def test_the_lists_have_the_published_sizes(name: str, tensors: int, elements: int) -> None:
    assert len(lists.LISTS[name]) == tensors
    assert lists.elements(lists.LISTS[name]) == elements


def test_the_help_has_all_names() -> None:
    names = {"frameworks": FRAMEWORKS, "lists": lists.LISTS, "dtypes": lists.DTYPES}
    assert {option: ",".join(known) for option, known in names.items()} == bench_cli.NAMES


def test_the_lists_come_in_order_of_size() -> None:
    sizes = list(map(lists.elements, lists.LISTS.values()))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("dtype", lists.DTYPES)
def test_arrays_have_the_shapes_and_are_random(dtype: str) -> None:
    shapes = [(3, 4), (1100, 1000), (1,)]
    arrays = lists.arrays(shapes, dtype)
    assert [array.shape for array in arrays] == shapes
    assert {array.dtype.name for array in arrays} == {dtype}
    assert lists.rough_norm(arrays) == pytest.approx(lists.elements(shapes) ** 0.5, rel=0.01)


# -- timing


class Fake:
    """A clock that moves when a call is made, and a record of what was called."""

    def __init__(self, **costs: Iterator[float]) -> None:
        self.costs, self.now = costs, 0.0
        self.called: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self, name: str) -> Callable[[Any], None]:
        def act(given: Any = None) -> None:
            self.called.append(name)
            self.now += next(self.costs[name])

        return act


def always(value: float) -> Iterator[float]:
    while True:
        yield value


def compared(seconds: float, **costs: Iterator[float]) -> tuple[dict[str, Any], list[str]]:
    fake = Fake(prepare=always(0.5), **costs)
    native = fake.call("native") if "native" in costs else None
    pair = Pair("name", lambda: fake.call("prepare")(), fake.call("unified"), native)  # type: ignore[func-returns-value]
    return measure.compare(pair, seconds, fake.clock), fake.called


def test_calls_take_turns_after_warming_up_and_what_prepares_is_not_timed() -> None:
    times, called = compared(0, unified=always(0.002), native=always(0.003))
    assert called[::2] == ["prepare"] * (2 * (WARM_UP + LEAST))
    assert (
        called[1::2]
        == ["unified", "native"] * WARM_UP + (["unified", "native", "native", "unified"] * LEAST)[: 2 * LEAST]
    )
    assert times == {
        **{"native": "name", "repeats": LEAST},
        **{"ours_ms": [2.0] * 3, "native_ms": [3.0] * 3, "ratio": [1.5] * 3},
    }


def test_medians_and_quartiles_are_of_all_repeats_but_the_warm_up() -> None:
    times = iter([9.0] * WARM_UP + [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007])
    row, _ = compared(0, unified=times, native=always(0.012))
    assert row["ours_ms"] == [2.5, 4.0, 5.5]
    assert row["ratio"] == [2.2, 3.0, 5.0]  # medians of 12, 6, 4, 3, 2.4, 2 and 12/7


@pytest.mark.parametrize(("seconds", "repeats"), [(0, LEAST), (20, 20), (1e9, MOST)])
def test_a_pair_is_repeated_for_as_long_as_it_may_take(seconds: float, repeats: int) -> None:
    times, _ = compared(seconds, unified=always(0.25), native=always(0.25))  # and twice half a second to prepare
    assert times["repeats"] == pytest.approx(repeats, abs=repeats // 3 if seconds == 20 else 0)


def test_without_a_native_function_unified_clip_is_measured_alone() -> None:
    times, called = compared(0, unified=always(0.002))
    assert called[1::2] == ["unified"] * (WARM_UP + LEAST)
    assert (times["ours_ms"], times["native_ms"], times["ratio"]) == ([2.0] * 3, None, None)


def test_what_would_measure_nothing_is_refused() -> None:
    with pytest.raises(run.OptionsError, match="numpy cannot be measured with bfloat16"):
        run.Options(frameworks=["numpy"], dtypes=["bfloat16"], growth=False)


def test_the_machines_limits_are_of_the_memory_given() -> None:
    given = [np.ones((100, 1000), np.float32), np.ones(900_000, np.uint16), np.ones((), np.float32)]
    prepared: list[None] = []
    measured = measure.limits(given, lambda: prepared.append(None), 2, 0.0)
    assert measured["bytes"] == 2_200_004
    assert all(0 < low <= high for low, _, high in (measured["read_ms"], measured["read_write_ms"]))
    assert len(prepared) == 2 * (WARM_UP + LEAST)
    assert all((array == 1).all() for array in given)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_share_the_memory_to_be_read_evenly(count: int) -> None:
    given = [np.arange(10), np.arange(0), np.arange(1), np.arange(25)]
    parts = measure.shares(given, count)
    lengths = [sum(piece.size for piece in part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert np.concatenate([piece for part in parts for piece in part]).tolist() == np.concatenate(given).tolist()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_extra_memory_is_what_a_call_takes_and_gives_back() -> None:
    size = 200 << 20

    def takes(given: Any) -> None:
        np.ones(size, np.uint8)

    growth = measure.extra_memory(takes, None)
    assert growth == pytest.approx(size, rel=0.05)
    assert measure.extra_memory(lambda given: None, None) < size // 20  # type: ignore[operator]


def test_elsewhere_extra_memory_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert measure.extra_memory(lambda given: None, None) is None


# -- the worker


def test_a_worker_measures_lists_limits_and_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lists.LISTS, "10x10", [(10,)] * 10)  # type: ignore[arg-type]
    monkeypatch.setattr(lists, "GROWTH", {"elements": {5: [(5,)]}, "tensors": {2: [(100,)] * 2}})
    monkeypatch.setattr(worker, "LONG", 99)
    first, one, elements, tensors = worker.results("numpy", JOB | {"growth": True})
    compiled = {"numpy": native_available()}
    assert first == {"versions": {"numpy": np.__version__}, "compiled_kernels": compiled}
    labels = {"framework": "numpy", "list": "10x10", "dtype": "float32"}
    assert [each["what"] for each in one["results"]] == ["clipped", "not clipped", "norm alone"]
    assert all(each.items() >= labels.items() for key in ("results", "limits", "memory") for each in one[key])
    assert one["limits"][0]["bytes"] == 400
    assert (elements["growth"][0]["along"], elements["growth"][0]["count"]) == ("elements", 5)
    assert (tensors["growth"][0]["along"], tensors["growth"][0]["count"]) == ("tensors", 2)


def test_short_lists_have_no_limits() -> None:
    _, one = worker.results("numpy", JOB)
    assert one["limits"] == []


# -- the command

SCHEMA = {
    "results": {"framework", "list", "dtype", "what", "native", "repeats", "ours_ms", "native_ms", "ratio"},
    "limits": {"framework", "list", "dtype", "bytes", "read_ms", "read_write_ms"},
    "memory": {"framework", "list", "dtype", "native", "ours_bytes", "native_bytes"},
    "growth": {"framework", "along", "count", "native", "repeats", "ours_ms", "native_ms", "ratio"},
}


def bench(out: Path, *more: str, frameworks: str = "numpy") -> int:
    arguments = ["--frameworks", frameworks, "--lists", "10x10", "--seconds", "0", "--no-growth"]
    return cli.main(["bench", *arguments, "--out", str(out), *more])


def check_schema(data: dict[str, Any]) -> None:
    assert set(data) == {"threads", "seconds", "machine", "versions", "compiled_kernels", "missing", "failed", *SCHEMA}
    assert set(data["machine"]) == {"architecture", "cpus", "instruction_set"}
    for key, fields in SCHEMA.items():
        assert all(set(each) == fields for each in data[key]), key


def test_the_command_measures_writes_and_shows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path / "out", "--threads", "1") == 0
    data = json.loads((tmp_path / "out/bench.json").read_text(encoding="utf-8"))
    check_schema(data)
    assert (data["threads"], data["versions"]["numpy"]) == (1, np.__version__)
    assert [each["what"] for each in data["results"]] == ["clipped", "not clipped", "norm alone"]
    assert all(ElementTree.parse(tmp_path / "out" / name) for name in ("ratios.svg", "growth.svg"))
    printed = capfd.readouterr().out
    assert "plain NumPy" in printed
    assert str(tmp_path / "out/bench.json") in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frameworks", "numpy,caffe"], "--frameworks has 'caffe'. Choose from torch, "),
        (["--lists", "GPT-9"], "--lists has 'GPT-9'. Choose from 10x10, "),
        (["--dtypes", ""], "--dtypes has ''"),
        (["--threads", "0"], "--threads is 0"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--device", "tpu"], "--device is 'tpu'. Choose from cpu, cuda."),
        (
            ["--device", "cuda", "--frameworks", "torch,numpy"],
            "--device cuda measures torch only. Pass --frameworks torch",
        ),
    ],
)
def test_the_command_refuses_what_there_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert bench(tmp_path / "file") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_names_the_extra_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else object())
    assert bench(tmp_path) == 2
    assert f"not installed: matplotlib. Install the extra `bench`: {command('bench')}" in capsys.readouterr().err


def without(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have PyTorch's worker run some code first, and the others none."""
    right = run.command
    lines = f"import sys; sys.modules['torch'] = None; from unified_clip.bench import worker; {code}"
    dying = [sys.executable, "-X", "faulthandler", "-c", lines, "torch"]
    monkeypatch.setattr(run, "command", lambda name: dying if name == "torch" else right(name))


def test_a_worker_that_dies_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "import os; os.write(1, b'{\"results\": ['); os.abort()")
    assert bench(tmp_path, frameworks="torch,numpy") == 3
    data = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert data["failed"]["torch"].startswith(
        "signal 6 (SIGABRT); the last lines of stderr: Fatal Python error: Aborted"
    )
    assert {each["framework"] for each in data["results"]} == {"numpy"}
    assert "torch: its process ended: signal 6" in capfd.readouterr().out


@pytest.mark.parametrize(("device", "visible"), [("cpu", ""), ("cuda", "3")])
def test_only_the_worker_of_a_gpu_sees_gpus(device: str, visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code = "import json, os; print(json.dumps({'missing': {'torch': os.environ['CUDA_VISIBLE_DEVICES']}}))"
    monkeypatch.setattr(run, "command", lambda framework: [sys.executable, "-c", code])
    data = run.run(run.Options(frameworks=["torch"], device=device), lambda *_: None)
    assert (data["missing"], data["failed"]) == ({"torch": visible}, {})


def test_a_framework_that_is_not_installed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "worker.main()")
    assert bench(tmp_path, frameworks="torch,numpy") == 3
    printed = " ".join(capfd.readouterr().out.split())
    assert "torch: not measured: import of torch halted" in printed
    assert "Install it, or leave torch out of --frameworks" in printed
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["failed"] == {}


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, 0), ({"missing": {"jax": "why"}}, 0), ({"failed": {"jax": "why"}}, 3), ({"results": [], "growth": []}, 3)],
)
def test_the_exit_status_says_whether_all_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], status: int
) -> None:
    """What is not installed has to be measured only where it was named."""
    monkeypatch.setattr(run, "run", lambda options, progress: DATA | {"limits": []} | change)
    assert cli.main(["bench", "--out", str(tmp_path)]) == status


HANGS = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
# Have another thread take the signal: then it does not end a read of the main thread.
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
from unified_clip import cli
from unified_clip.bench import run
hang = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
run.command = lambda framework: [sys.executable, "-c", hang, "started"]
sys.exit(cli.main(["bench", "--frameworks", "numpy", "--out", "out"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_ctrl_c_ends_a_run_whose_worker_prints_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (tmp_path / "started").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (
        cli.INTERRUPTED,
        "unified-clip: interrupted. All its processes were ended, and no report was written.\n",
    )


def test_an_interrupted_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupt)
    assert bench(tmp_path) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


# -- tables and plots

TIMES = {"ours_ms": [1.0, 2.0, 3.0], "native_ms": [2.0, 4.0, 6.0], "ratio": [1.5, 2.0, 2.5]}
LABELS = {"framework": "paddle", "list": "GPT-2", "dtype": "float32"}
ALONE = {"native": "", "repeats": 7, "ours_ms": [120.0, 1234.5, 1300.0], "native_ms": None, "ratio": None}
DATA: dict[str, Any] = {
    **{"threads": 2, "seconds": 1.0, "machine": {"architecture": "x86_64", "cpus": 8, "instruction_set": "AVX2"}},
    **{"versions": {"python": "3.11.9"}, "compiled_kernels": {"paddle": True}, "missing": {}, "failed": {}},
    "results": [
        {**LABELS, "what": "clipped", "native": "paddle.a", "repeats": 9, **TIMES},
        {**LABELS, "what": "clipped", "native": "paddle.b", "repeats": 9, **TIMES, "ours_ms": [1.0, 1.5, 3.0]},
        {**LABELS, "what": "not clipped", "native": "paddle.a", "repeats": 9, **TIMES},
        {**LABELS, "what": "norm alone", **ALONE},
    ],
    "limits": [{**LABELS, "bytes": 1000, "read_ms": [1.0, 1.0, 1.0], "read_write_ms": [2.0, 2.0, 2.0]}],
    "memory": [{**LABELS, "native": "paddle.a", "ours_bytes": 1 << 20, "native_bytes": None}],
    "growth": [
        {"framework": "paddle", "along": "elements", "count": count, "native": "paddle.a", "repeats": 9, **times}
        for count, times in ((1000, TIMES), (10000, ALONE))
    ],
}


def test_the_tables_say_what_was_measured() -> None:
    check_schema(DATA)
    _, rows = report.pairs_table(DATA, "paddle")
    assert rows[0] == ["GPT-2", "float32", "clipped", "paddle.a", "2.00", "4.00", "2.00 (1.50 to 2.50)"]
    assert rows[3] == ["GPT-2", "float32", "norm alone", "-", "1,234", "-", "-"]
    _, rows = report.limits_table(DATA)
    assert rows == [["paddle", "GPT-2", "float32", "1,000", "1.00", "2.00", "1,234", "0.500"]]
    _, rows = report.memory_table(DATA)
    assert rows == [["paddle", "GPT-2", "float32", "paddle.a", "1.0", "-"]]


def test_unified_clip_without_its_compiled_kernels_is_reported() -> None:
    assert report.problems(DATA) == []
    slow = DATA | {"compiled_kernels": {"paddle": False, "torch": True, "jax": False}}
    assert report.problems(slow) == [
        "unified_clip ran without its compiled kernels on paddle, jax. Install unified_clip with a C++ compiler, unset "
        "UNIFIED_CLIP_NATIVE, and run outside unified_clip's source directory."
    ]


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        report.write(DATA, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert json.loads(written[0].pop("bench.json")) == DATA
    assert sorted(written[0]) == ["growth.svg", "ratios.svg"]
    for content in written[0].values():
        assert b"date" not in content
        assert ElementTree.fromstring(content).tag.endswith("svg")


def test_every_framework_has_a_colour() -> None:
    assert plot.COLOURS.keys() == FRAMEWORKS.keys()


def test_the_committed_results_can_be_plotted(tmp_path: Path) -> None:
    data = json.loads((Path(__file__).parents[2] / "benchmarks/results/bench.json").read_text(encoding="utf-8"))
    assert any(each["what"] == "clipped, in a graph" for each in data["results"])
    report.write(data, tmp_path)
    drawn = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    compared = {each["native"] for each in data["results"] if each["ratio"] and each["what"] != "norm alone"}
    assert not {native for native in compared if f"<!-- {native} -->" not in drawn}


def test_the_plots_show_the_results(tmp_path: Path) -> None:
    """Another ratio makes another plot of ratios, and another time another one of growth."""
    report.write(DATA, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("ratios.svg", "growth.svg")}
    for key, shown in (("results", "ratios.svg"), ("growth", "growth.svg")):
        changed = [dict(DATA[key][0], ratio=[1.0, 2.1, 2.5], ours_ms=[1.0, 2.1, 3.0]), *DATA[key][1:]]
        report.write(DATA | {key: changed}, tmp_path)
        assert {name for name, content in before.items() if (tmp_path / name).read_bytes() != content} == {shown}


def test_the_committed_results_are_whole_and_small() -> None:
    where = ROOT / "benchmarks/results"
    data = json.loads((where / "bench.json").read_text(encoding="utf-8"))
    check_schema(data)
    assert data["seconds"] == run.Options().seconds
    measured = {(each["framework"], each["list"], each["dtype"]) for each in data["results"]}
    assert measured == {
        (name, each, dtype) for name, known in FRAMEWORKS.items() for each in lists.LISTS for dtype in known.dtypes
    }
    for name in ("ratios.svg", "growth.svg"):
        assert (where / name).stat().st_size < 300_000


# -- the document


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks/tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_put_into_the_document_and_stale_ones_are_found(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, document = tmp_path / "bench.json", tmp_path / "page.md"
    results.write_text(report.as_json(DATA), encoding="utf-8")
    on_gpu = "<!-- gpu: so -->\n\nold\n\n<!-- end of gpu -->"
    document.write_text(
        f"before\n\n<!-- bench: so -->\n\nold\n\n<!-- end of bench -->\n\nafter\n{on_gpu}\n", encoding="utf-8"
    )
    arguments = ["--results", str(results), "--document", str(document)]
    assert script.main([*arguments, "--check"]) == 1
    assert "are stale" in capsys.readouterr().err
    assert "old" in document.read_text(encoding="utf-8")
    assert script.main(arguments) == 0
    assert script.main([*arguments, "--check"]) == 0
    text = document.read_text(encoding="utf-8")
    measured = "Measured on x86_64, 8 processors, 2 threads, kernels for AVX2, with python "
    assert text.startswith(f"before\n\n<!-- bench: so -->\n\n{measured}")
    assert "| GPT-2 | float32 | clipped | paddle.a | 2.00 | 4.00 | 2.00 (1.50 to 2.50) |\n" in text
    assert "\n\n<!-- end of bench -->\n\nafter\n<!-- gpu: so -->\n\nMeasured on one NVIDIA" in text
    assert text.endswith("\n\n<!-- end of gpu -->\n")
    results.write_text(report.as_json(DATA | {"threads": 4}), encoding="utf-8")
    assert script.main([*arguments, "--check"]) == 1


def test_ratios_in_graphs_have_one_row_for_each_graph_and_list(script: ModuleType) -> None:
    entry = {**LABELS, "repeats": 9, **TIMES}
    measured = [
        {**entry, "what": "clipped, in a graph", "native": "optax.clip (both in jit)"},
        {**entry, "what": "clipped, in a graph", "native": "tf.clip (in XLA)", "ratio": [1.0, 3.0, 4.0]},
        {**entry, "what": "not clipped, in a graph", "native": "optax.clip (both in jit)", "ratio": [0.5, 1.5, 2.0]},
        {**entry, "what": "clipped", "native": "optax.clip (jit)"},
    ]
    header, rows = script.graphs_table(DATA | {"results": measured})
    assert header[2:] == ["float32, not clipped", "float32, clipped", "bfloat16, not clipped", "bfloat16, clipped"]
    assert rows == [["jit", "GPT-2", "1.50", "2.00", "-", "-"], ["XLA", "GPT-2", "-", "3.00", "-", "-"]]


def test_ratios_on_a_gpu_have_a_table_of_eager_calls_and_one_of_cuda_graphs(script: ModuleType) -> None:
    native = "torch.nn.utils.clip_grad_norm_, Triton kernels"
    entry = {**LABELS, "framework": "torch", "repeats": 9, **TIMES}
    measured = [
        {**entry, "what": "clipped", "native": native},
        {**entry, "what": "not clipped, in a graph", "native": f"{native}, CUDA graphs", "ratio": [1.0, 3.0, 4.0]},
        {**entry, "what": "norm alone", "native": "torch.nn.utils.get_total_norm"},
    ]
    machine = {**DATA["machine"], "device": "GPU", "cuda": "13.0"}
    text = script.gpu_tables(DATA | {"machine": machine, "results": measured})
    assert text.startswith("Measured on one GPU with CUDA 13.0 and python ")
    eager, graphs = text.split("### CUDA graphs on a GPU")
    assert "| with the Triton kernels | GPT-2 | - | 2.00 | - | - |" in eager
    assert "| with the Triton kernels | GPT-2 | 3.00 | - | - | - |" in graphs


def test_a_document_without_a_place_for_the_tables_is_refused(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.json").write_text(report.as_json(DATA), encoding="utf-8")
    (tmp_path / "page.md").write_text("nothing", encoding="utf-8")
    arguments = ["--results", str(tmp_path / "bench.json"), "--document", str(tmp_path / "page.md")]
    assert script.main(arguments) == 2
    assert "has no place" in capsys.readouterr().err
