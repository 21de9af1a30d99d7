"""Log clip metrics, such as to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from .errors import NothingClippedError
from .recorder.guard import Hook

__all__ = ["Clipped", "Monitor", "metrics"]

Log = Callable[[dict[str, float], int], object]


class Clipped(Protocol):
    """A `ClipConfig`, or the result of its method `clipper` or `attach_to`."""

    @property
    def last(self) -> Any: ...

    @property
    def rate(self) -> float | None: ...


def metrics(clip: Clipped, prefix: str = "") -> dict[str, float]:
    """Return the metrics of the last clip as a dict, with the keys that trainers use. Wait for the device.

    Args:
        clip: A `ClipConfig`, or the result of its method `clipper` or `attach_to`.
        prefix: The prefix of each key, such as "train/".

    Returns:
        `grad_norm`: the total norm before clipping. `grad_norm_clipped`: the total norm after clipping. `clip_coef`:
        the smallest coefficient. `clip_rate`: the share of the last 100 clips that changed a gradient, from 0 to 1.
        Unknown numbers are left out.

    Raises:
        NothingClippedError: Nothing has been clipped yet.

    Source: unified_clip. In HF Transformers and torchtitan, `grad_norm` is also the norm before clipping.

    Example:
        >>> import numpy as np
        >>> from unified_clip import ClipConfig, monitor
        >>> clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle")
        >>> _ = clip([np.array([3.0, 4.0], np.float32)])
        >>> monitor.metrics(clip, prefix="train/")["train/grad_norm"]
        5.0
    """
    rate = {} if clip.rate is None else {f"{prefix}clip_rate": clip.rate}
    return {**clip.last.metrics(prefix), **rate}


class Monitor:
    """Log the metrics of the last clip at every n-th call. Call the monitor after each step.

    Args:
        clip: A `ClipConfig`, or the result of its method `clipper` or `attach_to`.
        log: A function with two arguments: a dict of the metrics, and the step number. Examples are
            `mlflow.log_metrics`, and the method `log` of a run of Weights & Biases.
        every: Log at every n-th call. Other calls do not wait for the device.
        prefix: The prefix of each metric's name, such as "train/".

    Raises:
        ValueError: `every` is not a positive whole number.

    Source: unified_clip.

    Example:
        >>> import numpy as np
        >>> from unified_clip import ClipConfig, monitor
        >>> clip, seen = ClipConfig(rule="none"), []
        >>> watch = monitor.Monitor(clip, lambda numbers, step: seen.append((step, numbers["grad_norm"])), every=2)
        >>> for step in range(4):
        ...     _ = clip([np.full(4, step + 1.0)])
        ...     watch(step)
        >>> seen
        [(0, 2.0), (2, 6.0)]
    """

    def __init__(self, clip: Clipped, log: Log, *, every: int = 1, prefix: str = "") -> None:
        if not isinstance(every, int | np.integer) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every is {every!r}. Pass a whole number of 1 or more.")
        self._clip, self._log, self._every, self._prefix = clip, log, every, prefix
        self._calls = 0

    def __call__(self, step: int | None = None) -> None:
        """Log at every n-th call. Before the first clip, log nothing.

        step: The step to log. The default is the number of earlier calls.
        """
        if self._calls % self._every == 0:
            numbers = observed_metrics(self._clip, self._prefix)
            if numbers:
                self._log(numbers, self._calls if step is None else step)
        self._calls += 1


HOOK = Hook("metrics", "The metrics of a clip are not logged")


def observed_metrics(clip: Clipped, prefix: str = "") -> dict[str, float]:
    """Return the metrics, or {} before the first clip and after an error, which must not end the training."""

    def read() -> dict[str, float]:
        with suppress(NothingClippedError):  # such as while gradients accumulate
            return metrics(clip, prefix)
        return {}

    return HOOK.run(read) or {}
