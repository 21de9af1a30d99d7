"""The tables that `benchmarks/tables.py` writes into docs/performance.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from support.bench import DATA, LABELS, TIMES

from unified_clip.bench import report

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]


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
    native = "torch.nn.utils.clip_grad_norm_, CUDA kernels"
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
    assert "| with the CUDA kernels | GPT-2 | - | 2.00 | - | - |" in eager
    assert "| with the CUDA kernels | GPT-2 | 3.00 | - | - | - |" in graphs


def test_a_document_without_a_place_for_the_tables_is_refused(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.json").write_text(report.as_json(DATA), encoding="utf-8")
    (tmp_path / "page.md").write_text("nothing", encoding="utf-8")
    arguments = ["--results", str(tmp_path / "bench.json"), "--document", str(tmp_path / "page.md")]
    assert script.main(arguments) == 2
    assert "has no place" in capsys.readouterr().err
