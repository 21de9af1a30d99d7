"""`unified-clip compare` names missing bias correction of Adam as a possible cause if norms of weights suggest it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.recordings import add_ulps, cause_kinds, clip_line, step_line

from unified_clip.recording.report import sentences

Lines = list[dict[str, Any]]

SHAPES = {"a": (4, 2), "b": (2, 4), "c": (8,)}
RATES = (0.0, 0.01)
"""A warm-up begins at 0."""


def adam_run(optimizer: str | None, *, corrects: bool, factor: float = 1.0, decay: float = 0.01) -> Lines:
    numbers = np.random.default_rng(0)
    weights = {name: numbers.normal(size=shape) for name, shape in SHAPES.items()}
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    lines: Lines = []
    for step in (1, 2, 3):
        gradients = {name: numbers.normal(size=shape) for name, shape in SHAPES.items()}
        norms, sizes = (
            {name: float(np.linalg.norm(each)) for name, each in table.items()} for table in (gradients, weights)
        )
        lines.append(clip_line(step, norms, weights=sizes, threshold=100.0))
        rate = RATES[step - 1] if step < 3 else 0.01
        if optimizer:
            settings = {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8}
            lines.append(step_line(step, optimizer=optimizer, settings=settings))
        for name, each in gradients.items():
            m[name] = 0.9 * m[name] + 0.1 * each
            v[name] = 0.999 * v[name] + 0.001 * each**2
            first, second = (1 - 0.9**step, 1 - 0.999**step) if corrects else (1.0, 1.0)
            update = m[name] / first / np.sqrt(v[name] / second) + decay * weights[name]
            weights[name] = weights[name] - factor * rate * update
    return lines


@pytest.mark.parametrize("corrected", ["torch.optim.AdamW", "optax.adam", "keras.optimizers.Adam"])
@pytest.mark.parametrize("other", [None, "mine.BertAdam"])
def test_missing_bias_correction_is_a_possible_cause(compare_runs: Any, corrected: str, other: str | None) -> None:
    runs = adam_run(other, corrects=False), adam_run(corrected, corrects=True)
    for (old, new), names in ((runs, ("b.jsonl", "a.jsonl")), (runs[::-1], ("a.jsonl", "b.jsonl"))):
        comparison = compare_runs(old, new)
        assert cause_kinds(comparison) == ["another optimizer"]
        sentence = comparison.findings[0].sentence
        assert f"A possible cause explains the norms of all weights: {corrected} of {names[0]} corrects the" in sentence
        assert f"the optimizer of {names[1]} does not: see docs/my-loss-curve-differs.md#adam-without-bias" in sentence
        assert "rounding might be" not in sentence


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (adam_run(None, corrects=True, factor=2.0), adam_run("torch.optim.AdamW", corrects=True)),
        (adam_run(None, corrects=True, factor=0.25), adam_run("torch.optim.AdamW", corrects=True)),
        (adam_run(None, corrects=True, decay=1.0), adam_run("torch.optim.AdamW", corrects=True)),
        (adam_run("keras.optimizers.Adam", corrects=False), adam_run("torch.optim.AdamW", corrects=True)),
        (adam_run(None, corrects=False), adam_run("torch.optim.SGD", corrects=True)),
    ],
)
def test_another_cause_is_not_called_missing_bias_correction(compare_runs: Any, old: Lines, new: Lines) -> None:
    comparison = compare_runs(old, new)
    assert cause_kinds(comparison)
    assert "A possible cause" not in str(comparison.findings)


def test_betas_that_differ_between_groups_name_no_missing_bias_correction(compare_runs: Any) -> None:
    old, new = adam_run(None, corrects=False), adam_run("torch.optim.AdamW", corrects=True)
    for line in new:
        if "settings" in line:
            line["settings"]["betas"] = [0.9, 0.999, 0.9, 0.99]
    assert "A possible cause" not in str(compare_runs(old, new).findings)


def test_rounding_does_not_explain_that_most_weights_differ(compare_runs: Any) -> None:
    old, new = adam_run(None, corrects=True, factor=1.2), adam_run("torch.optim.AdamW", corrects=True)
    (cause,) = compare_runs(old, new).findings
    assert "initial states, and the bias correction of Adam" in cause.sentence
    assert "rounding might be" not in cause.sentence


def test_a_small_difference_points_to_the_larger_difference(compare_runs: Any) -> None:
    runs = [adam_run(None, corrects=False), adam_run("torch.optim.AdamW", corrects=True)]
    parameter = runs[1][0]["parameters"]["a"]
    parameter["norm"] = add_ulps(parameter["norm"], 2)
    lines = sentences.report_lines(compare_runs(*runs))
    first = next(index for index, line in enumerate(lines) if line.startswith("The runs first differ"))
    assert lines[first + 1] == (
        "This difference is not larger than rounding. See the larger difference at step 3 below."
    )
