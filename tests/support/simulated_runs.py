"""Train a small network in NumPy float32, and write the recording that `unified_clip.record(norms=True)` would write.

Each field of `Training` is one decision of a training script. Two trainings that differ in one field are two scripts
with one difference, whose finding a test knows without running the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unified_clip.tensors.samples import sample_of, sums_of

from .recordings import write_recording

Single = Any  # an array of float32
Tensors = dict[str, Single]

SHAPES = {"in.weight": (6, 5), "in.bias": (5,), "out.weight": (5, 4), "out.bias": (4,)}
ORDER = tuple(SHAPES)
INNER, OUTER = ORDER[:2], ORDER[2:]
BATCH = 16

RENAMED = {"in.weight": "dense/kernel", "in.bias": "dense/bias", "out.weight": "head/kernel", "out.bias": "head/bias"}
PACKED = {"in.weight": (("in.left", slice(0, 2)), ("in.right", slice(2, 5)))}
"""{parameter: the columns of the parameters that another model has in its place}."""


@dataclass(frozen=True)
class Clip:
    """The clip of the gradients before each step."""

    rule: str = "global"
    """Or "each", "loop" (a call for each parameter), "groups" (a call for each layer), "value", or "none"."""

    threshold: float = 0.25
    eps: float = 1e-6
    norm_type: float = 2.0
    excluded: tuple[str, ...] = ()
    times: int = 1
    is_late: bool = False
    by_hand: bool = False
    is_dropped: bool = False
    """The script does not use the result of the clip."""

    first_step: int = 1
    follows_loss_scale: bool = False
    """The script multiplies the threshold by the loss scale."""

    norm_error: float = 0.0
    """The relative error of the norm that the caller passes to the function. 0 if the function computes the norm."""


@dataclass(frozen=True)
class Optimizer:
    name: str = "SGD"
    rate: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    eps_in_root: bool = False  # only RMSprop
    alpha: float = 0.99  # only RMSprop
    corrects: bool = True
    """Whether Adam has its bias correction."""

    eps_first: bool = False
    """Whether Adam adds eps before its bias correction, as Keras does."""

    amsgrad: bool = False

    decay: float = 0.0
    is_decoupled: bool = False
    schedule: Callable[[int], float] | None = None
    """The factor of the learning rate in each step, from 1."""

    def rate_at(self, step: int) -> float:
        return self.rate * (self.schedule(step) if self.schedule else 1.0)


@dataclass(frozen=True)
class Training:
    clip: Clip = field(default_factory=Clip)
    optimizer: Optimizer = field(default_factory=Optimizer)
    steps: int = 7
    scale: float = 1.0
    """The factor of the loss."""

    factors: Mapping[str, float] = field(default_factory=dict)
    """The factors of single gradients."""

    regularizer: float = 0.0
    """This times the weight is added to each gradient before the clip."""

    other_data_from: int | None = None
    other_weights: tuple[str, ...] = ()
    passes: int = 1
    """The number of backward passes before a step, whose gradients are added up."""

    loss_scale: float | None = None
    """The clip gets gradients that are multiplied by this factor, and the optimizer gets their quotient."""

    scale_growth: float = 1.0
    """The factor by which the loss scale grows in each step."""

    is_reshaped: bool = False
    """The weights are stored in the transposed shape, but with the order of the other script, as by a wrong port."""

    is_frozen: bool = False
    """The optimizer belongs to a copy of the model."""

    clears: bool = True
    """Whether each backward pass begins without gradients."""

    is_transposed: bool = False
    is_renamed: bool = False
    is_reversed: bool = False
    """The model lists its parameters in the reversed order."""

    is_packed: bool = False
    is_split: bool = False
    """Each layer has an optimizer of its own."""

    zero_biases: bool = False
    is_bfloat16: bool = False
    """Whether weights and gradients are in bfloat16."""

    noise: float = 0.0
    """The relative rounding errors of the gradients, as another framework has them."""

    noise_growth: float = 1.0
    """The factor by which rounding errors grow in each step."""

    records_settings: bool = True
    records_tensors: bool = True
    """Whether steps of the optimizer have the gradients and weights, as those of PyTorch and optax have."""

    def scale_at(self, step: int) -> float | None:
        return self.loss_scale and self.loss_scale * self.scale_growth ** (step - 1)

    def rounded(self, tensors: Tensors) -> Tensors:
        if not self.is_bfloat16:
            return tensors
        bits = {name: (each.view(np.uint32) + 0x8000) & 0xFFFF0000 for name, each in tensors.items()}
        return {name: each.astype(np.uint32).view(np.float32) for name, each in bits.items()}


def write_run(path: Path, training: Training) -> Path:
    return write_recording(path, run_lines(training))


# -- the model


def _initial(training: Training) -> Tensors:
    rng = np.random.default_rng(7)
    weights = {name: (rng.standard_normal(shape) / 2).astype(np.float32) for name, shape in SHAPES.items()}
    others = np.random.default_rng(8)
    for name in training.other_weights:
        weights[name] = (others.standard_normal(SHAPES[name]) / 2).astype(np.float32)
    if training.zero_biases:
        weights |= {name: np.zeros_like(each) for name, each in weights.items() if each.ndim == 1}
    if training.is_reshaped:
        matrices = {name: each for name, each in weights.items() if each.ndim == 2}
        weights |= {name: each.reshape(each.T.shape).T.copy() for name, each in matrices.items()}
    return weights


def _gradients(training: Training, weights: Tensors, step: int) -> Tensors:
    """Return the gradients of the mean squared error of two layers with tanh between them."""
    is_other = training.other_data_from is not None and step >= training.other_data_from
    rng = np.random.default_rng((step, is_other))
    inputs, targets = rng.standard_normal((BATCH, 6)), rng.standard_normal((BATCH, 4))
    exact = {name: each.astype(np.float64) for name, each in weights.items()}
    hidden = np.tanh(inputs @ exact["in.weight"] + exact["in.bias"])
    factor = training.scale * training.passes * (training.scale_at(step) or 1.0)
    error = (hidden @ exact["out.weight"] + exact["out.bias"] - targets) * (factor / BATCH)
    inner = error @ exact["out.weight"].T * (1 - hidden**2)
    found = {
        "in.weight": inputs.T @ inner,
        "in.bias": inner.sum(0),
        "out.weight": hidden.T @ error,
        "out.bias": error.sum(0),
    }
    rounding, size = np.random.default_rng((step, 3)), training.noise * training.noise_growth ** (step - 1)
    return {
        name: (
            (training.factors.get(name, 1.0) * each + training.regularizer * exact[name])
            * (1 + size * rounding.standard_normal(each.shape))
        ).astype(np.float32)
        for name, each in found.items()
    }


# -- the clip


def _groups(training: Training) -> list[tuple[str, ...]]:
    """Return the parameters that share a norm. A packed model clips each of its parameters."""
    clipped = [name for name in _listed(training) if name not in training.clip.excluded]
    if training.clip.rule == "loop":
        return [(name,) for name in clipped]
    if training.clip.rule == "groups":
        return [tuple(name for name in clipped if name in layer) for layer in (INNER, OUTER)]
    return [tuple(clipped)]


def _listed(training: Training) -> list[str]:
    return list(reversed(ORDER) if training.is_reversed else ORDER)


def _clip(
    training: Training, gradients: Tensors, weights: Tensors, scale: float | None
) -> tuple[Tensors, list[dict[str, Any]]]:
    """Return the clipped gradients and the lines of the calls."""
    clip = training.clip
    if scale and clip.follows_loss_scale:
        clip = replace(clip, threshold=clip.threshold * scale)
    lines: list[dict[str, Any]] = []
    if clip.rule == "none":
        return gradients, []
    for _ in range(clip.times):
        for names in _groups(training):
            stored = _stored(training, {name: gradients[name] for name in names})
            stored_weights = _stored(training, {name: weights[name] for name in names})
            clipped, line = _clip_call(clip, stored, stored_weights)
            gradients = {**gradients, **_restored(training, clipped)}
            lines.append({**line, **({"loss_scale": scale} if scale else {})})
    return gradients, lines


def _clip_call(clip: Clip, gradients: Tensors, weights: Tensors) -> tuple[Tensors, dict[str, Any]]:
    p = clip.norm_type
    norms = {name: _norm(each, p) for name, each in gradients.items()}
    total = float(np.float32(sum(norm**p for norm in norms.values()) ** (1 / p)))
    line: dict[str, Any] = {
        "call": "clip", "framework": "torch",
        "rule": {"groups": "global", "loop": "global"}.get(clip.rule, clip.rule),
        "threshold": clip.threshold, "norm_type": p, "eps": clip.eps, "count": len(norms), "nan": 0, "inf": 0,
        "parameters": {
            name: {**_sampled("sample", each), **_sampled("weight_sample", weights[name]), "shape": list(each.shape),
                   "norm": norms[name], "weight": _norm(weights[name], p), **_sums(weights[name])}
            for name, each in gradients.items()
        },
    }  # fmt: skip
    if clip.rule == "value":
        bounds = [-clip.threshold, clip.threshold]
        line |= {"threshold": bounds, "norm_type": None, "eps": None, "clipped": True}
        return {name: each.clip(*map(np.float32, bounds)) for name, each in gradients.items()}, line
    is_each = clip.rule == "each"
    used = {name: (norms[name] if is_each else total) * (1 + clip.norm_error) for name in gradients}
    coefs = {name: min(1.0, clip.threshold / (norm + clip.eps)) for name, norm in used.items()}
    line |= {"norm": list(norms.values()), "coef": list(coefs.values())}
    if clip.norm_error:
        line["passed_norm"] = next(iter(used.values()))
    if not is_each:
        line |= {"norm": total, "coef": next(iter(coefs.values()))}
    line["clipped"] = min(coefs.values()) < 1
    return {name: each * np.float32(coefs[name]) for name, each in gradients.items()}, line


def _norm(tensor: Single, p: float = 2.0) -> float:
    return float(np.float32((np.abs(tensor.astype(np.float64)) ** p).sum() ** (1 / p)))


def _sampled(key: str, tensor: Single) -> dict[str, list[float]]:
    return {key: sample_of(tensor).elements.tolist()}


def _sums(weight: Single) -> dict[str, Any]:
    sums = sums_of(weight, "float32")
    return {"sums": list(sums)} if sums else {}


# -- how the script stores its parameters


def _stored(training: Training, tensors: Tensors) -> Tensors:
    """Return the tensors with the names, the layout and the parts of the script."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        parts = PACKED.get(name, ()) if training.is_packed else ()
        for part, columns in parts:
            found[part] = tensor[:, columns]
        if not parts:
            found[RENAMED[name] if training.is_renamed else name] = tensor
    return {name: np.ascontiguousarray(each.T) if training.is_transposed else each for name, each in found.items()}


