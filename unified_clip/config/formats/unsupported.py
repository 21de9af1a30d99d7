"""Settings of trainers that are known and not imported: what they mean, and why not."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A row of the second table in the documentation."""

    trainer: str
    key: str
    default: str
    meaning: str
    why: str = ""
    """Why it is not imported; '' where a configuration can say the same."""


SAMPLES = "the gradient of each example is clipped, and noise goes by the threshold"
UPDATES = "the optimizer's update is clipped, not the gradient"
IN_CODE = "it stands in a program, not in a configuration"

KNOWN = (
    Known("torchtune", "clip_grad_norm", "null", "the global norm, PyTorch's rule; null: off; 0: zeros; inf: measures"),
    Known(
        "torchtune",
        "clip_grad_norm with optimizer_in_bwd",
        "",
        "an error there",
        "with the optimizer in the backward pass there is no total norm",
    ),
    Known("fairseq to 0.10.0", "clip_norm, --clip-norm", "25", "the global norm, PyTorch's rule; 0 or less: off"),
    Known("fairseq from 0.12.2 on", "clip_norm, --clip-norm", "0.0", "the same; nothing is clipped by default"),
    Known(
        "fairseq, mixture of experts",
        "clip_norm",
        "",
        "gradients of experts are scaled and not counted",
        "here what is not counted is not scaled",
    ),
    Known("NeMo", "trainer.gradient_clip_val", "0", "Lightning's: the global norm of each optimizer; 0 or null: off"),
    Known("NeMo on Megatron", "optim.clip_grad", "1.0", "Megatron-LM's: the global norm; 0 or less: off"),
    Known(
        "Composer",
        "GradientClipping(clipping_type='norm', clipping_threshold)",
        "none",
        "the global norm, PyTorch's rule; 0: zeros",
        IN_CODE,
    ),
    Known(
        "Composer",
        "GradientClipping(clipping_type='value')",
        "none",
        "each element; under FSDP 1 the norm of order inf",
        IN_CODE,
    ),
    Known(
        "Composer",
        "GradientClipping(clipping_type='adaptive')",
        "none",
        "by the ratio of gradient to parameter (AGC)",
        "it is no rule here, and each library's differs for small parameters",
    ),
    Known(
        "RLlib",
        "grad_clip, grad_clip_by='global_norm'",
        "null; DQN, IMPALA, APPO 40.0",
        "the global norm of each optimizer: c / max(n + 1e-6, c); new API stack: 0 is off",
        "norms have NaN replaced by 0 and inf by 1e9 there, which is no family here",
    ),
    Known("RLlib", "grad_clip_by='norm'", "", "each tensor by its own norm; old API stack: ignored", IN_CODE),
    Known("RLlib", "grad_clip_by='value'", "", "each element; old API stack: ignored", IN_CODE),
    Known(
        "stable-baselines3",
        "max_grad_norm",
        "A2C, PPO 0.5; DQN 10",
        "the global norm, PyTorch's rule; 0: zeros; no way to switch it off",
        IN_CODE,
    ),
    Known("nanoGPT", "grad_clip", "1.0", "the global norm, PyTorch's rule; 0: off; below 0 the sign changes", IN_CODE),
    Known("Ultralytics", "none: max_norm=10.0 in its code", "10.0", "the global norm, PyTorch's rule", IN_CODE),
    Known("MLX", "clip_grad_norm(grads, max_norm)", "none", "the global norm, PyTorch's rule; 0: zeros", IN_CODE),
    Known(
        "mmcv 1",
        "optimizer_config.grad_clip",
        "None",
        "clip_grad_norm_'s arguments; None: off",
        "mmengine's optim_wrapper says the same",
    ),
    Known(
        "opacus",
        "max_grad_norm",
        "none",
        "differential privacy, for all that it is named as HF's",
        SAMPLES,
    ),
    Known(
        "timm",
        "--opt lamb: max_grad_norm of its Lamb",
        "1.0",
        "a second clip of the global norm, inside the step of the optimizer",
        "it is part of the optimizer, which clips again whatever was clipped before",
    ),
    Known(
        "TF Model Garden",
        "trainer.optimizer_config.optimizer.NAME.{clipnorm, global_clipnorm, clipvalue}",
        "null",
        "as Keras has it: each tensor, all gradients, each element",
    ),
    Known(
        "TF Model Garden, legacy AdamW",
        "gradient_clip_norm",
        "1.0",
        "the global norm, TensorFlow's rule; 0 or less: off; only with experimental_aggregate_gradients",
        IN_CODE,
    ),
    Known("TF Model Garden", "dp_config.clipping_norm", "", "differential privacy", SAMPLES),
    Known(
        "TensorFlow 1, contrib.layers",
        "optimize_loss(clip_gradients)",
        "None",
        "a number: the global norm, TensorFlow's rule",
        IN_CODE,
    ),
    Known(
        "TensorFlow 1, contrib.layers",
        "adaptive_clipping_fn",
        "",
        "by the mean and deviation of earlier norms",
        "it is no rule here",
    ),
    Known(
        "TensorFlow 1, contrib.estimator",
        "clip_gradients_by_norm(optimizer, clip_norm)",
        "none",
        "the global norm, whatever the name says",
        IN_CODE,
    ),
    Known(
        "TensorFlow 1, slim and contrib.training",
        "create_train_op(clip_gradient_norm)",
        "0",
        "each tensor by its own norm, TensorFlow's rule; 0 or less: off",
        IN_CODE,
    ),
    Known("tensor2tensor", "clip_grad_norm", "2.0", "the global norm, TensorFlow's rule; 0 or null: off", IN_CODE),
    Known("T5 on Mesh TensorFlow", "AdafactorOptimizer.clipping_threshold", "1.0", "the update's RMS", UPDATES),
    Known("T5X", "Adafactor.clipping_threshold", "1.0", "the update's RMS", UPDATES),
    Known(
        "T5X",
        "Adafactor.global_norm_clip_threshold",
        "None",
        "the global norm; 0 or None: off",
        "its files are gin, which is not read",
    ),
    Known("HF Transformers", "Adafactor(clip_threshold)", "1.0", "the update's RMS", UPDATES),
    Known("MindSpore", "ops.clip_by_global_norm(clip_norm)", "1.0", "the global norm; 0 or less: an error", IN_CODE),
    Known(
        "MindFormers",
        "runner_wrapper.use_clip_grad, max_grad_norm",
        "False, 1.0",
        "the global norm, Paddle's rule (eps = 0), where use_clip_grad is True",
    ),
    Known("PaddleSpeech, s2t", "global_grad_clip", "5.0 in most", "the global norm, Paddle's rule; 0: zeros"),
    Known("PaddleSpeech, kws and others", "grad_clip", "", "the global norm, Paddle's rule; 0: zeros"),
    Known(
        "PaddleSpeech, t2s",
        "generator_grad_norm, discriminator_grad_norm, max_grad_norm",
        "",
        "the global norm of each optimizer, Paddle's rule; 0 or null: off with max_grad_norm",
        "there are several optimizers; write a configuration for each",
    ),
    Known(
        "Paddle fleet",
        "DistributedStrategy",
        "",
        "has no key for it: the clip is the optimizer's",
        "read it with ClipConfig.of(optimizer)",
    ),
)
