"""Damaged files, and files with other content than gradients, are rejected with a remedy. No code in them runs."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parity.gradient_files import (
    Found,
    converted,
    refused,
    write_safetensors,
)

from unified_clip.tensors.files import convert_worker
from unified_clip.tensors.types import UnreadableError, densify


def test_an_interpreter_without_the_framework_is_told(
    tmp_path: Path, read: Callable[..., Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    (tmp_path / "a.pt").write_bytes(b"PK")
    with pytest.raises(
        UnreadableError,
        match=rf"a\.pt: PyTorch is needed to read the file: No module named 'torch'\. "
        rf"Install the package for {python}. Or set `python` under \[frameworks\.torch\] of the suite",
    ):
        read(tmp_path / "a.pt", pythons={"torch": str(python)})
    with pytest.raises(UnreadableError, match=r"a\.pt: .*absent cannot be started: No such file"):
        read(tmp_path / "a.pt", pythons={"torch": str(tmp_path / "absent")})
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UnreadableError, match=rf"Install the package for {python}$"):
        read(tmp_path / "a.pt")  # of no suite


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {**ENTRY, "data_offsets": [8, 16]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": ENTRY}, 7, "the file has 7. bytes, but the header describes 7. bytes"),
        ({"a": ENTRY}, 9, "the header describes .* bytes"),
        (
            {"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}},
            12,
            r"'b' has the data_offsets \[4, 12\], but must start at 8. Tensors",
        ),
        ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [9, 17]}}, 17, "'b' has the data_offsets"),
        (
            {"a": {**ENTRY, "data_offsets": [8, 0]}},
            0,
            r"'a' has the data_offsets \[8, 0\], which end before they start",
        ),
        (
            {"a": {**ENTRY, "shape": [3]}},
            8,
            r"'a' has 8 bytes, but needs 12 bytes for the dtype float32 and",
        ),
        ({"a": {**ENTRY, "shape": [0, 2**60]}}, 0, r"the shape of 'a' has 2\*\*59 or more elements"),
        ({"a": {**ENTRY, "shape": [1] * 40}}, 4, "'a' has 40 axes. Reshape the tensor to at most 32 axes"),
        (
            {
                "__metadata__": {"sparse": json.dumps({"x": [10**12, 2]})},
                "x.indices": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
                "x.values": {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]},
            },
            16,
            "the tensors take 7.276 TiB, and the limit for this file is 4 GiB. Choose fewer .*MAX_BYTES='8 TiB'",
        ),
        ({"__metadata__": {"sparse": "[" * 100_000}}, 0, "`sparse` in the metadata is not a JSON object"),
        ({"a": {**ENTRY, "shape": [-2]}}, 8, "'a' has an invalid dtype, shape or pair of data_offsets"),
        ({"a": {"dtype": "F32"}}, 8, "'a' has an invalid dtype, shape or pair of data_offsets"),
        ({"a": 1}, 8, "'a' has an invalid dtype, shape or pair of data_offsets"),
        (
            {"a": {**ENTRY, "dtype": "F8_E4M3"}},
            8,
            "'a' has dtype F8_E4M3. Convert this tensor to one of float16, .* or save the file without this tensor",
        ),
        (
            b'{"a": %s, "a": %s}' % (json.dumps(ENTRY).encode(), json.dumps(NEXT).encode()),
            16,
            "the header has the name 'a' twice. Save the file again",
        ),
        (b"[]", 0, "the header of this safetensors file is not a JSON object"),
        (b"{'a'", 0, "the header of this safetensors file is not JSON"),
        (b"[" * 100_000, 0, "the header of this safetensors file is not JSON"),
        ({}, 0, "no tensor has a floating-point dtype"),
        ({"__metadata__": {"sparse": "{"}}, 0, "`sparse` in the metadata is not a JSON object"),
        ({"__metadata__": {"sparse": '{"x": 4}'}}, 0, "`sparse` in the metadata is not a JSON object"),
        (
            {"__metadata__": {"sparse": '{"x": [4]}'}, "x.indices": ENTRY},
            8,
            r"the metadata lists 'x' as sparse, but the file has no tensor 'x\.values'. Save 'x\.values', too",
        ),
        (
            {"__metadata__": {"sparse": '{"x": [4]}'}, "x.values": ENTRY},
            8,
            r"the metadata lists 'x' as sparse, but the file has no tensor 'x\.indices'. Save 'x\.indices', too",
        ),
        (
            {"__metadata__": {"sparse": '{"x": [4]}'}, "x.values": ENTRY, "x.indices": NEXT},
            16,
            r"'x\.indices' contains the row indices of a sparse tensor, but its dtype is float32\. "
            "Save the row indices as int64",
        ),
    ],
)
def test_safetensors_that_are_not_whole(
    tmp_path: Path, read: Callable[..., Found], header: Any, size: int, message: str
) -> None:
    with pytest.raises(UnreadableError, match=rf"/a\.safetensors: .*{message}"):
        read(write_safetensors(tmp_path / "a.safetensors", header, bytes(size)))


@pytest.mark.parametrize(
    "data", [b"{}", struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"]
)
def test_safetensors_that_end_in_their_header(tmp_path: Path, read: Callable[..., Found], data: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(
        UnreadableError,
        match=f"the file has {len(data)} bytes, but its header .* bytes. The file is incomplete, or is not",
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
        (np.savez, lambda data: data[1000:], r"cannot be read: .*. Save the file again"),
        (
            np.savez,
            lambda data: data.replace(b"PK\x01\x02-\x03-", b"PK\x01\x02-\x03c"),
            "cannot be read: NotImplementedError: zip file version 9.9. Save the file again",
        ),
        (
            np.savez,
            lambda data: data.replace(b"(1000,)", b"(True,)"),
            "the shape of 'weight' is not a list of lengths",
        ),
        (np.savez, lambda data: data.replace(b"(1000,)", b"(-100,)"), "the shape of 'weight' is not a list"),
        (
            np.savez,
            lambda data: data.replace(b"(1000,)", b"(9999,)"),
            "'weight' is damaged: the array has 4128 bytes, but the header describes 40124",
        ),
        (
            np.savez,
            lambda data: data.replace(b"NUMPY\x01", b"NUMPY\x03"),
            r"'weight' is not an array: .*Save arrays with np.savez",
        ),
        (
            np.savez,
            lambda data: data.replace(b"{'descr': '<f4'", b"((((((((((((((("),
            r"'weight' is not an array: .*Save arrays with np.savez",
        ),
        (np.savez, lambda data: data.replace(b"weight.npy", b"weight.txt"), r"'weight.txt' is not an array"),
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
    with pytest.raises(UnreadableError, match=rf"/a\.npz.*{message}"):
        read(edited_npz(tmp_path / "a.npz", edit, save))


def test_python_objects_and_structures_are_refused_where_they_are_chosen(
    tmp_path: Path, read: Callable[..., Found]
) -> None:
    objects, structured = np.array([{}], object), np.zeros(2, [("x", "f4")])
    np.savez(tmp_path / "a.npz", objects=objects, structured=structured, weight=np.ones(1))
    assert list(read(tmp_path / "a.npz", only=["weight"])) == ["weight"]
    for name, dtype in (("objects", "object"), ("structured", "void32")):
        with pytest.raises(UnreadableError, match=f"'{name}' has dtype {dtype}. Convert this tensor to one of float16"):
            read(tmp_path / "a.npz", only=[name])


@pytest.mark.nightly
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, torch_files: Path, read: Callable[..., Found]) -> None:
    np.savez(tmp_path / "a.npz", one=np.ones(1), two=np.ones(1))
    data = (tmp_path / "a.npz").read_bytes().replace(b"two.npy", b"one.npy")
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UnreadableError, match=r"a\.npz: two tensors have the name 'one'. Rename one"):
        read(tmp_path / "a.npz")
    assert "two tensors have the name 'a.b'" in refused(torch_files, "twice.pt")


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

    with pytest.raises(
        UnreadableError, match="'a' is damaged: the array has 10000128 bytes, but the header describes 136"
    ):
        read(save("(2,)", 0, bytes(10_000_000)))
    with pytest.raises(UnreadableError, match=r"'a' is damaged: .* compressed bytes cannot expand to 4000000000128"):
        read(save("(1000000000000,)", 4 * 10**12 - 8, bytes(8)))


def test_a_header_of_an_array_is_read_only_as_far_as_numpy_reads_it(tmp_path: Path, read: Callable[..., Found]) -> None:
    size = 50_000_000
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + bytes(size))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="'a' is not an array: the header has 50000000 bytes"):
            read(tmp_path / "a.npz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_a_long_name_is_rejected_in_every_format(tmp_path: Path, read: Callable[..., Found]) -> None:
    header = {"n" * 10_001: ENTRY}
    with pytest.raises(
        UnreadableError, match=r"a tensor name has more than 10000 characters: 'nnn.*Give the tensor a shorter name"
    ):
        read(write_safetensors(tmp_path / "a.safetensors", header, bytes(8)))


def test_arrays_compressed_in_other_ways_are_refused(tmp_path: Path, read: Callable[..., Found]) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    with pytest.raises(UnreadableError, match="'a' is compressed by another method than deflate"):
        read(tmp_path / "a.npz")


class Runs:
    """An object that runs code when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = function, arguments, state

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        return self.reduced


