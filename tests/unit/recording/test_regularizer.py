"""`unified-clip compare` names weight decay that one run adds before the clip, and the other run after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, write_and_compare

WEIGHTS = {"kernel": ([4, 3], 2.0), "bias": ([3], 1.0), "out": ([3, 1], 1.5)}
DECAY = 0.25
ALL, KERNELS = 4 + 1 + 2.25, 4 + 2.25
"""Sums of the squares of the weights."""


def run_lines(
    norms: tuple[float, float, float], loss: float, decay: float | None, **changes: Any
) -> list[dict[str, Any]]:
    """A run of one step, with the norms of the three gradients."""
    parameters = {
        name: {"norm": norm, "shape": shape, "weight": weight}
        for norm, (name, (shape, weight)) in zip(norms, WEIGHTS.items(), strict=True)
    }
    total = math.hypot(*norms)
    clip = {
        "step": 1, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "count": 3, "norm": total, "coef": 1 / total, "clipped": True, "nan": 0,
        "inf": 0, "seconds": 0.001, "parameters": parameters,
    }  # fmt: skip
    settings = {"lr": 0.1} if decay is None else {"lr": 0.1, "weight_decay": decay}
    step = {"step": 1, "optimizer": "torch.optim.SGD", "settings": settings, "backward_calls": 1, "losses": [loss]}
    return [clip, {**step, **changes}]


PLAIN, CHANGED = (3.0, 4.0, 1.0), (3.25, 4.125, 1.1)


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize(("squares", "names"), [(ALL, "'kernel', 'bias' and 'out'"), (KERNELS, "'kernel' and 'out'")])
@pytest.mark.parametrize("decay", [None, 0.0])
def test_a_regularizer_in_the_loss_of_one_run_is_named(
    tmp_path: Path, is_old: bool, squares: float, names: str, decay: float | None
) -> None:
    regularized = run_lines(CHANGED, 2.0 + DECAY / 2 * squares, decay)
    decayed = run_lines(PLAIN, 2.0, DECAY)
    comparison = write_and_compare(tmp_path, *((regularized, decayed) if is_old else (decayed, regularized)))
    (cause,) = next(iter(comparison.divergences.values()))
    assert cause.kind == "weight decay before the clip"
    name, other_name = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert cause.sentence.startswith(f"{name} adds 0.25 times the weight to the gradients of {names} before the clip")
    assert f"In {other_name}, add 0.125 times the sum of the squares of these weights to the loss" in cause.sentence


@pytest.mark.parametrize(
    ("regularized", "decayed"),
    [
        (run_lines(CHANGED, 2.0 + DECAY / 2 * ALL * 1.01, None), run_lines(PLAIN, 2.0, DECAY)),
        (run_lines(CHANGED, 2.0, None), run_lines(PLAIN, 2.0 + DECAY / 2 * ALL, DECAY)),
        (run_lines(CHANGED, 2.0 + DECAY / 2 * ALL, DECAY), run_lines(PLAIN, 2.0, DECAY)),
        (run_lines(CHANGED, 2.0 + DECAY / 2 * ALL, None), run_lines(PLAIN, 2.0, None)),
        (run_lines(CHANGED, 2.0, None, losses=[]), run_lines(PLAIN, 2.0, DECAY)),
        (run_lines(CHANGED, 2e6 + DECAY / 2 * ALL, None), run_lines(PLAIN, 2e6, DECAY)),
    ],
    ids=["another sum", "smaller loss", "both decay", "none decays", "no loss", "lost in rounding"],
)
def test_a_regularizer_that_the_loss_does_not_show_is_not_named(
    tmp_path: Path, regularized: list[dict[str, Any]], decayed: list[dict[str, Any]]
) -> None:
    assert "weight decay before the clip" not in cause_kinds(write_and_compare(tmp_path, regularized, decayed))
