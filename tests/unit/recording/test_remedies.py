"""`unified-clip compare`: the advice about a clip names code for the framework of the second run."""

from __future__ import annotations

from typing import Any

import pytest
from support.recordings import NORMS, clip_line

from unified_clip.recording.report import sentences

TORCH = {"framework": "torch", "call": "torch.nn.utils.clip_grad_norm_", "eps": 1e-6}
PADDLE = {"framework": "paddle", "call": "paddle.nn.ClipGradByGlobalNorm"}
KERAS = {"framework": "tensorflow", "call": "keras.optimizers.Adam(clipnorm=)"}
OPTAX = {"framework": "jax", "call": "optax.clip_by_global_norm"}

TOTAL, PER_TENSOR = "clips by the total norm", "clips per tensor"
GROUP = "clips each group of parameters by its own norm"
NO_EPS, EPS = "and adds no eps to the norm.", "and adds 1e-06 to the norm."
GROUPS = "The groups must contain the same parameters as the groups of a.jsonl."
BEFORE = "Call it before optimizer.step(), and remove grad_clip= from the optimizer."
PADDLE_GROUPS = "Paddle calls the clip of an optimizer once for each parameter group."

CLIP = "unified_clip.{}.GradientClipByGlobalNorm(c).clip_({})"
CONFIG = 'unified_clip.ClipConfig(rule="norm", threshold=c, norm_type=2, eps=1e-06)'
LOOP = CLIP.format("torch", 'group["params"]')
JAX_LOOP = "for gradients in groups: unified_clip.jax.clip_grad_norm_(gradients, c)"


def total(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, **settings)]


def groups(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, {"a": 3.0, "b": 4.0}, **settings), clip_line(1, {"c": 12.0}, **settings)]


def loop(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, {name: norm}, **settings) for name, norm in NORMS.items()]


@pytest.mark.parametrize(
    ("old", "new", "code", "effect", "rest"),
    [
        (total(PADDLE), groups(TORCH), CLIP.format("torch", "model.parameters()"), TOTAL, NO_EPS),
        (total(TORCH), groups(TORCH), "torch.nn.utils.clip_grad_norm_(model.parameters(), c)", TOTAL, EPS),
        (total(TORCH), loop(OPTAX), "unified_clip.jax.clip_grad_norm_(gradients, c)", TOTAL, EPS),
        (total(OPTAX), groups(PADDLE), CLIP.format("paddle", "model.parameters()"), TOTAL, f"{NO_EPS} {BEFORE}"),
        (
            groups(PADDLE),
            total(TORCH),
            f"for group in optimizer.param_groups: {LOOP}",
            GROUP,
            f"{NO_EPS} {GROUPS} {PADDLE_GROUPS}",
        ),
        (groups(TORCH), total(OPTAX), JAX_LOOP, GROUP, f"{EPS} {GROUPS}"),
        (loop(TORCH), total(KERAS), CONFIG, PER_TENSOR, EPS),
        (loop(OPTAX), total(KERAS), "clipnorm=c", PER_TENSOR, NO_EPS),
        (total(OPTAX), loop(KERAS), "global_clipnorm=c", TOTAL, NO_EPS),
    ],
)
def test_the_advice_gives_the_second_run_the_rule_and_the_eps_of_the_first(
    compare_runs: Any, old: list[dict[str, Any]], new: list[dict[str, Any]], code: str, effect: str, rest: str
) -> None:
    printed = sentences.report_lines(compare_runs(old, new))
    (advice,) = [line for line in printed if line.startswith("To use the same rule")]
    assert advice == f"To use the same rule in both runs, change the clip of b.jsonl: `{code}` {effect}, {rest}"
