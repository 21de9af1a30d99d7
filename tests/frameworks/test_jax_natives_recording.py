"""Recordings of optax's own clipping."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import unified_clip

GRADIENTS = {"a": [3.0, -4.0], "b": [[12.0]]}


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of clips."""
    found = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in found if "call" in line]


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: optax.clip_by_global_norm(1.0), {"call": "optax.clip_by_global_norm", "norm": 13.0, "coef": 1 / 13}),
        (lambda: optax.clip(1.0), {"call": "optax.clip", "rule": "value", "threshold": [-1.0, 1.0], "norm": None}),
        (lambda: optax.chain(optax.clip_by_global_norm(50.0), optax.adam(0.1)), {"coef": 1.0, "clipped": False}),
    ],
)
def test_a_transformation_is_an_event_of_each_update(
    tmp_path: Path, make: Callable[[], Any], expected: dict[str, Any], compile: Callable[..., Any]
) -> None:
    def updates() -> list[bytes]:
        transformation = make()
        gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
        state, update = transformation.init(gradients), compile(transformation.update)
        results = []
        for _ in range(2):
            result, state = update(gradients, state, gradients)
            results += [each.tobytes() for each in jax.tree.leaves(result)]
        return results

    alone = updates()
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        assert updates() == alone
    found = lines(tmp_path / "run.jsonl")
    assert [line["step"] for line in found] == [1, 2]
    for line in found:
        assert {key: line[key] for key in expected} == expected
        assert {name: each["norm"] for name, each in line["parameters"].items()} == {"['a']": 5.0, "['b']": 12.0}