def _restored(training: Training, tensors: Tensors) -> Tensors:
    found = {name: each.T if training.is_transposed else each for name, each in tensors.items()}
    if training.is_renamed:
        own_names = {other: name for name, other in RENAMED.items()}
        found = {own_names.get(name, name): each for name, each in found.items()}
    if training.is_packed:
        for name, parts in PACKED.items():
            if parts[0][0] in found:
                found[name] = np.concatenate([found.pop(part) for part, _ in parts], axis=1)
    return found


# -- the optimizer


def _update(optimizer: Optimizer, step: int, gradient: Single, weight: Single, state: Tensors) -> Single:
    """Return the new weight. The rules are those of PyTorch's documentation."""
    rate, decay = np.float32(optimizer.rate_at(step)), np.float32(optimizer.decay)
    start = weight * (1 - rate * decay) if decay and optimizer.is_decoupled else weight
    gradient = gradient + decay * weight if decay and not optimizer.is_decoupled else gradient
    return start - rate * _direction(optimizer, step, gradient, state)


def _direction(optimizer: Optimizer, step: int, gradient: Single, state: Tensors) -> Single:
    zero = np.zeros_like(gradient)
    if optimizer.name == "SGD":
        momentum = np.float32(optimizer.momentum)
        state["sum"] = momentum * state.get("sum", zero) + gradient
        return gradient + momentum * state["sum"] if optimizer.nesterov else state["sum"]
    if optimizer.name == "RMSprop":
        alpha, eps = np.float32(optimizer.alpha), np.float32(optimizer.eps)
        state["squares"] = alpha * state.get("squares", zero) + (1 - alpha) * gradient**2
        root = np.sqrt(state["squares"] + eps) if optimizer.eps_in_root else np.sqrt(state["squares"]) + eps
        return gradient / root
    first, second = map(np.float32, optimizer.betas)
    state["mean"] = first * state.get("mean", zero) + (1 - first) * gradient
    state["squares"] = second * state.get("squares", zero) + (1 - second) * gradient**2
    mean, squares = state["mean"], state["squares"]
    if optimizer.amsgrad:
        squares = state["most"] = np.maximum(state.get("most", zero), squares)
    if optimizer.corrects:
        mean, squares = (
            each / np.float32(1 - beta**step) for each, beta in zip((mean, squares), optimizer.betas, strict=True)
        )
    root, eps = np.sqrt(squares), np.float32(optimizer.eps)
    if optimizer.eps_first:
        eps = eps / np.sqrt(np.float32(1 - optimizer.betas[1] ** step))
    return mean / (root + eps)


