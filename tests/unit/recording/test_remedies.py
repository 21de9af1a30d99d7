"""`unified-clip compare`: the advice about a clip names code for the framework of the second run."""

from __future__ import annotations

from typing import Any

import pytest
from support.recordings import NORMS, clip_line

TORCH = {"framework": "torch", "call": "torch.nn.utils.clip_grad_norm_", "eps": 1e-6}
PADDLE = {"framework": "paddle", "call": "paddle.nn.ClipGradByGlobalNorm"}
KERAS = {"framework": "tensorflow", "call": "keras.optimizers.Adam(clipnorm=)"}
OPTAX = {"framework": "jax", "call": "optax.clip_by_global_norm"}

CLIP = "unified_clip.{}.GradientClipByGlobalNorm(1).clip_({})"
CONFIG = 'unified_clip.ClipConfig(rule="norm", threshold=1, norm_type=2, eps=1e-06)'
LOOP = CLIP.format("torch", 'group["params"]')
JAX_LOOP = "for gradients in groups: unified_clip.jax.clip_grad_norm_(gradients, 1)"


def total(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, **settings)]


def groups(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, {"a": 3.0, "b": 4.0}, **settings), clip_line(1, {"c": 12.0}, **settings)]


def loop(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(1, {name: norm}, **settings) for name, norm in NORMS.items()]


def schedule(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [clip_line(step, threshold=float(step), **settings) for step in (1, 2)]


@pytest.mark.parametrize(
    ("old", "new", "code", "module"),
    [
        (total(PADDLE), groups(TORCH), CLIP.format("torch", "model.parameters()"), "unified_clip.torch"),
        (total(TORCH), groups(TORCH), "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)", ""),
        (total(TORCH), loop(OPTAX), "unified_clip.jax.clip_grad_norm_(gradients, 1)", "unified_clip.jax"),
        (total(OPTAX), groups(PADDLE), CLIP.format("paddle", "model.parameters()"), "unified_clip.paddle"),
        (groups(PADDLE), total(TORCH), f"for group in optimizer.param_groups: {LOOP}", "unified_clip.torch"),
        (groups(TORCH), total(OPTAX), JAX_LOOP, "unified_clip.jax"),
        (loop(TORCH), total(KERAS), CONFIG, "unified_clip"),
        (loop(OPTAX), total(KERAS), "clipnorm=1", ""),
        (total(OPTAX), loop(KERAS), "global_clipnorm=1", ""),
    ],
)
def test_the_advice_gives_the_second_run_the_rule_and_the_eps_of_the_first(
    compare_runs: Any, old: list[dict[str, Any]], new: list[dict[str, Any]], code: str, module: str
) -> None:
    fixes = [each.fix for each in compare_runs(old, new).findings if each.field == "gradients that share a norm"]
    written = f"`{code}`, with `import {module}`" if module else f"`{code}`"
    assert fixes == [f"Change the clip of b.jsonl: {written}"]


def test_the_advice_has_the_threshold_of_the_first_run_unless_it_changes(compare_runs: Any) -> None:
    advice = [compare_runs(old, loop(KERAS)).findings[0].fix for old in (total(PADDLE), schedule(PADDLE))]
    assert advice == [f"Change the clip of b.jsonl: `global_clipnorm={each}`" for each in ("1", "c")]


@pytest.mark.parametrize(
    ("old", "new"),
    [(total(PADDLE), groups(TORCH)), (groups(TORCH), total(PADDLE)), (loop(TORCH), total(PADDLE))],
)
def test_a_line_that_mends_two_differences_stands_once(
    compare_runs: Any, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    findings = compare_runs(old, new).findings
    assert [each.field for each in findings] == ["gradients that share a norm", "eps of the clip"]
    assert [bool(each.fix) for each in findings] == [True, False]
