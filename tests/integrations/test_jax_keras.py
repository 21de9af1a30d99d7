"""Keras on its JAX backend."""

from __future__ import annotations

import os

import pytest

os.environ["KERAS_BACKEND"] = "jax"

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from support.clip_cases import gradients
from support.trainers.keras_cases import *  # noqa: F403
from support.trainers.keras_cases import INPUTS, TARGETS, eager, in_graph, network, variables

import unified_clip
from unified_clip import ClipConfig

pytestmark = [pytest.mark.nightly, pytest.mark.graphs]  # on JAX, Keras compiles its steps


def test_a_graph_clips_in_vain_while_gradients_accumulate(tmp_path: Path) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    handle = ClipConfig(rule="global_norm", threshold=0.01).attach_to(optimizer)
    apply = in_graph(optimizer, named)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        for grads in gradients(3):
            apply(grads)
    lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    norms = [line["norm"] for line in lines if "norm" in line]
    assert len(norms) == 3
    assert handle.last.norm == np.float32(norms[1])  # of the update
    assert (handle.last.step, handle.step) == (0, 1)


def test_a_handle_has_the_values_of_the_epoch_before_while_fit_runs() -> None:
    """During an epoch, Keras on JAX removes the values of an optimizer's variables."""
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    handle = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}, threshold=1.0).attach_to(optimizer)

    def load(batch: int, logs: Any) -> None:
        state = handle.state_dict()
        with pytest.raises(RuntimeError, match=r"Before load_state_dict\(\), call model\.jax_state_sync"):
            handle.load_state_dict(state)

    def values() -> Any:
        last = handle.last if handle.step else None
        return last, handle.rate, handle.step, handle.state_dict()

    seen, ends = [], [values()]
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(values())),
        keras.callbacks.LambdaCallback(on_train_batch_end=load),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(values())),
    ]
    model.compile(optimizer, "mse")
    model.fit(INPUTS, TARGETS, batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
    assert seen == [ends[0], ends[0], ends[1], ends[1], ends[2], ends[2]]
    assert [step for _, _, step, _ in ends] == [0, 2, 4, 6]
    handle.detach()
    assert type(optimizer.iterations) is keras.Variable


def test_the_error_of_a_failed_fit_is_that_of_its_step() -> None:
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    handle = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise").attach_to(optimizer)
    model.compile(optimizer, "mse")
    with pytest.raises(TypeError, match="nonfinite = 'raise' cannot raise from inside a graph"):
        model.fit(INPUTS, TARGETS, verbose=0)
    assert (handle.step, handle.rate, repr(handle)) == (0, None, "<ClipConfig global_norm, attached, step 0>")


def test_the_optimizers_own_clip_and_steps_are_recorded(tmp_path: Path) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, global_clipnorm=0.5)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        eager(optimizer, named)(gradients(1)[0])
    _, *lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    assert [line.get("call", line.get("optimizer")) for line in lines] == [
        "keras.optimizers.SGD(global_clipnorm=)",
        "keras.optimizers.SGD",
    ]
    assert lines[0]["threshold"] == 0.5


@pytest.mark.parametrize("is_eager", [False, True])
def test_calls_that_only_accumulate_gradients_are_no_clips_and_no_steps(tmp_path: Path, is_eager: bool) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, global_clipnorm=0.5, gradient_accumulation_steps=2)
    apply = (eager if is_eager else in_graph)(optimizer, named)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        for grads in gradients(5):
            apply(grads)
    _, *lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    assert sum("optimizer" in line for line in lines) == sum("call" in line for line in lines) == 2
    assert [line["clips"] for line in lines if "optimizer" in line] == [1, 1]
