"""A user's gradients are read with every bit, take no memory before they are used, and nothing in files is run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradient_files import DENSE, PROGRAMS, SHAPES, SPARSE, START, bits, example
from kits import in_a_new_process

from unified_clip.parity import adapter, convert, files, mapped, tensor_file
from unified_clip.parity.items import select
from unified_clip.parity.tensors import Dense, Gradient, Sparse, UnreadableError

Found = dict[str, Gradient]

ARRAYS = {name: adapter.to_numpy(gradient) for name, gradient in (DENSE | SHAPES).items()}


def saved_by(framework: str) -> Any:
    """A fixture: the directory where a framework's program has saved its files."""

    @pytest.fixture(scope="module", name=f"{framework}_files")
    def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp(framework)
        in_a_new_process(START.format(framework=framework, directory=str(path)) + PROGRAMS[framework])
        return path

    return directory


torch_files, paddle_files, tensorflow_files = map(saved_by, ("torch", "paddle", "tensorflow"))


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Found]:
    """`files.read` with scratch space."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return lambda path, **options: files.read(path, scratch, **options)


def converted(directory: Path, name: str) -> Found:
    return mapped.load(directory / "converted" / name)


def refused(directory: Path, name: str) -> str:
    failed: str = json.loads((directory / "converted" / name / mapped.FAILED).read_text(encoding="utf-8"))["error"]
    return failed


def all_bits(found: Found) -> dict[str, tuple[object, ...]]:
    return {name: bits(gradient) for name, gradient in found.items()}


WHOLE = all_bits({**DENSE, **SHAPES})


def write_safetensors(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


# -- every format, every dtype, every bit


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy(tmp_path: Path, read: Callable[..., Found], save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    found = read(tmp_path / "a.npz")
    assert all_bits(found) == WHOLE
    assert list(found) == list(WHOLE)


def test_arrays_in_other_orders_of_elements_and_bytes(tmp_path: Path, read: Callable[..., Found]) -> None:
    columns, swapped = ARRAYS["complex64"].T, ARRAYS["float32"].astype(">f4")
    np.savez(tmp_path / "a.npz", columns=columns, swapped=swapped)
    found = read(tmp_path / "a.npz")
    assert bits(found["columns"]) == bits(adapter.from_numpy(np.ascontiguousarray(columns)))
    assert bits(found["swapped"]) == WHOLE["float32"]


def test_safetensors(torch_files: Path, read: Callable[..., Found]) -> None:
    found = read(torch_files / "torch.safetensors")
    assert all_bits(found) == {name: whole for name, whole in WHOLE.items() if name != "complex128"}
    text = (torch_files / "torch.safetensors").read_bytes()[8:].decode(errors="replace")
    assert list(found) == list(json.JSONDecoder().raw_decode(text)[0])


def test_files_of_torch(torch_files: Path, read: Callable[..., Found]) -> None:
    found = all_bits(read(torch_files / "nested.pt"))
    assert found.pop("lists.1.0") == bits(Dense("float32", np.ones(1, "f4")))
    assert found.pop("model.sparse") == bits(SPARSE)
    assert found == {f"model.{name}": whole for name, whole in WHOLE.items()}
    assert all_bits(converted(torch_files, "legacy.bin")) == WHOLE
    assert all_bits(converted(torch_files, "list.pth")) == {
        "gradient 0": bits(Dense("float32", np.ones(2, "f4"))),
        "gradient 1": bits(Dense("float32", np.zeros(1, "f4"))),
    }
    for name in ("csr.pt", "both.pt"):  # sparse in another way than by rows
        assert all_bits(converted(torch_files, name)) == {"w": bits(Dense("float32", np.eye(2, dtype="f4")))}


def test_files_of_paddle(paddle_files: Path, read: Callable[..., Found]) -> None:
    found = all_bits(read(paddle_files / "all.pdparams"))
    assert found.pop("nested.a.0") == WHOLE["float32"]
    assert found == WHOLE
    numbers = bits(Dense("float32", np.arange(40000, dtype="f4")))
    assert all_bits(read(paddle_files / "early.pdparams")) == {"w": WHOLE["float32"], "large": numbers}
    assert all_bits(read(paddle_files / "large.pdparams")) == {"gradient 0": numbers}
    assert {name.partition(".")[0] for name in read(paddle_files / "adam.pdopt")} == {"linear_0"}


def test_checkpoints_of_tensorflow(tensorflow_files: Path, read: Callable[..., Found]) -> None:
    assert all_bits(converted(tensorflow_files, "prefix")) == dict(sorted(WHOLE.items()))
    found = read(tensorflow_files / "checkpoints", only=["float*"])
    assert all_bits(found) == {name: WHOLE[name] for name in ("float16", "float32", "float64")}


@pytest.mark.parametrize(("name", "source"), [("all-1", "all-1"), ("all-1.index", "all-1"), (".", "")])
def test_a_checkpoint_is_named_by_its_prefix_its_index_or_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    (tmp_path / "all-1.index").write_text("x")
    (tmp_path / "checkpoint").write_text("x")
    asked: list[str] = []
    monkeypatch.setattr(files, "_convert", lambda *what: asked.extend(what[:2]) or {"a": None})
    files.read(tmp_path / name, tmp_path)
    assert asked == ["tensorflow", str(tmp_path / source)]


@pytest.mark.parametrize(
    ("name", "order"), [("model.keras", [0, 1, 2, 3]), ("keras.weights.h5", [0, 1, 2, 3]), ("old.h5", [3, 2, 1, 0])]
)
def test_files_of_keras(tensorflow_files: Path, read: Callable[..., Found], name: str, order: list[int]) -> None:
    weights = list(read(tensorflow_files / "expected.npz").values())
    found = converted(tensorflow_files, name)
    model = [each for key, each in found.items() if not key.startswith("optimizer")]
    assert [bits(each) for each in model] == [bits(weights[index]) for index in order]
    assert {each.dtype for each in model if each} == {"float32", "bfloat16"}


def test_sparse_gradients(
    tmp_path: Path, paddle_files: Path, tensorflow_files: Path, read: Callable[..., Found]
) -> None:
    header = {
        "__metadata__": {"sparse": '{"w": [5, 4]}'},
        "w.indices": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
        "w.values": {"dtype": "F32", "shape": [3, 4], "data_offsets": [24, 72]},
    }
    data = SPARSE.rows.tobytes() + SPARSE.values.array.tobytes()
    assert all_bits(read(write_safetensors(tmp_path / "a.safetensors", header, data))) == {"w": bits(SPARSE)}
    rows = converted(paddle_files, "paddle_function.py")["rows"]
    assert bits(rows) == bits(Sparse(np.array([4, 4]), Dense("float32", np.ones((2, 2), "f4")), (5, 2)))
    table = converted(tensorflow_files, "tensorflow_function.py")["table"]
    assert bits(table) == bits(Sparse(np.array([1, 1]), Dense("float32", np.ones((2, 3), "f4")), (4, 3)))


# -- where they lie


def array_of(gradient: Gradient) -> np.memmap[Any, Any]:
    assert isinstance(gradient, Dense)
    assert isinstance(gradient.array, np.memmap)
    return gradient.array


def in_its_file(array: np.memmap[Any, Any]) -> bytes:
    """What lies where an array says that it does."""
    assert array.filename is not None
    return Path(array.filename).read_bytes()[array.offset : array.offset + array.nbytes]


def test_what_can_be_mapped_stays_where_it_is(tmp_path: Path, paddle_files: Path, read: Callable[..., Found]) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    tensor_file.save(tmp_path / "a.safetensors", {"a": DENSE["bfloat16"], "b": DENSE["float64"]})
    for path in (tmp_path / "a.npz", tmp_path / "a.safetensors", paddle_files / "large.pdparams"):
        for gradient in read(path).values():
            if gradient is not None and gradient.shape != (0, 3):
                array = array_of(gradient)
                assert Path(str(array.filename)) == path
                assert in_its_file(array) == array.tobytes()
                assert not array.flags.writeable


def test_what_cannot_is_mapped_in_scratch_space(tmp_path: Path, read: Callable[..., Found]) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=ARRAYS["float32"], b=ARRAYS["float64"])
    for gradient in read(tmp_path / "a.npz").values():
        array = array_of(gradient)
        assert Path(str(array.filename)).is_relative_to(tmp_path / "scratch")
        assert in_its_file(array) == array.tobytes()
        assert not array.flags.writeable


LARGE_FILES = """
import json, os, pickle, resource, struct, sys, zipfile
from pathlib import Path
import numpy as np
from unified_clip.parity import files

