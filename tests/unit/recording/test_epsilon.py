"""`unified-clip compare`: the epsilon of optimizers that add it at different places is compared by its effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import cause_kinds, write_and_compare

from unified_clip.recording.compare import RecordingComparison
from unified_clip.recording.optimizers.epsilon import CONDITION
from unified_clip.recording.report import sentences

BETAS = (0.9, 0.999)
BETAS_IN_FLOAT32 = tuple(float(np.float32(beta)) for beta in BETAS)
PLACE = "another place of the optimizer's eps"

CompareSteps = Callable[..., RecordingComparison]


def eps_after_correction(eps: float, beta2: float = 0.999) -> list[float]:
    """Return the eps of each step that has, after the bias correction, the effect of `eps` before it."""
    return [eps / (1 - beta2**t) ** 0.5 for t in (1, 2, 3)]


def lines_of(
    optimizer: str,
    eps: Sequence[Any],
    lr: float | Sequence[float] = 0.1,
    *,
    norms: Sequence[float],
    weights: Sequence[float] = (),
    **settings: Any,
) -> list[dict[str, Any]]:
    """Return clip calls, each with a step of an optimizer. A setting that is None is not recorded."""
    clip = {"call": "clip", "framework": "torch", "rule": "global", "threshold": 9.0, "norm_type": 2.0, "eps": 0.0}
    recorded = {name: value for name, value in {"betas": BETAS, **settings}.items() if value is not None}
    rates = [lr] * 3 if isinstance(lr, float) else lr
    clip |= {"dtype": "float32", "clipped": False, "seconds": 0.001, "count": 1, "coef": 1.0}
    return [
        line
        for step, (step_eps, norm, rate) in enumerate(zip(eps, norms, rates, strict=False), 1)
        for line in (
            {**clip, "step": step, "norm": norm} | _weight(norm, weights[step - 1 : step]),
            {
                "step": step,
                "optimizer": optimizer,
                "settings": recorded | {"lr": rate} | ({} if step_eps is None else {"eps": step_eps}),
            },
        )
    ]


def _weight(norm: float, weight: Sequence[float]) -> dict[str, Any]:
    return {"parameters": {"w": {"shape": [2], "norm": norm, "weight": weight[0]}}} if weight else {}


@pytest.fixture
def compare_steps(tmp_path: Path) -> CompareSteps:
    def compare(
        a: tuple[Any, ...], b: tuple[Any, ...], *, of_a: Mapping[str, Any] | None = None, **settings: Any
    ) -> RecordingComparison:
        """Compare two runs whose norms differ from step 2 on.

        a, b: (optimizer, its eps at each of three steps), and a learning rate.
        of_a: More settings of the first run.
        settings: More settings of the second run.
        """
        runs = (lines_of(*a, norms=[1.0, 2.0, 3.0], **(of_a or {})), lines_of(*b, norms=[1.0, 2.5, 3.5], **settings))
        return write_and_compare(tmp_path, *runs)

    return compare


KERAS, TF1 = ("keras.optimizers.Adam", [1e-7] * 3), ("tf.compat.v1.train.Adam", [1e-7] * 3)


@pytest.mark.parametrize("eps", [1e-7, 1e-8])
@pytest.mark.parametrize("old", [KERAS, TF1], ids=["keras", "tf1"])
def test_epsilon_before_the_bias_correction_is_named_with_the_line_to_type(
    compare_steps: CompareSteps, old: tuple[Any, ...], eps: float
) -> None:
    comparison = compare_steps(old, ("torch.optim.Adam", [eps] * 3))
    assert cause_kinds(comparison) == [PLACE]
    first_line, cause_line, *rest = sentences.describe(comparison)
    assert first_line.endswith(
        f"at step 1: effective eps of the optimizer is {eps_after_correction(1e-7)[0]} in the first run, "
        f"and {eps} in the second run."
    )
    assert cause_line == (
        f"Another place of the optimizer's eps: a.jsonl ({old[0]}) adds eps 1e-07 before the bias correction, and "
        f"b.jsonl (torch.optim.Adam) adds eps {eps:g} after the bias correction. At step 1, the eps of a.jsonl has "
        "the same effect as the eps 3.16228e-06 in b.jsonl. Before each optimizer.step() of b.jsonl, insert "
        '`for group in optimizer.param_groups: group["eps"] = 1e-07 / (1 - 0.999**t) ** 0.5`, where t counts the '
        "steps from 1. Ignore this cause if a run resumes from a checkpoint, or has several optimizers."
    )
    assert "This difference might follow from the difference at step 1." in rest


def test_the_line_to_type_is_no_difference(compare_steps: CompareSteps) -> None:
    """Other numbers of the runs differ, so every setting with an effect is reported."""
    adam = ("torch.optim.Adam", eps_after_correction(1e-7))
    assert compare_steps(KERAS, adam).findings == []
    assert compare_steps(adam, KERAS).findings == []
    assert (
        compare_steps(
            KERAS, ("torch.optim.Adam", eps_after_correction(1e-7, BETAS_IN_FLOAT32[1])), betas=BETAS_IN_FLOAT32
        ).findings
        == []
    )
    groups = ("torch.optim.Adam", [[each, each] for each in eps_after_correction(1e-7)])
    assert compare_steps(KERAS, groups).findings == []
    groups[1][2][1] *= 2
    assert [each.step for each, causes in compare_steps(KERAS, groups).divergences.items() if causes] == [3]


@pytest.mark.parametrize(
    ("eps", "steps"),
    [([1e-7, 2e-7], []), ([2e-7, 1e-7, 1e-7], []), ([1e-7, 2e-7, 3e-7], [1]), ([1e-7, 3e-7], [1])],
)
def test_eps_of_several_groups_is_compared_by_the_set_of_effects(
    compare_steps: CompareSteps, eps: list[float], steps: list[int]
) -> None:
    after = [[each, 2 * each] for each in eps_after_correction(1e-7)]
    comparison = compare_steps(("keras.optimizers.Adam", [eps] * 3), ("torch.optim.Adam", after))
    assert [each.step for each in comparison.divergences if each.parameter == "effective eps"] == steps


@pytest.mark.parametrize(
    ("betas", "reason"),
    [
        (None, "the betas of b.jsonl are unknown, or differ between parameter groups"),
        ([0.9, 0.999, 0.9, 0.99], "the betas of b.jsonl are unknown, or differ between parameter groups"),
    ],
    ids=["not recorded", "of each group"],
)
def test_an_unknown_effect_of_epsilon_is_not_called_impossible(
    compare_steps: CompareSteps, betas: Any, reason: str
) -> None:
    comparison = compare_steps(("optax.radam", [1e-7] * 3), ("torch.optim.RAdam", [1e-7] * 3), betas=betas)
    (cause,) = [each for each in comparison.findings if each.kind == PLACE]
    sentence = f"adds eps 1e-07 before the bias correction. The effects of eps were not compared, because {reason}"
    assert cause.sentence.endswith(sentence)


@pytest.mark.parametrize("beta2", [BETAS_IN_FLOAT32[1], 0.98, 0.9999999])
def test_the_line_to_type_has_all_digits_of_the_recorded_beta2(compare_steps: CompareSteps, beta2: float) -> None:
    betas = {"betas": (0.9, beta2)}
    eps = 1.2345678e-7
    old, new = ("keras.optimizers.Adam", [eps] * 3), ("torch.optim.Adam", [1e-8] * 3)
    (cause,) = compare_steps(old, new, of_a=betas, **betas).findings
    formula = cause.sentence.partition('group["eps"] = ')[2].partition("`")[0]
    assert [eval(formula, {"t": t}) for t in (1, 2, 3)] == eps_after_correction(eps, beta2)


@pytest.mark.parametrize(("factor", "kinds"), [(1 + 2e-5, []), (1 + 2e-4, ["another learning rate"])])
def test_a_learning_rate_may_have_the_rounding_of_the_bias_correction(
    compare_steps: CompareSteps, factor: float, kinds: list[str]
) -> None:
    comparison = compare_steps((*KERAS, 0.01), ("torch.optim.Adam", eps_after_correction(1e-7), 0.01 * factor))
    assert cause_kinds(comparison) == kinds
    same_place = compare_steps(("optax.adam", [1e-8] * 3, 0.01), ("torch.optim.Adam", [1e-8] * 3, 0.01 * factor))
    assert cause_kinds(same_place) == ["another learning rate"]


def test_the_effect_of_epsilon_is_compared_at_each_step(compare_steps: CompareSteps) -> None:
    comparison = compare_steps(KERAS, ("torch.optim.Adam", eps_after_correction(1e-7)[:1] * 3))
    assert [each.step for each in comparison.divergences if each.parameter == "effective eps"] == [2]
    assert cause_kinds(comparison) == [PLACE]
    assert (
        "At step 2, the eps of a.jsonl has the same effect as the eps 2.23663e-06 in b.jsonl"
        in comparison.findings[0].sentence
    )


def test_another_weight_decay_is_named_before_the_place_of_epsilon(compare_steps: CompareSteps) -> None:
    decay = {"weight_decay": 0.1}
    for new, settings in (("Adam", decay), ("AdamW", {"weight_decay": 0.2})):
        old = ("keras.optimizers.AdamW", [1e-7] * 3)
        comparison = compare_steps(old, (f"torch.optim.{new}", [1e-7] * 3), of_a=decay, **settings)
        assert cause_kinds(comparison) == ["another optimizer", PLACE]


def test_other_frameworks_get_the_number_to_set(compare_steps: CompareSteps) -> None:
    (cause,) = compare_steps(("optax.adamw", [1e-8] * 3), ("keras.optimizers.AdamW", [1e-7] * 3)).findings
    assert cause.sentence.removesuffix(f". {CONDITION}").endswith(
        "the eps of b.jsonl has the same effect as the eps 3.16228e-06 in a.jsonl. For the same effect, set the eps of "
        "a.jsonl to 1e-07 / (1 - 0.999**t) ** 0.5 at each step, where t counts the steps from 1"
    )


def test_places_without_an_equal_number_are_named(compare_steps: CompareSteps) -> None:
    (cause,) = compare_steps(("keras.optimizers.RMSprop", [1e-7] * 3), ("torch.optim.RMSprop", [1e-7] * 3)).findings
    assert cause.kind == PLACE
    assert cause.sentence == (
        "a.jsonl (keras.optimizers.RMSprop) adds eps 1e-07 inside the root, and b.jsonl (torch.optim.RMSprop) adds eps "
        "1e-07 outside the root. No constant eps has the same effect at both places"
    )
    assert compare_steps(("keras.optimizers.RMSprop", [0] * 3), ("torch.optim.RMSprop", [0] * 3)).findings == []


def test_eps_is_compared_as_a_number_at_equal_and_at_unknown_places(compare_steps: CompareSteps) -> None:
    for old, new in (("paddle.optimizer.Adam", "torch.optim.Adam"), ("keras.optimizers.Adam", "mine.MyAdam")):
        assert compare_steps((old, [1e-8] * 3), (new, [1e-8] * 3)).findings == []
        (cause,) = compare_steps((old, [1e-8] * 3), (new, [1e-7] * 3)).findings
        assert cause.kind == "another optimizer"
        assert "has the optimizer's eps 1e-07 instead of 1e-08" in cause.sentence


def test_a_class_of_the_user_is_recognized_by_whole_words_of_its_name(compare_steps: CompareSteps) -> None:
    for old, new in (
        ("torch.optim.Adam", "mine.AdamW8bit"), ("torch.optim.Adam", "mine.NAdam"),
        ("keras.optimizers.Adam", "mine.FusedRAdam"),
    ):  # fmt: skip
        (cause,) = compare_steps((old, [1e-8] * 3), (new, [1e-8] * 3)).findings
        assert cause.kind == "another optimizer"
        without_clauses = re.sub(", which (?:adds|subtracts) weight decay [a-z]+ the [a-z]+", "", cause.sentence)
        assert f"a.jsonl uses the optimizer {old}, and b.jsonl uses {new}" in without_clauses
    for old, new in (
        ("torch.optim.AdamW", "mine.AdamW8bit"), ("torch.optim.Adam", "mine.AdamWithLimit"),
        ("torch.optim.Adam", "mine.LinearAdam"), ("optax.nadam", "mine.MyNAdam"),
    ):  # fmt: skip
        assert compare_steps((old, [1e-8] * 3), (new, [1e-8] * 3)).findings == []


def test_optax_rmsprop_may_add_epsilon_outside_the_root(compare_steps: CompareSteps) -> None:
    old = ("torch.optim.RMSprop", [1e-8] * 3)
    assert compare_steps(old, ("optax.rmsprop", [1e-8] * 3), eps_in_sqrt=False).findings == []
    assert cause_kinds(compare_steps(old, ("optax.rmsprop", [1e-8] * 3))) == [PLACE]


def test_betas_in_float32_and_in_float64_are_the_same(compare_steps: CompareSteps) -> None:
    old = ("torch.optim.Adam", [1e-8] * 3)
    assert compare_steps(old, old, betas=BETAS_IN_FLOAT32).findings == []
    for betas in ((0.999, 0.9), (0.9, 0.99901)):
        assert cause_kinds(compare_steps(old, old, betas=betas)) == ["another optimizer"]


SUBTRACTS, ADDS = "subtracts weight decay from the weights", "adds weight decay to the gradients"


@pytest.mark.parametrize(
    ("old", "new", "clauses"),
    [
        (("keras.optimizers.SGD", 0.1), ("torch.optim.SGD", 0.1), (SUBTRACTS, ADDS)),
        (("torch.optim.AdamW", 0.1), ("torch.optim.Adam", 0.1), (SUBTRACTS, ADDS)),
        (("paddle.optimizer.Adam", [0.1, 0.0]), ("optax.adamw", [0.1, 0.0]), (ADDS, SUBTRACTS)),
        (("torch.optim.AdamW", 0.1), ("torch.optim.Adam", None), (SUBTRACTS, ADDS)),
        (("keras.optimizers.SGD", 0.0), ("torch.optim.SGD", 0.0), None),
        (("torch.optim.AdamW", 0.0), ("torch.optim.Adam", 0.0), None),
        (("keras.optimizers.SGD", 0.1), ("torch.optim.SGD", None), None),  # its weight decay may be 0
        (("keras.optimizers.RMSprop", 0.1), ("mine.MyRMSprop", 0.1), None),
        (("torch.optim.AdamW", 0.1), ("mine.BertAdam", 0.1), None),
        (("mine.Adam", None), ("optax.adamw", 0.1), None),
        (("keras.optimizers.Lamb", 0.1), ("paddle.optimizer.Lamb", 0.1), None),
        (("optax.adamw", 0.1), ("torch.optim.AdamW", 0.1), None),
    ],
)
def test_weight_decay_of_weights_and_of_gradients_differ(
    compare_steps: CompareSteps, old: tuple[str, Any], new: tuple[str, Any], clauses: tuple[str, str] | None
) -> None:
    a, b = ((name, [0.0] * 3) for name, _ in (old, new))
    comparison = compare_steps(a, b, of_a={"weight_decay": old[1]}, weight_decay=new[1])
    sentences_of_decay = [each.sentence for each in comparison.findings if "weight decay" in each.sentence]
    if clauses is None:
        assert sentences_of_decay == []
        return
    sentence = f"a.jsonl uses the optimizer {old[0]}, and b.jsonl uses {new[0]}"
    assert sentences_of_decay == [f"{sentence}. {old[0]} {clauses[0]}. {new[0]} {clauses[1]}"]


@pytest.mark.parametrize(
    ("old", "new", "values", "advice"),
    [
        (("tf.compat.v1.train.RMSProp", 1.0), ("torch.optim.RMSprop", None), "0 instead of 1", "use the class in docs"),
        (("tf.compat.v1.train.RMSProp", 1.0), ("keras.optimizers.RMSprop", None), "0 instead of 1", "lists the"),
        (("optax.rmsprop", 0.0), ("optax.rmsprop", 1.0), "1 instead of 0", "initial value to 0"),
        (("keras.optimizers.Adagrad", 0.1), ("torch.optim.Adagrad", 0), "0 instead of 0.1", "initial value to 0.1"),
        (("optax.rmsprop", 0.0), ("torch.optim.RMSprop", None), None, ""),
        (("tf.compat.v1.train.RMSProp", None), ("torch.optim.RMSprop", None), None, ""),  # an older recording
        (("tf.compat.v1.train.RMSProp", 1.0), ("mine.RMSprop", None), None, ""),
        (("tf.compat.v1.train.Adagrad", 0.1), ("paddle.optimizer.Adagrad", None), None, ""),
    ],
)
def test_squared_gradients_that_start_at_another_value_are_named(
    compare_steps: CompareSteps, old: tuple[str, Any], new: tuple[str, Any], values: str | None, advice: str
) -> None:
    a, b = ((name, [None] * 3) for name, _ in (old, new))
    initial = {"initial_accumulator_value": new[1], "betas": None}
    comparison = compare_steps(a, b, of_a=initial | {"initial_accumulator_value": old[1]}, **initial)
    starts = [each.sentence for each in comparison.findings if "squared gradients" in each.sentence]
    if values is None:
        assert starts == []
        return
    (sentence,) = starts
    assert sentence.startswith(f"Unlike a.jsonl, b.jsonl has an initial mean or sum of squared gradients of {values}. ")
    assert advice in sentence
    assert sentence.endswith("resumes from a checkpoint, or sets the state of its optimizer")


def test_adamw_of_pytorch_is_the_adam_of_keras_with_weight_decay(compare_steps: CompareSteps) -> None:
    decay = {"weight_decay": 0.1}
    assert compare_steps(KERAS, ("torch.optim.AdamW", eps_after_correction(1e-7)), of_a=decay, **decay).findings == []
    (cause,) = compare_steps(
        KERAS, ("torch.optim.AdamW", eps_after_correction(1e-7)), of_a=decay, weight_decay=0.2
    ).findings
    assert "has weight_decay 0.2 instead of 0.1" in cause.sentence


@pytest.mark.parametrize(
    ("new_optimizer", "rates", "momentum", "is_named"),
    [
        ("torch.optim.SGD", (0.1, 0.1, 0.05), 0.9, True),
        ("tf.compat.v1.train.Momentum", (0.1, 0.2, 0.2), 0.9, True),
        ("torch.optim.SGD", (0.1, 0.1, 0.1), 0.9, False),  # both rules then have the same updates
        ("torch.optim.SGD", (0.1, 0.1, 0.05), 0.0, False),
        ("torch.optim.SGD", (0.1, 0.1, 0.05), None, False),
        ("keras.optimizers.SGD", (0.1, 0.1, 0.05), 0.9, False),
        ("mine.SGD", (0.1, 0.1, 0.05), 0.9, False),
    ],
)
def test_a_momentum_that_contains_learning_rates_is_named_where_they_change(
    compare_steps: CompareSteps, new_optimizer: str, rates: tuple[float, ...], momentum: float | None, is_named: bool
) -> None:
    sgd = {"momentum": momentum, "betas": None}
    comparison = compare_steps(
        ("keras.optimizers.SGD", [None] * 3, rates), (new_optimizer, [None] * 3, rates), of_a=sgd, **sgd
    )
    rules = [
        (divergence, causes)
        for divergence, causes in comparison.divergences.items()
        if divergence.parameter == "rule for momentum"
    ]
    assert bool(rules) == is_named
    for divergence, causes in rules:
        assert divergence.step == next(step for step, rate in enumerate(rates, 1) if rate != 0.1)
        assert (divergence.a, divergence.b) == ("the sum of learning rate times gradient", "the sum of gradients")
        assert 'state["momentum_buffer"] *= last_lr / new_lr' in causes[0].sentence


@pytest.mark.parametrize(("weights", "is_named"), [((5.0, 6.0, 7.0), False), ((5.0, 6.0, 7.5), True)])
def test_a_momentum_that_the_code_compensates_is_no_cause(
    compare_steps: CompareSteps, weights: tuple[float, ...], is_named: bool
) -> None:
    """The rates change at step 2. The gradients of the third step differ."""
    sgd = {"momentum": 0.9, "betas": None}
    rates = (0.1, 0.05, 0.05)
    a, b = (("keras.optimizers.SGD", [None] * 3, rates), ("torch.optim.SGD", [None] * 3, rates))
    comparison = compare_steps(a, b, of_a={**sgd, "weights": (5.0, 6.0, 7.0)}, weights=weights, **sgd)
    assert any(each.parameter == "rule for momentum" for each in comparison.divergences) == is_named


def test_a_tiny_learning_rate_counts_as_0(compare_steps: CompareSteps) -> None:
    rates = (0.1, 0.0, 0.1), (0.1, 1e-20, 0.1)
    comparison = compare_steps(*(("torch.optim.SGD", [None] * 3, each) for each in rates))
    assert "another learning rate" not in {each.kind for each in comparison.findings}


@pytest.mark.parametrize(
    ("rates", "other_rates", "is_named"),
    [
        ((0.1, 1e-3, 0.1), (0.1, 1e-3 + 2e-8, 0.1), False),  # a schedule in float32 has the rounding of its peak
        ((0.1, 1e-3, 0.1), (0.1, 1e-3 + 3e-8, 0.1), True),
        ((1e-3, 1e-3, 1e-3), (1e-3, 1e-3 + 2e-8, 1e-3), True),
        ((0.1, (1e-3, 0.1), 0.1), (0.1, (1e-3 + 2e-8, 0.1), 0.1), True),  # the peak of one parameter group is unknown
    ],
)
def test_a_small_learning_rate_may_have_the_rounding_of_the_largest_one(
    compare_steps: CompareSteps, rates: Any, other_rates: Any, is_named: bool
) -> None:
    comparison = compare_steps(*(("torch.optim.SGD", [None] * 3, each) for each in (rates, other_rates)))
    assert ("another learning rate" in cause_kinds(comparison)) == is_named


@pytest.mark.parametrize(("optimizer", "is_named"), [("keras.optimizers.SGD", True), ("mine.SGD", False)])
def test_dampening_is_compared_with_frameworks_that_have_none(
    compare_steps: CompareSteps, optimizer: str, is_named: bool
) -> None:
    sgd = {"betas": None, "dampening": 0.1}
    comparison = compare_steps((optimizer, [None] * 3), ("torch.optim.SGD", [None] * 3), of_a={"betas": None}, **sgd)
    sentences_of_dampening = [
        each.sentence for each in comparison.findings if "dampening 0.1 instead of 0" in each.sentence
    ]
    assert bool(sentences_of_dampening) == is_named
    assert not compare_steps(
        (optimizer, [None] * 3), ("torch.optim.SGD", [None] * 3), **(sgd | {"dampening": 0.0})
    ).findings
