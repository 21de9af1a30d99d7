"""Two recordings of one recipe have no finding, and each planted difference is found with its values, and no other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.recordings import write_recording
from support.simulated_runs import SHAPES, Clip, Optimizer, Training, run_lines, write_run
from support.tiers import sampled

from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.recipes.finding import Finding
from unified_clip.recipes.optimizers.compare import side_of
from unified_clip.recipes.optimizers.settings import compare_settings
from unified_clip.recipes.run import Run
from unified_clip.recording.runs import read

OPTIMIZERS = {
    "SGD": Optimizer(),
    "momentum": Optimizer(momentum=0.9, rate=0.02),
    "Adam": Optimizer("Adam", rate=0.01),
    "AdamW": Optimizer("Adam", rate=0.01, decay=0.1, is_decoupled=True),
    "RMSprop": Optimizer("RMSprop", rate=0.003),
}


def compared(folder: Path, old: Training, new: Training, **options: Any) -> RecordingComparison:
    return compare(*(write_run(folder / f"{name}.jsonl", each) for name, each in (("a", old), ("b", new))), **options)


# -- one recipe

WRITTEN_OTHERWISE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "transposed": {"is_transposed": True},
    "renamed": {"is_renamed": True},
    "reversed": {"is_reversed": True},
    "renamed and reversed": {"is_renamed": True, "is_reversed": True},
    "renamed and transposed": {"is_renamed": True, "is_transposed": True},
    "packed": {"is_packed": True},
    "two optimizers": {"is_split": True},
    "two optimizers, renamed": {"is_split": True, "is_renamed": True},
    "without settings": {"records_settings": False},
    "without tensors": {"records_tensors": False},
    "without settings and tensors": {"records_settings": False, "records_tensors": False},
}

CLIPS = {
    "global": Clip(),
    "each": Clip("each", 0.1),
    "groups": Clip("groups", 0.1),
    "value": Clip("value", 0.02),
    "late": Clip(is_late=True),
    "twice": Clip(times=2),
    "excluded": Clip(excluded=("out.bias",)),
    "from step 3": Clip(first_step=3),
    "not reached": Clip(threshold=1e3),
}


def _same_runs() -> list[tuple[str, str, str]]:
    """A packed model clips each of its parameters by its own norm, which is another rule."""
    every = itertools.product(OPTIMIZERS, CLIPS, WRITTEN_OTHERWISE)
    return [(o, c, w) for o, c, w in every if (w, c) != ("packed", "each")]


@pytest.mark.parametrize(("optimizer", "clip", "written"), sampled(_same_runs(), 41))
def test_runs_of_one_recipe_have_no_finding(tmp_path: Path, optimizer: str, clip: str, written: str) -> None:
    old = Training(clip=CLIPS[clip], optimizer=OPTIMIZERS[optimizer])
    new = replace(old, noise=1e-7, **WRITTEN_OTHERWISE[written])
    for pair in ((old, new), (new, old)):
        found = compared(tmp_path, *pair)
        assert not found.findings
        assert found.exit_code == 0
        # without tensors, the gradients of the steps before the first clip are unknown
        assert found.recipes.steps >= old.steps - old.clip.first_step + 1
        assert sum(len(each.old) for each in found.recipes.pairs) in (4, 5)
        assert found.recipes.unpaired == ([], [])


@pytest.mark.parametrize("clip", ["global", "each", "value"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_clip_by_the_scripts_own_code_can_be_the_same(tmp_path: Path, optimizer: str, clip: str) -> None:
    old = Training(clip=CLIPS[clip], optimizer=OPTIMIZERS[optimizer])
    new = replace(old, noise=1e-7, clip=replace(old.clip, by_hand=True))
    assert not compared(tmp_path, old, new).findings
    assert not compared(tmp_path, new, old).findings


def test_a_loop_of_clips_equals_one_call_that_clips_per_tensor(tmp_path: Path) -> None:
    old = Training(clip=CLIPS["each"])
    assert not compared(tmp_path, old, replace(old, clip=replace(old.clip, rule="loop"), noise=1e-7)).findings


# -- one planted difference


class Planted(NamedTuple):
    """A difference of the new run from the old one, and the finding that names it."""

    slot: str
    """Two differences of one slot exclude each other."""

    changes: Mapping[str, Any]
    """Fields of the training. Those of "clip" and "optimizer" are dicts of their fields."""

    kind: str
    field: str
    old: object
    new: object
    of: frozenset[str] = frozenset(OPTIMIZERS)
    """The optimizers of the old run that it fits."""

    step: int = 1


def halved_from_step_4(step: int) -> float:
    return 1.0 if step < 4 else 0.5


SGDS, ADAMS = frozenset({"SGD", "momentum"}), frozenset({"Adam", "AdamW"})

PLANTED = {
    "threshold": Planted("threshold", {"clip": {"threshold": 0.3}}, "another threshold", "threshold", 0.25, 0.3),
    "eps of the clip": Planted(
        "eps", {"clip": {"eps": 0.01}}, "another eps of the clip", "eps of the clip", 1e-6, 0.01
    ),
    "per tensor": Planted(
        "rule", {"clip": {"rule": "each"}}, "per tensor for global", "gradients that share a norm", "all gradients",
        "each gradient",
    ),
    "per layer": Planted(
        "rule", {"clip": {"rule": "groups"}}, "per group for global", "gradients that share a norm", "all gradients",
        "2 groups of gradients",
    ),
    "excluded": Planted(
        "excluded", {"clip": {"excluded": ("out.bias",)}}, "left out", "clipped parameters", "clipped", "left out"
    ),
    "twice": Planted("times", {"clip": {"times": 2}}, "clipped twice", "clips of a step", 1, 2),
    "late": Planted(
        "place", {"clip": {"is_late": True}}, "clipping after the step", "place of the clip", "before the step",
        "after the step",
    ),
    "dropped": Planted(
        "place", {"clip": {"is_dropped": True}}, "the clip does not reach the step", "gradients of the step",
        "the clipped gradients", "other gradients",
    ),
    "never clips": Planted("clip", {"clip": {"rule": "none"}}, "left-out clip", "clip", "clip", "none"),
    "clips later": Planted("clip", {"clip": {"first_step": 3}}, "left-out clip", "clip", "clipped", "not clipped"),
    "rate": Planted(
        "rate", {"optimizer": {"rate": 0.04}}, "another learning rate", "learning rate", 0.05, 0.04, frozenset({"SGD"})
    ),
    "rate of Adam": Planted(
        "rate", {"optimizer": {"rate": 0.02}}, "another learning rate", "learning rate", 0.01, 0.02, ADAMS
    ),
    "schedule": Planted(
        "rate", {"optimizer": {"schedule": halved_from_step_4}}, "another learning rate", "learning rate", 0.01, 0.005,
        ADAMS, 4,
    ),
    "norm type": Planted("norm type", {"clip": {"norm_type": 4.0}}, "another norm type", "norm type", 2.0, 4.0),
    "by value": Planted(
        "clip", {"clip": {"rule": "value", "threshold": 0.02}}, "another rule", "clip rule", "by norm", "by value"
    ),
    "passed norm": Planted(
        "norm", {"clip": {"norm_error": 0.1}}, "given norm", "norm of the clip", "exact", "passed by the caller"
    ),
    "momentum": Planted(
        "momentum", {"optimizer": {"momentum": 0.9}}, "another optimizer", "momentum", None, 0.9, frozenset({"SGD"})
    ),
    "other momentum": Planted(
        "momentum", {"optimizer": {"momentum": 0.8}}, "another optimizer", "momentum", 0.9, 0.8,
        frozenset({"momentum"}),
    ),
    "nesterov": Planted(
        "nesterov", {"optimizer": {"nesterov": True}}, "another optimizer", "nesterov", None, True,
        frozenset({"momentum"}),
    ),
    "decay": Planted(
        "decay", {"optimizer": {"decay": 0.1}}, "another optimizer", "weight decay", None, 0.1, SGDS
    ),
    "decay of Adam": Planted(
        "decay", {"optimizer": {"decay": 0.1}}, "another optimizer", "weight decay", None, 0.1, frozenset({"Adam"})
    ),
    "coupled decay": Planted(
        "decay", {"optimizer": {"is_decoupled": False}}, "another optimizer", "decay added to", "the weight",
        "the gradient", frozenset({"AdamW"}),
    ),
    "betas": Planted(
        "betas", {"optimizer": {"betas": (0.9, 0.99)}}, "another optimizer", "betas", (0.9, 0.999), (0.9, 0.99), ADAMS
    ),
    "eps": Planted(
        "eps of Adam", {"optimizer": {"eps": 1e-3}}, "another optimizer", "eps", 1e-8, 1e-3, ADAMS
    ),
    "no bias correction": Planted(
        "correction", {"optimizer": {"corrects": False}}, "another optimizer", "bias correction", "as in Adam", None,
        ADAMS,
    ),
    "eps of RMSprop": Planted(
        "eps of RMSprop", {"optimizer": {"eps": 1e-3}}, "another optimizer", "eps", 1e-8, 1e-3, frozenset({"RMSprop"})
    ),
    "alpha": Planted(
        "alpha", {"optimizer": {"alpha": 0.9}}, "another optimizer", "alpha", 0.99, 0.9, frozenset({"RMSprop"})
    ),
    "another optimizer": Planted(
        "optimizer", {"optimizer": {"name": "RMSprop", "rate": 0.01, "eps": 1e-8}}, "another optimizer", "optimizer",
        "Adam", "RMSprop", frozenset({"Adam"}),
    ),
    "scale": Planted("gradients", {"scale": 4.0}, "scaled gradients", "scale of the gradients", "1", "4"),
    "regularizer": Planted(
        "gradients", {"regularizer": 0.01}, "weight decay before the clip", "weight decay before the clip", "none",
        "0.01 * weight",
    ),
    "two passes": Planted(
        "gradients", {"passes": 2}, "gradient accumulation", "scale of the gradients", "1", "2"
    ),
    "loss scale": Planted(
        "gradients", {"loss_scale": 8.0}, "clipping before unscaling", "scale of the clipped gradients", "1", "8"
    ),
    "reshaped": Planted(
        "gradients", {"is_reshaped": True, "is_transposed": True}, "untransposed weight", "order of the elements", "",
        "",
    ),
    "frozen": Planted(
        "update", {"is_frozen": True}, "weights are not updated", "weights after the step", "changed", "not changed"
    ),
    "shorter": Planted(
        "steps", {"steps": 5}, "one run is shorter", "number of steps", 7, 5, step=6
    ),
    "data": Planted("gradients", {"other_data_from": 1}, "other data or loss", "gradients before the clip", "", ""),
    "data from step 4": Planted(
        "gradients", {"other_data_from": 4}, "other data or loss", "gradients before the clip", "", "", step=4
    ),
    "weights": Planted(
        "gradients", {"other_weights": ("in.weight",)}, "other initial weights", "initial weights", "", ""
    ),
    "uncleared": Planted(
        "gradients", {"clears": False}, "gradients are not cleared", "gradients before the step", "cleared",
        "not cleared", step=2,
    ),
}  # fmt: skip


def with_differences(training: Training, *planted: Planted) -> Training:
    for each in planted:
        changes = dict(each.changes)
        for part in ("clip", "optimizer"):
            if part in changes:
                changes[part] = replace(getattr(training, part), **changes[part])
        training = replace(training, **changes)
    return training


def summary(finding: Finding) -> tuple[object, ...]:
    return finding.step, finding.kind, finding.field, shown(finding.old), shown(finding.new)


def expected_of(planted: Planted, *, is_swapped: bool) -> tuple[object, ...]:
    values = (planted.new, planted.old) if is_swapped else (planted.old, planted.new)
    return planted.step, planted.kind, planted.field, *map(shown, values)


def shown(value: object) -> object:
    """A measured setting has about two digits."""
    return float(f"{value:.2g}") if isinstance(value, float) and math.isfinite(value) else value


def check(folder: Path, optimizer: str, planted: list[Planted], how: str, *, is_swapped: bool) -> None:
    old = Training(optimizer=OPTIMIZERS[optimizer])
    new = with_differences(replace(old, noise=1e-7, **WRITTEN_OTHERWISE[how]), *planted)
    found = compared(folder, *((new, old) if is_swapped else (old, new)))
    assert found.exit_code == 1
    expected = {expected_of(each, is_swapped=is_swapped) for each in planted}
    assert {summary(each) for each in found.findings} == expected
    assert len(found.findings) == len(expected)


HOWS = ("as it is", "renamed and transposed", "two optimizers, renamed", "without settings", "without tensors")

SINGLE = [
    (name, optimizer, how, is_swapped)
    for name, planted in PLANTED.items()
    for optimizer in sorted(planted.of)
    for how, is_swapped in itertools.product(HOWS, (False, True))
]


def _one_of_each() -> list[Any]:
    """The change tier runs two variants of each difference, one of them without tensors at the steps."""
    found = []
    for place, name in enumerate(PLANTED):
        variants = [each for each in SINGLE if each[0] == name]
        chosen = 3 * place % len(variants)
        without_tensors = next(number for number, each in enumerate(variants) if each[2] == "without tensors")
        found += [
            pytest.param(*each, marks=() if number in (chosen, without_tensors) else pytest.mark.nightly)
            for number, each in enumerate(variants)
        ]
    return found


@pytest.mark.parametrize(("name", "optimizer", "how", "is_swapped"), _one_of_each())
def test_a_planted_difference_is_the_only_finding(
    tmp_path: Path, name: str, optimizer: str, how: str, is_swapped: bool
) -> None:
    check(tmp_path, optimizer, [PLANTED[name]], how, is_swapped=is_swapped)


def test_a_parameter_that_only_the_new_run_clips_is_the_only_finding(tmp_path: Path) -> None:
    check(tmp_path, "SGD", [PLANTED["excluded"]], "as it is", is_swapped=True)


@pytest.mark.parametrize(("scales", "word"), [((1.0, 4.0), "Divide"), ((4.0, 1.0), "Multiply")])
def test_the_advice_gives_the_second_run_the_gradients_of_the_first(
    tmp_path: Path, scales: tuple[float, float], word: str
) -> None:
    (found,) = compared(tmp_path, *(Training(scale=each) for each in scales)).findings
    assert word in found.fix


@pytest.mark.parametrize(
    ("factors", "kinds"),
    [((2.0, 2.0, 3.0), ["scaled gradients"] * 2), ((2.0, 3.0, 4.0), ["other gradients"])],
)
def test_gradients_may_have_few_different_factors(tmp_path: Path, factors: tuple[float, ...], kinds: list[str]) -> None:
    new = Training(factors=dict(zip(SHAPES, factors, strict=False)))
    assert [each.kind for each in compared(tmp_path, Training(), new).findings] == kinds


# -- two planted differences

CLIP_SLOTS = {"threshold", "eps", "rule", "excluded", "times", "place", "norm type", "norm"}
OPTIMIZER_SLOTS = {"momentum", "nesterov", "decay", "betas", "eps of Adam", "correction", "rate"}


def are_independent(a: Planted, b: Planted) -> bool:
    """After the first difference, the runs train apart, so gradients of later steps and numbers of steps are not
    compared."""
    slots = {a.slot, b.slot}
    if "steps" in slots:
        return False
    if len(slots) == 1 or ("clip" in slots and slots & CLIP_SLOTS):
        return False
    if "clipping before unscaling" in (a.kind, b.kind) and slots & {"clip", "place"}:
        return False  # the code that unscales changes what a clip returns
    if slots == {"rule", "norm"} and "per tensor for global" in (a.kind, b.kind):
        return False  # a caller passes one norm, and each tensor has its own
    if ("optimizer" in slots or "update" in slots) and slots & {*OPTIMIZER_SLOTS, "optimizer"}:
        return False
    if slots == {"rate", "gradients"} and a.step == b.step > 1:
        return False  # as after an epoch of another length, which is one cause
    later = [each for each in (a, b) if each.slot == "gradients" and each.kind == "other data or loss"]
    return all(other.step >= each.step for each in later for other in (a, b))


NEED_TENSORS = {"loss scale", "never clips", "clips later"}


def _pairs() -> list[tuple[str, str, str, str, bool]]:
    """With a loss scale, or without a clip, only recorded tensors show what an optimizer gets."""
    found = []
    for index, (first, second) in enumerate(itertools.combinations(PLANTED, 2)):
        a, b = PLANTED[first], PLANTED[second]
        if are_independent(a, b):
            how = HOWS[index % (len(HOWS) - bool(NEED_TENSORS & {first, second}))]
            found += [(first, second, each, how, index % 2 == 1) for each in sorted(a.of & b.of)]
    return found


@pytest.mark.parametrize(("first", "second", "optimizer", "how", "is_swapped"), sampled(_pairs(), 53))
def test_two_planted_differences_are_both_found_and_nothing_else(
    tmp_path: Path, first: str, second: str, optimizer: str, how: str, is_swapped: bool
) -> None:
    check(tmp_path, optimizer, [PLANTED[first], PLANTED[second]], how, is_swapped=is_swapped)


# -- clips by hand


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("name", ["threshold", "per tensor", "by value", "rate", "momentum", "weights"])
def test_a_difference_of_a_clip_by_the_scripts_own_code_is_found(tmp_path: Path, name: str, is_swapped: bool) -> None:
    old, planted = Training(), PLANTED[name]
    new = with_differences(replace(old, noise=1e-7, clip=replace(old.clip, by_hand=True)), planted)
    found = compared(tmp_path, *((new, old) if is_swapped else (old, new)))
    assert {summary(each) for each in found.findings} == {expected_of(planted, is_swapped=is_swapped)}


@pytest.mark.parametrize("clip", [Clip(threshold=0.3), Clip("each", 0.1), Clip("value", 0.03)])
@pytest.mark.parametrize("is_bfloat16", [False, True])
def test_rounding_of_bfloat16_is_no_difference(tmp_path: Path, clip: Clip, is_bfloat16: bool) -> None:
    old = Training(is_bfloat16=True, clip=clip)
    new = replace(old, is_bfloat16=is_bfloat16, noise=1e-3, clip=replace(clip, by_hand=True))
    wrong = replace(new, clip=replace(new.clip, threshold=1.1 * clip.threshold))
    for pair in ((old, new), (new, old)):
        assert [each.kind for each in compared(tmp_path, *pair).findings] == []
    assert [each.kind for each in compared(tmp_path, old, wrong).findings] == ["another threshold"]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_clip_by_hand_without_recorded_gradients_is_named(tmp_path: Path, is_swapped: bool) -> None:
    old = Training()
    new = replace(old, clip=Clip(by_hand=True), records_tensors=False)
    (finding,) = compared(tmp_path, *((new, old) if is_swapped else (old, new))).findings
    values = ("none", "clip") if is_swapped else ("clip", "none")
    assert (finding.step, finding.kind, finding.old, finding.new) == (1, "clip by hand", *values)


@pytest.mark.parametrize(("threshold", "kinds"), [(0.1, []), (0.2, ["another threshold"])])
def test_two_runs_that_clip_by_their_own_code_are_compared(tmp_path: Path, threshold: float, kinds: list[str]) -> None:
    both = (Training(clip=Clip(by_hand=True, threshold=each)) for each in (0.1, threshold))
    assert [each.kind for each in compared(tmp_path, *both).findings] == kinds


def test_a_run_of_half_the_length_does_not_step_less_often(tmp_path: Path) -> None:
    found = compared(tmp_path, Training(steps=6), Training(steps=3, noise=1e-7))
    assert [each.kind for each in found.findings] == ["one run is shorter"]


def test_a_threshold_times_the_loss_scale_is_compared_to_the_last_step(tmp_path: Path) -> None:
    old = Training(clip=Clip(threshold=0.25))
    scaled = Training(clip=Clip(threshold=2.0), loss_scale=8.0, noise=1e-7)
    same, other = (compared(tmp_path, old, each) for each in (scaled, replace(scaled, other_data_from=4)))
    assert (list(same.findings), same.recipes.steps) == ([], old.steps)
    assert [(each.step, each.kind) for each in other.findings] == [(4, "other data or loss")]


@pytest.mark.parametrize("growth", [2.0, 0.5])
def test_a_loss_scale_that_changes_is_compared_call_by_call(tmp_path: Path, growth: float) -> None:
    old = Training()
    scaled = Training(loss_scale=8.0, scale_growth=growth, noise=1e-7)
    following = replace(scaled, clip=Clip(follows_loss_scale=True))
    for pair in ((old, following), (following, old), (scaled, replace(scaled, noise=0.0))):
        found = compared(tmp_path, *pair)
        assert (list(found.findings), found.recipes.steps) == ([], old.steps)
    found = compared(tmp_path, replace(scaled, scale_growth=1.0), scaled)
    values = ("8", f"{8 * growth:g}")
    assert [summary(each) for each in found.findings] == [
        (2, "clipping before unscaling", "scale of the clipped gradients", *values)
    ]
    (other,) = compared(tmp_path, old, replace(following, other_data_from=4)).findings
    assert (other.step, other.kind) == (4, "other data or loss")


@pytest.mark.parametrize(
    ("changes", "field"), [({"rate": 0.01 * 1.0003}, "learning rate"), ({"decay": 0.102}, "weight decay")]
)
def test_recorded_settings_are_compared_more_exactly_than_measured_ones(
    tmp_path: Path, changes: dict[str, float], field: str
) -> None:
    adamw = Optimizer("Adam", rate=0.01, decay=0.1, is_decoupled=True)
    found = compared(tmp_path, Training(optimizer=adamw), Training(optimizer=replace(adamw, **changes)))
    assert [each.field for each in found.findings] == [field]


def test_a_small_effect_of_an_eps_is_tolerated_and_not_blamed_for_other_data(tmp_path: Path) -> None:
    adam = Training(optimizer=Optimizer("Adam", rate=0.01, eps=1e-8))
    near = replace(adam, optimizer=replace(adam.optimizer, eps=1e-7))
    same, other = (compared(tmp_path, adam, each) for each in (near, replace(near, other_data_from=4)))
    assert (list(same.findings), [each.field for each in same.recipes.tolerated]) == ([], ["eps"])
    assert [(each.step, each.kind) for each in other.findings] == [(4, "other data or loss")]
    strict = compared(tmp_path, adam, near, max_ulp=1.0)
    assert ([each.field for each in strict.findings], list(strict.recipes.tolerated)) == (["eps"], [])


def test_one_advice_mends_another_eps_at_another_place(tmp_path: Path) -> None:
    """To set only the eps of the old run, at the place of the new one, would be wrong from the second step on."""
    keras = Optimizer("Adam", rate=0.01, eps=1e-3, eps_first=True)
    old, new = (Training(optimizer=each) for each in (keras, replace(keras, eps=1e-5, eps_first=False)))
    found = compared(tmp_path, old, new).findings
    assert {each.field for each in found} == {"eps", "eps is added"}
    (fix,) = (each.fix for each in found if each.fix)
    assert "0.001 / (1 - 0.999**t) ** 0.5" in fix


def test_small_differences_after_unknown_updates_are_not_blamed_on_the_data(tmp_path: Path) -> None:
    """No rule explains AMSGrad, and libraries add eps at different places."""
    amsgrad = Optimizer("Adam", rate=0.01, eps=1e-6, amsgrad=True)
    old, new = (Training(optimizer=each) for each in (amsgrad, replace(amsgrad, eps=1e-8)))
    paths = [write_run(tmp_path / name, each) for name, each in (("a.jsonl", old), ("b.jsonl", new))]
    paths[0].write_text(paths[0].read_text().replace("torch.optim.Adam", "keras.optimizers.Adam"))
    (found,) = compare(*paths).findings
    assert (found.step, found.kind, found.field) == (1, "another optimizer", "updates")
    assert "eps is 1e-06 in a.jsonl, and 1e-08 in b.jsonl" in found.sentence


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_eps_of_the_clip_hides_no_later_difference(tmp_path: Path, optimizer: str) -> None:
    old = Training(optimizer=OPTIMIZERS[optimizer])
    new = replace(old, clip=Clip(eps=0.0))
    alone, both = (compared(tmp_path, old, each) for each in (new, replace(new, other_data_from=4)))
    assert [each.kind for each in alone.findings] == ["another eps of the clip"]
    assert [(each.step, each.kind) for each in both.findings[1:]] == [(4, "other data or loss")]


def different_settings(folder: Path, *steps: dict[str, Any]) -> list[str]:
    """Compare the recorded settings of two runs, whose optimizer steps have these fields."""
    runs = []
    for number, step in enumerate(steps):
        lines = ({**line, **step} if "settings" in line else line for line in run_lines(Training()))
        runs.append(Run(read(write_recording(folder / f"{number}.jsonl", lines))))
    recorded = [each.recorded.optimizer_steps for each in runs]
    return [each.field for each in compare_settings(*runs, *recorded, [None, None])]


def test_the_recorded_decays_of_groups_have_no_order(tmp_path: Path) -> None:
    """Keras and Paddle record each decay once."""
    first, second, third = ({"settings": {"weight_decay": each}} for each in ([0.0, 0.3], [0.3, 0.0, 0.3], [0.3, 0.3]))
    assert different_settings(tmp_path, first, second) == []
    assert different_settings(tmp_path, first, third) == ["weight_decay"]


@pytest.mark.parametrize("dampening", [0.0, 0.9])
def test_the_sgd_of_other_libraries_has_no_dampening(tmp_path: Path, dampening: float) -> None:
    pair = [{"settings": {"dampening": dampening}}, {"settings": {}, "optimizer": "keras.optimizers.SGD"}]
    for each in (pair, pair[::-1]):
        assert different_settings(tmp_path, *each) == ["dampening"] * bool(dampening)


@pytest.mark.parametrize(("drop", "is_swapped"), [(5, False), (7, False), (7, True)])
def test_learning_rates_that_differ_from_the_same_step_on_as_the_data_are_no_other_cause(
    tmp_path: Path, drop: int, is_swapped: bool
) -> None:
    """After a shorter epoch, the schedule is ahead, by one step or more."""
    old, new = (
        Training(optimizer=Optimizer("Adam", rate=0.01, schedule=lambda step, drop=each: 1.0 if step < drop else 0.5))  # type: ignore[misc]
        for each in (drop, 4)
    )
    runs = [old, replace(new, other_data_from=4)]
    (found,) = compared(tmp_path, *(reversed(runs) if is_swapped else runs)).findings
    rates = "0.01 instead of 0.005" if is_swapped else "0.005 instead of 0.01"
    assert (found.step, found.kind) == (4, "other data or loss")
    assert f"the learning rate {rates}. An epoch of another length is a possible cause" in found.sentence
    (alone,) = compared(tmp_path, *runs[:1], new).findings
    assert alone.kind == ("shifted step" if drop == 5 else "another learning rate")
    earlier = compared(tmp_path, old, replace(new, other_data_from=3)).findings
    assert [(each.step, each.kind) for each in earlier] == [(3, "other data or loss"), (4, alone.kind)]


def test_rounding_that_has_grown_too_far_to_exclude_a_mistake_is_said(tmp_path: Path) -> None:
    near, far = (Training(noise=2e-7, noise_growth=growth) for growth in (2.0, 8.0))
    kinds = [[each.kind for each in compared(tmp_path, Training(), each).findings] for each in (near, far)]
    assert kinds == [[], ["rounding that has grown"]]


@pytest.mark.parametrize(("second", "step"), [(1e-5, None), (1e-4, 2)])
def test_the_distance_of_the_losses_may_grow_from_step_to_step(tmp_path: Path, second: float, step: int | None) -> None:
    losses = [
        [{"step": number, "logged": {"loss": 1 + each}} for number, each in enumerate(distances, 1)]
        for distances in ((0.0, 0.0, 0.0), (1e-6, second, 1e-4))
    ]
    paths = [
        write_recording(tmp_path / f"{side}.jsonl", [*run_lines(Training(steps=3)), *lines])
        for side, lines in zip("ab", losses, strict=True)
    ]
    assert [each.step for each in compare(*paths).findings] == ([] if step is None else [step])


@pytest.mark.parametrize("how", ["with weights", "without weights"])
@pytest.mark.parametrize("is_split", [False, True])
def test_an_optimizer_that_is_made_anew_for_each_step_is_one(tmp_path: Path, how: str, is_split: bool) -> None:
    old = Training(is_split=is_split)
    new = replace(old, noise=1e-7, records_tensors=how == "with weights")
    lines = [
        {**line, "instance": line["step"] * 10 + line["instance"], "place": f"train.py:{line['instance']}"}
        if "optimizer" in line
        else line
        for line in run_lines(new)
    ]
    found = compare(write_run(tmp_path / "a.jsonl", old), write_recording(tmp_path / "b.jsonl", lines))
    assert (list(found.findings), found.recipes.steps, len(found.recipes.pairs)) == ([], old.steps, 4)


def test_a_run_whose_own_code_may_clip_is_not_said_to_clip_never(tmp_path: Path) -> None:
    lines = [line for line in run_lines(Training()) if "rule" not in line]  # nothing tells whether gradients changed
    found = compare(write_run(tmp_path / "a.jsonl", Training()), write_recording(tmp_path / "b.jsonl", lines))
    (finding,) = [each for each in found.findings if each.field == "clip"]
    assert (finding.old, finding.new) == ("clip", "unknown")
    assert "unified-clip verify" in finding.fix
    assert "Add this clip" not in finding.fix


def test_clips_without_steps_can_be_of_micro_batches(tmp_path: Path) -> None:
    """As those in optax.MultiSteps."""
    lines = [line for line in run_lines(Training(steps=14, other_data_from=1)) if "rule" in line]
    found = compare(write_run(tmp_path / "a.jsonl", Training()), write_recording(tmp_path / "b.jsonl", lines))
    assert [each.kind for each in found.findings if each.field == "gradients before the clip"] == ["other gradients"]


def test_settings_that_were_stored_in_float32_are_equal(tmp_path: Path) -> None:
    old = Training(optimizer=Optimizer("Adam", rate=0.01))
    rounded = replace(old.optimizer, betas=(float(np.float32(0.9)), float(np.float32(0.999))))
    found = compared(tmp_path, old, replace(old, optimizer=rounded))
    assert (list(found.findings), list(found.recipes.tolerated)) == ([], [])


def test_recorded_settings_tell_constants_apart_that_explain_the_same_updates(tmp_path: Path) -> None:
    training = Training(optimizer=Optimizer("Adam", rate=0.01, eps=1e-9))
    found = {}
    for name in ("recorded", "measured"):
        file = write_run(tmp_path / f"{name}.jsonl", replace(training, records_settings=name == "recorded"))
        run = Run(read(file))
        found[name] = {
            each.settings["eps"]
            for each in side_of(
                run, dict(zip(run.parameters, run.parameters, strict=True)), run.recorded.optimizer_steps
            ).recipes
        }
    assert found["recorded"] == {1e-9} < found["measured"] | {1e-9}


def _without_gradient_after_first_step(training: Training, name: str) -> Iterator[dict[str, Any]]:
    """A parameter that only the first batch uses."""
    for line in run_lines(training):
        if line["step"] > 1 and name in line.get("parameters", ()):
            kept = [each for each in line["parameters"] if each != name]
            is_clip = "rule" in line
            line["parameters"] = {each: line["parameters"][each] for each in kept} if is_clip else kept
            line |= {"count": len(kept)} if is_clip else {}
            line.get("tensors", {}).pop(name, None)
        yield line


def test_a_parameter_without_later_gradients_does_not_end_the_comparison(tmp_path: Path) -> None:
    trainings = Training(), Training(noise=1e-7), Training(noise=1e-7, other_data_from=3)
    old, same, other = (
        write_recording(tmp_path / f"{number}.jsonl", _without_gradient_after_first_step(each, "out.bias"))
        for number, each in enumerate(trainings)
    )
    assert (list(compare(old, same).findings), compare(old, same).recipes.steps) == ([], 7)
    assert [(each.step, each.kind) for each in compare(old, other).findings] == [(3, "other data or loss")]
