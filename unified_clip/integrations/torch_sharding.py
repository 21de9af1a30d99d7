"""Gradients in shards, or not yet those of all processes: no one process has the norm of all."""

from __future__ import annotations

from collections.abc import Iterable

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's own configuration",
    "DeepSpeedStrategy": "what the strategy has",
    "FSDP": "accelerator.clip_grad_norm_",
    "FSDPStrategy": "what the strategy has",
    "MEGATRON_LM": "megatron_lm_gradient_clipping",
    "ModelParallelStrategy": "what the strategy has",
    "XLA": "accelerator.clip_grad_norm_",
    "XLAStrategy": "what the strategy has",
}
"""What shards, as Accelerate (`DistributedType`), Lightning (`Strategy`) and PyTorch call it, and what clips there."""


def check_not_sharded(kinds: Iterable[str]) -> None:
    """Each process would clip by the norm of its own part.

    Raises:
        RuntimeError: One of the kinds shards.
    """
    for kind in kinds:
        if kind in INSTEAD:
            raise RuntimeError(
                f"under {kind} no process has the whole gradients, and one norm over all parts is not supported; "
                f"leave unified_clip out, and use {INSTEAD[kind]}"
            )
