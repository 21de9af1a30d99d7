"""Keras on its JAX backend."""

from __future__ import annotations

import os

import pytest

os.environ["KERAS_BACKEND"] = "jax"

import json
from pathlib import Path

import keras
import numpy as np
from support.clip_cases import gradients
from support.trainers.keras_cases import *  # noqa: F403
from support.trainers.keras_cases import eager, in_graph, variables

import unified_clip
from unified_clip import ClipConfig

pytestmark = pytest.mark.nightly


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
