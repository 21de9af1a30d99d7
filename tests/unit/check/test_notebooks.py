"""`unified-clip config check` on Jupyter notebooks."""

from __future__ import annotations

import json

import pytest
from support.config.check_files import Check, only_finding

IMPORT = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n"
CLIP = "clip_grad_norm_(model.parameters(), {})\n"


def notebook(*cells: str, **more: object) -> str:
    texts = [{"cell_type": "markdown", "metadata": {}, "source": ["# clip_grad_norm_(text)\n"]} for _ in cells]
    codes = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell.splitlines(keepends=True)} for cell in cells
    ]
    both = [each for pair in zip(texts, codes, strict=True) for each in pair]
    return json.dumps({"cells": both, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}, indent=1)


def test_a_clip_in_a_cell_is_compared_with_its_cell_and_line(check: Check) -> None:
    text = notebook(IMPORT + 'name = "a\\\\"\n', 'name = "a"\n\n' + CLIP.format("5.0"))
    finding = only_finding(check({"a.ipynb": text}))
    assert (finding.kind, finding.clip) == ("drift", "torch.nn.utils.clip_grad_norm_ in cell 4, line 3")
    assert "clip_grad_norm_(model.parameters(), 5.0)" in text.splitlines()[finding.line - 1]
    report = check({"a.ipynb": notebook(IMPORT, CLIP.format("1.0"))})
    assert (report.findings, report.counts.clips, report.counts.sources) == ([], 1, 1)


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline\n",
        "!pip install torch \\\n  numpy\n",
        "if True:\n    !ls\n",
        "files = !ls data\n",
        "model.fit?\n",
        "%%time\nx = 1\n",
        "%%html\n<b>a</b>\n",
        "%%bash\nls -l | wc\n",
        "print 1\n",
    ],
)
def test_magics_do_not_hide_clips(check: Check, cell: str) -> None:
    finding = only_finding(check({"a.ipynb": notebook(IMPORT, cell, CLIP.format("5.0"))}))
    assert (finding.kind, finding.clip) == ("drift", "torch.nn.utils.clip_grad_norm_ in cell 6, line 1")


@pytest.mark.parametrize(
    ("cell", "clip"),
    [
        ("!python train.py --max_grad_norm 0.5\n", "max_grad_norm = 0.5 in cell 4, line 1"),
        ("%run train.py --max_grad_norm 0.5\n", "max_grad_norm = 0.5 in cell 4, line 1"),
        ("%%bash\npython train.py --max_grad_norm 0.5\n", "max_grad_norm = 0.5 in cell 4, line 2"),
        ("%env MAX_GRAD_NORM=0.5\n", "MAX_GRAD_NORM = 0.5 in cell 4, line 1"),
        ("x = !train --max_grad_norm 0.5\n", "max_grad_norm = 0.5 in cell 4, line 1"),
    ],
)
def test_command_lines_of_a_notebook_are_read(check: Check, cell: str, clip: str) -> None:
    finding = only_finding(check({"a.ipynb": notebook(IMPORT + CLIP.format("1.0"), cell)}))
    assert (finding.kind, finding.clip) == ("unknown", clip)


def test_the_reason_names_the_cell(check: Check) -> None:
    cell = "import unified_clip.torch as uc\n\nuc.clip_grad_norm_(model.parameters(), args.clip)\n"
    finding = only_finding(check({"a.ipynb": notebook("x = 1\n", cell)}))
    assert finding.clip.endswith("in cell 4, line 3")


def test_a_file_that_a_cell_writes_is_read(check: Check) -> None:
    script = "%%writefile train.py\n" + IMPORT + CLIP.format("5.0")
    assert only_finding(check({"a.ipynb": notebook(script)})).clip == "torch.nn.utils.clip_grad_norm_ in cell 2, line 4"
    finding = only_finding(
        check({"a.ipynb": notebook(IMPORT + CLIP.format("1.0"), "%%writefile a.yaml\nmax_grad_norm: 1\n")})
    )
    assert (finding.kind, finding.clip) == ("unknown", "cell 4, line 1")


def test_a_cell_with_a_clip_that_is_not_python_is_unknown(check: Check) -> None:
    cell = "print 'a'\nclip_grad_norm_(model.parameters(), 1.0)\n"
    finding = only_finding(check({"a.ipynb": notebook(IMPORT + CLIP.format("1.0"), cell)}))
    assert (finding.kind, finding.clip) == ("unknown", "cell 4, line 1")
    assert "not valid Python" in finding.does


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"cells"'])
def test_a_file_that_is_no_notebook_is_unknown_if_it_names_a_clip(check: Check, text: str) -> None:
    right = {"b.ipynb": notebook(IMPORT + CLIP.format("1.0"))}
    assert check({**right, "a.ipynb": text}).findings == []
    finding = only_finding(check({**right, "a.ipynb": f"{text} clip_grad_norm_"}))
    assert (finding.kind, finding.clip) == ("unknown", "notebook")


def test_outputs_do_not_count(check: Check) -> None:
    cells = [
        {"cell_type": "code", "outputs": [{"text": ["clip_grad_norm_(a, 5.0)\n"]}], "source": "x = 1\n"},
        {"cell_type": "code", "outputs": [{"source": ["y = 1\n"]}], "source": f"{IMPORT}{CLIP.format(1.0)}"},
    ]
    report = check({"a.ipynb": json.dumps({"cells": cells})})
    assert (report.findings, report.counts.clips) == ([], 1)


def test_a_large_notebook_is_read(check: Check) -> None:
    large = {"data": "a" * (2 << 20)}
    text = notebook(IMPORT + CLIP.format("5.0"), more=large)
    assert only_finding(check({"a.ipynb": text})).kind == "drift"


def test_training_in_a_notebook_needs_a_clip(check: Check) -> None:
    clip = 'rule = "global_norm"\nthreshold = 1.0\n\n[check]\neach = ["*.ipynb"]\n'
    files = {"a.ipynb": notebook("import torch\nloss.backward()\n"), "b.py": IMPORT + CLIP.format("1.0")}
    finding = only_finding(check(files, clip))
    assert (finding.kind, finding.path) == ("missing", "a.ipynb")
    assert "loss.backward()" in files["a.ipynb"].splitlines()[finding.line - 1]


OPTAX = "import optax\nfrom unified_clip import ClipConfig\nCLIP = ClipConfig.load('clip.toml')\n"


def test_a_cell_with_only_comments_that_is_written_to_a_file(check: Check) -> None:
    assert (
        only_finding(check({"a.ipynb": notebook(IMPORT, "%%writefile a.py\n# a\n", CLIP.format("5.0"))})).kind
        == "drift"
    )
