"""A user's gradients are read with every bit, and take no memory before they are used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.kits import in_a_new_process
from support.parity.gradient_files import (
    ARRAYS,
    DENSE,
    SPARSE,
    WHOLE,
    Found,
    all_bits,
    bits,
    converted,
    example,
    write_safetensors,
)

from unified_clip._kit import safetensors_files
from unified_clip.tensors import files
from unified_clip.tensors.files import convert_worker
from unified_clip.tensors.files.entries import select
from unified_clip.tensors.types import Dense, Gradient, Sparse, UnreadableError, from_numpy

# -- every format, every dtype, every bit


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy(tmp_path: Path, read: Callable[..., Found], save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    result = read(tmp_path / "a.npz")
    assert all_bits(result) == WHOLE
    assert list(result) == list(WHOLE)


def test_arrays_in_other_orders_of_elements_and_bytes(tmp_path: Path, read: Callable[..., Found]) -> None:
    columns, swapped = ARRAYS["complex64"].T, ARRAYS["float32"].astype(">f4")
    np.savez(tmp_path / "a.npz", columns=columns, swapped=swapped)
    result = read(tmp_path / "a.npz")
    assert bits(result["columns"]) == bits(from_numpy(np.ascontiguousarray(columns)))
    assert bits(result["swapped"]) == WHOLE["float32"]


def test_safetensors(torch_files: Path, read: Callable[..., Found]) -> None:
    result = read(torch_files / "torch.safetensors")
    assert all_bits(result) == {name: whole for name, whole in WHOLE.items() if name != "complex128"}
    text = (torch_files / "torch.safetensors").read_bytes()[8:].decode(errors="replace")
    assert list(result) == list(json.JSONDecoder().raw_decode(text)[0])


def test_files_of_torch(torch_files: Path, read: Callable[..., Found]) -> None:
    result = all_bits(read(torch_files / "nested.pt"))
    assert result.pop("lists.1.0") == bits(Dense("float32", np.ones(1, "f4")))
    assert result.pop("model.sparse") == bits(SPARSE)
    assert result == {f"model.{name}": whole for name, whole in WHOLE.items()}
    assert all_bits(converted(torch_files, "legacy.bin")) == WHOLE
    assert all_bits(converted(torch_files, "list.pth")) == {
        "gradient 0": bits(Dense("float32", np.ones(2, "f4"))),
        "gradient 1": bits(Dense("float32", np.zeros(1, "f4"))),
    }
    for name in ("csr.pt", "both.pt"):  # sparse in another way than by rows
        assert all_bits(converted(torch_files, name)) == {"w": bits(Dense("float32", np.eye(2, dtype="f4")))}


def test_sparse_gradients(tmp_path: Path, paddle_files: Path, read: Callable[..., Found]) -> None:
    header = {
        "__metadata__": {"sparse": '{"w": [5, 4]}'},
        "w.indices": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
        "w.values": {"dtype": "F32", "shape": [3, 4], "data_offsets": [24, 72]},
    }
    data = SPARSE.rows.tobytes() + SPARSE.values.array.tobytes()
    assert all_bits(read(write_safetensors(tmp_path / "a.safetensors", header, data))) == {"w": bits(SPARSE)}
    result = converted(paddle_files, "paddle_function.py")
    assert bits(result["short"]) == bits(Dense("bfloat16", np.full(2, 0x3F80, "u2")))
    assert list(result) == ["rows", "short", "nested.0"]
    rows = result["rows"]
    assert bits(rows) == bits(Sparse(np.array([4, 4]), Dense("float32", np.ones((2, 2), "f4")), (5, 2)))


# -- where they lie


def array_of(gradient: Gradient) -> np.memmap[Any, Any]:
    assert isinstance(gradient, Dense)
    assert isinstance(gradient.array, np.memmap)
    return gradient.array


def in_its_file(array: np.memmap[Any, Any]) -> bytes:
    assert array.filename is not None
    return Path(array.filename).read_bytes()[array.offset : array.offset + array.nbytes]


def test_safetensors_stay_where_they_are(tmp_path: Path, read: Callable[..., Found]) -> None:
    path = tmp_path / "a.safetensors"
    safetensors_files.write(path, {name: (name, DENSE[name].array) for name in ("bfloat16", "float64")})
    for gradient in read(path).values():
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


LARGE_FILE = """
import json, os, resource, struct
from pathlib import Path
import numpy as np
from unified_clip.tensors import files

SIZE = 5_000_000_000  # bytes of one tensor: only holes, on a disk

def entry(start, stop, shape):
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}

