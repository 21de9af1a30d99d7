"""`unified-clip compare` of runs with two optimizers that step after one backward pass, in any order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, write_and_compare

from unified_clip.recording.compare import RecordingComparison
from unified_clip.recording.report import sentences

SHAPES = {"maker": ([3, 4], [3]), "critic": ([1, 3], [1])}
RATES = {"maker": 0.1, "critic": 0.5}


def clip(step: int, net: str, iteration: int, kind: str, shapes: dict[str, Any], rate: float) -> dict[str, Any]:
    """A clip of the gradients of a network, or of "both". `kind`: the names of parameters, or "none" without norms."""
    norms = {"maker": (3.0 + iteration, 4.0), "critic": (7.0 + iteration, 9.0)}
    nets = ["maker", "critic"] if net == "both" else [net]
    gradients = [
        (f"{each}.{end}", norm, shape)
        for each in nets
        for end, norm, shape in zip(("weight", "bias"), norms[each], shapes[each], strict=True)
    ]
    total = math.hypot(*(norm for _, norm, _ in gradients))
    parameters = {
        name if kind == "names" else str(position): {"norm": norm, "shape": shape, "weight": 2.0 + rate * iteration}
        for position, (name, norm, shape) in enumerate(gradients)
    }
    return {
        "step": step, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "count": len(gradients), "norm": total, "coef": 1 / total, "clipped": True,
        "nan": 0, "inf": 0, "seconds": 0.001, **({} if kind == "none" else {"parameters": parameters}),
    }  # fmt: skip


def recorded_lines(
    order: Sequence[str],
    kind: str,
    rates: dict[str, float] = RATES,
    shapes: dict[str, Any] = SHAPES,
    *,
    has_own_passes: bool = False,
) -> list[dict[str, Any]]:
    """Record three iterations with one backward pass each. `order`: such as "clip maker" and "step maker".

    has_own_passes: Whether there is a backward pass before each step.
    """
    lines: list[dict[str, Any]] = []
    calls = steps = 0
    for iteration in range(3):
        passes = 1
        for action in order:
            kind_of_line, net = action.split()
            if kind_of_line == "clip":
                calls += 1
                lines.append(clip(calls, net, iteration, kind, shapes, rates[net]))
            else:
                steps += 1
                lines.append({
                    "step": steps, "optimizer": "torch.optim.SGD", "settings": {"lr": rates[net]},
                    "backward_calls": passes, "cleared": None, "losses": [1.0] * passes,
                })  # fmt: skip
                passes = int(has_own_passes)
    return lines


IN_TURN = ("clip maker", "step maker", "clip critic", "step critic")
CLIPS_FIRST = ("clip maker", "clip critic", "step maker", "step critic")
CLIPS_SWAPPED = ("clip critic", "clip maker", "step maker", "step critic")
SWAPPED = ("clip critic", "step critic", "clip maker", "step maker")
SWAPPED_CLIPS_FIRST = ("clip critic", "clip maker", "step critic", "step maker")
LATE = ("step maker", "clip maker", "clip critic", "step critic")
ORDERS = (IN_TURN, CLIPS_FIRST, CLIPS_SWAPPED, SWAPPED, SWAPPED_CLIPS_FIRST)


@pytest.mark.parametrize("kind", ["names", "positions", "none"])
@pytest.mark.parametrize("new", ORDERS)
@pytest.mark.parametrize("old", ORDERS)
def test_steps_after_one_backward_pass_may_have_another_order(
    tmp_path: Path, old: Sequence[str], new: Sequence[str], kind: str
) -> None:
    comparison = write_and_compare(tmp_path, recorded_lines(old, kind), recorded_lines(new, kind))
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 6)


@pytest.mark.parametrize("new", [IN_TURN, SWAPPED])
@pytest.mark.parametrize("old", [IN_TURN, SWAPPED])
def test_another_learning_rate_of_one_of_two_optimizers_is_found_in_any_order(
    tmp_path: Path, old: Sequence[str], new: Sequence[str]
) -> None:
    lines = recorded_lines(new, "names", {"maker": 0.1, "critic": 0.25})
    comparison = write_and_compare(tmp_path, recorded_lines(old, "names"), lines)
    assert cause_kinds(comparison) == ["another learning rate"]
    assert "0.25 instead of 0.5" in comparison.findings[0].sentence


def test_swapped_learning_rates_are_found(tmp_path: Path) -> None:
    lines = recorded_lines(SWAPPED, "names", {"maker": 0.5, "critic": 0.1})
    comparison = write_and_compare(tmp_path, recorded_lines(IN_TURN, "names"), lines)
    assert cause_kinds(comparison) == ["another learning rate"]


def test_an_optimizer_that_steps_before_its_clip_is_found(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, recorded_lines(IN_TURN, "names"), recorded_lines(LATE, "names"))
    assert comparison.exit_code == 1


def test_norms_show_the_order_of_networks_with_equal_shapes(tmp_path: Path) -> None:
    shapes = {"maker": ([4, 4], [4]), "critic": ([4, 4], [4])}
    lines = [recorded_lines(order, "positions", shapes=shapes) for order in (IN_TURN, SWAPPED)]
    for number, clip_line in enumerate(line for line in lines[1] if "call" in line):  # later norms differ more
        clip_line["norm"] *= 1.1 if number > 1 else 1.0
    comparison = write_and_compare(tmp_path, *lines)
    assert {clip_line.kind for clip_line in comparison.findings}.isdisjoint({"another learning rate", "left out"})
    assert comparison.first is not None
    assert comparison.first.step == 3


def test_a_run_that_misses_a_step_differs(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, recorded_lines(IN_TURN, "names"), recorded_lines(IN_TURN[:3], "names"))
    assert comparison.exit_code == 1


def test_clips_of_other_gradients_are_not_reordered(tmp_path: Path) -> None:
    shapes = {"maker": ([9, 9], [9]), "critic": ([8, 8], [8])}
    comparison = write_and_compare(
        tmp_path, recorded_lines(IN_TURN, "positions"), recorded_lines(CLIPS_FIRST, "positions", shapes=shapes)
    )
    assert comparison.exit_code == 1


def test_clips_of_the_same_parameters_are_not_reordered(tmp_path: Path) -> None:
    lines = [recorded_lines(order, "names") for order in (IN_TURN, CLIPS_FIRST)]
    for line in itertools.chain.from_iterable(lines):
        if "parameters" in line:
            names = zip(["weight", "bias"], line["parameters"].values(), strict=True)
            line["parameters"] = dict(names)
    assert write_and_compare(tmp_path, *lines).exit_code == 1


def test_steps_without_recorded_backward_passes_are_paired_by_their_networks(tmp_path: Path) -> None:
    lines = [recorded_lines(order, "names") for order in (IN_TURN, CLIPS_FIRST)]
    for line in itertools.chain.from_iterable(lines):
        if "optimizer" in line:
            line["backward_calls"] = 0
    assert write_and_compare(tmp_path, *lines).exit_code == 0


# -- one clip for several optimizers

ALL_FIRST = ("clip both", "step maker", "step critic")
ALL_FIRST_SWAPPED = ("clip both", "step critic", "step maker")
ONE_OPTIMIZER = ("clip both", "step both")
OF_BOTH = {"maker": 0.1, "critic": 0.1, "both": 0.1}


def hide_passes(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without recorded backward passes, as Keras has."""
    return [{**line, "backward_calls": None} if "optimizer" in line else line for line in lines]


