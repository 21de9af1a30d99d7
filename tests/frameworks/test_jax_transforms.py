"""`unified_clip.jax.transforms`: the rules as optax's gradient transformations."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.kits import in_a_new_process

import unified_clip.jax as uc
from unified_clip.jax import transforms

UNIT = np.array([0.6, 0.8], np.float32)
"""[3, 4], clipped to a norm of 1."""


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any


def tree() -> Any:
    """Return parameters in many kinds of containers: dicts of Flax, dataclasses, named and plain tuples, and None."""
    random = np.random.default_rng(3)

    def some(*shape: int, dtype: str = "float32") -> Any:
        return jnp.asarray(random.standard_normal(shape), dtype)

    dense = {"params": {"Dense_0": {"kernel": some(4, 3), "bias": some(3)}}}
    return {
        "dense": dense,
        "layer": Layer(some(2, 2, dtype="bfloat16"), None),
        "more": (some(3), Pair(some(), [some(1)])),
    }


def leaf_by_leaf(clip: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    def function(updates: Any) -> Any:
        leaves, structure = jax.tree.flatten(updates)
        return jax.tree.unflatten(structure, clip(leaves))

    return function


def by_pytorch(updates: list[Any], max_norm: float, p: float = 2.0) -> list[Any]:
    uc.clip_grad_norm_(updates, max_norm, p)
    return updates


def by_paddle(updates: list[Any]) -> list[Any]:
    uc.GradientClipByGlobalNorm(0.7).clip_(updates)
    return updates


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "clip_grad_norm": (lambda: transforms.clip_grad_norm(0.7), leaf_by_leaf(lambda g: by_pytorch(g, 0.7))),
    "clip_grad_norm p=3": (lambda: transforms.clip_grad_norm(0.7, 3), leaf_by_leaf(lambda g: by_pytorch(g, 0.7, 3))),
    "clip_grad_norm p=inf": (
        lambda: transforms.clip_grad_norm(max_norm=0.7, norm_type="inf"),
        leaf_by_leaf(lambda g: by_pytorch(g, 0.7, math.inf)),
    ),
    "clip_by_global_norm": (
        lambda: transforms.clip_by_global_norm(0.7),
        lambda updates: uc.clip_by_global_norm(updates, 0.7)[0],
    ),
    "gradient_clip_by_global_norm": (lambda: transforms.gradient_clip_by_global_norm(0.7), leaf_by_leaf(by_paddle)),
    "clip_by_norm": (
        lambda: transforms.clip_by_norm(0.7),
        leaf_by_leaf(lambda g: [uc.clip_by_norm(t, 0.7) for t in g]),
    ),
    "clip_by_value": (
        lambda: transforms.clip_by_value(-0.5, 0.25),
        leaf_by_leaf(lambda g: [uc.clip_by_value(t, -0.5, 0.25) for t in g]),
    ),
}


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, "float64"), np.asarray(other, "float64"), rtol=3e-7)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_rule_in_a_transformation_without_state(case: str) -> None:
    make, expected_result = CASES[case]
    clip, updates = make(), tree()
    assert isinstance(clip, optax.GradientTransformation)
    state = clip.init(updates)
    assert state == optax.EmptyState()
    expected = expected_result(updates)
    for update in (clip.update, jax.jit(clip.update)):
        got, after = update(updates, state)
        assert after == state
        assert_same(got, expected)
    got, _ = clip.update(updates, state, params=updates)
    assert_same(got, expected)
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (expected, updates)), strict=True))
    infinite = jax.tree.map(lambda each: each.at[0].set(jnp.inf) if each.ndim == 1 else each, updates)
    assert_same(clip.update(infinite, state)[0], expected_result(infinite))


def test_a_tuple_stays_one_and_so_do_one_array_and_nothing() -> None:
    clip = transforms.clip_by_global_norm(1.0)
    updates, _ = clip.update((jnp.array([3.0], "float32"), jnp.array([4.0], "float32")), clip.init(None))
    assert isinstance(updates, tuple)
    np.testing.assert_array_equal(np.concatenate(updates), np.array([0.6, 0.8], np.float32))
    np.testing.assert_array_equal(clip.update(jnp.array([3.0, 4.0], "float32"), optax.EmptyState())[0], UNIT)
    for empty in ((), {}, None):
        assert clip.update(empty, optax.EmptyState())[0] == empty


# -- what optax puts transformations into


def test_masked_out_updates_are_neither_counted_nor_scaled() -> None:
    updates = {"w": jnp.array([3.0, 4.0], "float32"), "b": jnp.array([100.0], "float32")}
    clip = optax.masked(transforms.clip_by_global_norm(1.0), {"w": True, "b": False})
    expected = {"w": UNIT, "b": updates["b"]}
    assert_same(jax.jit(clip.update)(updates, clip.init(updates))[0], expected)
    by_path = transforms.gradient_clip_by_global_norm(1.0, need_clip=lambda path: path != "b")
    assert_same(jax.jit(by_path.update)(updates, by_path.init(updates))[0], expected)


def test_need_clip_is_asked_of_paths() -> None:
    asked = []

    def need_clip(path: str) -> bool:
        asked.append(path)
        return False

    clip = transforms.gradient_clip_by_global_norm(1.0, need_clip=need_clip)
    updates = tree()
    assert clip.update(updates, optax.EmptyState())[0]["more"][0] is updates["more"][0]
    assert asked == [
        "dense.params.Dense_0.bias",
        "dense.params.Dense_0.kernel",
        "layer.weight",
        "more.0",
        "more.1.first",
        "more.1.second.0",
    ]


MADE_FROM: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "clip_grad_norm": (transforms.clip_grad_norm, {"max_norm": 1.0}, "norm_type"),
    "clip_by_global_norm": (transforms.clip_by_global_norm, {"clip_norm": 1.0}, ()),
    "gradient_clip_by_global_norm": (transforms.gradient_clip_by_global_norm, {"clip_norm": 1.0}, "need_clip"),
    "clip_by_norm": (transforms.clip_by_norm, {"clip_norm": 1.0}, ()),
    "clip_by_value": (transforms.clip_by_value, {"clip_value_min": -1.0, "clip_value_max": 0.6}, ()),
}


@pytest.mark.parametrize("name", MADE_FROM)
def test_thresholds_may_be_injected_and_scheduled_without_retracing(name: str) -> None:
    make, thresholds, static = MADE_FROM[name]
    clip = optax.inject_hyperparams(make, static_args=static)(**thresholds)
    updates, traces = jnp.array([3.0, 4.0], "float32"), []
    state = clip.init(updates)

    @jax.jit
    def update(updates: Any, state: Any) -> Any:
        traces.append(1)
        return clip.update(updates, state)

    lengths = []
    for factor in range(1, 101):
        for which, value in thresholds.items():
            state.hyperparams[which] = jnp.asarray(value * factor / 100, "float32")
        clipped, state = update(updates, state)
        lengths.append(float(jnp.max(clipped)))
    assert len(traces) == 1
    limit = 0.8 if "norm" in name else 0.6
    np.testing.assert_allclose(lengths, np.arange(1, 101) / 100 * limit, rtol=2e-4)
    scheduled = optax.inject_hyperparams(make, static_args=static)(
        **{which: optax.constant_schedule(value) for which, value in thresholds.items()}
    )
    clipped, _ = jax.jit(scheduled.update)(updates, scheduled.init(updates))
    assert float(jnp.max(clipped)) == pytest.approx(limit, rel=1e-5)


# -- refusals


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: transforms.clip_grad_norm(-1.0), ValueError, r"max_norm is -1\.0"),
        (lambda: transforms.clip_grad_norm(1.0, 0), ValueError, "norm_type is 0"),
        (lambda: transforms.clip_by_global_norm("1"), TypeError, "clip_norm is '1'"),
        (lambda: transforms.gradient_clip_by_global_norm(math.nan), ValueError, "clip_norm is nan"),
        (lambda: transforms.gradient_clip_by_global_norm(1.0, {"b": False}), TypeError, "optax.masked"),
        (lambda: transforms.clip_by_norm(-1.0), ValueError, r"clip_norm is -1\.0"),
        (lambda: transforms.clip_by_value(2.0, 1.0), ValueError, "above the upper bound"),
        (lambda: transforms.clip_by_value(math.nan, 1.0), ValueError, "clip_value_min is NaN"),
    ],
)
def test_what_is_wrong_is_refused_when_the_transformation_is_made(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


# -- the package optax


def test_optax_is_imported_when_a_transformation_is_made() -> None:
    code = """
