"""docs/notebook.ipynb: its cells run with NumPy alone, print what the notebook shows, and find the planted bug."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import threading
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def no_thread(*_: object) -> None:
    """Raise the error of a browser, where Python starts no threads and no processes."""
    raise RuntimeError("can't start new thread")


def test_every_cell_prints_the_output_in_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(subprocess.Popen, "__init__", no_thread)
    namespace: dict[str, object] = {}
    install, *cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert "".join(install["source"]) == "%pip install -q unified_clip[config]"
    shown = [["".join(output["text"]) for output in cell["outputs"]] for cell in cells]
    printed = []
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec("".join(cell["source"]), namespace)
        printed.append([output.getvalue()] if output.getvalue() else [])
    assert printed == shown
    assert shown[-1] == ["[]\n"]
    assert "per tensor for global" in shown[-2][0]
