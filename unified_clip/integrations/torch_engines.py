"""Gradients that nobody outside can clip: an engine keeps them, or they are not yet those of all processes."""

from __future__ import annotations

from collections.abc import Iterable

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's own configuration",
    "DeepSpeedStrategy": "what the strategy has",
    "MEGATRON_LM": "megatron_lm_gradient_clipping",
    "XLA": "accelerator.clip_grad_norm_",
    "XLAStrategy": "what the strategy has",
}
"""What does so, as Accelerate (`DistributedType`) and Lightning (`Strategy`) call it, and what clips there."""


def check_within_reach(kinds: Iterable[str]) -> None:
    """Refuse to clip what is not the gradients of the step.

    Raises:
        RuntimeError: They are out of reach under one of the kinds.
    """
    for kind in kinds:
        if kind in INSTEAD:
            raise RuntimeError(
                f"under {kind} the gradients of a step are not those that parameters have before it; leave "
                f"unified_clip out, and use {INSTEAD[kind]}"
            )
