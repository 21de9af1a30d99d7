"""Adaptive thresholds in `tf.function` with and without XLA: the bits of the recursion."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.tiers import quick
from support.trainers.adaptive_cases import FITTING, Doubling, check_graph, rule_of

from unified_clip import adaptive as functions


def graph(rule: Any, xla: bool) -> Any:
    @tf.function(jit_compile=xla)
    def clip(grad: Any, state: Any) -> Any:
        (result,), norm, state = functions.clip_by_global_norm([grad], rule, state)
        return result, norm, state

    return clip


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2]))
def test_a_graph_has_the_bits_of_the_recursion(settings: dict[str, Any], xla: bool) -> None:
    rule = rule_of(settings)
    check_graph(graph(rule, xla), tf.constant, rule, settings)


@pytest.mark.nightly
@pytest.mark.parametrize("xla", [False, True])
def test_a_users_own_rule_has_the_bits_of_numpy(xla: bool) -> None:
    check_graph(graph(Doubling(), xla), tf.constant, Doubling())