MADE, MADE_OF, _ = np.ones(2).__reduce__()
SHORT_OF_BYTES = Runs(MADE, *MADE_OF, state=(1, (3,), np.dtype("f8"), False, bytes(16)))

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

LAUGHS: list[Any] = [np.ones(2)]
TUPLES: tuple[Any, ...] = ()
for _ in range(60):
    LAUGHS, TUPLES = [LAUGHS, LAUGHS], (TUPLES, TUPLES)
"""A few hundred bytes that a walk or a hash visits 2**60 times."""

AT_RANK_40 = Runs(MADE, *MADE_OF, state=(1, (1,) * 40, np.dtype("f8"), False, bytes(8)))

COPIES = (
    b"\x80\x04c_codecs\nencode\nq\x00X\xe8\x03\x00\x00" + b"x" * 1000 + b"\x8c\x06latin1\x86q\x010" + b"h\x00h\x01R" * 9
)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (os.mkdir, ("{marker}",), "the pickle calls posix.mkdir. Save only tensors"),
        (eval, ("__import__('os').mkdir('{marker}')",), "or paddle.save did not write it: TypeError"),
        (eval, ("__import__('os').mkdir('{marker}')", {}), "or paddle.save did not write it: KeyError"),
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
    with pytest.raises(UnreadableError, match=rf"/a\.pdparams: .*{message}"):
        read(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"w": np.ones(2)}, 4)[:-20], "the file is damaged, or paddle.save did not write it: "),
        (pickle.dumps({"w": np.ones(50_000)}, 4)[:-20], "the file is damaged, or paddle.save did not write it: "),
        (b"no pickle", "the file is damaged, or paddle.save did not write it: "),
        (pickle.dumps({"w": SHORT_OF_BYTES}, 4), r"a float64 array with the shape \(3,\) has 16 bytes instead of 24"),
        (pickle.dumps(ENDLESS, 4), "nested more than 100 deep, or contain themselves. Save a flat dict"),
        (
            pickle.dumps(LAUGHS, 4),
            r"more than 1000\d+ entries. Save a flat dict of tensors, or set UNIFIED_CLIP_MAX_ENT",
        ),
        (b"\x80\x04}" + pickle.dumps(TUPLES, 4)[2:-1] + b"K\x01s.", "a dict has a key of type tuple"),
        (pickle.dumps({"x" * 10_001: np.ones(1)}, 4), "a tensor name has more than 10000 characters: 'xxx"),
        (pickle.dumps({"w": AT_RANK_40}, 4), "has 40 axes. Reshape the tensor"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "an opcode that paddle.save does not write"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b".", "the file ends early"),
        (COPIES, "the pickle copies the same data many times"),
        (b"\x80\x04c_codecs\nencode\n}b.", "the pickle sets attributes of a function"),
        (pickle.dumps({"w": np.array([{}], object)}, 4), "'w' has dtype object"),
        (
            pickle.dumps({"w": np.ones(2), "UnpackBigParamInfor@@": {}}, 2),
            "tensors in slices. Load the file with paddle.load, "
            "and save the result with protocol 4, the default of paddle",
        ),
        (pickle.dumps({"LR_Scheduler": {"last_lr": np.float64(0.1)}}, 4), "no tensor has a floating-point dtype"),
    ],
)
def test_pickles_of_paddle_that_are_not_whole(
    tmp_path: Path, read: Callable[..., Found], data: bytes, message: str
) -> None:
    (tmp_path / "a.pdparams").write_bytes(data)
    with pytest.raises(UnreadableError, match=rf"/a\.pdparams: .*{message}"):
        read(tmp_path / "a.pdparams")