SIZE = 5_000_000_000  # bytes of one tensor: only holes, on a disk

def hole(file):
    file.seek(SIZE - 8, 1)
    file.write(np.ones(2, "f4").tobytes())

class Array:
    def __reduce__(self):
        make = np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b")
        return *make, (1, (SIZE // 4,), np.dtype("f4"), False, bytes(100_000))

def entry(start, stop, shape):
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}

header = {f"w{i}": entry(4 * i, 4 * i + 4, [1]) for i in range(200)}
header["large"] = entry(800, 800 + SIZE, [SIZE // 4])
header["other"] = entry(800 + SIZE, 800 + 2 * SIZE, [2, SIZE // 8])
text = json.dumps(header).encode()
with open("a.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + bytes(800))
    hole(file)
    hole(file)

with zipfile.ZipFile("a.npz", "w") as archive:
    for name in ("large", "other"):
        with archive.open(name + ".npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, dict(descr="<f4", fortran_order=False, shape=(SIZE // 4,)))
            hole(archive.fp)
            member._file_size += SIZE
            member._compress_size += SIZE

short = struct.pack("<I", 100_000) + bytes(100_000)
head, tail = pickle.dumps({"large": Array()}, 4).split(pickle.BINBYTES + short)
with open("a.pdparams", "wb") as file:
    file.write(head + pickle.BINBYTES8 + struct.pack("<Q", SIZE))
    hole(file)
    file.write(tail)

used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 50_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in ("a.safetensors", "a.npz", "a.pdparams"):
    found = files.read(Path(name), Path("."), only=["[lw]*"])
    array = found["large"].array
    assert array.nbytes == SIZE and array[0] == 0 and array[-1] == 1, name
    assert len(found) == (201 if name == "a.safetensors" else 1)
    assert os.stat(name).st_blocks * 512 < 1_000_000
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000, "kilobytes"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits and measures memory as Linux does")
def test_a_file_of_10_gb_takes_no_memory(tmp_path: Path) -> None:
    in_a_new_process(f"import os\nos.chdir({str(tmp_path)!r})\n{LARGE_FILES}")


# -- which tensors


def test_integers_and_text_are_left_out_but_for_what_is_named_in_full(
    tmp_path: Path, read: Callable[..., Found]
) -> None:
    steps, mask = np.arange(3), np.array([True])
    np.savez(tmp_path / "a.npz", weight=ARRAYS["float32"], steps=steps, mask=mask, note="text", short=np.int32(1))
    assert list(read(tmp_path / "a.npz")) == ["weight"]
    assert list(read(tmp_path / "a.npz", only=["*"])) == ["weight"]
    assert all_bits(read(tmp_path / "a.npz", only=["steps"])) == {"steps": bits(Dense("int64", steps))}
    with pytest.raises(UnreadableError, match="'short' has the dtype int32"):
        read(tmp_path / "a.npz", only=["short"])
    with pytest.raises(UnreadableError, match=r"a\.npz: it holds no gradients"):
        read(tmp_path / "a.npz", only=["mas?"])


def test_patterns_choose_names(tmp_path: Path, read: Callable[..., Found]) -> None:
    values = {"encoder/a": np.ones(1), "encoder/b": np.ones(1), "head[0]": np.ones(1), "head": np.ones(1)}
    np.savez(tmp_path / "a.npz", **values)
    assert list(read(tmp_path / "a.npz", only=["head", "enc*"])) == ["encoder/a", "encoder/b", "head"]
    assert list(read(tmp_path / "a.npz", only=["head[0]"])) == ["head[0]"]
    with pytest.raises(UnreadableError, match=r"only = 'decoder\*' matches no tensor; there are 4, such as 'enc"):
        read(tmp_path / "a.npz", only=["head", "decoder*"])


# -- functions

FUNCTIONS = """
import numpy as np
import beside

one, two = np.ones(2, np.float32), np.zeros(1)

def names(): return {"a": one, "b": {"c": [two, 3.0, None]}}
def pairs(): return [("a", one), ("b", two)]
def arrays(): return [one, None, two]
def array(): return one
def generated():
    yield "a", one
    yield two
def nothing(): return [1.0, None]
def wrong():
    yield one
    raise ValueError("no data")
def repeated(): return [("a", one), ("a", two)]
def unheard_of(): import unheard_of
def leaves(): raise SystemExit
def hangs():
    while True: pass
def kills(): import os, signal; os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def grads(tmp_path: Path) -> Path:
    (tmp_path / "grads.py").write_text(FUNCTIONS, encoding="utf-8")
    (tmp_path / "beside.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("names", ["a", "b.c.0"]),
        ("pairs", ["a", "b"]),
        ("arrays", ["gradient 0", "gradient 2"]),
        ("array", ["gradient 0"]),
        ("generated", ["a", "gradient 1"]),
    ],
)
def test_a_function_may_give_gradients_in_any_form(
    grads: Path, monkeypatch: pytest.MonkeyPatch, function: str, names: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = dict(select(convert.from_function(f"{grads / 'grads.py'}:{function}", grads), ()))
    one, two = Dense("float32", np.ones(2, "f4")), Dense("float64", np.zeros(1))
    assert list(all_bits(found).items()) == list(zip(names, [bits(one), bits(two)], strict=False))


JAX = """
import os
import jax, jax.numpy as jnp
from jax.experimental.sparse import BCOO

os.chdir(os.path.dirname(__file__))
print("noise")
rows = BCOO((jnp.ones((2, 3)), jnp.array([[1], [1]])), shape=(4, 3))
params = {"layer": {"bias": jnp.ones(1), "kernel": jnp.ones((2, 1), jnp.bfloat16)}}

def loss(params):
    return jnp.sum(jnp.ones((1, 2)) @ params["layer"]["kernel"] + params["layer"]["bias"])

def give():
    return [("short", jnp.ones(2, jnp.bfloat16)), {"rows": rows, "process": jnp.float32(os.getpid())}]
"""


def test_a_function_runs_in_a_process_of_its_own(tmp_path: Path, read: Callable[..., Found]) -> None:
    (tmp_path / "grads.py").write_text(JAX + example("JAX"), encoding="utf-8")
    found = files.call("grads.py:give", tmp_path, tmp_path)
    assert list(found) == ["short", "rows", "process"]
    assert bits(found["short"]) == bits(Dense("bfloat16", np.full(2, 0x3F80, "u2")))
    assert bits(found["rows"]) == bits(Sparse(np.array([1, 1]), Dense("float32", np.ones((2, 3), "f4")), (4, 3)))
    assert array_of(found["process"]) != os.getpid()
    saved = read(tmp_path / "gradients.npz")
    assert {name: (each.dtype, each.shape) for name, each in saved.items() if each} == {
        "layer.bias": ("float32", (1,)),
        "layer.kernel": ("bfloat16", (2, 1)),
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", r"grads\.py: wrong, line 17: ValueError: no data$"),
        ("absent", r"grads\.py: absent, AttributeError: .* no attribute 'absent'"),
        ("nothing", r"grads\.py: nothing gives no gradients"),
        ("repeated", r"grads\.py: 'a' is there twice"),
        ("unheard_of", r"grads\.py: it imports something, and .* says: No module named 'unheard_of'; name an interpr"),
        ("leaves", r"grads\.py: the process that reads it left nothing"),
        ("kills", r"grads\.py: the process that reads it ended: signal 9 \(SIGKILL\)"),
        ("hangs", r"grads\.py: nothing after 2 seconds"),
        ("", r"'grads\.py:' names no Python file and a function in it; write grads\.py:gradients"),
    ],
)
def test_a_function_that_gives_no_gradients_is_told(grads: Path, function: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        files.call(f"grads.py:{function}", grads, grads, timeout=2 if function == "hangs" else 60)


# -- what is refused


def test_an_interpreter_without_the_framework_is_told(tmp_path: Path, read: Callable[..., Found]) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    (tmp_path / "a.pt").write_bytes(b"PK")
    with pytest.raises(
        UnreadableError,
        match=rf"a\.pt: PyTorch is needed to read it, and {python} says: No module named 'torch'; name an interpreter"
        r" that can with python = under \[frameworks\.torch\] in suite\.toml",
    ):
        read(tmp_path / "a.pt", pythons={"torch": str(python)})
    with pytest.raises(UnreadableError, match=r"a\.pt: .*absent cannot be started: No such file"):
        read(tmp_path / "a.pt", pythons={"torch": str(tmp_path / "absent")})


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {**ENTRY, "data_offsets": [8, 16]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": ENTRY}, 7, "it has 7. bytes, and by its header 7.: it was cut short or damaged"),
        ({"a": ENTRY}, 9, "it was cut short or damaged"),
        (
            {"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}},
            12,
            r"'b' has data_offsets \[4, 12\], and the tensor before",
        ),
        ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [9, 17]}}, 17, "'b' has data_offsets"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, 0, "'a' is float32 of shape"),
        ({"a": {**ENTRY, "shape": [3]}}, 8, r"'a' is float32 of shape \[3\], and has 8 bytes"),
        ({"a": {**ENTRY, "shape": [-2]}}, 8, "'a' has no dtype, shape and two data_offsets"),
        ({"a": {"dtype": "F32"}}, 8, "'a' has no dtype, shape and two data_offsets"),
        ({"a": 1}, 8, "'a' has no dtype, shape and two data_offsets"),
        (
            {"a": {**ENTRY, "dtype": "F8_E4M3"}},
            8,
            "'a' has the dtype F8_E4M3, and not float16, .*; choose other tensors",
        ),
        (b'{"a": %s, "a": %s}' % (json.dumps(ENTRY).encode(), json.dumps(NEXT).encode()), 16, "'a' is there twice"),
        (b"[]", 0, "no table of tensors"),
        (b"{'a'", 0, "its header is no JSON"),
        (b"[" * 100_000, 0, "its header is no JSON"),
        ({}, 0, "it holds no gradients"),
        ({"__metadata__": {"sparse": "{"}}, 0, "sparse in its metadata is no JSON object"),
        ({"__metadata__": {"sparse": '{"x": 4}'}}, 0, "sparse in its metadata is no JSON object"),
        (
            {"__metadata__": {"sparse": '{"x": [4]}'}, "a": ENTRY},
            8,
            r"'x' is sparse .* no x\.indices of int64, and x\.values",
        ),
        (
            {"__metadata__": {"sparse": '{"x": [4]}'}, "x.values": ENTRY},
            8,
            r"'x' is sparse .* no x\.indices of int64, and x\.values",
        ),
    ],
)
def test_safetensors_that_are_not_whole(
    tmp_path: Path, read: Callable[..., Found], header: Any, size: int, message: str
) -> None:
    with pytest.raises(UnreadableError, match=rf"^a\.safetensors: .*{message}"):
        read(write_safetensors(tmp_path / "a.safetensors", header, bytes(size)))


@pytest.mark.parametrize(
    "data", [b"{}", struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"]
)
def test_safetensors_that_end_in_their_header(tmp_path: Path, read: Callable[..., Found], data: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(
        UnreadableError, match=f"it has {len(data)} bytes, and its header .*: it is no safetensors file, or was"
    ):
        read(tmp_path / "a.safetensors")


def edited_npz(path: Path, edit: Callable[[bytes], bytes], save: Callable[..., None] = np.savez) -> Path:
    save(path, weight=np.ones(1000, np.float32))
    path.write_bytes(edit(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("save", "edit", "message"),
    [
        (np.savez, lambda data: data[:-30], r"cannot be read: BadZipFile: File is not a zip file"),
        (np.savez, lambda data: data[1000:], r"cannot be read: .*; save it again"),
        (
            np.savez,
            lambda data: data.replace(b"(1000,)", b"(9999,)"),
            "'weight' has 4128 bytes, and its header describes 40124",
        ),
        (
            np.savez,
            lambda data: data.replace(b"NUMPY\x01", b"NUMPY\x03"),
            r"'weight' is no array: .*save arrays with np.savez",
        ),
        (
            np.savez,
            lambda data: data.replace(b"{'descr': '<f4'", b"((((((((((((((("),
            r"'weight' is no array: .*save arrays with np.savez",
        ),
        (np.savez, lambda data: data.replace(b"weight.npy", b"weight.txt"), r"'weight.txt' is no array"),
        (
            np.savez_compressed,
            lambda data: data[:60] + b"\xff" * 9 + data[69:],
            "cannot be read: error: Error -3 while decompressing",
        ),
    ],
)
def test_arrays_of_numpy_that_are_not_whole(
    tmp_path: Path,
    read: Callable[..., Found],
    save: Callable[..., None],
    edit: Callable[[bytes], bytes],
    message: str,
) -> None:
    with pytest.raises(UnreadableError, match=rf"^a\.npz.*{message}"):
        read(edited_npz(tmp_path / "a.npz", edit, save))


def test_python_objects_and_structures_are_refused_where_they_are_chosen(
    tmp_path: Path, read: Callable[..., Found]
) -> None:
    objects, structured = np.array([{}], object), np.zeros(2, [("x", "f4")])
    np.savez(tmp_path / "a.npz", objects=objects, structured=structured, weight=np.ones(1))
    assert list(read(tmp_path / "a.npz", only=["weight"])) == ["weight"]
    for name, dtype in (("objects", "object"), ("structured", "void32")):
        with pytest.raises(UnreadableError, match=f"'{name}' has the dtype {dtype}, and not float16"):
            read(tmp_path / "a.npz", only=[name])


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, torch_files: Path, read: Callable[..., Found]) -> None:
    np.savez(tmp_path / "a.npz", one=np.ones(1), two=np.ones(1))
    data = (tmp_path / "a.npz").read_bytes().replace(b"two.npy", b"one.npy")
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UnreadableError, match=r"a\.npz: 'one' is there twice; give each gradient a name of its own"):
        read(tmp_path / "a.npz")
    assert "'a.b' is there twice" in refused(torch_files, "twice.pt")


def test_an_array_that_expands_to_more_than_it_says_is_not_expanded(
    tmp_path: Path, read: Callable[..., Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np.lib.format, "read_array", lambda *all, **options: pytest.fail("it was expanded"))

    def save(shape: str, size: int, written: bytes) -> Path:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", b"\x93NUMPY\x01\x00v\x00" + header + written)
            archive.infolist()[0].file_size += size
        return tmp_path / "a.npz"

    with pytest.raises(UnreadableError, match="'a' has 10000128 bytes, and its header describes 136"):
        read(save("(2,)", 0, bytes(10_000_000)))
    with pytest.raises(UnreadableError, match=r"'a' is said to expand from .* bytes to 4000000000128"):
        read(save("(1000000000000,)", 4 * 10**12 - 8, bytes(8)))


def test_arrays_compressed_in_other_ways_are_refused(tmp_path: Path, read: Callable[..., Found]) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    with pytest.raises(UnreadableError, match="'a' is encrypted or compressed otherwise"):
        read(tmp_path / "a.npz")


class Runs:
    """What runs something when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = function, arguments, state

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        return self.reduced


MADE, MADE_OF, _ = np.ones(2).__reduce__()
SHORT_OF_BYTES = Runs(MADE, *MADE_OF, state=(1, (3,), np.dtype("f8"), False, bytes(16)))

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (os.mkdir, ("{marker}",), "it is a pickle that calls posix.mkdir, which is not done"),
        (eval, ("__import__('os').mkdir('{marker}')",), "it is no whole pickle: TypeError"),
        (eval, ("__import__('os').mkdir('{marker}')", {}), "it is no whole pickle: KeyError"),
        (exec, ("import os; os.mkdir('{marker}')",), "calls (builtins|__builtin__).exec"),
    ],
)
def test_a_pickle_is_not_run(
    tmp_path: Path,
    read: Callable[..., Found],
    function: Callable[..., Any],
    arguments: Sequence[Any],
    message: str,
    protocol: int,
) -> None:
    marker, path = tmp_path / "marker", tmp_path / "a.pdparams"
    given = [each.format(marker=marker) if isinstance(each, str) else each for each in arguments]
    path.write_bytes(pickle.dumps({"w": np.ones(2), "x": Runs(function, *given)}, protocol))
    with pytest.raises(UnreadableError, match=rf"^a\.pdparams: .*{message}"):
        read(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"w": np.ones(2)}, 4)[:-20], "it is no whole pickle"),
        (pickle.dumps({"w": np.ones(50_000)}, 4)[:-20], "it is no whole pickle"),
        (b"no pickle", "it is no whole pickle"),
        (pickle.dumps({"w": SHORT_OF_BYTES}, 4), r"an array of float64 and shape \(3,\) has 16 bytes"),
        (pickle.dumps(ENDLESS, 4), "it is no whole pickle: RecursionError"),
        (pickle.dumps({"w": np.array([{}], object)}, 4), "'w' has the dtype object"),
        (pickle.dumps({"w": np.ones(2), "UnpackBigParamInfor@@": {}}, 2), "save it with protocol 4"),
        (pickle.dumps({"LR_Scheduler": {"last_lr": np.float64(0.1)}}, 4), "it holds no gradients"),
    ],
)
def test_pickles_of_paddle_that_are_not_whole(
    tmp_path: Path, read: Callable[..., Found], data: bytes, message: str
) -> None:
    (tmp_path / "a.pdparams").write_bytes(data)
    with pytest.raises(UnreadableError, match=rf"^a\.pdparams: .*{message}"):
        read(tmp_path / "a.pdparams")


def test_what_converting_refuses(torch_files: Path, tensorflow_files: Path) -> None:
    assert refused(torch_files, "evil.pt").startswith("it holds posix.mkdir, and nothing but tensors is unpickled")
    assert not (torch_files / "run_by_torch").exists()
    assert "'w' has the dtype float8_e4m3fn" in refused(torch_files, "eight.pt")
    assert "cut short" in refused(torch_files, "cut.pt")
    assert "not an sstable" in refused(tensorflow_files, "cut")
    assert "uncompressed, as model.save writes it" in refused(tensorflow_files, "deflated.keras")
    assert "'w' is compressed, not whole, or in another file" in refused(tensorflow_files, "hollow.h5")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "there is no such file"),
        ("empty.npz", "the file is empty"),
        ("directory.npz", "it is a directory, and no checkpoint of TensorFlow; name a file"),
        ("notes.txt", r"it ends in none of \.safetensors, \.npz, .*\.pt, .*\.keras, .*; save gradients as docs/"),
    ],
)
def test_what_is_no_file_of_gradients_is_told(
    tmp_path: Path, read: Callable[..., Found], name: str, message: str
) -> None:
    (tmp_path / "empty.npz").touch()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "directory.npz").mkdir()
    with pytest.raises(UnreadableError, match=f"^{name}: {message}"):
        read(tmp_path / name)


# -- the page


def test_what_the_page_saves_is_read(
    torch_files: Path, paddle_files: Path, tensorflow_files: Path, read: Callable[..., Found]
) -> None:
    assert list(converted(torch_files, "gradients.pt")) == ["weight", "bias"]
    assert list(read(paddle_files / "gradients.pdparams")) == ["weight", "bias"]
    assert list(read(tensorflow_files / "gradients.npz")) == ["kernel:0", "bias:0"]


def test_the_function_of_the_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "grads.py").write_text(example("A function"), encoding="utf-8")
    assert list(files.call("grads.py:gradients", tmp_path, tmp_path)) == ["layer 0", "layer 1", "layer 2"]
