"""Damaged files, and files with other content than gradients, are rejected with a remedy. No code in them runs."""

from __future__ import annotations

import io
import json
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.gradient_files import Found, refused, write_safetensors

from unified_clip import cli
from unified_clip.tensors import files
from unified_clip.tensors.files import limits
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
    ) as error:
        read(tmp_path / "a.pt", pythons={"torch": str(python)})
    assert error.value.code == "UC703"
    with pytest.raises(UnreadableError, match=r"a\.pt: .*absent cannot be started: No such file"):
        read(tmp_path / "a.pt", pythons={"torch": str(tmp_path / "absent")})
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UnreadableError, match=rf"Install the package for {python}$"):
        read(tmp_path / "a.pt")  # of no suite


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "the file does not exist"),
        ("empty.npz", "the file is empty"),
        ("directory.npz", "the file does not exist"),
        (
            "model.h5",
            r"the suffix of the file is not one of \.safetensors, \.npz, \.pt, .*\. A suite can also get them",
        ),
        ("one.npz", "the file cannot be read: BadZipFile: File is not a zip file. Save the file again"),
    ],
)
def test_what_is_no_file_of_gradients_is_told(
    tmp_path: Path, read: Callable[..., Found], name: str, message: str
) -> None:
    (tmp_path / "empty.npz").touch()
    (tmp_path / "model.h5").write_text("x")
    (tmp_path / "directory.npz").mkdir()
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.ones(2))
    with pytest.raises(UnreadableError, match=f"/{name}: {message}"):
        read(tmp_path / name)


# -- which tensor, and what is wrong with it

ROWS = {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}
VALUES = {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]}


def sparse(shape: object, **tensors: object) -> dict[str, object]:
    return {
        "__metadata__": {"sparse": json.dumps({"x": shape})},
        **{f"x.{name}": each for name, each in tensors.items()},
    }


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {**VALUES, "shape": [3]}}, r"'a' should have 12 bytes for the dtype float32 and the shape \[3\]"),
        ({"a": {**VALUES, "data_offsets": [16, 24]}}, "'a' should have 8 bytes .* of a file of"),
        ({"a": {**VALUES, "data_offsets": [8, 0]}}, "'a' should have 8 bytes"),
        ({"a": {"dtype": "F32"}}, "not that of a safetensors file: .*Copy the file again"),
        (b"[]", "not that of a safetensors file"),
        (b"[" * 100_000, "not that of a safetensors file"),
        (
            {"a": {**VALUES, "dtype": "F8_E4M3"}},
            "'a' has dtype F8_E4M3. Convert this tensor to one of float16, .*`only`",
        ),
        ({}, "no tensor has a floating-point dtype"),
        (sparse([4], values=VALUES), "lists 'x' as sparse, so the file needs the tensors 'x.indices'"),
        (sparse([4], indices=VALUES, values=VALUES), "with the dtype int64"),
        (sparse([4, 5], indices=ROWS, values=VALUES), r"'x' is a sparse tensor with the shape \[4, 5\]"),
        (
            sparse([10**12, 2], indices=ROWS, values=VALUES),
            "the tensors take 7.276 TiB, and the limit .*MAX_BYTES='8 TiB'",
        ),
    ],
)
def test_safetensors_that_are_not_whole(tmp_path: Path, read: Callable[..., Found], header: Any, message: str) -> None:
    with pytest.raises(UnreadableError, match=rf"/a\.safetensors: .*{message}"):
        read(write_safetensors(tmp_path / "a.safetensors", header, bytes(16)))


def test_python_objects_and_structures_are_refused_where_they_are_chosen(
    tmp_path: Path, read: Callable[..., Found]
) -> None:
    objects, structured = np.array([{}], object), np.zeros(2, [("x", "f4")])
    np.savez(tmp_path / "a.npz", objects=objects, structured=structured, weight=np.ones(1))
    assert list(read(tmp_path / "a.npz", only=["weight"])) == ["weight"]
    for name, dtype in (("objects", "object"), ("structured", "void32")):
        with pytest.raises(UnreadableError, match=f"'{name}' has dtype {dtype}. Convert this tensor to one of float16"):
            read(tmp_path / "a.npz", only=[name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("evil.pt", "the file contains posix.mkdir, but only tensors are allowed"),
        ("eight.pt", "'w' has dtype float8_e4m3fn"),
        ("twice.pt", "two tensors have the name 'a.b'"),
        ("stretched.pt", "the tensors take 4 TiB, and the limit for this file is 4 GiB"),
        ("cut.pt", "the file is incomplete: the end of the zip archive is missing"),
        ("cut.bin", "the file cannot be read: RuntimeError: unexpected EOF, expected 4 more bytes"),
        ("page.bin", "PyTorch cannot read the file"),
    ],
)
def test_files_of_torch_without_whole_tensors(torch_files: Path, name: str, message: str) -> None:
    assert message in refused(torch_files, name)
    assert not (torch_files / "run_by_torch").exists()