def _settings(optimizer: Optimizer, step: int) -> dict[str, Any]:
    common = {"lr": optimizer.rate_at(step), "weight_decay": optimizer.decay}
    if optimizer.name == "SGD":
        return {**common, "momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
    if optimizer.name == "RMSprop":
        return {**common, "alpha": optimizer.alpha, "eps": optimizer.eps}
    return {**common, "betas": list(optimizer.betas), "eps": optimizer.eps}


# -- the training


def run_lines(training: Training) -> Iterator[dict[str, Any]]:
    clip, optimizer = training.clip, training.optimizer
    weights, left = training.rounded(_initial(training)), {name: np.float32(0) for name in ORDER}
    states: dict[str, Tensors] = {name: {} for name in ORDER}
    for step in range(1, training.steps + 1):
        scale = training.scale_at(step)
        computed = training.rounded(_gradients(training, weights, step))
        gradients = {name: each + left[name] for name, each in computed.items()}
        clipped, lines = gradients, []
        if step >= clip.first_step:
            clipped, lines = _clip(training, gradients, weights, scale)
        before, clipped = weights, training.rounded(clipped)
        at_step = gradients if clip.is_late or clip.is_dropped else clipped
        if scale:
            at_step = {name: each / np.float32(scale) for name, each in at_step.items()}
        weights = (
            before
            if training.is_frozen
            else training.rounded(
                {
                    name: _update(optimizer, step, at_step[name], weights[name], states[name]).astype(np.float32)
                    for name in ORDER
                }
            )
        )
        if clip.is_late:
            _, lines = _clip(training, gradients, weights, scale)
        left = {name: np.float32(0) if training.clears else clipped[name] for name in ORDER}
        calls = [{"step": step, **line} for line in lines] if not clip.by_hand else []
        steps = list(_step_lines(training, step, at_step, before, gradients))
        yield from [*steps, *calls] if clip.is_late else [*calls, *steps]


def _step_lines(
    training: Training, step: int, gradients: Tensors, weights: Tensors, raw: Tensors
) -> Iterator[dict[str, Any]]:
    """raw: The gradients after the backward pass. The recorder samples them only if the script's own code changes
    them before the step."""
    optimizer, clip = training.optimizer, training.clip
    listed = _listed(training)
    networks: Sequence[Sequence[str]] = [listed]
    if training.is_split:
        networks = [[name for name in listed if name in layer] for layer in (INNER, OUTER)]
    for number, names in enumerate(networks, start=1):
        stored, stored_weights, stored_raw = (
            _stored(training, {name: tensors[name] for name in names}) for tensors in (gradients, weights, raw)
        )
        name = "AdamW" if optimizer.name == "Adam" and optimizer.is_decoupled else optimizer.name
        line: dict[str, Any] = {
            "step": step,
            "instance": number,
            "optimizer": f"torch.optim.{name}" if training.records_settings else f"mine.{name}",
            "settings": _settings(optimizer, step) if training.records_settings else {},
            "backward_calls": training.passes,
            "cleared": None if step == 1 else training.clears,
            "gradients": len(stored),
            "parameters": list(stored),
            "losses": [],
        }
        if clip.by_hand or clip.rule == "none":
            line["changed"] = len(stored) if clip.by_hand else 0
        if training.records_tensors:
            line["tensors"] = _tensors_at_step(stored, stored_weights, stored_raw if clip.by_hand else {})
        yield line


def _tensors_at_step(gradients: Tensors, weights: Tensors, raw: Tensors) -> Mapping[str, Any]:
    return {
        name: {
            "shape": list(gradient.shape),
            "norm": _norm(gradient),
            **_sampled("sample", gradient),
            **_sampled("weight_sample", weights[name]),
            **({**_sampled("raw_sample", raw[name]), "raw_norm": _norm(raw[name])} if name in raw else {}),
        }
        for name, gradient in gradients.items()
    }
