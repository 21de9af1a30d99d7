"""Recordings of the frameworks' own functions by `record` and by `verify`, which have to agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unified_clip

FIELDS = ("call", "framework", "rule", "threshold", "norm_type", "eps", "dtype", "count", "nan", "inf", "is_gradient")
ULPS = 4
"""The error in ULP of a framework's own norm, and of its product with the coefficient."""


@contextmanager
def agreeing(folder: Path, calls: int) -> Iterator[None]:
    """Record calls as `record` and as `verify` do. Check that the lines of both agree, of so many calls."""
    paths = [folder / "record.jsonl", folder / "verify.jsonl"]
    recordings = [
        unified_clip.record(paths[0], norms=True),
        unified_clip.record(paths[1], norms=True, gradients_every=1),
    ]
    recordings[1].stores_results = True
    with recordings[0], recordings[1]:
        yield
    of_record, of_verify = (_calls(path) for path in paths)
    assert len(of_record) == len(of_verify) == calls
    for line, evidence in zip(of_record, of_verify, strict=True):
        _check(line, evidence)


def _calls(path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])
    return [line for line in lines if "call" in line]


def _check(line: dict[str, Any], evidence: dict[str, Any]) -> None:
    assert {key: line[key] for key in FIELDS} == {key: evidence[key] for key in FIELDS}
    assert line["norm"] == evidence["norm"]
    assert line["clipped"] in (evidence["clipped"], None)
    if line["coef"] is not None:
        assert np.ravel(line["coef"]) == pytest.approx(np.ravel(evidence["coef"]), rel=ULPS * 2.0**-24)
    assert list(line["parameters"]) == list(evidence["parameters"])
    for name, expected in evidence["parameters"].items():
        assert {key: line["parameters"][name][key] for key in expected} == expected