@pytest.mark.parametrize(
    ("name", "problem"),
    [("model.weights.h5", "is compressed in this zip archive"), ("config.json", "is missing from this zip archive")],
)
def test_a_keras_file_without_readable_weights_is_named_with_its_problem(
    tmp_path: Path, name: str, problem: str
) -> None:
    with zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(64))
    with pytest.raises(UnreadableError, match=rf"^model\.weights\.h5 {problem}\. Save the model again"):
        convert_worker._extract(str(tmp_path / "a.keras"), tmp_path)


@pytest.mark.nightly
def test_what_converting_refuses(torch_files: Path, tensorflow_files: Path) -> None:
    assert refused(torch_files, "evil.pt").startswith("the file contains posix.mkdir, but only tensors are allowed")
    assert not (torch_files / "run_by_torch").exists()
    assert "'w' has dtype float8_e4m3fn" in refused(torch_files, "eight.pt")
    assert "incomplete" in refused(torch_files, "cut.pt")
    assert "not an sstable" in refused(tensorflow_files, "cut")
    assert "model.weights.h5 is compressed in this zip archive. Save the model again" in refused(
        tensorflow_files, "deflated.keras"
    )
    assert "data of 'w' is missing or in another file" in refused(tensorflow_files, "hollow.h5")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cut.bin",
            "the file is incomplete, or torch.save did not write it. "
            "Copy the file again, or save the gradients with torch.save",
        ),
        (
            "page.bin",
            "the file is incomplete, or torch.save did not write it. "
            "Copy the file again, or save the gradients with torch.save",
        ),
        ("numbers.bin", "the file cannot be read: RuntimeError: unexpected EOF, expected 4 more bytes"),
        (
            "protocol.pt",
            "PyTorch cannot read the file: Unsupported operand 149. "
            "Copy the file again, or save the gradients with torch.save",
        ),
    ],
)
def test_a_damaged_file_of_torch_is_not_reported_as_other_objects(torch_files: Path, name: str, message: str) -> None:
    assert refused(torch_files, name).startswith(message)


