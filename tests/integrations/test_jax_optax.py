"""`ClipConfig.as_optax()`: what `test_each_optimizer.py` has no word for, such as graphs, trees and states."""

from __future__ import annotations

import doctest
import fnmatch
import itertools
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from support.clip_cases import (
    CONFIGS,
    STEPS,
    assert_equal,
    assert_reported,
    clip_by_numpy,
    gradients,
)
from support.kits import Kit

from unified_clip import ClipConfig
from unified_clip.integrations import optax_transforms
from unified_clip.integrations.optax_transforms import last, rate


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("eager calls on the host path are what is compared with")


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in flat.items():
        layer, leaf = name.split(".")
        tree.setdefault(layer, {})[leaf] = jnp.asarray(array)
    return tree


def flat(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    return {f"{layer}.{leaf}": np.asarray(array) for layer, part in tree.items() for leaf, array in part.items()}


PARAMS = nested(gradients(1)[0])


SMALL = st.just(0.0) | st.floats(2**-20, 8.0, width=32)  # XLA takes subnormal numbers for 0
SCHEDULES = st.builds(
    lambda kind, start, end, steps, begin: {
        "schedule": kind, "start": start, "end": end, "steps": steps, "begin": begin
    },
    st.sampled_from(["linear", "cosine"]), SMALL, SMALL, st.integers(1, 2000), st.integers(0, 50),
)  # fmt: skip


@pytest.mark.graphs
@given(SCHEDULES, st.lists(st.integers(0, 2100), min_size=50, max_size=50))
@settings(max_examples=10)
def test_a_graph_finds_the_thresholds_that_python_finds(schedule: dict[str, Any], steps: list[int]) -> None:
    """The gradient exceeds every threshold, so a clip by value returns the threshold."""
    config = ClipConfig(rule="value", threshold=schedule)
    clip, clipper = config.as_optax(), config.clipper()
    state, far = clip.init(jnp.zeros(1)), np.full(1, 1e9, np.float32)
    steps = [*steps, schedule["begin"], schedule["begin"] + schedule["steps"]]

    @jax.jit
    @jax.vmap
    def found(step: Any) -> Any:
        return clip.update(jnp.asarray(far), state._replace(step=step))[0]

    expected = np.stack([clipper({"w": far}, step=step)["w"] for step in steps])
    assert np.asarray(found(jnp.array(steps, jnp.int32))).tobytes() == expected.tobytes()


@pytest.mark.graphs
def test_it_is_the_same_in_a_scan() -> None:
    config = ClipConfig(**CONFIGS["cosine"])
    optimizer = optax.chain(config.as_optax(), optax.sgd(1.0))
    steps = clip_by_numpy(config, gradients())
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *(nested(step.gradients) for step in steps))

    def step(state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state)
        return state, updates

    state, updates = jax.lax.scan(step, optimizer.init(PARAMS), stacked)
    for index, expected in enumerate(steps):
        got = flat(jax.tree.map(lambda each, at=index: -each[at], updates))
        assert_equal(got, expected.clipped, ulp=1)
    assert_reported(last(state), steps[-1], STEPS - 1, ulp=1)


