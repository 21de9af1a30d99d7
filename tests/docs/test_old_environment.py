"""`docs/porting/old_environment.md`: runs of old releases, recorded without a change, and compared with their ports."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.compare import recordings
from unified_clip.compare.recordings import RecordingComparison

pytestmark = pytest.mark.nightly
"""The old releases have hundreds of megabytes."""

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "porting" / "paddle_1"

ENVIRONMENTS = {
    "paddle-1.8.5": ("python3.7", "paddlepaddle==1.8.5", "protobuf<3.21", "numpy<1.22"),
    "paddle-2.6.2": ("python3.8", "paddlepaddle==2.6.2", "numpy<2"),
    "tensorflow-1.15.5": ("python3.7", "tensorflow==1.15.5", "protobuf<3.21", "numpy<1.19"),
    "torch-1.8.1": ("python3.7", "torch==1.8.1", "numpy<1.22"),
    "torch-1.13.1": ("python3.9", "torch==1.13.1", "numpy<2"),
}

MISTAKES = {
    "`clip_norm=0.2`": ("clip_norm=0.1", "clip_norm=0.2", "another threshold"),
    "`GradientClipByGlobalNorm` for `GradientClipByNorm`": (
        "GradientClipByNorm",
        "GradientClipByGlobalNorm",
        "per tensor for global",
    ),
    "clip only the weights, not the biases": (
        "clip.clip_(model.parameters())",
        "clip.clip_([each for each in model.parameters() if each.ndim > 1])",
        "left out",
    ),
    "`torch.nn.utils.clip_grad_norm_` for each parameter": (
        "clip.clip_(model.parameters())",
        "[torch.nn.utils.clip_grad_norm_([each], 0.1) for each in model.parameters()]",
        "another eps of the clip",
    ),
    '`cross_entropy(..., reduction="sum")`': ("(model(x), y)", '(model(x), y, reduction="sum")', "scaled gradients"),
    "`reshape` instead of `.T` for the weights": (
        '.w_0"].T))',
        '.w_0"].reshape(layer.weight.shape)))',
        "untransposed weight",
    ),
    "no `model.zero_grad()`": ("model.zero_grad()", "pass", "gradients are not cleared"),
}
"""{mistake: (text of after.py, what replaces it, cause)}."""


@functools.cache
def _old_python(name: str) -> Path:
    interpreter, *packages = ENVIRONMENTS[name]
    if shutil.which(interpreter) is None:
        pytest.skip(f"{interpreter} is not installed")
    folder = ROOT / "build" / "old" / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (folder / "complete").touch()
    return python


def _record(python: Path | str, script: Path, file: Path) -> Path:
    environment = {**os.environ, **CPU_ONLY, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "unified_clip", "record", str(file), "--norms", "--", str(python), str(script)]
    subprocess.run(command, check=True, cwd=file.parent, env=environment, timeout=600)
    return file


def _compared(old: Path, new: Path) -> RecordingComparison:
    return recordings.compare(old, new)


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    return _record(_old_python("paddle-1.8.5"), EXAMPLE / "before.py", folder / "old.jsonl")


def test_the_port_of_the_example_has_the_same_recipe(old_run: Path) -> None:
    found = _compared(old_run, _record(sys.executable, EXAMPLE / "after.py", old_run.with_name("new.jsonl")))
    assert (list(found.findings), found.recipes.steps) == ([], 5)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(old_run: Path, mistake: str, tmp_path: Path) -> None:
    text, other, cause = MISTAKES[mistake]
    source = (EXAMPLE / "after.py").read_text(encoding="utf-8")
    assert text in source
    script = tmp_path / "after.py"
    script.write_text(source.replace(text, other), encoding="utf-8")
    shutil.copy(old_run.with_name("weights.npz"), tmp_path)
    found = _compared(old_run, _record(sys.executable, script, tmp_path / "new.jsonl"))
    assert [each.kind for each in found.findings] == [cause]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    random = np.random.default_rng(0)
    shapes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,), "x": (6, 16, 6), "y": (6, 16, 3)}
    np.savez(tmp_path / "data.npz", **{name: random.normal(size=each).astype("f4") for name, each in shapes.items()})
    return tmp_path


SCRIPTS = sorted((ROOT / "tests" / "data" / "old_environments").glob("*.py"))
"""The first line has the environment, and how much of the script is recorded."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_recording_leaves_the_script_as_it_is(tmp_path: Path, script: Path) -> None:
    name, _, wanted = script.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(": ")
    python, environment = _old_python(name), {**os.environ, **CPU_ONLY, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = functools.partial(subprocess.run, check=True, cwd=tmp_path, env=environment, timeout=600, capture_output=True)
    plain = run([str(python), str(script)])
    record = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--norms", "--", str(python), str(script)]
    assert run(record).stdout == plain.stdout
    found = (tmp_path / "run.jsonl").read_text(encoding="utf-8")
    counts = [found.count(f'"{field}": ') for field in ("rule", "optimizer", "warning")]
    assert wanted == "{} clips, {} steps, {} warnings".format(*counts)


def test_parity_finds_the_listed_differences_of_old_releases(tmp_path: Path) -> None:
    for name in ENVIRONMENTS:
        _old_python(name)
    command = [sys.executable, "-m", "unified_clip", "parity", "--suite", "parity/old", "--out", str(tmp_path)]
    found = subprocess.run(command, check=False, cwd=ROOT, timeout=900, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
