"""Reject training engines that do not expose their gradients, such as DeepSpeed, and define an error about two
clips.
"""

from __future__ import annotations

from collections.abc import Iterable

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's configuration",
    "DeepSpeedStrategy": "gradient_clip_val of the Trainer",
    "MEGATRON_LM": "gradient_clipping of Accelerate's MegatronLMPlugin",
    "XLA": "max_grad_norm of TrainingArguments, or accelerator.clip_grad_norm_ in a training loop of your own",
    "XLAStrategy": "gradient_clip_val of the Trainer",
}
"""The setting that makes each training engine clip. The keys are names of Accelerate's `DistributedType`, and of
classes of Lightning's strategies."""

TWO_CALLBACKS = (
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, use "
    "groups of one configuration."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Raise RuntimeError if one of these training engines does not expose the gradients of a step."""
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove this clip, and use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
