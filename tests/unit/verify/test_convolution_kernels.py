"""`unified-clip verify` and `compare` name kernels of convolutions whose axes have another order in a port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unified_clip
import unified_clip.numpy as uc
from unified_clip.cli import main
from unified_clip.compare.recordings import compare

STEP = """
import numpy as np
import unified_clip.numpy as uc
from numpy.lib.stride_tricks import sliding_window_view

def step(weights, batches):
    w = load(weights)
    for batch in batches:
        kernel = w["kernel"].transpose(TO_OIHW)
        windows = sliding_window_view(batch["x"], kernel.shape[2:], axis=(2, 3))  # N I H W kh kw
        out = np.tanh(np.einsum("nihwyx,oiyx->nohw", windows, kernel))
        error = (out - batch["y"]) * (1 - out**2)
        grad = np.einsum("nihwyx,nohw->oiyx", windows, error).transpose(np.argsort(TO_OIHW))
        grads, _ = uc.clip_by_global_norm({"kernel": grad, "bias": error.sum((0, 2, 3))}, 0.01)
        for name, each in grads.items():
            w[name] = w[name] - 0.125 * each
        yield dict(w), grads
"""
"""A convolution whose kernel has some order of axes. Tests replace TO_OIHW by the axes of PyTorch's order."""

KERAS = STEP.replace("TO_OIHW", "(3, 2, 0, 1)") + "\ndef load(weights):\n    return dict(weights)\n"
TORCH = STEP.replace("TO_OIHW", "(0, 1, 2, 3)") + (
    '\ndef load(weights):\n    kernel = weights["kernel"]\n    return {"kernel": LOAD, "bias": weights["bias"]}\n'
)

LOADS = {
    "kernel.transpose(3, 2, 0, 1)": None,
    "kernel.reshape(4, 2, 3, 3)": ("untransposed weight", "'kernel' are transposed, but not the order"),
    "kernel.transpose(3, 2, 1, 0)": ("other initial weights", "the weights of 'kernel' differ"),  # in no framework
}
"""The cause and its text, by how the port loads the kernel, which has the shape (3, 3, 2, 4)."""


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    source = np.random.default_rng(3)
    np.savez(tmp_path / "init.npz", kernel=source.normal(size=(3, 3, 2, 4)), bias=np.zeros(4))
    batches = {"x": source.normal(size=(3, 5, 2, 8, 8)), "y": source.normal(size=(3, 5, 4, 6, 6))}
    np.savez(tmp_path / "batches.npz", **batches)
    return ["--weights", str(tmp_path / "init.npz"), "--batches", str(tmp_path / "batches.npz"), "--format", "json"]


@pytest.mark.parametrize(("load", "expected"), LOADS.items())
def test_verify_names_a_kernel_in_a_wrong_order(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str], load: str, expected: tuple[str, str] | None
) -> None:
    (tmp_path / "keras.py").write_text(KERAS, encoding="utf-8")
    (tmp_path / "torch_.py").write_text(TORCH.replace("LOAD", load), encoding="utf-8")
    status = main(["verify", f"{tmp_path}/keras.py:step", f"{tmp_path}/torch_.py:step", "--max-ulp", "64", *options])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (expected is not None)
    assert [each["mistake"] for each in data["findings"]] == ([expected[0]] if expected else [])
    hint = "From Keras or TensorFlow to PyTorch: transpose(3, 2, 0, 1)"
    assert expected is None or (expected[1] in data["findings"][0]["text"] and hint in data["findings"][0]["fix"])


def record(path: Path, kernel: np.ndarray[Any, Any], size: float, framework: str = "numpy") -> Path:
    bias = np.linspace(-1.0, 1.0, 4)
    pairs = [(kernel, np.full(kernel.shape, size)), (bias, np.ones_like(bias))]
    with unified_clip.record(path, norms=True, names={"kernel": kernel, "bias": bias}):
        uc.GradientClipByGlobalNorm(1.0)(pairs)
    text = path.read_text(encoding="utf-8").replace('"framework": "numpy"', f'"framework": "{framework}"')
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("shape", "load", "kind"),
    [
        ((3, 3, 4, 1), lambda kernel: kernel.transpose(2, 3, 0, 1), "scaled gradients"),  # a depthwise convolution
        ((3, 3, 4, 1), lambda kernel: kernel.reshape(4, 1, 3, 3), "untransposed weight"),
        ((1, 1, 4, 4), lambda kernel: kernel.transpose(3, 2, 0, 1), "scaled gradients"),
        ((1, 1, 4, 4), lambda kernel: kernel.transpose(2, 3, 0, 1), "untransposed weight"),
    ],
)
def test_compare_knows_which_framework_has_the_channels_last(
    tmp_path: Path, shape: tuple[int, ...], load: Callable[[Any], Any], kind: str
) -> None:
    kernel = np.random.default_rng(5).normal(size=shape)
    old = record(tmp_path / "old.jsonl", kernel, 0.5, "tensorflow")
    new = record(tmp_path / "new.jsonl", np.ascontiguousarray(load(kernel)), 0.25, "torch")
    (cause,) = compare(old, new).findings
    assert cause.kind == kind
    if kind == "untransposed weight":
        axes = "(2, 3, 0, 1)" if shape[-1] == 1 else "(3, 2, 0, 1)"
        assert f"From Keras or TensorFlow to PyTorch: transpose{axes}" in cause.fix
