"""The update rule of a run is found from its numbers, and two runs differ in what was changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_clip.recipes.optimizers import updates
from unified_clip.recipes.optimizers.updates import Difference, Recipe, Step, closest, effect, recipes

Single = Any  # an array of float32
Optimizer = Callable[[int, Single, Single, dict[str, Single]], Single]
"""Return the new weight from the number of the step, the gradient and the weight. The dict keeps the state."""

SHAPES = {"in": (7, 5), "bias": (5,), "out": (5, 3)}
RATE = np.float32(0.03)


def sgd(momentum: float = 0.0, *, nesterov: bool = False, decay: float = 0.0, rate: float = 0.03) -> Optimizer:
    """PyTorch's documentation of SGD."""

    def step(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        gradient = gradient + np.float32(decay) * weight
        state["b"] = gradient if number == 1 else np.float32(momentum) * state["b"] + gradient
        moved = gradient + np.float32(momentum) * state["b"] if nesterov else state["b"]
        return weight - np.float32(rate) * moved

    return step


def adam(
    betas: tuple[float, float] = (0.9, 0.999),
    *,
    eps: float = 1e-8,
    decay: float = 0.0,
    decoupled: bool = False,
    corrects: bool = True,
    rate: float = 0.03,
) -> Optimizer:
    """Algorithm 1 of Kingma and Ba (2015), and the decay of Loshchilov and Hutter (2019)."""

    def step(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        gradient = gradient if decoupled else gradient + np.float32(decay) * weight
        first, second = map(np.float32, betas)
        state["m"] = first * state.get("m", np.float32(0)) + (1 - first) * gradient
        state["v"] = second * state.get("v", np.float32(0)) + (1 - second) * gradient**2
        m, v = state["m"], state["v"]
        if corrects:
            m, v = m / np.float32(1 - betas[0] ** number), v / np.float32(1 - betas[1] ** number)
        weight = weight * np.float32(1 - rate * decay) if decoupled else weight
        return weight - np.float32(rate) * m / (np.sqrt(v) + np.float32(eps))

    return step


def run(
    optimizer: Optimizer, *, seed: int = 0, steps: int = 4, scales: Mapping[str, float] | None = None
) -> list[Step]:
    source = np.random.default_rng(seed)
    weights = {
        name: (source.normal(size=shape) * (scales or {}).get(name, 1.0)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    states: dict[str, dict[str, Single]] = {name: {} for name in SHAPES}
    done = []
    for number in range(1, steps + 1):
        gradients = {name: source.normal(size=shape).astype(np.float32) * 0.1 for name, shape in SHAPES.items()}
        after = {name: optimizer(number, gradients[name], weights[name], states[name]) for name in SHAPES}
        wide = [
            {name: each.astype(np.float64) for name, each in table.items()} for table in (gradients, weights, after)
        ]
        done.append(Step(wide[0], wide[1], {name: wide[2][name] - wide[1][name] for name in SHAPES}))
        weights = after
    return done


def found(optimizer: Optimizer, **more: Any) -> list[Recipe]:
    return recipes(run(optimizer, **more))


def differences(old: list[Recipe], new: list[Recipe]) -> list[Difference]:
    return updates.differences(*closest(old, new)) if old and new else []


PLAIN: Mapping[str, list[Recipe]] = {"SGD": found(sgd(0.9)), "Adam": found(adam())}

PLANTED = [
    ("SGD", sgd(0.95), {"momentum": (0.9, 0.95)}),
    ("SGD", sgd(), {"momentum": (0.9, None)}),
    ("SGD", sgd(0.9, nesterov=True), {"nesterov": (None, True)}),
    ("SGD", sgd(0.9, decay=0.02), {"weight decay": (None, 0.02)}),
    ("SGD", sgd(0.9, rate=0.06), {"learning rate": (0.03, 0.06)}),
    ("SGD", sgd(0.99, rate=0.06, decay=0.1),
     {"momentum": (0.9, 0.99), "weight decay": (None, 0.1), "learning rate": (0.03, 0.06)}),
    ("SGD", adam(), {"optimizer": ("SGD", "Adam")}),
    ("Adam", adam((0.5, 0.999)), {"betas": ((0.9, 0.999), (0.5, 0.999))}),
    ("Adam", adam(eps=1e-3), {"eps": (1e-8, 1e-3)}),
    ("Adam", adam(decay=0.01), {"weight decay": (None, 0.01)}),
    ("Adam", adam(decay=0.07, decoupled=True), {"weight decay": (None, 0.07)}),
    ("Adam", adam(corrects=False), {"bias correction": ("as in Adam", None)}),
    ("Adam", adam(rate=0.01, eps=1e-3), {"eps": (1e-8, 1e-3), "learning rate": (0.03, 0.01)}),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "planted"), PLANTED)
def test_runs_differ_in_what_was_planted(
    old: str, new: Optimizer, planted: Mapping[str, tuple[object, object]]
) -> None:
    """The runs have other gradients, so only each run itself can explain its updates."""
    expected = [Difference(setting, *values) for setting, values in planted.items()]
    assert sorted(differences(PLAIN[old], found(new, seed=1))) == sorted(expected)


def test_a_decay_is_added_to_the_gradient_or_to_the_weight() -> None:
    both = found(adam(decay=0.01)), found(adam(decay=0.01, decoupled=True))
    assert differences(*both) == [Difference("decay added to", "the gradient", "the weight")]


@settings(max_examples=30)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    decay=st.sampled_from([0.0, 0.003, 0.2]),
    thousandths=st.lists(st.integers(1, 500), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_the_learning_rate_of_each_step_is_found(
    momentum: float, decay: float, thousandths: list[int], seed: int
) -> None:
    rates = [each / 1000 for each in thousandths]

    def optimizer(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        return sgd(momentum, decay=decay, rate=rates[number - 1])(number, gradient, weight, state)

    best = found(optimizer, seed=seed)[0]
    assert best.settings.get("momentum", 0.0) == momentum
    expected = pytest.approx(decay, rel=0.05, abs=2.0**-20 / max(rates))  # rounding of weights of about 1
    assert np.ravel(np.array(best.settings.get("weight decay", 0.0))) == expected


def test_recorded_constants_are_tried() -> None:
    assert not found(adam((0.87, 0.993), eps=3e-4))
    known = [{"betas": (0.87, 0.993), "eps": 3e-4}]
    assert recipes(run(adam((0.87, 0.993), eps=3e-4)), known)[0].settings["betas"] == (0.87, 0.993)


def test_an_unknown_rule_has_no_recipe() -> None:
    assert found(lambda _, gradient, weight, __: weight - RATE * np.sign(gradient) * np.abs(gradient) ** 0.3) == []


def test_a_schedule_is_not_a_missing_bias_correction() -> None:
    """Both change the size of Adam's updates by a factor for each step."""

    def halved(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        return adam(rate=0.03 / 2**number)(number, gradient, weight, state)

    assert differences(PLAIN["Adam"], found(halved)) == [
        Difference("learning rate", 0.03, (0.015, 0.0075, 0.00375, 0.001875))
    ]


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("table", range(3))
def test_numbers_that_are_not_finite_have_no_recipe(number: float, table: int) -> None:
    steps = run(adam())
    steps[1][table]["out"][2, 1] = number
    assert recipes(steps) == []


def test_tensors_without_elements_change_nothing() -> None:
    steps = run(sgd())
    empty = {"empty": np.zeros((0, 3))}
    padded = [Step(*({**table, **empty} for table in step)) for step in steps]
    assert [each[:2] for each in recipes(padded)] == [each[:2] for each in recipes(steps)] != []
    assert recipes([Step(empty, empty, empty)]) == []


@pytest.mark.parametrize("seed", range(6))
def test_rounding_of_the_decay_is_no_difference(seed: int) -> None:
    """A decay of 1e-5 of each weight is at the limit of float32, and hidden in weights of 0."""
    zero = {"bias": 0.0}

    def rounded(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        return adam(rate=1e-4, decay=0.1, decoupled=True)(number, gradient, weight, state)

    old, new = (recipes(run(rounded, seed=seed + 100 * len(each), scales=each)) for each in (zero, {}))
    assert old
    assert differences(old, new) == []


def test_tensors_without_decay_are_named() -> None:
    def only_matrices(number: int, gradient: Single, weight: Single, state: dict[str, Single]) -> Single:
        return sgd(0.9, decay=0.1 if gradient.ndim > 1 else 0.0)(number, gradient, weight, state)

    assert differences(found(sgd(0.9, decay=0.1)), found(only_matrices)) == [
        Difference("undecayed tensors", None, ("bias",))
    ]


def test_decays_that_differ_by_their_last_digit_are_no_difference() -> None:
    near, far = ([Recipe({"weight decay": decay}, [0.1])] for decay in (0.0099, 0.011))
    exact = [Recipe({"weight decay": 0.01}, [0.1])]
    assert differences(exact, near) == []
    assert differences(exact, far) == [Difference("weight decay", 0.01, 0.011)]


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
def test_the_effect_of_a_place_of_eps_is_that_on_the_directions(eps: float) -> None:
    steps = run(adam(eps=eps), steps=1)
    settings = {"optimizer": "Adam", "betas": (0.9, 0.999), "eps": eps, "bias correction": "as in Adam"}
    expected_settings = settings | {"eps is added": "after the bias correction"}
    recipe = next(each for each in recipes(steps) if each.settings == expected_settings)
    gradient = np.concatenate([each.ravel() for _, each in sorted(steps[0].gradients.items())])
    after, before = (gradient / (np.abs(gradient) + divisor) for divisor in (eps, eps / 0.001**0.5))
    expected = np.linalg.norm(before - after) / np.linalg.norm(after)
    assert effect(steps, recipe, "eps is added", "before the bias correction") == pytest.approx(expected)