@pytest.mark.nightly
def test_after_accumulation_in_multisteps_it_sees_the_mean_once() -> None:
    config = ClipConfig(**CONFIGS["linear"])
    optimizer = optax.MultiSteps(optax.chain(config.as_optax(), optax.sgd(1.0)), every_k_schedule=2)
    state = optimizer.init(PARAMS)
    given = gradients()
    means = [{name: (a[name] + b[name]) / 2 for name in a} for a, b in zip(given[::2], given[1::2], strict=True)]
    expected = clip_by_numpy(config, means)
    for index, grads in enumerate(given):
        _, state = jax.jit(optimizer.update)(nested(grads), state, PARAMS)
        if index % 2:
            assert_reported(
                last(state), expected[index // 2], index // 2, ulp=4
            )  # optax computes the mean in another order


def test_a_skipped_step_counts_in_no_rate() -> None:
    optimizer = ClipConfig(rule="global_norm", threshold=100.0, nonfinite="skip").as_optax(optax.sgd(1.0))
    state = optimizer.init(jnp.zeros(1))
    for number, expected in ((jnp.nan, None), (1.0, 0.0), (jnp.nan, 0.0)):
        _, state = optimizer.update(jnp.full(1, number), state)
        assert rate(state) == expected


def test_to_skip_it_has_to_know_the_optimizer() -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="skip")
    with pytest.raises(ValueError, match=r"Use clip\.as_optax\(optimizer\) instead of optax.chain"):
        config.as_optax()
    with pytest.raises(TypeError, match=r"optimizer is a float, not an optax.GradientTransformation"):
        config.as_optax(0.1)
    multi = optax.MultiSteps(optax.sgd(1.0), 2)
    with pytest.raises(TypeError, match=r"is a MultiSteps, .*\. Pass its .gradient_transformation\(\)"):
        config.as_optax(multi)
    config.as_optax(multi.gradient_transformation()).init(PARAMS)


@pytest.mark.graphs
def test_multisteps_makes_a_graph_in_which_a_clip_cannot_raise() -> None:
    grads = nested(gradients(1, nan_at=0)[0])
    multi = optax.MultiSteps(ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise").as_optax(), 2)
    with pytest.raises(TypeError, match=r"nonfinite = 'raise' cannot raise from inside a graph\. Use 'zero'"):
        multi.update(grads, multi.init(grads))


def test_the_optimizer_gets_what_update_gets() -> None:
    optimizer = ClipConfig(rule="global_norm", threshold=1.0).as_optax(optax.scale_by_backtracking_linesearch(5))

    def loss(w: Any) -> Any:
        return (w**2).sum()

    params = jnp.array([3.0, 4.0])
    grads = jax.grad(loss)(params)
    updates, state = optimizer.update(
        -grads, optimizer.init(params), params, value=loss(params), grad=grads, value_fn=loss
    )
    assert last(state).norm == 10.0
    assert float(loss(params + updates)) < float(loss(params))


def test_none_masked_and_sparse_updates_stay_what_they_are() -> None:
    config = ClipConfig(rule="value", threshold=1.0)
    sparse = BCOO((jnp.array([3.0, 0.5]), jnp.array([[0], [2]])), shape=(4,))
    grads = {"a": None, "b": jnp.array([2.0]), "c": sparse, "d": optax.MaskedNode()}
    clip = config.as_optax()
    updates, state = clip.update(grads, clip.init(grads))
    assert updates["a"] is None
    assert updates["d"] == optax.MaskedNode()
    np.testing.assert_array_equal(updates["c"].todense(), [1.0, 0.0, 0.5, 0.0])
    assert last(state).clipped


def test_float64_norms_are_kept_as_the_process_has_numbers() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0).as_optax()
    grads = {"w": jnp.array([3e10, 4e10], jnp.zeros(()).dtype)}
    _, state = clip.update(grads, clip.init(grads))
    assert state.kept.norm.dtype == jnp.zeros(()).dtype
    assert last(state).norm == pytest.approx(5e10)


@pytest.mark.graphs
def test_with_x64_a_state_keeps_its_types_in_a_scan_over_float32() -> None:
    with jax.enable_x64(True):
        clip = ClipConfig(rule="global_norm", threshold=1.0).as_optax()
        grads = jnp.full((2, 4), 3.0, jnp.float32)
        state, _ = jax.lax.scan(lambda state, each: clip.update(each, state)[::-1], clip.init(grads[0]), grads)
        assert state.kept.norm.dtype == jnp.float64
        assert last(state).norm == 6.0


@pytest.mark.graphs
def test_the_rate_is_of_the_last_hundred_steps() -> None:
    clip = ClipConfig(rule="value", threshold=1.0).as_optax()
    grads = jnp.where(jnp.arange(130) < 60, 2.0, 0.5)[:, None]
    assert rate(clip.init(grads[0])) is None
    state, _ = jax.lax.scan(lambda state, each: clip.update(each, state)[::-1], clip.init(grads[0]), grads)
    assert rate(state) == 0.3


