"""Reject engines whose gradients unified_clip cannot clip, and define the messages about clipping twice."""

from __future__ import annotations

from collections.abc import Iterable

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's configuration",
    "DeepSpeedStrategy": "the clipping of the strategy",
    "MEGATRON_LM": "megatron_lm_gradient_clipping",
    "XLA": "accelerator.clip_grad_norm_",
    "XLAStrategy": "the clipping of the strategy",
}
"""By Accelerate's `DistributedType` or the class of Lightning's strategy: the setting that clips there."""

TWO_CALLBACKS = (
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, use "
    "groups of one configuration."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Raise RuntimeError for an engine that does not expose the gradients of a step."""
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove unified_clip, and use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
