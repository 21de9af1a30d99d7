"""The conformance vectors are the results of the oracle, and can be used without unified_clip."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from support import vectors
from support.vectors import FILES, VECTORS, load

import unified_clip.numpy
from unified_clip.parity.adapters.numpy import FrameworkAdapter
from unified_clip.parity.suite.public_calls import CALLS

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((VECTORS / "schema.json").read_text(encoding="utf-8"))
READER = re.findall("```python\n(.*?)```", (VECTORS / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def every() -> list[dict[str, Any]]:
    return [vector for path in FILES for vector in load(path)["vectors"]]


# -- the files


@pytest.fixture(scope="module")
def make_vectors() -> Any:
    spec = importlib.util.spec_from_file_location("make_vectors", ROOT / "tools" / "make_vectors.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_the_results_of_the_oracle(make_vectors: Any) -> None:
    assert make_vectors.main(["--check"]) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_satisfies_the_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(load(path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"arguments": {"max_norm": 1.0}},
        {"arguments": {"max_norm": "0.1"}},
        {"call": "clip"},
        {"gradients": [{"dtype": "float32", "values": []}]},
        {"expected": {}},
        {"tolerance": 1},
    ],
)
def test_the_schema_rejects_invalid_vectors(wrong: Mapping[str, Any]) -> None:
    file = {"about": "", "vectors": [{**load(VECTORS / "one_norm.json")["vectors"][0], **wrong}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(file)


def test_every_function_and_dtype_has_vectors() -> None:
    names = [vector["name"] for vector in every()]
    assert len(set(names)) == len(names)
    assert {vector["call"] for vector in every()} == set(CALLS)
    assert set(SCHEMA["$defs"]["vector"]["properties"]["call"]["enum"]) == set(CALLS)
    dtypes = {gradient["dtype"] for vector in every() for gradient in vector["gradients"] if gradient}
    assert dtypes == set(SCHEMA["$defs"]["dtype"]["enum"])


# -- a reader that knows nothing of ours


def read_by(reader: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "reader.py").write_text(reader, encoding="utf-8")
    command = [sys.executable, "-I", "-S", str(tmp_path / "reader.py")]
    return subprocess.run(command, cwd=VECTORS, capture_output=True, text=True, check=False)


def test_the_reader_in_the_readme_passes(tmp_path: Path) -> None:
    done = read_by(READER, tmp_path)
    assert not done.returncode, done.stderr
    assert done.stdout == "78 vectors passed\n"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1e-6", "0.0"),
        ("float32(coef)", "coef"),
        ("root / step", "math.sqrt(square) / step"),
        ("limit == math.inf or ", ""),
        ("math.nan if n == math.inf and", "math.nan if n == 0 and"),
        ("is_ours, every):", "is_ours, every[1:]):\n    vector['gradients'] = vector['gradients'][1:]"),
    ],
)
def test_a_wrong_reader_fails(right: str, wrong: str, tmp_path: Path) -> None:
    assert READER.count(right) == 1
    assert "AssertionError" in read_by(READER.replace(right, wrong), tmp_path).stderr


# -- ours


def limit_off_by_a_bit(t: Any, clip_norm: float, axes: Any = None) -> Any:
    return unified_clip.numpy.clip_by_norm(t, clip_norm * (1 + 2**-52), axes)


def norm_added_up_in_float32(t_list: Any) -> Any:
    return np.float32(np.linalg.norm(np.concatenate([np.ravel(t) for t in t_list])))


def tensor_dropped(t_list: Any, *arguments: Any, **options: Any) -> Any:
    return unified_clip.numpy.clip_by_global_norm(t_list[:1], *arguments, **options)


def thresholds_not_checked(t: Any, clip_norm: float) -> Any:
    return t * np.float32(clip_norm)


@pytest.mark.parametrize(
    ("file", "name", "faulty"),
    [
        ("own_norm", "clip_by_norm", limit_off_by_a_bit),
        ("norms", "global_norm", norm_added_up_in_float32),
        ("one_norm", "clip_by_global_norm", tensor_dropped),
        ("refusals", "clip_by_norm", thresholds_not_checked),
    ],
)
def test_an_implementation_with_a_fault_fails(file: str, name: str, faulty: Callable[..., Any]) -> None:
    namespace = SimpleNamespace(**{**vars(unified_clip.numpy), name: faulty})
    failures = vectors.failures(VECTORS / f"{file}.json", FrameworkAdapter(), namespace)
    assert failures
    assert all(f": {name}(" in failure for failure in failures)
