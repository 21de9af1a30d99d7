"""Cases of clip functions, outcomes with a mistake, and the diagnosis of such an outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from support.parity.cases import case, dense
from support.parity.runs import exact_outcome

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import diagnose, oracle
from unified_clip.parity.suite.case import Case

NAMES = ["embedding", "encoder.weight", "encoder.bias", "head"]


def gradients(seed: int = 0, dtype: str = "float32", scale: float = 0.01) -> list[Any]:
    random = np.random.default_rng(seed)
    return [dense(scale * random.standard_normal(shape), dtype) for shape in ((40, 25), (25, 40), 30, 2000)]


def named_case(call: str, tensors: list[Any] | None = None, **arguments: Any) -> Case:
    return dataclasses.replace(case(tensors or gradients(), call, **arguments), names=NAMES)


GLOBAL = named_case("clip_grad_norm_", max_norm=0.1)

NO_NORM = named_case("GradientClipByGlobalNorm", clip_norm=0.1)

PER_TENSOR = named_case("clip_by_norm", clip_norm=0.1)

BELOW_THRESHOLD = named_case("clip_by_global_norm", clip_norm=9.0)

VALUE = named_case("clip_grad_value_", clip_value=0.01)


def diagnose_outcome(clip_case: Case, outcome: CallOutcome) -> tuple[str, str]:
    """Return (kind, sentence) of the diagnosis, or ('', '')."""
    return tuple(diagnose.diagnose(clip_case, oracle.expect(clip_case), outcome) or ("", ""))  # type: ignore[return-value]


def change_outcome(clip_case: Case, change: Callable[[list[Any]], Any]) -> CallOutcome:
    outcome = exact_outcome(clip_case)
    tensors = list(outcome.gradients or [])
    change(tensors)
    return dataclasses.replace(outcome, gradients=tensors)


def with_element(tensor: Any, value: float) -> Any:
    array = tensor.array.copy()
    array.reshape(-1)[2] = value
    return dataclasses.replace(tensor, array=array)