@pytest.mark.parametrize("kind", ["names", "positions", "none"])
@pytest.mark.parametrize("hides", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("new", [ALL_FIRST, ALL_FIRST_SWAPPED, ONE_OPTIMIZER])
@pytest.mark.parametrize("old", [ALL_FIRST, ONE_OPTIMIZER])
def test_one_clip_may_be_for_the_steps_of_two_optimizers(
    tmp_path: Path, old: Sequence[str], new: Sequence[str], hides: Sequence[bool], kind: str
) -> None:
    runs = [recorded_lines(order, kind, OF_BOTH) for order in (old, new)]
    runs = [hide_passes(lines) if hide else lines for lines, hide in zip(runs, hides, strict=True)]
    comparison = write_and_compare(tmp_path, *runs)
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 3)


@pytest.mark.parametrize("kind", ["names", "positions", "none"])
@pytest.mark.parametrize("new", [CLIPS_FIRST, CLIPS_SWAPPED, IN_TURN])
def test_each_optimizer_may_clip_before_its_step_or_before_both_steps(
    tmp_path: Path, new: Sequence[str], kind: str
) -> None:
    """Keras' optimizers clip in their steps, and it is unknown which steps follow one backward pass."""
    old = hide_passes(recorded_lines(IN_TURN, kind))
    comparison = write_and_compare(tmp_path, old, recorded_lines(new, kind))
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 6)


