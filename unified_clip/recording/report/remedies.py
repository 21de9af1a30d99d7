"""Advise how to correct the causes of a difference."""

from __future__ import annotations

from ...causes.cause import CauseKind
from ..causes.order_of_calls import RULES_FOR_GLOBAL
from ..compare import RecordingComparison
from ..recorded_run import RecordedCall

OTHER_THRESHOLD = (
    "To use the same threshold in both runs, change the threshold in {new}. If only one run multiplies its gradients "
    "by a factor, such as a loss scale or a learning rate, multiply the threshold of this run by the same factor."
)

EFFECTS = {
    "global": "clips by the total norm",
    "each": "clips per tensor",
    "groups": "clips each group of parameters by its own norm",
}


def remedies(comparison: RecordingComparison) -> dict[CauseKind, list[str]]:
    """Advise how to change the second run."""
    new, kinds = comparison.b.name, {each.kind for each in comparison.findings}
    advice: dict[CauseKind, list[str]] = {}
    if "another threshold" in kinds:
        advice["another threshold"] = [OTHER_THRESHOLD.replace("{new}", new)]
    for divergence, causes in comparison.divergences.items():
        for kind in {cause.kind for cause in causes} & (RULES_FOR_GLOBAL.keys() - advice):
            rule = "global" if divergence.a == "global" else RULES_FOR_GLOBAL[kind]
            clip = _clip_text(comparison, divergence.step, rule)
            advice[kind] = [f"To use the same rule in both runs, change the clip of {new}: {clip}."]
    if (step := step_of_other_eps(comparison)) is not None:
        clips = [_clip_text(comparison, step, rule) for rule in sorted(_rules_at(comparison, step), reverse=True)]
        advice["another eps of the clip"] = [
            f"To use the same eps in both clips, change the clip of {new}: {clip}." for clip in clips
        ]
    return advice


def step_of_other_eps(comparison: RecordingComparison) -> int | None:
    causes = comparison.divergences.items()
    kind = "another eps of the clip"
    steps = [divergence.step for divergence, each in causes if any(cause.kind == kind for cause in each)]
    if comparison.other_eps:
        steps.append(comparison.other_eps[0].step)
    return min(steps, default=None)


def _rules_at(comparison: RecordingComparison, step: int) -> set[str]:
    lines = [pair.a for pair in comparison.pairs if pair.a.step == step]
    is_loop = len(lines) > 1 and all(len(line.parameters) == 1 for line in lines)
    return {"each" if is_loop or line.rule == "each" else "global" for line in lines}


def _clip_text(comparison: RecordingComparison, step: int, rule: str) -> str:
    """Describe code for the framework of the second run that has the rule and the eps of the first run."""
    old, new = (next((line for line in run.lines if line.step == step), run.lines[0]) for run in comparison.runs)
    text = f"`{_code(rule, old, new)}` {EFFECTS[rule]}"
    if old.eps is not None:
        text += f", and adds {f'{old.eps:g}' if old.eps else 'no eps'} to the norm"
    if rule == "groups":
        text += f". The groups must contain the same parameters as the groups of {comparison.a.name}"
    if old.framework == "paddle" and rule == "groups":
        text += ". Paddle calls the clip of an optimizer once for each parameter group"
    if new.call.startswith("paddle.nn.ClipGrad") and rule != "groups":
        text += ". Call it before optimizer.step(), and remove grad_clip= from the optimizer"
    return text


def _code(rule: str, old: RecordedCall, new: RecordedCall) -> str:
    eps, names_parameters = old.eps or 0.0, new.framework in ("torch", "paddle")
    if rule == "groups":
        is_torch = new.framework == "torch"
        group, gradients = ("group", 'group["params"]') if is_torch else ("gradients", "gradients")
        groups = "optimizer.param_groups" if is_torch else "groups"
        return f"for {group} in {groups}: {_call('global', eps, old.order, new, gradients)}"
    return _call(rule, eps, old.order, new, "model.parameters()" if names_parameters else "gradients")


def _call(rule: str, eps: float, order: float, new: RecordedCall, gradients: str) -> str:
    if (eps, order) == (0, 2) and new.call.startswith("keras"):
        return f"{'clipnorm' if rule == 'each' else 'global_clipnorm'}=c"
    namespace = f"unified_clip.{new.framework}" if new.framework else "unified_clip"
    if (eps, order) == (0, 2):
        return f"{namespace}.GradientClipBy{'Norm' if rule == 'each' else 'GlobalNorm'}(c).clip_({gradients})"
    if (eps, order, rule) == (1e-6, 2, "global"):
        module = "torch.nn.utils" if new.framework == "torch" else namespace
        return f"{module}.clip_grad_norm_({gradients}, c)"
    if (eps, order, new.framework) == (1e-6, 2, "torch"):
        return f"for p in {gradients}: torch.nn.utils.clip_grad_norm_([p], c)"
    rule = "norm" if rule == "each" else "global_norm"
    return f'unified_clip.ClipConfig(rule="{rule}", threshold=c, norm_type={order:g}, eps={eps:g})'
