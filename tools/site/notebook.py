"""The page of docs/notebook.ipynb, with its code and output. JupyterLite runs the notebook in the browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
ADDRESS = "../lite/lab/index.html?path=notebook.ipynb"
RUN = f"""<a class="md-button md-button--primary" href="{ADDRESS}">Run it in your browser</a>

You need no installation. The first start takes a minute, because the browser loads Python."""


def page() -> str:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    beginning, *rest = (part for cell in cells for part in markdown_of_cell(cell))
    return "\n\n".join([beginning, RUN, *rest]) + "\n"


def code() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if not source.startswith("%")]


def markdown_of_cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif not source.startswith("%"):
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            yield f"```text\n{''.join(output['text'])}```"
