"""Compare the weights with which two runs begin."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..causes.cause import names_text
from .finding import Finding, in_order
from .pairs import Pair, PairedRuns, have_one_order
from .run import Run

EMBEDDING = re.compile(r"(?<![a-z])emb|Emb|embed|(?<![a-z])w[tp]e(?![a-z])")
"""Matches names of embeddings, such as "tok_emb", or "wte" in GPT, but not "ensemble"."""


def compare_weights(runs: PairedRuns) -> Iterator[Finding]:
    a, b = runs.sides
    others = [
        pair
        for pair in runs.pairs
        if (pair.order == "other" and not pair.are_rearranged) or _have_other_norms(runs, pair)
    ]
    if others:
        names = names_text([pair.name for pair in others])
        sentence = f"the weights of {names} differ before the first step. Load the same weights into both models"
        moved = [a.shape(pair.old[0]) or () for pair in others if a.shape(pair.old[0]) != b.shape(pair.new[0])]
        yield Finding(1, "other initial weights", "initial weights", sentence, kernel_hint(moved))
    if reshaped := [pair for pair in runs.pairs if pair.order == "reshaped"]:
        names = names_text([pair.name for pair in reshaped])
        sentence = f"the shapes of the weights {names} are transposed, but not the order of their elements"
        hint = kernel_hint([a.first(pair.old[0]).shape or () for pair in reshaped])
        fix = f"Transpose them, do not reshape them. {hint}".rstrip(". ")
        yield Finding(1, "untransposed weight", "order of the elements", sentence, fix)
    yield from _tied(runs)


def _have_other_norms(runs: PairedRuns, pair: Pair) -> bool:
    """Packed weights are compared by their norms only."""
    if pair.order is not None:
        return False
    sides = [[run.first(name).weight_norm for name in names] for run, names in zip(runs.sides, pair.sides, strict=True)]
    if any(norm is None for side in sides for norm in side):
        return False
    return not math.isclose(*(math.hypot(*(norm or 0.0 for norm in side)) for side in sides), rel_tol=1e-5)


def kernel_hint(shapes: Sequence[Sequence[int]]) -> str:
    axes = {3: "(2, 1, 0)", 4: "(3, 2, 0, 1)", 5: "(4, 3, 0, 1, 2)"}
    for shape in shapes:
        if len(shape) in axes:
            # a depthwise convolution has one channel for each input channel
            is_depthwise = len(shape) == 4 and (shape[-1] == 1 != shape[-2] or shape[1] == 1 != shape[0])
            order = "(2, 3, 0, 1)" if is_depthwise else axes[len(shape)]
            return f"From Keras or TensorFlow to PyTorch: transpose{order}"
    return ""


def twins(runs: PairedRuns) -> Iterator[tuple[int, str, str]]:
    """Find parameters that only one run has, and whose weights are those of a paired one, possibly transposed.

    Yield (side of the run, name, paired name).
    """
    for side, run in enumerate(runs.sides):
        if any(line.repeated for line in run.lines):
            continue
        paired = [name for pair in runs.pairs for name in pair.sides[side]]
        weights = {name: run.weight_at_start(name) for name in paired}
        for name in run.parameters:
            weight = run.weight_at_start(name)
            if name in weights or weight is None or np.ptp(weight.elements) == 0:
                continue
            twin = next((each for each in paired if have_one_order(weight, weights[each])), None)
            if twin is not None:
                yield side, name, twin


def _tied(runs: PairedRuns) -> Iterator[Finding]:
    for side, *names in twins(runs):
        sentence = (
            f"{runs.sides[side].name} has two parameters with the same weights, {names_text(names)}, and "
            f"{runs.sides[1 - side].name} has one parameter in their place, whose gradient is the sum of their "
            "gradients"
        )
        fix = "Tie these weights in both runs, or in neither"
        counts = in_order("two parameters", "one parameter", side == 0)
        yield Finding(1, "tied weights", "tied weights", sentence, fix, *counts)


def untransposed(runs: PairedRuns) -> Finding | None:
    """Some weights are transposed, and square ones are not."""
    moved = [pair.name for pair in runs.pairs if pair.order == "transposed" and not _is_square(runs.a, pair)]
    square = [
        pair.name
        for pair in runs.pairs
        if pair.order == "same" and _is_square(runs.a, pair) and not EMBEDDING.search(pair.text)
    ]
    if not moved or not square:
        return None
    sentence = (
        f"one run transposes the weights of {names_text(moved)}, but not the square weights of {names_text(square)}. "
        "This is a possible cause"
    )
    fix = f"Transpose {names_text(square)}, too. If they are right, compare the data, the forward pass and the loss"
    return Finding(1, "untransposed weight", "order of the elements", sentence, fix)


def _is_square(run: Run, pair: Pair) -> bool:
    weight = run.weight_at_start(pair.old[0])
    return len(pair.old) == 1 and weight is not None and weight.is_square()


def other_gates(runs: PairedRuns) -> Finding | None:
    """Frameworks store the gates of a GRU in different orders, and those of an LSTM in one."""
    if ("tensorflow" in runs.a.frameworks) == ("tensorflow" in runs.b.frameworks):
        return None
    kept = [pair.name for pair in runs.pairs if "gru_cell" in pair.text and pair.order in ("same", "transposed")]
    moved = [pair.name for pair in runs.pairs if "lstm_cell" in pair.text and pair.are_rearranged]
    if kept:
        sentence = (
            f"the gates of {names_text(kept)} have the same order in both runs. But frameworks order the gates of a "
            "GRU differently: (z, r, h) in Keras, (r, z, n) in PyTorch and (r, z, c) in Paddle"
        )
        fix = "Exchange the first third and the second third of these weights and of their biases"
    elif moved:
        sentence = (
            f"the elements of {names_text(moved)} have different orders in the runs. The gates of an LSTM have the "
            "same order in Keras, PyTorch and Paddle: input, forget, cell and output"
        )
        fix = "Only transpose these weights"
    else:
        return None
    return Finding(1, "other initial weights", "order of the gates", sentence, fix)
