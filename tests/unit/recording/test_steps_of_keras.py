"""`unified-clip compare` of Keras' optimizers with others: repeated rows, and accumulated gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, write_and_compare

from unified_clip.recording.report import sentences

CLIP = {"call": "clip", "framework": "torch", "rule": "global", "threshold": 9.0, "norm_type": 2.0, "eps": 0.0}
CLIP |= {"dtype": "float32", "clipped": False, "seconds": 0.001, "count": 1, "coef": 1.0}


def lines_of(optimizer: str, norms: Sequence[float], **step: Any) -> list[dict[str, Any]]:
    return [
        line
        for n, norm in enumerate(norms)
        for line in (
            {**CLIP, "step": n + 1, "norm": norm},
            {"step": n + 1, "optimizer": optimizer, **{name: values[n] for name, values in step.items()}},
        )
    ]


def test_repeated_rows_that_keras_squares_are_named_at_their_first_step(tmp_path: Path) -> None:
    old = lines_of("keras.optimizers.Adam", [1.0, 2.0, 3.0], repeated_rows=[0, 2, 2])
    comparison = write_and_compare(tmp_path, old, lines_of("torch.optim.Adam", [1.0, 2.0, 3.5]))
    assert [(each.step, each.parameter) for each in comparison.divergences] == [
        (2, "rule for repeated rows"),
        (3, None),
    ]
    assert cause_kinds(comparison) == ["squared rows"]
    first_line, cause_line, *rest = sentences.describe(comparison)
    assert first_line.endswith(
        "rule for repeated rows of the optimizer is the square of each row in the first run, and the square of the "
        "sum in the second run."
    )
    assert "keras.optimizers.Adam of a.jsonl gets 2 gradients as IndexedSlices with repeated rows" in cause_line
    assert "This difference might follow from the difference at step 2." in rest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("keras.optimizers.SGD", [1, 1, 1]), ("torch.optim.SGD", None)),
        (("keras.optimizers.Adam", [1, 1, 1]), ("mine.KerasAdam", None)),  # which may square the rows alone, too
        (("keras.optimizers.Adam", [1, 1, 1]), ("keras.optimizers.Adam", [1, 1, 2])),
        (("keras.optimizers.Adam", [0, 0, 0]), ("torch.optim.Adam", None)),
    ],
)
def test_repeated_rows_are_no_cause_without_a_known_difference(tmp_path: Path, old: Any, new: Any) -> None:
    runs = [
        lines_of(optimizer, norms, **({} if rows is None else {"repeated_rows": rows}))
        for (optimizer, rows), norms in ((old, [1.0, 2.0, 3.0]), (new, [1.0, 2.0, 3.5]))
    ]
    assert write_and_compare(tmp_path, *runs).findings == []


@pytest.mark.parametrize(("factor", "is_divided"), [(2.0, True), (3.0, False)])
def test_losses_that_one_run_divides_by_its_backward_passes_are_compared_without_the_division(
    tmp_path: Path, factor: float, is_divided: bool
) -> None:
    losses = [(2.0, 4.0), (1.0, 3.0)]
    old = lines_of("keras.optimizers.SGD", [1.0, 2.0], losses=[[factor * each for each in pair] for pair in losses])
    new = lines_of("torch.optim.SGD", [1.0, 2.0], losses=losses, backward_calls=[2, 2])
    comparison = write_and_compare(tmp_path, old, new)
    for text, name in (
        (sentences.report_lines(comparison), "b.jsonl"),
        (sentences.report_lines(write_and_compare(tmp_path, new, old)), "a.jsonl"),
    ):
        assert ("loss is equal at all 4 steps." in text) == is_divided
        assert any(line.startswith(f"Losses of {name} are multiplied by 2") for line in text) == is_divided
