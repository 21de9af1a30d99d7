"""Reject training engines that hide their gradients, such as DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterable

INSTEAD = {
    "DEEPSPEED": "gradient_clipping in DeepSpeed's configuration",
    "DeepSpeedStrategy": "gradient_clip_val of the Trainer",
    "MEGATRON_LM": "gradient_clipping of Accelerate's MegatronLMPlugin",
    "XLA": "max_grad_norm of TrainingArguments, or accelerator.clip_grad_norm_ in a training loop of your own",
    "XLAStrategy": "gradient_clip_val of the Trainer",
}
"""{engine of Accelerate or Lightning: the setting that makes the engine clip}."""

TWO_CALLBACKS = (
    "The Trainer has two ClipCallbacks, which would clip gradients twice. Remove one. For separate thresholds, set "
    "`groups` in one configuration: see docs/config.md."
)


def check_engine(kinds: Iterable[str]) -> None:
    """Raise RuntimeError if a training engine does not expose the gradients of a step."""
    for kind in kinds:
        if kind in INSTEAD:
            advice = f"Remove the clip of unified_clip. To clip, use {INSTEAD[kind]}."
            raise RuntimeError(f"{kind} does not expose the gradients of a step. {advice}")
