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
    assert f"{other_name} does not. An optimizer adds" in cause.sentence
    advice = "add 0.125 times the sum of the squares of these weights to the loss, and set the weight decay of the "
    advice = (
        f"{advice}optimizer to 0"
        if is_old
        else "remove this regularizer from the loss, and set the weight decay of the "
    )
    assert cause.sentence.endswith(f"In b.jsonl, {advice}" + ("" if is_old else "optimizer to 0.25"))


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_regularizer_that_is_twice_or_half_the_weight_decay_is_named(
    tmp_path: Path, factor: float, is_old: bool
) -> None:
    regularized = run_lines(CHANGED, 2.0 + factor * DECAY / 2 * KERNELS, 0.0)
    decayed = run_lines(PLAIN, 2.0, DECAY)
    comparison = write_and_compare(tmp_path, *((regularized, decayed) if is_old else (decayed, regularized)))
    (cause,) = next(iter(comparison.divergences.values()))
    name, other_name = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert cause.kind == "weight decay before the clip"
    assert cause.sentence.startswith(f"{name} adds {factor * DECAY} times the weight to the gradients of 'kernel' and")
    assert cause.sentence.endswith(
        f"optimizer to {0 if is_old else DECAY}. The optimizer of {other_name} has a weight decay of {DECAY}. "
        "For example, a weight decay of 0.02 is like adding 0.01 times the sum of the squared weights to the loss"
    )


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


def zero_bias(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines[0]["parameters"]["bias"]["weight"] = 0.0
    return lines


UNKNOWN = "also adds weight decay to the gradients of 'bias', because this weight is about 0 at this step"


def test_a_weight_that_is_0_shows_nothing_and_is_not_called_regularized(tmp_path: Path) -> None:
    regularized = zero_bias(run_lines((3.25, 4.0, 1.1), 2.0 + DECAY / 2 * KERNELS, None))
    comparison = write_and_compare(tmp_path, regularized, zero_bias(run_lines(PLAIN, 2.0, DECAY)))
    (cause,) = next(iter(comparison.divergences.values()))
    assert "the gradients of 'kernel' and 'out' before the clip" in cause.sentence
    assert (
        f"{UNKNOWN}. Check whether the loss of a.jsonl has a regularizer of this weight. An optimizer adds"
        in cause.sentence
    )


def test_the_losses_of_the_micro_batches_of_a_step_are_summed(tmp_path: Path) -> None:
    regularized = run_lines(CHANGED, 0, None, losses=[1.5 + DECAY / 4 * ALL, 0.5 + DECAY / 4 * ALL], backward_calls=2)
    decayed = run_lines(PLAIN, 0, DECAY, losses=[1.5, 0.5], backward_calls=2)
    comparison = write_and_compare(tmp_path, decayed, regularized)
    assert cause_kinds(comparison) == ["weight decay before the clip"]
    assert f"its losses are {DECAY / 2 * ALL:.6g} larger" in str(comparison.findings[0])


def test_losses_of_some_backward_passes_show_no_regularizer(tmp_path: Path) -> None:
    regularized = run_lines(CHANGED, 2.0 + DECAY / 2 * ALL, None, backward_calls=2)
    decayed = run_lines(PLAIN, 2.0, DECAY, backward_calls=2)
    assert "weight decay before the clip" not in cause_kinds(write_and_compare(tmp_path, decayed, regularized))


SMALL, ADDED = (0.05, 0.5, 0.02), (0.5, 0.5, 0.37)
"""Norms of gradients without and with 0.25 times the weights of kernel and out: at most 0.55 and at least 0.355."""


@pytest.mark.parametrize("decay", [DECAY, 0.5, 0.125])
def test_norms_of_gradients_show_the_weight_decay_of_a_loss_that_is_not_recorded(tmp_path: Path, decay: float) -> None:
    """Recordings of JAX have no losses. The norms allow 0.225 to 0.26 times the weight."""
    regularized, decayed = run_lines(ADDED, 0, 0.0, losses=[]), run_lines(SMALL, 0, decay, losses=[])
    comparison = write_and_compare(tmp_path, zero_bias(decayed), zero_bias(regularized))
    assert ("weight decay before the clip" in cause_kinds(comparison)) is (decay == DECAY)
    if decay == DECAY:
        text = str(comparison.findings[0])
        assert "b.jsonl adds 0.25 times the weight to the gradients of 'kernel' and 'out'" in text
        assert "according to the norms, the factor is between 0.233 and 0.26" in text
        assert UNKNOWN in text


def test_norms_that_allow_many_numbers_show_no_weight_decay(tmp_path: Path) -> None:
    regularized, decayed = run_lines((3.25, 4.0, 1.1), 0, 0.0, losses=[]), run_lines(PLAIN, 0, DECAY, losses=[])
    comparison = write_and_compare(tmp_path, zero_bias(decayed), zero_bias(regularized))
    assert "weight decay before the clip" not in cause_kinds(comparison)


def test_a_gradient_that_differs_although_its_weight_is_0_shows_another_cause(tmp_path: Path) -> None:
    regularized, decayed = run_lines((0.5, 0.6, 0.37), 0, 0.0, losses=[]), run_lines(SMALL, 0, DECAY, losses=[])
    comparison = write_and_compare(tmp_path, zero_bias(decayed), zero_bias(regularized))
    assert "weight decay before the clip" not in cause_kinds(comparison)


@pytest.mark.parametrize(
    ("factor", "is_named"), [(1.0, True), (1.0005, True), (0.9812, False), (2.0, False), (0.0, False)]
)
def test_a_regularizer_that_the_other_run_lacks_is_named(tmp_path: Path, factor: float, is_named: bool) -> None:
    """The losses give the factor. The norms allow 0.233 to 0.26, but a script does not have a factor of 0.2453."""
    regularized = zero_bias(run_lines(ADDED, 2.0 + factor * DECAY / 2 * KERNELS, 0.0))
    comparison = write_and_compare(tmp_path, regularized, zero_bias(run_lines(SMALL, 2.0, 0.0)))
    assert ("weight decay before the clip" in cause_kinds(comparison)) is is_named
    if is_named:
        text = str(comparison.findings[0])
        assert "a.jsonl adds 0.25 times the weight to the gradients of 'kernel' and 'out'" in text
        assert text.endswith("In b.jsonl, add 0.125 times the sum of the squares of these weights to the loss.")
        assert "weight decay after the clip" not in text
