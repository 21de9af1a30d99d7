"""The tables that `benchmarks/tables.py` writes into docs/performance.md and benchmarks/results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from support.bench import DATA, LABELS, TIMES

from unified_clip.bench import report

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
NATIVE = "torch.nn.utils.clip_grad_norm_"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks/tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLACE = "before\n\n<!-- {0}: so -->\n\nold\n\n<!-- end of {0} -->\n\nafter\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with measurements, and documents whose tables are stale."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    machine = {**DATA["machine"], "device": "GPU", "cuda": "13.0"}
    on_gpu = {**LABELS, "repeats": 9, **TIMES, "what": "clipped", "native": f"{NATIVE}, CUDA kernels"}
    (results / "bench.json").write_text(report.as_json(DATA), encoding="utf-8")
    (results / "gpu.json").write_text(json.dumps(DATA | {"machine": machine, "results": [on_gpu]}), encoding="utf-8")
    for path, text in {
        results / "cpu.md": PLACE.format("bench"),
        results / "gpu.md": PLACE.format("gpu"),
        tmp_path / "docs" / "performance.md": PLACE.format("bench") + PLACE.format("gpu"),
    }.items():
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_the_tables_are_put_into_the_documents_and_stale_ones_are_found(
    script: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--root", str(root)]
    page, cpu, gpu = (
        root / name for name in ("docs/performance.md", "benchmarks/results/cpu.md", "benchmarks/results/gpu.md")
    )
    assert script.main([*arguments, "--check"]) == 1
    assert "docs/performance.md, benchmarks/results/cpu.md, benchmarks/results/gpu.md" in capsys.readouterr().err
    assert "old" in cpu.read_text(encoding="utf-8")
    assert script.main(arguments) == 0
    assert script.main([*arguments, "--check"]) == 0
    texts = [path.read_text(encoding="utf-8") for path in (page, cpu, gpu)]
    measured = "Measured on x86_64, 8 processors, 2 threads, kernels for AVX2, with python "
    assert all(text.startswith(f"before\n\n<!-- bench: so -->\n\n{measured}") for text in texts[:2])
    assert "| GPT-2 | float32 | clipped | paddle.a | 2.00 | 4.00 | 2.00 (1.50 to 2.50) |\n" in texts[1]
    assert all("<!-- gpu: so -->\n\nMeasured on one GPU with CUDA 13.0" in text for text in (texts[0], texts[2]))
    assert all(text.endswith("-->\n\nafter\n") and "old" not in text for text in texts)
    (root / "benchmarks/results/bench.json").write_text(report.as_json(DATA | {"threads": 4}), encoding="utf-8")
    assert script.main([*arguments, "--check"]) == 1
    assert "gpu.md" not in capsys.readouterr().err
