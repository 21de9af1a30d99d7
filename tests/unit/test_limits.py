"""Damaged and hostile files end with a clear error, whatever is wrong with them."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.gradient_files import Found, write_safetensors

from unified_clip import cli
from unified_clip._kit import limits
from unified_clip.tensors import files
from unified_clip.tensors.types import UnreadableError, densify

ARRAYS = {"a": np.ones((3, 4), "f4"), "b.c": np.zeros(300), "d": np.asfortranarray(np.ones((2, 3)))}

GRADIENTS_FROM = """
    [[gradients]]
    name = "g"
    file = "{file}"
    [[cases]]
    gradients = ["g"]
    rules = ["clip_grad_norm_"]
    thresholds = [1.0]
"""


def saved(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, **ARRAYS)
    return file.getvalue()


def bomb(path: Path, elements: int) -> Path:
    """Write a compressed array of zeros. The file contains only the first zeros."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}".encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(20_000_000))
        archive.infolist()[0].file_size = 128 + 4 * elements
    return path


# -- limits


def test_a_bomb_is_rejected_before_anything_is_computed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = suite(tmp_path, GRADIENTS_FROM.format(file=tmp_path / "small.npz"))
    bomb(tmp_path / "small.npz", 5_000_000)
    assert len(files.read(tmp_path / "small.npz", tmp_path)) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(limits.MAX_BYTES, "10MiB")
        status = cli.main(["parity", "--suite", str(directory), "--out", str(tmp_path / "report")])
    assert status == 2
    assert capsys.readouterr().err == (
        f"unified-clip: error UC702: {directory}/cases.toml, gradients 1: {tmp_path / 'small.npz'}: the tensors take "
        "19.07 MiB, and the limit for this file is 10 MiB. Choose fewer tensors, or set "
        "UNIFIED_CLIP_MAX_BYTES='20 MiB' if you trust the file\n"
    )
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (
            limits.MAX_BYTES,
            "lots",
            "UNIFIED_CLIP_MAX_BYTES: 'lots' is not an amount of memory: write a number and one of",
        ),
        (limits.MAX_NESTING, "0", "UNIFIED_CLIP_MAX_NESTING: '0' is not a whole number of 1 or more"),
        (limits.MAX_ENTRIES, "many", "UNIFIED_CLIP_MAX_ENTRIES: 'many' is not a whole number of 1 or more"),
        (limits.MAX_SECONDS, "-1", "UNIFIED_CLIP_MAX_SECONDS: '-1' is not a number above 0"),
    ],
)
def test_a_limit_that_is_no_number_is_rejected(
    tmp_path: Path, read: Callable[..., Found], monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(ARRAYS, 4))
    (tmp_path / "grads.py").touch()
    monkeypatch.setenv(variable, text)
    is_time = variable == limits.MAX_SECONDS
    with pytest.raises(UnreadableError, match=message):
        files.call("grads.py:f", tmp_path, tmp_path) if is_time else read(tmp_path / "a.pdparams")


def test_limits_can_be_raised_and_lowered(
    tmp_path: Path, read: Callable[..., Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep: Any = np.ones(1)
    for _ in range(101):
        deep = [deep]
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(deep, 4))
    with pytest.raises(UnreadableError, match="nested more than 100 deep"):
        read(tmp_path / "a.pdparams")
    monkeypatch.setenv(limits.MAX_NESTING, "101")
    assert len(read(tmp_path / "a.pdparams")) == 1
    (tmp_path / "grads.py").write_text("import time\ndef f(): time.sleep(60)\n")
    monkeypatch.setenv(limits.MAX_SECONDS, "0.5")
    with pytest.raises(
        UnreadableError,
        match=r"no result after 0.5 seconds: .*Set the environment variable UNIFIED_CLIP_MAX_SECONDS to a higher",
    ):
        files.call("grads.py:f", tmp_path, tmp_path)


@pytest.mark.nightly
def test_ordinary_files_are_below_the_limits(tmp_path: Path, read: Callable[..., Found]) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", w=np.zeros(20_000_000, np.float32))
    assert read(tmp_path / "zeros.npz")["w"].shape == (20_000_000,)
    limits.check_expanded(400 * 2**30, 4 * 2**30)
    with pytest.raises(limits.LimitError, match="UNIFIED_CLIP_MAX_BYTES='401 GiB'"):
        limits.check_expanded(400 * 2**30 + 1, 4 * 2**30)


def test_nested_data_has_at_most_a_million_entries_by_default() -> None:
    tree = limits.Tree()
    for _ in range(1_000_000):
        tree.enter("w", 0)
    with pytest.raises(limits.LimitError, match="the dicts and lists have more than 1000000 entries"):
        tree.enter("w", 0)


def test_names_that_together_take_much_memory_are_rejected() -> None:
    tree = limits.Tree()
    for _ in range(10_000):
        tree.name("x" * 10_000)
    with pytest.raises(limits.LimitError, match="all tensor names together have more than 100000000 characters"):
        tree.name("x")


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
@pytest.mark.parametrize("kind", ["savez", "savez_compressed", "safetensors", "protocol 2", "protocol 4"])
def test_a_damaged_file_is_read_or_rejected(tmp_path: Path, kind: str) -> None:
    suffix = ".safetensors" if kind == "safetensors" else ".pdparams" if "protocol" in kind else ".npz"
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        data = saved(getattr(np, kind))
    elif suffix == ".pdparams":
        data = pickle.dumps({"all": ARRAYS, "more": [ARRAYS["a"], {"rate": np.float64(1)}]}, int(kind[-1]))
    else:
        data = write_safetensors(path, HEADER, np.array([0, 3], "i8").tobytes() + bytes(20)).read_bytes()
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
