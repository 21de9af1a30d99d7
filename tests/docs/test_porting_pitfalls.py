"""Embeddings in `docs/porting/tensorflow_2.md`: the scripts print the output there, and it shows parts of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.page_examples import run

PORTING = Path(__file__).parents[2] / "docs" / "porting"
PAGE = (PORTING / "tensorflow_2.md").read_text(encoding="utf-8")
SCRIPTS: dict[str, str] = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)) | {
    path.stem: path.read_text(encoding="utf-8") for path in (PORTING / "tensorflow_2").glob("embedding_*.py")
}
SAME, WRONG = re.findall(r"```text\n(.*?)```", PAGE.partition("## Embeddings")[2], re.DOTALL)

SIZE = re.compile(r"(?<=at most )\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""The size of rounding errors depends on the processor."""


RECORD = """
import runpy, sys, unified_clip
with unified_clip.record(sys.argv[2], norms=True):
    runpy.run_path(sys.argv[1])
"""


def test_the_page_shows_a_part_of_the_port() -> None:
    (clip,) = re.findall(r"```python\n( .*?)```", PAGE.partition("## Embeddings")[2], re.DOTALL)
    assert clip in SCRIPTS["embedding_torch"]


def recorded(folder: Path, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    run(folder, "-c", RECORD, f"{name}.py", f"{name}.jsonl")
    return f"{name}.jsonl"


def compared(folder: Path, *files: str, max_ulp: int = 64) -> list[str]:
    return run(folder, "-m", "unified_clip", "compare", *files, "--max-ulp", f"{max_ulp}").splitlines()


def without_size(lines: Iterable[str]) -> set[str]:
    return {SIZE.sub("#", line) for line in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if None in (find_spec("torch"), find_spec("tensorflow")):
        pytest.skip("needs PyTorch and TensorFlow")
    path = tmp_path_factory.mktemp("embeddings")
    recorded(path, "embedding_tf", SCRIPTS["embedding_tf"])
    return path


@pytest.mark.nightly
def test_the_port_with_the_stored_rows_has_the_same_numbers(folder: Path) -> None:
    lines = compared(folder, "embedding_tf.jsonl", recorded(folder, "embedding_torch", SCRIPTS["embedding_torch"]))
    assert without_size(SAME.splitlines()) <= without_size(lines)


@pytest.mark.nightly
def test_pytorchs_adam_is_named_as_the_cause(folder: Path) -> None:
    code = re.sub(r"class KerasAdam.*?\n\n\n", "", SCRIPTS["embedding_torch"], flags=re.DOTALL)
    code = code.replace("KerasAdam(variables, 0.01)", "torch.optim.Adam(variables, 0.01)")
    code = re.sub(r"    for p, grad in zip.*?    optimizer.step", "    optimizer.step", code, flags=re.DOTALL)
    code = code.replace(
        "    optimizer.step",
        "    for p, grad in zip(variables, clipped):\n        p.grad = grad.to_dense()\n"
        "    optimizer.t = getattr(optimizer, 't', 0) + 1\n"
        "    optimizer.param_groups[0]['eps'] = 1e-7 / (1 - 0.999**optimizer.t) ** 0.5\n    optimizer.step",
    )
    lines = compared(folder, "embedding_tf.jsonl", recorded(folder, "adam", code))
    for line in WRONG.splitlines():
        assert line in lines
    assert any(
        line.startswith("loss differs from step 2 on") and line.endswith("The values differ by at most 31 %.")
        for line in lines
    )


@pytest.mark.nightly
def test_a_port_of_summed_rows_needs_no_code_of_its_own(folder: Path) -> None:
    clip = "    grads, norm = tf.clip_by_global_norm"
    (line,) = re.findall(r"`(grads = \[tf.convert_to_tensor.*?)`", PAGE)
    assert SCRIPTS["embedding_tf"].count(clip) == 1
    summed = recorded(folder, "summed", SCRIPTS["embedding_tf"].replace(clip, f"    {line}\n{clip}"))
    adam = SCRIPTS["dense_adam"] + SCRIPTS["embedding_tf"].replace("tf.keras.optimizers.Adam(", "DenseAdam(")
    code = re.sub(r"class KerasAdam.*?\n\n\n", "", SCRIPTS["embedding_torch"], flags=re.DOTALL)
    code = code.replace("KerasAdam(variables, 0.01)", "torch.optim.Adam(variables, 0.01)").replace(", sparse=True", "")
    code = code.replace(
        "    optimizer.step",
        "    optimizer.t = getattr(optimizer, 't', 0) + 1\n"
        "    optimizer.param_groups[0]['eps'] = 1e-7 / (1 - 0.999**optimizer.t) ** 0.5\n    optimizer.step",
    )
    port = recorded(folder, "dense", code)
    same, _ = SAME.splitlines()
    assert without_size([same]) <= without_size(compared(folder, summed, port, max_ulp=512))  # Keras rounds the betas
    lines = compared(folder, recorded(folder, "dense_adam_run", adam), "embedding_tf.jsonl")
    assert any(line.startswith("Squared rows: keras.optimizers.Adam of embedding_tf.jsonl") for line in lines)
