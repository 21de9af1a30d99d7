"""Every page with Python code has a test that runs the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"

RUN_BY = {
    "adaptive.md": "docs/test_adaptive_page.py",
    "ci.md": "unit/test_pytest_plugin.py",
    "config-check.md": "docs/test_config_check_page.py",
    "config.md": "docs/test_config_page.py",
    "distributed.md": "distributed/test_torch_distributed_layouts.py",
    "gradient_files.md": "support/parity/gradient_files.py",
    "my-loss-curve-differs.md": "docs/test_loss_curve_page.py",
    "own-functions.md": "docs/test_own_functions_page.py",
    "paddle_static.md": "frameworks/test_paddle_settings.py",
    "quickstart.md": "contract/test_readme.py",
    "recording.md": "docs/test_recording_page.py",
    "recording_fields.md": "docs/test_recording_page.py",
    "verify.md": "docs/test_verify_page.py",
    **{f"{name}.md": "frameworks/test_each_page.py" for name in ("jax", "mlx", "paddle", "tensorflow", "torch")},
}

FOLDERS = {"integrations": "integrations/test_*.py", "porting": "docs/test_porting_guides.py"}
BESIDE = {
    "integrations/engines.md": "distributed/test_torch_engines.py",
    "porting/optimizers_and_layers.md": "docs/test_optimizers_and_layers_page.py",
}


def pages() -> list[str]:
    paths = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    return [page for page in paths if re.search(r"^```python$", (DOCS / page).read_text("utf-8"), re.MULTILINE)]


@pytest.mark.parametrize("page", pages())
def test_a_page_with_code_has_a_test_that_reads_it(page: str) -> None:
    folder, _, name = page.rpartition("/")
    pattern = BESIDE.get(page) or (FOLDERS[folder] if folder else RUN_BY[page])
    texts = [path.read_text(encoding="utf-8") for path in TESTS.glob(pattern)]
    assert any(re.search(rf"[/\"]{Path(name).stem}(\.md)?[\"\s]", text) for text in texts), pattern
