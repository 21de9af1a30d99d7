"""Adaptive thresholds in `tf.function` with and without XLA: the bits of the recursion."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.tiers import nightly, quick
from support.trainers.adaptive_cases import ADAGC, AGC, FITTING, Doubling, check_graph, check_tensor_graph, rule_of

from unified_clip import adaptive as functions


def graph(rule: Any, xla: bool) -> Any:
    @tf.function(jit_compile=xla)
    def clip(grad: Any, state: Any) -> Any:
        (result,), norm, state = functions.clip_by_global_norm([grad], rule, state)
        return result, norm, state

    return clip


@pytest.mark.parametrize("xla", [True, *nightly(False)])
@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2]))
def test_a_graph_has_the_bits_of_the_recursion(settings: dict[str, Any], xla: bool) -> None:
    rule = rule_of(settings)
    check_graph(graph(rule, xla), tf.constant, rule, settings)


@pytest.mark.nightly
@pytest.mark.parametrize("xla", [False, True])
def test_a_users_own_rule_has_the_bits_of_numpy(xla: bool) -> None:
    check_graph(graph(Doubling(), xla), tf.constant, Doubling())


@pytest.mark.parametrize("xla", [False, *nightly(True)])
def test_thresholds_of_tensors_and_units_have_the_same_bits_in_a_graph(xla: bool) -> None:
    @tf.function(jit_compile=xla)
    def clip(grads: Any, state: Any) -> Any:
        results, _, state = functions.clip_by_tensor_norm(grads, ADAGC, state)
        return results, state

    @tf.function(jit_compile=xla)
    def clip_units(grads: Any, parameters: Any) -> Any:
        return functions.clip_by_unit_norm(grads, parameters, AGC)

    check_tensor_graph(clip, tf.constant, clip_units)


def test_a_state_inside_a_graph_cannot_be_read() -> None:
    rule = functions.ZClip()
    read = tf.function(lambda state: functions.read_state(rule, state), autograph=False)
    with pytest.raises(TypeError, match=r"^the state is inside a compiled graph, .* call read_state outside\."):
        read(functions.initial_state(rule, tf.zeros(2)))
