"""Parameters of two runs are paired by names and weights, also if several parameters have the same weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import write_recording

from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.tensors.samples import sample_of

TABLE = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


def _gradient(of: str, step: int) -> Any:
    """A gradient of the table."""
    return np.random.default_rng((step, of == "head")).standard_normal(TABLE.shape).astype(np.float32)


def _lines(parts: Mapping[str, tuple[str, ...]], transposed: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """parts: {parameter: the layers whose gradients it adds up}. Each parameter begins as the table."""
    weights = {name: TABLE.T if name in transposed else TABLE for name in parts}
    for step in range(1, 5):
        sums = {name: sum(_gradient(of, step) for of in layers) for name, layers in parts.items()}
        gradients = {name: each.T if name in transposed else each for name, each in sums.items()}
        tensors = {
            name: {
                "shape": list(each.shape), "norm": float(np.linalg.norm(each)),
                "sample": sample_of(np.ascontiguousarray(each)).elements.tolist(),
                "weight_sample": sample_of(np.ascontiguousarray(weights[name])).elements.tolist(),
            }
            for name, each in gradients.items()
        }  # fmt: skip
        yield {
            "step": step, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1e3, "norm_type": 2.0,
            "eps": 1e-6, "dtype": "float32", "count": len(parts), "coef": 1.0, "clipped": False, "nan": 0, "inf": 0,
            "norm": math.hypot(*(each["norm"] for each in tensors.values())), "parameters": tensors,
        }  # fmt: skip
        yield {
            "step": step, "optimizer": "torch.optim.SGD", "instance": 1, "settings": {"lr": 0.1}, "backward_calls": 1,
            "gradients": len(parts), "parameters": [*parts], "losses": [], "tensors": tensors,
        }  # fmt: skip
        weights = {name: each - np.float32(0.1) * gradients[name] for name, each in weights.items()}


def compared(folder: Path, *runs: Iterator[dict[str, Any]]) -> RecordingComparison:
    old, new = (write_recording(folder / f"{place}.jsonl", run) for place, run in enumerate(runs))
    return compare(old, new)


EMBED, HEAD, BOTH = ("embed",), ("head",), ("embed", "head")


@pytest.mark.parametrize("transposed", [(), HEAD])
@pytest.mark.parametrize("tied", ["embed", "head", "table"])
def test_two_parameters_in_place_of_a_tied_one_are_named_and_not_called_frozen(
    tmp_path: Path, tied: str, transposed: tuple[str, ...]
) -> None:
    one, two = {tied: BOTH}, {"embed": EMBED, "head": HEAD}
    (found,) = compared(tmp_path, _lines(one), _lines(two, transposed)).findings
    assert (found.kind, found.old, found.new) == ("tied weights", "one parameter", "two parameters")
    (found,) = compared(tmp_path, _lines(two, transposed), _lines(one)).findings
    assert (found.kind, found.old, found.new) == ("tied weights", "two parameters", "one parameter")


@pytest.mark.parametrize("transposed", [(), ("x",)])
def test_parameters_with_the_same_weights_are_paired_by_their_gradients(
    tmp_path: Path, transposed: tuple[str, ...]
) -> None:
    found = compared(
        tmp_path, _lines({"embed": EMBED, "head": HEAD}), _lines({"x": HEAD, "y": EMBED}, transposed)
    ).recipes
    assert (list(found.findings), found.steps) == ([], 4)
    assert {(pair.old, pair.new) for pair in found.pairs} == {(EMBED, ("y",)), (HEAD, ("x",))}
