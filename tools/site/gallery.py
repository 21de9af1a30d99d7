"""Reports of the commands for the site's gallery, from the notebook and from random gradients on NumPy."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from unified_clip import cli

from .notebook import code

REPORTS = {
    "comparison.html": (
        "`unified-clip compare`",
        "Two runs of the [notebook](notebook.md): the first step that differs, and why",
    ),
    "parity.html": ("`unified-clip parity`", "A small suite on NumPy, as `unified-clip parity init` writes it"),
}
"""{file: command and content of the report}."""

BEGIN = """# Gallery of reports

Each report is one file, which loads no other file and opens from the disk. The reports on this page were made with
NumPy when the site was built.
"""


def page() -> str:
    rows = [f"- [{command}](reports/{name}): {content}." for name, (command, content) in REPORTS.items()]
    return "\n".join([BEGIN, *rows, ""])


def write(folder: Path) -> None:
    out = folder.resolve() / "reports"
    out.mkdir()
    with scratch() as directory:
        exec("\n".join(code()), {})
        run(1, "compare", "old.jsonl", "new.jsonl", "--html", str(out / "comparison.html"))
        numbers = np.random.default_rng(0)
        gradients = {f"layer{index}": numbers.normal(size=(8, 4)).astype(np.float32) for index in range(3)}
        np.savez("gradients.npz", **gradients)
        run(0, "parity", "init", "gradients.npz")
        run(0, "parity", "--frameworks", "numpy")
        shutil.move(directory / "report/index.html", out / "parity.html")


def run(status: int, *arguments: str) -> None:
    if (ended := cli.main(arguments)) != status:
        raise RuntimeError(f"unified-clip {' '.join(arguments)} has exit status {ended}, not {status}")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)