@pytest.mark.nightly
def test_a_small_file_that_claims_much_is_not_converted(torch_files: Path, tensorflow_files: Path) -> None:
    for directory, name in ((torch_files, "stretched.pt"), (tensorflow_files, "vast.h5")):
        assert "the tensors take 4 TiB, and the limit for this file is 4 GiB" in refused(directory, name)
    assert re.search(r"the dicts and lists have more than 5\d{4} entries", refused(torch_files, "laughs.pt"))


@pytest.mark.nightly
def test_no_file_reads_another_file(tensorflow_files: Path) -> None:
    assert "'w' has its data in another file, 'secret'. Save all data in one file" in refused(
        tensorflow_files, "external.h5"
    )
    assert "'w' is a link to another file, 'vast.h5'" in refused(tensorflow_files, "linked.h5")
    message = refused(tensorflow_files, "elsewhere")
    assert re.search(
        "the file `checkpoint` names .*/prefix, which is in another directory. Pass that directory", message
    )


@pytest.mark.nightly
def test_compressed_hdf5_is_read_chunk_by_chunk_or_rejected(tensorflow_files: Path) -> None:
    numbers = np.arange(600, dtype="f4").reshape(30, 20)
    result = {name: densify(gradient) for name, gradient in converted(tensorflow_files, "packed.h5").items()}
    for name, expected in {"all": numbers, "pieces": numbers, "as it is": np.array([3, 4], "f4")}.items():
        gradient = result.pop(name)
        assert gradient is not None
        np.testing.assert_array_equal(gradient.array, expected)
    assert not result
    assert "'w' is damaged: a chunk is too large after decompression" in refused(tensorflow_files, "bomb.h5")
    assert "'w' is incomplete: some of its chunks are missing" in refused(tensorflow_files, "unwritten.h5")
    assert "'w' is compressed by lzf. Save the array with compression='gzip', or" in refused(tensorflow_files, "lzf.h5")


@pytest.mark.nightly
def test_what_is_linked_inside_a_file_is_read_once(tensorflow_files: Path) -> None:
    assert list(converted(tensorflow_files, "loop.h5")) == ["g/w"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "the file does not exist"),
        ("empty.npz", "the file is empty"),
        ("directory.npz", "the directory has no file `checkpoint`, which TensorFlow writes. Pass the file with the"),
        (
            "notes.txt",
            r"the suffix of the file is not one of \.safetensors, \.npz, .*\.pt, .*\.keras, .*. Save the tensors "
            "in one of",
        ),
    ],
)
def test_what_is_no_file_of_gradients_is_told(
    tmp_path: Path, read: Callable[..., Found], name: str, message: str
) -> None:
    (tmp_path / "empty.npz").touch()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "directory.npz").mkdir()
    with pytest.raises(UnreadableError, match=f"/{name}: {message}"):
        read(tmp_path / name)
