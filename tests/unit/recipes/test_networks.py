"""Which steps train one network, and to which of its parameters a gradient of a clip call belongs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from unified_clip.recipes import networks
from unified_clip.recipes.networks import find_networks, match_gradients
from unified_clip.recording.recorded_run import OptimizerStep, Parameter
from unified_clip.tensors.samples import sample_of


def _step(instance: int, weight: float) -> OptimizerStep:
    tensors = {"w": Parameter(norm=1.0, shape=(2,), weight_sample=(weight, 2 * weight))}
    settings = {"step": 1, "optimizer": "optax.sgd", "settings": {"lr": 0.1}, "parameters": ("w",), "tensors": tensors}
    return OptimizerStep.model_validate({**settings, "instance": instance})


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        ([(1, 1.0), (2, 0.95), (3, 0.9)], [3]),  # made anew for each step
        ([(1, 1.0), (1, 0.95), (2, 1.0), (2, 0.95)], [2, 2]),  # another fold, from the same seed
        ([(1, 1.0), (1, 0.95), (2, 0.9), (2, 0.85)], [4]),
        ([(1, 1.0), (1, 0.95), (2, 8.0), (2, 7.0)], [2, 2]),
    ],
)
def test_an_optimizer_that_is_made_anew_continues_only_the_same_training(
    steps: Sequence[tuple[int, float]], lengths: Sequence[int]
) -> None:
    assert [len(network.steps) for network in find_networks([_step(*each) for each in steps])] == lengths


def _gradient(value: Any = None, weight: Any = None) -> Parameter:
    """A gradient, or a parameter whose gradient is unknown, and its weight."""
    known = {"sample": value, "weight_sample": weight}
    arrays = {key: np.array(each, float) for key, each in known.items() if each is not None}
    fields: dict[str, Any] = {key: tuple(sample_of(each).elements) for key, each in arrays.items()}
    norm = float(np.linalg.norm(arrays["sample"])) if value is not None else math.nan
    return Parameter(shape=next(iter(arrays.values())).shape, norm=norm, **fields)


ROWS = [[3.0, 4.0, 1.0], [5.0, 2.0, 7.0]]
TURNED = [[3.0, 5.0], [4.0, 2.0], [1.0, 7.0]]
ZEROS = [0.0, 0.0]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # of equal norm, but of other shapes
        ([({"0": [3.0, 4.0], "1": [[3.0, 4.0], [0.0, 0.0]]}, {"b": [[3.0, 4.0], [0.0, 0.0]], "a": [3.0, 4.0]})], "ab"),
        ([({"0": [[2 * each for each in row] for row in ROWS]}, {"a": [1.0] * 6, "b": TURNED})], "b"),
        ([({"0": [[3.1, 4.2, 1.0], [5.1, 2.3, 7.1]]}, {"b": TURNED})], ""),
        ([({"0": [3.0], "1": [4.0]}, {"a": [4.0], "b": [3.0]})], "ba"),  # any number is a multiple of any other
        ([({"0": [1.0, 2.0], "1": [2.0, 4.0]}, {"a": [2.0, 4.0]})], "a"),  # to one gradient only
        ([({"0": ZEROS, "1": [1.0, 2.0]}, {"a": [1.0, 2.0], "b": ZEROS})], "ba"),
    ],
)
def test_a_gradient_belongs_to_the_one_with_the_same_elements_up_to_a_factor(
    calls: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], expected: str
) -> None:
    every = [tuple({name: _gradient(each) for name, each in side.items()} for side in call) for call in calls]
    found = match_gradients(every)  # type: ignore[arg-type]
    assert "".join(found[name] for name in sorted(found)) == expected


def test_a_gradient_that_is_unknown_at_the_step_belongs_to_its_weight() -> None:
    at_step = {"a": _gradient(None, [3.0, 4.0]), "b": _gradient(None, [6.0, 8.5])}
    of_call = {"0": _gradient([1.0, 2.0], [6.0, 8.5]), "1": _gradient([1.0, 2.0], [3.0, 4.0])}
    assert match_gradients([(of_call, at_step)]) == {"0": "b", "1": "a"}


@pytest.mark.parametrize("gradient", [None, ZEROS])
def test_parameters_with_equal_first_weights_are_distinguished_by_later_steps(gradient: Any) -> None:
    """For example, the statistics and biases of BatchNorm begin with equal weights. Statistics have no gradient."""
    first = {name: _gradient(None if name == "mean" else gradient, ZEROS) for name in ("a", "mean", "b")}
    later = {name: _gradient(None, [0.0, each]) for name, each in (("a", 1.0), ("mean", 3.0), ("b", 2.0))}
    calls = [
        ({str(n): _gradient(ZEROS, [0.0, each]) for n, each in enumerate(weights)}, at_step)
        for weights, at_step in (((0.0, 0.0), first), ((1.0, 2.0), later))
    ]
    assert match_gradients(calls) == {"0": "a", "1": "b"}


def test_parameters_with_equal_weights_at_all_steps_are_distinguished_by_name() -> None:
    at_step = {name: _gradient(None, ZEROS) for name in ("bn1.mean", "bn1.beta", "bn2.mean", "bn2.beta")}
    of_call = {name: _gradient([1.0, 2.0], ZEROS) for name in ("net/bn1/beta", "net/bn2/beta")}
    assert match_gradients([(of_call, at_step)]) == {"net/bn1/beta": "bn1.beta", "net/bn2/beta": "bn2.beta"}


def test_equal_weights_that_all_begin_with_1_prove_nothing_if_the_gradients_differ() -> None:
    assert match_gradients([({"0": _gradient([1.0, 2.0], [1.0, 1.0])}, {"a": _gradient([1.0, 3.0], [1.0, 1.0])})]) == {}


def test_most_gradients_of_a_large_model_are_compared_with_one_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of 768 gradients took a minute."""
    random, compared, likeness = np.random.default_rng(0), list[Any](), networks._likeness
    monkeypatch.setattr(networks, "_likeness", lambda *both: compared.append(both) or likeness(*both))
    values = [random.normal(size=(2, 20)) for _ in range(100)]
    of_call = {f"{place}": _gradient(0.25 * value, weight) for place, (value, weight) in enumerate(values)}
    at_step = {f"p{place}": _gradient(value, weight) for place, (value, weight) in reversed(list(enumerate(values)))}
    assert match_gradients([(of_call, at_step)]) == {f"{place}": f"p{place}" for place in range(100)}
    assert len(compared) < 2 * len(values)
