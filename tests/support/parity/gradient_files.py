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
laughs = [torch.ones(1)]
for _ in range(60):
    laughs = [laughs, laughs]
torch.save(laughs, "laughs.pt")
Path("cut.pt").write_bytes(Path("nested.pt").read_bytes()[:-100])
legacy = Path("legacy.bin").read_bytes()
Path("cut.bin").write_bytes(legacy[:legacy.index(b"OrderedDict") + 5])
Path("page.bin").write_bytes(b"<!DOCTYPE html> the page of an error")
Path("numbers.bin").write_bytes(legacy[:-4])
torch.save({"w": torch.ones(1)}, "protocol.pt", pickle_protocol=4)
for name in ("list.pth", "legacy.bin", "evil.pt", "csr.pt", "both.pt", "eight.pt", "twice.pt", "cut.pt",
             "stretched.pt", "cut.bin", "page.bin", "numbers.bin", "protocol.pt"):
    converted("torch", name)
os.environ["UNIFIED_CLIP_MAX_ENTRIES"] = "50000"
converted("torch", "laughs.pt")
del os.environ["UNIFIED_CLIP_MAX_ENTRIES"]

from safetensors.torch import save_file
save_file({name: tensor for name, tensor in made.items() if name != "complex128"}, "torch.safetensors")

model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
exec(example("PyTorch"))
converted("torch", "gradients.pt")
""",
    "paddle": """
import paddle

others = {"nested": {"a": [made["float32"]]}, "steps": paddle.ones([2], "int64"), "rate": 0.1}
paddle.save({**made, **others}, "all.pdparams")
paddle.save({"w": made["float32"], "large": paddle.arange(40000, dtype="float32")}, "early.pdparams", protocol=2)
paddle.save(paddle.arange(40000, dtype="float32"), "large.pdparams")
model = paddle.nn.Linear(2, 1)
model(paddle.ones([1, 2])).sum().backward()
optimizer = paddle.optimizer.Adam(parameters=model.parameters())
optimizer.step()
paddle.save(optimizer.state_dict(), "adam.pdopt")
exec(example("Paddle"))

Path("paddle_function.py").write_text('''
import paddle

def gradients():
    weight = paddle.ones([5, 2])
    weight.stop_gradient = False
    paddle.nn.functional.embedding(paddle.to_tensor([4, 4]), weight, sparse=True).backward()
    yield "rows", weight.grad
    yield "short", paddle.ones([2], "bfloat16")
''')
converted("function", str(Path("paddle_function.py:gradients").absolute()))
""",
    "tensorflow": """
import h5py, keras, shutil, zipfile, zlib
import tensorflow as tf

variables = {name: tf.Variable(tensor) for name, tensor in made.items()}
checkpoint = tf.train.Checkpoint(**variables, text=tf.Variable("x"), steps=tf.Variable(3))
checkpoint.save("checkpoints/all")
checkpoint.write("prefix")
Path("cut.index").write_bytes(Path("prefix.index").read_bytes()[:50])
converted("tensorflow", "prefix")
converted("tensorflow", "cut")

layers = [keras.layers.Dense(2, name="first"), keras.layers.Dense(1, dtype="bfloat16")]
model = keras.Sequential([keras.Input((2,)), *layers])
model.compile("adam")
model.save("model.keras")
model.save_weights("keras.weights.h5")
warnings.simplefilter("ignore")
model.save("old.h5")
shutil.copy("old.h5", "old.keras")  # as Keras 2 wrote files with this suffix
np.savez("expected.npz", *[np.asarray(each) for each in model.trainable_variables])
with zipfile.ZipFile("deflated.keras", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write("keras.weights.h5", "model.weights.h5")
with h5py.File("hollow.h5", "w") as file:
    file.create_dataset("w", (1 << 28,), "f4")
with h5py.File("vast.h5", "w") as file:
    file.create_dataset("w", (1 << 40,), "f4")
Path("secret").write_bytes(bytes(8))
with h5py.File("external.h5", "w") as file:
    file.create_dataset("w", (2,), "f4", external=[("secret", 0, 8)])
with h5py.File("linked.h5", "w") as file:
    file["w"] = h5py.ExternalLink("vast.h5", "w")
with h5py.File("loop.h5", "w") as file:
    file["g/w"] = np.ones(2, "f4")
    file["g/itself"], file["x/again"], file["soft"] = file["/"], file["g/w"], h5py.SoftLink("/g/w")
with h5py.File("packed.h5", "w") as file:
    numbers = np.arange(600, dtype="f4").reshape(30, 20)
    file.create_dataset("all", data=numbers, chunks=(7, 9), compression="gzip", shuffle=True, fletcher32=True)
    file.create_dataset("pieces", data=numbers, chunks=(7, 9))
    file.create_dataset("as it is", (2,), "f4", chunks=(2,), compression="gzip").id.write_direct_chunk(
        (0,), np.array([3, 4], "f4").tobytes(), 1
    )
with h5py.File("bomb.h5", "w") as file:
    dataset = file.create_dataset("w", (2,), "f4", chunks=(2,), compression="gzip")
    dataset.id.write_direct_chunk((0,), zlib.compress(bytes(10_000_000)))
with h5py.File("unwritten.h5", "w") as file:
    file.create_dataset("w", (4,), "f4", chunks=(2,), compression="gzip")[:2] = 1
with h5py.File("lzf.h5", "w") as file:
    file.create_dataset("w", data=np.ones(4, "f4"), compression="lzf")
Path("elsewhere").mkdir()
Path("elsewhere/checkpoint").write_text(f'model_checkpoint_path: "{Path("prefix").absolute()}"')
converted("tensorflow", "elsewhere")
for name in ("vast.h5", "external.h5", "linked.h5", "loop.h5"):
    converted("keras", name)
for name in ("packed.h5", "bomb.h5", "unwritten.h5", "lzf.h5"):
    converted("keras", name)
for name in ("model.keras", "keras.weights.h5", "old.h5", "old.keras", "deflated.keras", "hollow.h5"):
    converted("keras", name)

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
