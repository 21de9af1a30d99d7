"""Log clip metrics, such as to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

from typing import Any, Protocol

from .recorder.guard import Hook

__all__ = ["Clipped", "metrics"]


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


HOOK = Hook("metrics", "The metrics of a clip are not logged")
"""Reads and logs metrics in callbacks: an error must not end the training."""
