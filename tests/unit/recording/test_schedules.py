"""`unified-clip compare`: schedules that one run steps more often, for example after each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.recordings import cause_kinds, clip_line

STEPS = 9

Schedule = Callable[[int], float]

SCHEDULES: dict[str, Schedule] = {
    "exponential": lambda n: 0.1 * 0.9**n,
    "every third step": lambda n: 0.1 * 0.5 ** (n // 3),
    "warm-up": lambda n: 0.1 * min(1.0, (n + 1) / 30),
}


def run_with(rates: Sequence[float], *, passes: int = 2) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step, rate in enumerate(rates, 1):
        lines.append(clip_line(step, weights={"a": 1.0 + (step - 1) * rate, "b": 2.0, "c": 3.0}))
        optimizer = {"optimizer": "torch.optim.SGD", "settings": {"lr": rate}, "cleared": True}
        lines.append({"step": step, **optimizer, "backward_calls": passes})
    return lines


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("pace", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_steps_after_each_batch_is_named(
    compare_runs: Any, schedule: str, pace: int, start: int
) -> None:
    rate = SCHEDULES[schedule]
    slow, fast = [rate(n) for n in range(STEPS)], [rate(pace * n + start) for n in range(STEPS)]
    advice = "Compare where the scripts advance their schedules: after each batch, each optimizer step or each epoch"
    for runs, names in (((slow, fast), ("b", "a")), ((fast, slow), ("a", "b"))):
        causes = compare_runs(*map(run_with, runs)).findings
        (sentence,) = [each.sentence for each in causes if each.kind == "another learning rate"]
        assert sentence.endswith(
            f". The learning rate of {names[0]}.jsonl changes {pace} times as fast as the learning rate of "
            f"{names[1]}.jsonl. {advice}"
        )


@pytest.mark.parametrize(
    ("rates", "others", "passes"),
    [
        ([0.1] * STEPS, [0.2] * STEPS, 2),  # no schedule
        ([0.1 * 0.9**n for n in range(STEPS)], [0.1 * 0.8**n for n in range(STEPS)], 2),
        ([0.1 * 0.9**n for n in range(4)], [0.1 * 0.9 ** (2 * n) for n in range(4)], 2),  # too few steps
        ([0.1 * 0.9**n for n in range(STEPS)], [0.1 * 0.9 ** (2 * n) for n in range(STEPS)], 0),  # several optimizers
    ],
)
def test_other_learning_rates_have_no_advice_about_schedules(
    compare_runs: Any, rates: list[float], others: list[float], passes: int
) -> None:
    comparison = compare_runs(run_with(rates, passes=passes), run_with(others, passes=passes))
    assert "another learning rate" in cause_kinds(comparison)
    assert not any("times as fast" in each.sentence for each in comparison.findings)
