"""Reject training engines that hide their gradients, such as DeepSpeed, and define an error about two clips."""

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
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, set "
    "`groups` in one configuration: docs/config.md describes the key."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Check that a training engine exposes the gradients of a step.

    kinds: The engine's names: of Accelerate's `DistributedType`, or of a Lightning strategy and its base classes.
    RuntimeError: the engine does not expose the gradients.
    """
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove this clip. To clip, use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
