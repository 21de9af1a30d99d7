"""Gradients with known bits, and programs that save them with each framework, for the tests of files."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from unified_clip.tensors.files import memmap
from unified_clip.tensors.types import STORAGE, Dense, Gradient, Sparse, to_numpy

PAGE = Path(__file__).parents[3] / "docs" / "gradient_files.md"

BITS = np.random.default_rng(6).integers(0, 256, 96, np.uint8)
"""Random bytes, which are numbers of every kind in each dtype."""

DENSE = {
    dtype: Dense(dtype, BITS.view(kind).reshape(3, 2, -1, *([2] if dtype.startswith("complex") else [])))
    for dtype, kind in STORAGE.items()
    if dtype != "int64"
}

SPARSE = Sparse(np.array([2, 0, 2]), Dense("float32", BITS[:48].view("f4").reshape(3, 4)), (5, 4))

SHAPES = {"empty": Dense("float32", np.zeros((0, 3), "f4")), "scalar": Dense("float64", np.array(-0.0))}

ARRAYS = {name: to_numpy(gradient) for name, gradient in (DENSE | SHAPES).items()}

Found = dict[str, Gradient]


def bits(gradient: Gradient) -> tuple[object, ...]:
    """Return all bits of a gradient, with NaN payloads and signs of zeros."""
    if isinstance(gradient, Sparse):
        return gradient.rows.tolist(), bits(gradient.values), gradient.shape
    assert gradient is not None
    return gradient.dtype, gradient.shape, gradient.array.tobytes()


def converted(directory: Path, name: str) -> Found:
    return memmap.load(directory / "converted" / name)


def refused(directory: Path, name: str) -> str:
    failed: str = json.loads((directory / "converted" / name / memmap.FAILED).read_text(encoding="utf-8"))["error"]
    return failed


def all_bits(gradients: Found) -> dict[str, tuple[object, ...]]:
    return {name: bits(gradient) for name, gradient in gradients.items()}


WHOLE = all_bits({**DENSE, **SHAPES})


def write_safetensors(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def example(heading: str) -> str:
    code = re.search(
        rf"^#+ {heading}\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert code, heading
    return code[1]


START = """
import os, sys, warnings
from pathlib import Path
import numpy as np
from support.parity.gradient_files import DENSE, SHAPES, SPARSE, example
from unified_clip.tensors.files import convert_worker
from unified_clip.tensors.frameworks.{framework} import Converter

def converted(kind, name):
    "Convert as the worker does, in this process."
    out = Path("converted", Path(name).name.partition(":")[0])
    out.mkdir(parents=True)
    convert_worker.main([kind, name, str(out)])

made = {{name: Converter().make(gradient) for name, gradient in (DENSE | SHAPES).items()}}
os.chdir({directory!r})
"""

PROGRAMS = {
    "torch": """
import torch

class Evil:
    def __reduce__(self):
        return (os.mkdir, ("run_by_torch",))

torch.save({"model": {**made, "sparse": Converter().sparse(SPARSE)}, "epoch": 3, "steps": torch.tensor(7),
            "lists": [None, [torch.ones(1)]]}, "nested.pt")
torch.save([torch.ones(2), torch.zeros(1)], "list.pth")
torch.save(made, "legacy.bin", _use_new_zipfile_serialization=False)
torch.save(Evil(), "evil.pt")
torch.save({"w": torch.eye(2).to_sparse_csr()}, "csr.pt")
torch.save({"w": torch.eye(2).to_sparse()}, "both.pt")
torch.save({"w": torch.ones(2).to(torch.float8_e4m3fn)}, "eight.pt")
torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "twice.pt")
torch.save({"w": torch.ones(1).expand(1 << 40)}, "stretched.pt")
Path("cut.pt").write_bytes(Path("nested.pt").read_bytes()[:-100])
Path("cut.bin").write_bytes(Path("legacy.bin").read_bytes()[:-4])
Path("page.bin").write_bytes(b"<!DOCTYPE html> the page of an error")
for name in ("list.pth", "legacy.bin", "evil.pt", "csr.pt", "both.pt", "eight.pt", "twice.pt", "stretched.pt", "cut.pt",
             "cut.bin", "page.bin"):
    converted("torch", name)

from safetensors.torch import save_file
save_file({name: tensor for name, tensor in made.items() if name != "complex128"}, "torch.safetensors")

model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
exec(example("PyTorch"))
converted("torch", "gradients.pt")
""",
    "paddle": """
import paddle

model = paddle.nn.Linear(2, 1)
model(paddle.ones([1, 2])).sum().backward()
exec(example("Paddle"))
save_file({"short": paddle.ones([2], "bfloat16")}, "short.safetensors")

paddle.save({"short": paddle.ones([2], "bfloat16"), "steps": 3, "nested": [paddle.zeros([1])]}, "old.pdparams")
Path("paddle_function.py").write_text('''
import paddle

def gradients():
    weight = paddle.ones([5, 2])
    weight.stop_gradient = False
    paddle.nn.functional.embedding(paddle.to_tensor([4, 4]), weight, sparse=True).backward()
    yield "rows", weight.grad
    yield paddle.load("old.pdparams")
''')
converted("function", str(Path("paddle_function.py:gradients").absolute()))
""",
    "tensorflow": """
import tensorflow as tf

with tf.GradientTape() as tape:
    values = {"table": tf.ones((3, 2)), "kernel": [[1.0], [2.0]], "bias": [0.5], "unused": 1.0}
    weights = [tf.Variable(value, name=name) for name, value in values.items()]
    weights.append(tf.Variable([0.25], name="bias"))
    loss = tf.reduce_sum(tf.gather(weights[0], [1, 1]) @ weights[1] + weights[2] * weights[4])
exec(example("TensorFlow"))

Path("tensorflow_function.py").write_text('''
import tensorflow as tf

def gradients():
    slices = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 1]), tf.constant([4, 3]))
    return {"table": slices, "layers": [tf.zeros(2), {"bias": tf.Variable([1.0])}]}
''')
converted("function", str(Path("tensorflow_function.py:gradients").absolute()))
""",
}