@pytest.mark.graphs
def test_a_state_without_numbers_of_its_own_is_refused() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0).as_optax()
    grads = jnp.ones((3, 2))
    _, state = jax.vmap(clip.update)(grads, jax.vmap(clip.init)(grads))
    with pytest.raises(ValueError, match=r"into the shape \(3,\)\. Pass one of them, such as"):
        last(state)
    assert last(jax.tree.map(lambda leaf: leaf[0], state)).norm == pytest.approx(2**0.5)
    for ask in (last, rate):
        with pytest.raises(TypeError, match=r"a state inside a graph \(jit, .* has no values yet\. Return the state"):
            jax.jit(ask)(clip.init(grads))


@pytest.mark.parametrize("jitted", [False, pytest.param(True, marks=pytest.mark.graphs)])
@pytest.mark.parametrize(("saved", "resumed"), [*itertools.permutations([None, "zclip", "ema_ratio"], 2)])
def test_a_state_of_another_adaptive_rule_is_an_error(saved: str | None, resumed: str | None, jitted: bool) -> None:
    clips = [
        ClipConfig(rule="global_norm", threshold=1.0, adaptive=rule and {"rule": rule}).as_optax()
        for rule in (saved, resumed)
    ]
    grads = {"weight": jnp.ones(2)}
    _, state = clips[0].update(grads, clips[0].init(grads))
    update = jax.jit(clips[1].update) if jitted else clips[1].update
    message = rf"has values for {int(saved is not None)} adaptive rules, and does not match the configuration's rules: "
    with pytest.raises(ValueError, match=rf"^the optimizer's state {message}.*new optimizer state"):
        update(grads, state)


def test_what_has_happened_is_found_wherever_the_state_is() -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0)
    optimizer = optax.chain(optax.identity(), optax.chain(config.as_optax(), optax.sgd(0.1)))
    state = optimizer.init(PARAMS)
    with pytest.raises(RuntimeError, match="nothing has been clipped yet"):
        last(state)
    _, state = optimizer.update(PARAMS, state)
    assert last(state).metrics("train/").keys() == {"train/grad_norm", "train/grad_norm_clipped", "train/clip_coef"}
    with pytest.raises(
        ValueError,
        match=r"the state contains no ClipState, but must contain exactly one\. Make the optimizer with",
    ):
        last(optax.sgd(0.1).init(PARAMS))
    with pytest.raises(
        ValueError,
        match=r"the state contains 2 ClipStates, but must contain exactly one\. Pass the part of the state",
    ):
        last((state, state))


def test_the_examples_run() -> None:
    failed, attempted = doctest.testmod(optax_transforms)
    assert attempted
    assert not failed


@pytest.mark.parametrize("pattern", ["layers.1.*", "layers.*.w", "pair.0", "frozen.a.b"])
def test_patterns_select_the_same_gradients_in_a_transformation_and_in_an_eager_clip(pattern: str) -> None:
    one = jnp.ones(1, "float32")
    grads: dict[str, Any] = {"layers": [{"w": one, "b": one}, {"w": one, "b": one}], "pair": (one, one)}
    grads["frozen"] = flax.core.freeze({"a": {"b": one}})
    config = ClipConfig(rule="norm", threshold=0.5, include=[pattern])
    transformation = config.as_optax()
    updates, _ = transformation.update(grads, transformation.init(grads))
    eager = config(grads)
    assert jax.tree.leaves(updates) == jax.tree.leaves(eager)
    clipped = [jax.tree_util.keystr(path, simple=True, separator=".") for path, leaf in
               jax.tree_util.tree_leaves_with_path(eager) if float(leaf[0]) < 1]  # fmt: skip
    assert clipped
    assert all(fnmatch.fnmatchcase(name, pattern) for name in clipped)
