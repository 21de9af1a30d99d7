"""Tensors, cases and suites for the tests of the parity engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unified_clip.parity.suite.call_form import CallForm
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.schema import CaseOptions
from unified_clip.tensors import arithmetic, types
from unified_clip.tensors.types import Dense


def dense(values: Any, dtype: str = "float32") -> Dense:
    return types.encode(arithmetic.rounded(np.asarray(values, np.float64), dtype), dtype)


def case(gradients: list[Any], call: str, **options: Any) -> Case:
    """Return a case. Keywords that are neither `call_form` nor a field of CaseOptions are arguments of the call."""
    arguments = dict(options)
    form = arguments.pop("call_form", {})
    call_form = CallForm.model_validate(form, strict=False) if isinstance(form, dict) else form
    chosen = CaseOptions(**{key: arguments.pop(key) for key in CaseOptions.model_fields if key in arguments})
    name = f"{call} of {gradients} {options}"
    return Case(name, f"{gradients}", gradients, call, arguments, call_form, options=chosen)


def suite(
    tmp_path: Path, cases: str, known: str = "", frameworks: str = "[frameworks.numpy]\nmodes = ['host']"
) -> Path:
    text = f"files = ['cases.toml']\nknown = 'known.toml'\n{frameworks}\n"
    for name, content in (("suite.toml", text), ("cases.toml", cases), ("known.toml", known)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


WORKED = [dense([3.0, 4.0]), dense([1.0, 2.0])]
ONE_CASE = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }]
    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "global_norm" }]
"""