# -- limits


def test_a_bomb_is_rejected_before_anything_is_computed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = '[[gradients]]\nname = "g"\nfile = "{}"\n[[cases]]\ngradients = ["g"]\nrules = ["clip_grad_norm_"]\n'
    directory = suite(tmp_path, cases.format(tmp_path / "small.npz") + "thresholds = [1.0]\n")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "small.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(1000))
    assert cli.main(["parity", "--suite", str(directory), "--out", str(tmp_path / "report")]) == 2
    error = capsys.readouterr().err
    assert "error UC702: " in error
    assert "the tensors take 3.638 TiB, and the limit for this file is 4 GiB" in error
    assert not (tmp_path / "report").exists()
    monkeypatch.setenv(limits.MAX_BYTES, "5 TiB")
    with pytest.raises(UnreadableError, match="cannot be read"):
        files.read(tmp_path / "small.npz", tmp_path)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (limits.MAX_BYTES, "lots", "'lots' is not an amount of memory: write a number and one of"),
        (limits.MAX_SECONDS, "-1", "'-1' is not a number above 0"),
        (limits.MAX_SECONDS, "0.5", "no result after 0.5 seconds: .*UNIFIED_CLIP_MAX_SECONDS to a higher"),
    ],
)
def test_limits_are_set_by_variables(
    tmp_path: Path, read: Callable[..., Found], monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(2))
    (tmp_path / "grads.py").write_text("import time\ndef f(): time.sleep(60)\n")
    monkeypatch.setenv(variable, text)

    def act() -> object:
        is_time = variable == limits.MAX_SECONDS
        return files.call("grads.py:f", tmp_path, tmp_path) if is_time else read(tmp_path / "a.npz")

    with pytest.raises(UnreadableError, match=message) as error:
        act()
    assert error.value.code == "UC702"


def test_ordinary_files_are_below_the_limits() -> None:
    limits.check_expanded(400 * 2**30, 4 * 2**30)
    with pytest.raises(limits.LimitError, match="UNIFIED_CLIP_MAX_BYTES='401 GiB'"):
        limits.check_expanded(400 * 2**30 + 1, 4 * 2**30)


# -- any damage

HEADER = {
    "__metadata__": {"sparse": json.dumps({"x": [10, 2]})},
    "x.indices": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
    "x.values": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]},
    "w": {"dtype": "BF16", "shape": [2], "data_offsets": [32, 36]},
}

TOKENS = [
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x00" * 4,
    b"-1",
    b"99999999999",
    b"True",
    b"[[[[",
    b"((((",
    b"O8",
    b"V9",
    b"\xe2",
]


def damaged(data: bytes, choose: random.Random) -> bytes:
    """Flip, overwrite, insert or cut off some bytes. Most changes are near the ends, where the headers are."""
    changed = bytearray(data)
    for _ in range(choose.choice([1, 1, 2, 4])):
        place = choose.randrange(len(changed) or 1)
        if choose.random() < 0.6:
            place = choose.choice([place % 200, max(0, len(changed) - 1 - place % 300)])
        token = choose.choice(TOKENS)
        how = choose.randrange(5)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << choose.randrange(8)
        elif how == 1:
            changed[place : place + len(token)] = token
        elif how == 2:
            changed[place:place] = token
        elif how == 3:
            del changed[place : place + choose.randrange(30)]
        elif choose.random() < 0.3:
            del changed[place:]
    return bytes(changed or b"x")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["savez", "savez_compressed", "safetensors"])
def test_a_damaged_file_is_read_or_rejected(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.npz")
    if kind == "safetensors":
        data = write_safetensors(path, HEADER, np.array([0, 3], "i8").tobytes() + bytes(20)).read_bytes()
    else:
        arrays = {"a": np.ones((3, 4), "f4"), "b.c": np.zeros(300), "d": np.asfortranarray(np.ones((2, 3)))}
        getattr(np, kind)(file := io.BytesIO(), **arrays)
        data = file.getvalue()
    choose, outcomes = random.Random(6), {"read": 0, "rejected": 0}
    for number in range(200):
        path.write_bytes(damaged(data, choose))
        scratch = tmp_path / str(number)
        scratch.mkdir()
        try:
            for gradient in files.read(path, scratch).values():
                densify(gradient)
        except UnreadableError:
            outcomes["rejected"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 5, outcomes