def test_one_optimizer_with_two_learning_rates_is_like_two_optimizers(tmp_path: Path) -> None:
    one, two = (recorded_lines(order, "names", RATES | {"both": 0.1}) for order in (ONE_OPTIMIZER, ALL_FIRST))
    for line in one:
        if "optimizer" in line:
            line["settings"] = {"lr": [0.5, 0.1]}
    assert write_and_compare(tmp_path, one, two).exit_code == 0
    other = recorded_lines(ALL_FIRST, "names", {"maker": 0.2, "critic": 0.5, "both": 0.2})
    assert cause_kinds(write_and_compare(tmp_path, one, other)) == ["another learning rate"]


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("whole", [ALL_FIRST, ONE_OPTIMIZER])
@pytest.mark.parametrize("hides", [True, False])
def test_a_clip_of_the_gradients_of_one_optimizer_before_two_steps_leaves_out_the_others(
    tmp_path: Path, whole: Sequence[str], hides: bool, is_old: bool
) -> None:
    runs = [recorded_lines(order, "names", OF_BOTH) for order in (whole, ("clip maker", "step maker", "step critic"))]
    runs = [hide_passes(runs[0]) if hides else runs[0], runs[1]]
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert cause_kinds(comparison) == ["left out"]
    assert "'critic.weight' and 'critic.bias' are missing" in comparison.findings[0].sentence


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("hides", [True, False])
def test_a_second_optimizer_without_its_clip_is_named(tmp_path: Path, hides: bool, is_old: bool) -> None:
    runs = [recorded_lines(order, "names") for order in (IN_TURN, ("clip maker", "step maker", "step critic"))]
    runs = [hide_passes(runs[0]) if hides else runs[0], runs[1]]
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert cause_kinds(comparison) == ["left-out clip"]
    assert comparison.findings[0].sentence.endswith("Clip in both runs, or in neither run")
    assert comparison.first is not None
    assert comparison.first.step == 2


@pytest.mark.parametrize("whole", [ALL_FIRST, ONE_OPTIMIZER])
@pytest.mark.parametrize("parts", [IN_TURN, CLIPS_FIRST])
def test_a_clip_for_each_optimizer_is_per_group_beside_one_clip(
    tmp_path: Path, whole: Sequence[str], parts: Sequence[str]
) -> None:
    comparison = write_and_compare(tmp_path, *(recorded_lines(order, "names", OF_BOTH) for order in (whole, parts)))
    assert cause_kinds(comparison) == ["per group for global"]


def test_a_missing_clip_before_two_steps_is_named(tmp_path: Path) -> None:
    new = recorded_lines(ALL_FIRST, "names", OF_BOTH)
    del new[3]
    comparison = write_and_compare(tmp_path, recorded_lines(ONE_OPTIMIZER, "names", OF_BOTH), new)
    assert "left-out clip" in cause_kinds(comparison)
    assert comparison.first is not None
    assert comparison.first.step == 2


def test_a_clip_of_every_second_iteration_is_not_for_two_steps(tmp_path: Path) -> None:
    whole = recorded_lines(ONE_OPTIMIZER, "names", OF_BOTH)
    rare = [line for number, line in enumerate(whole) if number != 2]
    assert "left-out clip" in cause_kinds(write_and_compare(tmp_path, whole, hide_passes(rare)))


