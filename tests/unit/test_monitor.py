"""Each clip is logged under the names that trainers use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_clip import ClipConfig, ClipWarning, monitor
from unified_clip.integrations import steps

NAMES = ["train/grad_norm", "train/grad_norm_clipped", "train/clip_coef", "train/clip_rate"]


def trained(make: Any, steps: int = 4) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle")
    watch = make(clip)
    for step in range(steps):
        clip([np.array([0.5 * (step + 1)])])
        watch(step)


def test_every_third_clip_is_logged_with_all_numbers() -> None:
    """MLflow's `log_metrics` and the `log` of Weights & Biases take the same two arguments by position."""
    seen: list[tuple[int, list[str]]] = []
    trained(lambda clip: monitor.Monitor(clip, lambda numbers, step: seen.append((step, sorted(numbers))), every=3))
    assert seen == [(step, [name.removeprefix("train/") for name in sorted(NAMES)]) for step in (0, 3)]


def test_nothing_is_logged_before_the_first_clip() -> None:
    seen: list[int] = []
    clip = ClipConfig(rule="none")
    watch = monitor.Monitor(clip, lambda numbers, step: seen.append(step))
    watch(0)
    clip([np.ones(2)])
    watch(1)
    assert seen == [1]


def test_nothing_is_logged_before_the_first_step_of_a_handle_that_keeps_the_outcome_in_arrays() -> None:
    class Handle:
        rate = None
        steps = 0

        @property
        def last(self) -> steps.LastStep:
            return steps.last_step(self.steps, self.steps - 1, [5.0, 1.0, 0.2, 1, 0])

    seen: list[int | None] = []
    handle = Handle()
    watch = monitor.Monitor(handle, lambda numbers, step: seen.append(step))
    watch(0)
    handle.steps = 1
    watch(1)
    assert seen == [1]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_how_often_is_a_whole_number(every: Any) -> None:
    with pytest.raises(ValueError, match="every is"):
        monitor.Monitor(ClipConfig(rule="none"), print, every=every)


def test_metrics_that_cannot_be_read_do_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clip:
        rate = None

        @property
        def last(self) -> Any:
            raise RuntimeError("the device is lost")

    monkeypatch.setattr(monitor.HOOK, "_is_reported", False)
    logged: list[Any] = []
    watch = monitor.Monitor(Clip(), lambda *numbers: logged.append(numbers))
    with pytest.warns(ClipWarning, match="The metrics of a clip are not logged: RuntimeError: the device is lost"):
        watch(0)
    watch(1)  # without another warning
    assert logged == []


def test_an_error_of_the_users_logger_reaches_the_user() -> None:
    def log(numbers: dict[str, float], step: int) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        trained(lambda clip: monitor.Monitor(clip, log))
