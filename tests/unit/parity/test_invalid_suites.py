"""An invalid suite is rejected: the error has a code, and names the file, the place and what to write.

`tests/data/parity/invalid_suites.toml` has the suites, and `invalid_suites.txt` beside it the messages.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.suites import CASES, GRADIENTS, NORM, ONE_CASE, cases_toml
from support.wording import DATA, check_wording

from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import select
from unified_clip.parity.suite.schema import SuiteError

TABLE: list[dict[str, Any]] = tomllib.loads((DATA / "parity/invalid_suites.toml").read_text("utf-8"))["invalid"]
FUNCTIONS = {"clip.py": "def clip(g, limit): return g\n", "empty.py": "", "broken.py": "\n[[cases"}


def error_of(folder: Path, entry: dict[str, Any]) -> SuiteError:
    cases = entry.get("cases", cases_toml(entry.get("call", NORM), entry.get("more", "")))
    cases = cases.replace("values = [1.0]", entry.get("tensor", "values = [1.0]"))
    for name, code in FUNCTIONS.items():
        (folder / name).write_text(code, encoding="utf-8")
    with pytest.raises(SuiteError) as caught:
        suites.read(suite(folder, cases, entry.get("known", ""), frameworks=entry.get("suite", "[frameworks.numpy]")))
    return caught.value


def test_an_invalid_suite_is_rejected_with_its_place(tmp_path: Path) -> None:
    messages = []
    for entry in TABLE:
        error = error_of(tmp_path, entry)
        message = str(error).replace(f"{tmp_path}/", "")
        assert (error.code, message.split(": ")[0]) == (entry.get("code", "UC301"), entry["place"])
        assert not re.search(r"pydantic|constrained|function-|Input should|\[key\]", message)
        messages.append(message)
    check_wording("invalid_suites.txt", {str(number): message for number, message in enumerate(messages, 1)})


def test_nesting_too_deep_is_rejected(tmp_path: Path) -> None:
    assert "cases.toml: " in str(error_of(tmp_path, {"cases": "a = " + "[" * 100_000}))


@pytest.mark.parametrize(
    ("pattern", "place"),
    [("/cases.toml", "line 1, files 1"), ("case/*.toml", "files"), ("**x", "files")],
)
def test_misspelt_files_of_cases_are_rejected(tmp_path: Path, pattern: str, place: str) -> None:
    (tmp_path / "suite.toml").write_text(f"files = ['{pattern}']\n[frameworks.numpy]\n{ONE_CASE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=f"suite.toml, {place}: "):
        suites.read(tmp_path)


def test_a_missing_suite_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"suite\.toml is not a file"):
        suites.read(tmp_path)
    (tmp_path / "suite.toml").mkdir()
    with pytest.raises(SuiteError, match=r"suite\.toml is a directory"):
        suites.read(tmp_path)
    (tmp_path / "other.toml").write_text(f"[frameworks.numpi]\n{ONE_CASE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"other\.toml: .*'numpi'"):
        suites.read(tmp_path / "other.toml")


def test_cases_of_other_frameworks_or_modes_do_not_call_a_function(tmp_path: Path) -> None:
    functions = "[frameworks.torch]\n[frameworks.numpy.functions]\nglobal_norm = 'clip.py:clip'"
    for only in ("modes = ['host']", "frameworks = ['torch']"):
        error = error_of(tmp_path, {"more": only, "suite": functions})
        assert "frameworks.numpy.functions.global_norm: no case calls global_norm" in str(error)
    read = suites.read(suite(tmp_path, ONE_CASE, frameworks=functions))
    assert read.frameworks["numpy"].functions == {"global_norm": "clip.py:clip"}


def test_functions_of_the_user_need_a_list_of_known_differences(tmp_path: Path) -> None:
    (tmp_path / "clip.py").write_text(FUNCTIONS["clip.py"], encoding="utf-8")
    text = f"[frameworks.numpy.functions]\nglobal_norm = 'clip.py:clip'\n{ONE_CASE}"
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=r'functions: .*\. Add known = "own-known\.toml" at the top of .*own\.toml$'):
        suites.read(tmp_path / "own.toml")


TWO = "[frameworks.numpy]\n[frameworks.torch]"
CHOICES: dict[str, Any] = {
    "--frameworks: .*framework": lambda read: select.only_frameworks(read, ["caffe"]),
    "--frameworks: no case of the suite is for numpy": lambda read: select.only_frameworks(read, ["numpy"]),
    "--without devise: .*device": lambda read: select.without(read, ["devise"]),
    "--without numpy:device: .*numpy:host": lambda read: select.without(read, ["numpy:device"]),
    "--without host: numpy has no mode left": lambda read: select.without(read, ["host"]),
    "--case: the suite has no case 'a: global_nrom..'. Did you mean 'a: global_norm": lambda read: select.only_cases(
        read, ["a: global_nrom()"], read
    ),
    "--case: the suite has no case 'xyzzy'": lambda read: select.only_cases(read, ["xyzzy"], read),
    "--case: 'a: global_norm\\(\\)' is not for numpy. Pass --frameworks torch": lambda read: select.only_cases(
        dataclasses.replace(read, cases=[], frameworks={"numpy": read.frameworks["numpy"]}), ["a: *"], read
    ),
}


@pytest.mark.parametrize("message", CHOICES)
def test_a_choice_that_the_suite_does_not_have_is_rejected(tmp_path: Path, message: str) -> None:
    read = suites.read(suite(tmp_path, cases_toml(NORM, "frameworks = ['torch']"), frameworks=TWO))
    with pytest.raises(SuiteError, match=f"^{message}") as caught:
        CHOICES[message](read)
    assert caught.value.code == "UC203"


def test_recorded_gradients_with_rows_outside_of_their_shape_are_rejected(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    rows = {"x.indices": np.array([4]), "x.values": np.ones((1, 2), np.float32)}
    save_file(rows, tmp_path / "a.safetensors", metadata={"sparse": '{"x": [4, 2]}'})
    text = GRADIENTS.replace("tensors = [{ values = [1.0] }]", "file = 'a.safetensors'") + CASES
    assert "'x' has values for row 4" in str(error_of(tmp_path, {"cases": text}))