def test_a_run_that_ends_early_is_compared_by_its_iterations(tmp_path: Path) -> None:
    old, new = hide_passes(recorded_lines(IN_TURN, "names")), recorded_lines(CLIPS_FIRST, "names")[:-4]
    comparison = write_and_compare(tmp_path, old, new)
    assert (cause_kinds(comparison), len(comparison.pairs)) == (["one run is shorter"], 4)


# -- a backward pass for each of two optimizers, and one step for both networks

JOINT = ("clip maker", "clip critic", "step both")
JOINT_SWAPPED = ("clip critic", "clip maker", "step both")
ONE_RATE = {"maker": 0.1, "critic": 0.1, "both": 0.1}


def compare_with_own_passes(
    tmp_path: Path, new: list[dict[str, Any]], kind: str = "names", *, is_old: bool = False
) -> RecordingComparison:
    own = recorded_lines(IN_TURN, kind, ONE_RATE, has_own_passes=True)
    return write_and_compare(tmp_path, *((new, own) if is_old else (own, new)))


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize(
    ("order", "kind"),
    [*itertools.product([JOINT, JOINT_SWAPPED, CLIPS_FIRST], ["names", "positions"]), (JOINT, "none")],
)
def test_backward_passes_of_two_optimizers_may_be_one_pass(
    tmp_path: Path, order: Sequence[str], kind: str, is_old: bool
) -> None:
    joint = recorded_lines(order, kind, ONE_RATE)
    for line in joint:
        if "optimizer" in line:
            line["losses"] = [2.0]  # the sum of the losses of both passes
    comparison = compare_with_own_passes(tmp_path, joint, kind, is_old=is_old)
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 6)
    assert comparison.divergences == {}
    assert any(line.startswith("loss is equal at all") for line in sentences.report_lines(comparison))


@pytest.mark.parametrize("hides", [True, False])
def test_a_mistake_of_a_port_with_one_optimizer_is_named(tmp_path: Path, hides: bool) -> None:
    new = recorded_lines(JOINT, "names", ONE_RATE)
    for line in new:
        if "critic.weight" in line.get("parameters", ()):
            line |= {"threshold": 2.0, "coef": 2.0 * line["coef"]}
    comparison = compare_with_own_passes(tmp_path, hide_passes(new) if hides else new)
    assert cause_kinds(comparison) == ["another threshold"]


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("left_out", ["clip maker", "clip critic"])
def test_a_port_with_one_optimizer_may_lack_the_clip_of_a_network(tmp_path: Path, left_out: str, is_old: bool) -> None:
    order = [action for action in JOINT if action != left_out]
    comparison = compare_with_own_passes(tmp_path, recorded_lines(order, "names", ONE_RATE), is_old=is_old)
    assert cause_kinds(comparison) == ["left out"]
    assert f"{'a' if is_old else 'b'}.jsonl differs from" in comparison.findings[0].sentence
    assert f"'{left_out.removeprefix('clip ')}.weight'" in comparison.findings[0].sentence


def test_two_clips_of_the_same_parameters_are_no_clips_of_two_optimizers(tmp_path: Path) -> None:
    new = recorded_lines(("clip maker", "clip maker", "step both"), "positions", ONE_RATE)
    own = recorded_lines(("clip maker", "step maker") * 2, "positions", ONE_RATE, has_own_passes=True)
    assert cause_kinds(write_and_compare(tmp_path, own, new)) == ["left-out clip"]


def test_optimizers_with_own_backward_passes_may_step_in_another_order(tmp_path: Path) -> None:
    new = recorded_lines(SWAPPED, "names", ONE_RATE, has_own_passes=True)
    comparison = compare_with_own_passes(tmp_path, new)
    assert (comparison.exit_code, len(comparison.pairs)) == (0, 6)
    for line in new:
        if "maker.weight" in line.get("parameters", ()):
            line["norm"] *= 1.1
    comparison = compare_with_own_passes(tmp_path, new)
    assert comparison.first is not None
    assert (comparison.first.step, comparison.first.stage) == (1, "norm")
