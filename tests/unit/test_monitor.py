"""The metrics of a clip have the names that trainers use, and reading them never ends a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_clip import ClipConfig, ClipWarning, monitor
from unified_clip.errors import NothingClippedError
from unified_clip.integrations import steps

NAMES = ["grad_norm", "grad_norm_clipped", "clip_coef", "clip_rate"]


def test_metrics_have_all_numbers_of_the_last_clip() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle")
    with pytest.raises(NothingClippedError):
        monitor.metrics(clip)
    for norm in (0.5, 4.0):
        clip([np.array([norm])])
    assert monitor.metrics(clip, "train/") == dict(
        zip((f"train/{name}" for name in NAMES), (4.0, 1.0, 0.25, 0.5), strict=True)
    )


def test_a_handle_that_keeps_the_outcome_in_arrays_has_no_metrics_before_its_first_step() -> None:
    class Handle:
        rate = None
        steps = 0

        @property
        def last(self) -> steps.LastStep:
            return steps.last_step(self.steps, self.steps - 1, [5.0, 1.0, 0.2, 1, 0])

    handle = Handle()
    with pytest.raises(NothingClippedError):
        monitor.metrics(handle)
    handle.steps = 1
    assert monitor.metrics(handle)["grad_norm"] == 5.0


def test_metrics_that_cannot_be_read_do_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clip:
        rate = None

        @property
        def last(self) -> Any:
            raise RuntimeError("the device is lost")

    monkeypatch.setattr(monitor.HOOK, "_is_reported", False)
    with pytest.warns(ClipWarning, match="The metrics of a clip are not logged: RuntimeError: the device is lost"):
        assert monitor.HOOK.run(lambda: monitor.metrics(Clip())) is None
    assert monitor.HOOK.run(lambda: monitor.metrics(Clip())) is None  # without another warning
