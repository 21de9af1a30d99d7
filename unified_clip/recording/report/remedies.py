"""Advise how to correct the causes of a difference."""

from __future__ import annotations

from ...causes.cause import CauseKind
from ..compare import RecordingComparison

REMEDIES: dict[CauseKind, str] = {
    "another threshold": "To have the same threshold, change the number in {new}. One run might multiply its "
    "threshold by a factor, such as a loss scale or a learning rate. If the gradients of the other run are multiplied "
    "by this factor, multiply its threshold, too.",
    "per tensor for global": "To have the same rule, change the clip of {new}. "
    "PyTorch: `unified_clip.torch.GradientClipByNorm(c).clip_(model.parameters())` clips per tensor. "
    "`clip_grad_norm_(model.parameters(), c)` clips by the total norm.",
    "per group for global": "To have the same rule, change the clip of {new}. "
    "Paddle calls the clip of an optimizer once for each parameter group. PyTorch: `for group in "
    'optimizer.param_groups: unified_clip.torch.GradientClipByGlobalNorm(c).clip_(group["params"])` clips per group, '
    "as Paddle does. `clip_grad_norm_(model.parameters(), c)` clips by the total norm. "
    "The order of the groups does not matter.",
}

EPS_REMEDIES = {
    "global": "To have the same eps of the clip, call another function in {new}. PyTorch: "
    "`unified_clip.torch.GradientClipByGlobalNorm(c).clip_(parameters)` adds nothing to the total norm. "
    "`clip_grad_norm_(parameters, c)` adds 1e-06.",
    "each": "To have the same eps of the clip, call another function in {new}, but keep the clip per tensor. PyTorch: "
    "`unified_clip.torch.GradientClipByNorm(c).clip_(model.parameters())` adds nothing to each norm. A loop of "
    "`clip_grad_norm_([p], c)` adds 1e-06.",
}


def remedies(comparison: RecordingComparison) -> dict[CauseKind, list[str]]:
    advice = {each.kind: [REMEDIES[each.kind]] for each in comparison.findings if each.kind in REMEDIES}
    if (step := step_of_other_eps(comparison)) is not None:
        advice["another eps of the clip"] = [
            EPS_REMEDIES[rule] for rule in sorted(_rules_at(comparison, step), reverse=True)
        ]
    new = comparison.b.name
    return {kind: [line.replace("{new}", new) for line in lines] for kind, lines in advice.items()}


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