header = {f"w{i}": entry(4 * i, 4 * i + 4, [1]) for i in range(200)}
header["large"] = entry(800, 800 + SIZE, [SIZE // 4])
header["other"] = entry(800 + SIZE, 800 + 2 * SIZE, [2, SIZE // 8])
text = json.dumps(header).encode()
with open("a.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + bytes(800))
    for _ in range(2):
        file.seek(SIZE - 8, 1)
        file.write(np.ones(2, "f4").tobytes())

used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 50_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = files.read(Path("a.safetensors"), Path("."), only=["[lw]*"])
array = found["large"].array
assert array.nbytes == SIZE and array[0] == 0 and array[-1] == 1
assert len(found) == 201
assert os.stat("a.safetensors").st_blocks * 512 < 1_000_000
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000, "kilobytes"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits and measures memory as Linux does")
def test_a_file_of_10_gb_takes_no_memory(tmp_path: Path) -> None:
    in_a_new_process(f"import os\nos.chdir({str(tmp_path)!r})\n{LARGE_FILE}")


# -- which tensors


def test_integers_and_text_are_left_out_but_for_what_is_named_in_full(
    tmp_path: Path, read: Callable[..., Found]
) -> None:
    steps, mask = np.arange(3), np.array([True])
    np.savez(tmp_path / "a.npz", weight=ARRAYS["float32"], steps=steps, mask=mask, note="text", short=np.int32(1))
    assert list(read(tmp_path / "a.npz")) == ["weight"]
    assert list(read(tmp_path / "a.npz", only=["*"])) == ["weight"]
    assert all_bits(read(tmp_path / "a.npz", only=["steps"])) == {"steps": bits(Dense("int64", steps))}
    with pytest.raises(UnreadableError, match="'short' has dtype int32"):
        read(tmp_path / "a.npz", only=["short"])
    with pytest.raises(UnreadableError, match=r"a\.npz: no tensor that matches `only` has a floating-point dtype"):
        read(tmp_path / "a.npz", only=["mas?"])


def test_patterns_choose_names(tmp_path: Path, read: Callable[..., Found]) -> None:
    values = {"encoder/a": np.ones(1), "encoder/b": np.ones(1), "head[0]": np.ones(1), "head": np.ones(1)}
    np.savez(tmp_path / "a.npz", **values)
    assert list(read(tmp_path / "a.npz", only=["head", "enc*"])) == ["encoder/a", "encoder/b", "head"]
    assert list(read(tmp_path / "a.npz", only=["head[0]"])) == ["head[0]"]
    with pytest.raises(
        UnreadableError,
        match=r"only = 'decoder\*' matches no tensor. The file has 4 tensors, such as 'enc.*. "
        "Write the name of one of these tensors",
    ):
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
    items = list(convert_worker.from_function(f"{grads / 'grads.py'}:{function}"))
    assert {item.size for item in items} == {8}  # float32 of shape (2,), float64 of shape (1,)
    result = dict(select(items, ()))
    one, two = Dense("float32", np.ones(2, "f4")), Dense("float64", np.zeros(1))
    assert list(all_bits(result).items()) == list(zip(names, [bits(one), bits(two)], strict=False))


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
    result = files.call("grads.py:give", tmp_path, tmp_path)
    assert list(result) == ["short", "rows", "process"]
    assert bits(result["short"]) == bits(Dense("bfloat16", np.full(2, 0x3F80, "u2")))
    assert bits(result["rows"]) == bits(Sparse(np.array([1, 1]), Dense("float32", np.ones((2, 3), "f4")), (4, 3)))
    assert array_of(result["process"]) != os.getpid()
    saved = read(tmp_path / "gradients.npz")
    assert {name: (each.dtype, each.shape) for name, each in saved.items() if each} == {
        "layer.bias": ("float32", (1,)),
        "layer.kernel": ("bfloat16", (2, 1)),
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", r"grads\.py: the function 'wrong' failed: line 17: ValueError: no data. Correct the function$"),
        ("absent", r"grads\.py: the file has no function 'absent'. Correct the name$"),
        ("nothing", r"grads\.py: the function 'nothing' returns no tensor with a floating-point dtype"),
        ("repeated", r"grads\.py: two tensors have the name 'a'"),
        (
            "unheard_of",
            r"grads\.py: A module .* is missing: No module named 'unheard_of'. Correct .* for .*\. Or add framework = "
            r'"NAME" below the key `function`, and set `python` under \[frameworks\.NAME\]',
        ),
        (
            "leaves",
            r"grads\.py: the process .* ended without a result \(.*\)\. Correct the function\. The",
        ),
        (
            "kills",
            (r"grads\.py: the process .* ended with signal 9 \(SIGKILL\).*, or correct the function$"),
        ),
        (
            "hangs",
            r"grads\.py: the process that runs the function gave no result after 2 seconds: the process was in hangs "
            r"\(grads\.py, line \d+\)",
        ),
        ("", r"'grads\.py:' does not end with the name of a function\. Add the name, as in grads\.py:gradients"),
    ],
)
def test_a_function_that_gives_no_gradients_is_an_error(
    grads: Path, function: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_MAX_SECONDS", "2" if function == "hangs" else "60")
    with pytest.raises(UnreadableError, match=message):
        files.call(f"grads.py:{function}", grads, grads)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("leaves", "the file has no function 'leaves'. Correct the name"),
        ("one", "'one' is of type int, not a function. Write the name of a function"),
        ("none", "the function 'none' returned None. Return a tensor, or a list or a dict of tensors"),
        ("number", "the function 'number' returned a value of type int. Return a tensor, or"),
        ("deep", "the function 'deep' failed: .*RecursionError"),
        ("lacking", r"the file cannot be imported: line 3: SyntaxError: [^.(]*\. Correct the file$"),
        ("checks", r"the function 'checks' failed: line 1: AssertionError\. Correct the function$"),
    ],
)
def test_what_is_wrong_with_a_function_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    end = "def lacking(:" if function == "lacking" else ""
    text = f"def checks(): assert 0\ndeep_list = []; deep_list.append(deep_list); one = 1; none = lambda: None\n{end}"
    path = tmp_path / "grads.py"
    path.write_text(f"{text}\ndef number(): return 1\ndef deep(): return deep_list\n", encoding="utf-8")
    with pytest.raises(UnreadableError, match=message):
        list(convert_worker.from_function(f"{path}:{function}"))


def test_the_remedy_for_a_python_of_the_suite_has_its_framework(grads: Path) -> None:
    with pytest.raises(UnreadableError, match=r"nowhere cannot be started: .* set `python` under \[frameworks\.jax\]"):
        files.call("grads.py:array", grads, grads, python="nowhere", framework="jax")
    python = grads / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'numpy'\" >&2\nexit 1\n")
    python.chmod(0o700)
    with pytest.raises(
        UnreadableError, match=rf"named 'numpy'\. Install the package for {python}\. Or set .*\.jax\]"
    ) as error:
        files.call("grads.py:array", grads, grads, python=str(python), framework="jax")
    assert error.value.code == "UC703"


def test_a_function_imports_what_lies_beside_it_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "acme").mkdir()
    code = "import acme.two, one_beside\nnumbers = [one_beside.N, acme.two.N].copy\n"
    (tmp_path / "tools" / "give.py").write_text(code)
    (tmp_path / "tools" / "one_beside.py").write_text("N = 1\n")
    (tmp_path / "acme" / "two.py").write_text("N = 2\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(sys.modules):
        assert convert_worker.function_in(tmp_path / "tools" / "give.py", "numbers")() == [1, 2]


def test_a_function_without_its_python_file_is_an_error(tmp_path: Path) -> None:
    for spec in ("gradients", "grads.txt:gradients"):
        with pytest.raises(UnreadableError, match=rf"'{spec}' does not begin with the path of a \.py file. Begin"):
            files.call(spec, tmp_path, tmp_path)


def test_a_function_in_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=rf"'absent\.py:f': there is no file {tmp_path}/absent\.py. Correct the"):
        files.call("absent.py:f", tmp_path, tmp_path)


# -- the page


@pytest.mark.nightly
def test_what_the_page_saves_is_read(
    torch_files: Path, paddle_files: Path, tensorflow_files: Path, read: Callable[..., Found]
) -> None:
    assert list(converted(torch_files, "gradients.pt")) == ["weight", "bias"]
    assert read(paddle_files / "gradients.safetensors").keys() == {"weight", "bias"}
    short = read(paddle_files / "short.safetensors")["short"]
    assert bits(short) == bits(Dense("bfloat16", np.full(2, 0x3F80, "u2")))
    names = ["0 table:0", "1 kernel:0", "2 bias:0", "3 bias:0"]
    assert list(read(tensorflow_files / "gradients.npz")) == names


def test_the_function_of_the_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "grads.py").write_text(example("A function"), encoding="utf-8")
    assert list(files.call("grads.py:gradients", tmp_path, tmp_path)) == ["layer 0", "layer 1", "layer 2"]