import sys
import unified_clip.jax as uc
print("optax" in sys.modules)
uc.transforms.clip_by_norm(1.0)
print("optax" in sys.modules)
"""
    assert in_a_new_process(code) == "False\nTrue\n"


@pytest.mark.nightly
def test_without_optax_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["optax"] = None
import unified_clip.jax as uc
try:
    uc.transforms.clip_grad_norm(1.0)
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    assert in_a_new_process(code).startswith("optax unified_clip.jax.transforms needs optax")


@pytest.mark.parametrize("name", transforms.__all__)
def test_docstrings_say_source_and_errors_and_have_an_example_that_runs(name: str) -> None:
    function = getattr(transforms, name)
    for part in ("Source: ", "Args:", "Raises:", "Example:"):
        assert part in function.__doc__
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert doctest.DocTestRunner().run(test).failed == 0


def test_what_has_to_be_known_is_asked_for_where_optax_changes_it() -> None:
    for make, arguments, name in (
        (transforms.clip_grad_norm, {"max_norm": 1.0}, "norm_type"),
        (
            transforms.gradient_clip_by_global_norm,
            {"clip_norm": 1.0, "need_clip": lambda path: path != "b"},
            "need_clip",
        ),
    ):
        with pytest.raises(TypeError, match=f"also pass static_args='{name}'"):
            optax.inject_hyperparams(make)(**arguments).init(jnp.ones(2))
