"""`unified-clip compare`: another eps at every --max-ulp, the remedy by the rule, and how closely runs agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.recordings import add_ulps, cause_kinds

from unified_clip.recording.compare import RecordingComparison
from unified_clip.recording.report import model, page, sentences

THRESHOLD = 0.25
PER_TENSOR = (
    "change the clip of b.jsonl: `unified_clip.torch.GradientClipByNorm(c).clip_(model.parameters())` clips per "
    "tensor, and adds no eps to the norm."
)
WITH_EPS = (
    "change the clip of b.jsonl: `for p in model.parameters(): torch.nn.utils.clip_grad_norm_([p], c)` clips per "
    "tensor, and adds 1e-06 to the norm."
)
GLOBAL = "`unified_clip.torch.GradientClipByGlobalNorm(c).clip_(model.parameters())` clips by the total norm"
EPS = "Another eps of the clip: b.jsonl differs from a.jsonl as if eps were 1e-06 instead of 0."

Norms = dict[str, float]
Compared = Callable[..., RecordingComparison]


def call(step: int, norms: Norms, eps: float = 0.0, rule: str = "each") -> dict[str, Any]:
    clip_norms = list(norms.values()) if rule == "each" else [math.hypot(*norms.values())]
    coefs = [min(1.0, THRESHOLD / (norm + eps)) for norm in clip_norms]
    return {
        "step": step, "call": "clip", "framework": "torch", "rule": rule, "threshold": THRESHOLD, "norm_type": 2.0,
        "eps": eps, "dtype": "float32", "clipped": min(coefs) < 1, "seconds": 0.001, "count": len(norms),
        "norm": clip_norms if rule == "each" else clip_norms[0], "coef": coefs if rule == "each" else coefs[0],
        "parameters": {name: {"norm": norm, "shape": [8]} for name, norm in norms.items()},
    }  # fmt: skip


SMALL, NEAR = add_ulps(0.02, 0), add_ulps(0.2532, 0)  # float32 numbers
NORMS = [{"w": 2.0, "b": 0.5}, {"w": 2.0, "b": SMALL}, {"w": 2.0, "b": NEAR}]
OLD = [call(step, norms) for step, norms in enumerate(NORMS, 1)]
NEW = [
    call(1, {"w": add_ulps(2.0, 1), "b": 0.5}, 1e-6),
    call(2, {"w": 2.0, "b": add_ulps(SMALL, 249)}, 1e-6),
    call(3, {"w": add_ulps(2.0, 20), "b": add_ulps(NEAR, 20)}, 1e-6),
]
"""A loop of PyTorch's function, with the differences of a real port. The first difference is rounding, and the third
difference exceeds rounding."""


@pytest.mark.parametrize("max_ulp", [0, 64])
def test_an_established_eps_explains_later_coefficients(compare_runs: Compared, max_ulp: float) -> None:
    comparison = compare_runs(OLD, NEW, max_ulp=max_ulp)
    assert [each.stage for each in comparison.divergences] == ["gradient", "coefficient"][max_ulp > 0 :]
    assert all(
        "another eps of the clip" in {each.kind for each in causes} for causes in comparison.divergences.values()
    )
    printed = sentences.report_lines(comparison)
    assert any(line.startswith(EPS) for line in printed)
    assert not any(line.startswith("Unexplained") for line in printed)


def test_another_eps_is_reported_for_total_norms_that_differ_by_rounding(compare_runs: Compared) -> None:
    old, new = (call(1, {"w": norm}, eps, "global") for norm, eps in ((5.0, 0.0), (add_ulps(5.0, 6), 1e-6)))
    comparison = compare_runs([old], [new], max_ulp=64)
    assert comparison.first is None
    assert comparison.unreported_eps is not None
    assert any(line.startswith(EPS) for line in sentences.report_lines(comparison))
    without = call(1, {"w": add_ulps(5.0, 6)}, 0.0, "global")
    assert compare_runs([old], [without], max_ulp=64).unreported_eps is None


@pytest.mark.parametrize("swap", [False, True])
def test_the_remedy_of_another_eps_keeps_the_rule(compare_runs: Compared, swap: bool) -> None:
    runs = [NEW, OLD] if swap else [OLD, NEW]
    (advice,) = [
        line
        for line in sentences.report_lines(compare_runs(*runs))
        if line.startswith("To use the same eps in both clips")
    ]
    assert (WITH_EPS if swap else PER_TENSOR) in advice
    by_total_norm = [call(1, NORMS[0], eps, "global") for eps in (0.0, 1e-6)]
    comparison = compare_runs(*([each] for each in by_total_norm))
    (advice,) = [
        line for line in sentences.report_lines(comparison) if line.startswith("To use the same eps in both clips")
    ]
    assert GLOBAL in advice
    assert "GradientClipByNorm" not in advice


def test_each_remedy_is_below_its_cause(compare_runs: Compared) -> None:
    later = [call(2, {"w": 1.5, "b": 0.5}, rule=rule) for rule in ("each", "global")]
    printed = sentences.report_lines(compare_runs([OLD[0], later[0]], [NEW[0], later[1]]))
    kinds = ("Another eps of the clip: ", "Per tensor for global: ")
    below = [printed[number + 1] for number, line in enumerate(printed) if line.startswith(kinds)]
    assert [line.partition(",")[0] for line in below] == [
        "To use the same eps in both clips",
        "To use the same rule in both runs",
    ]
    assert sum(line.startswith("To use the same") for line in printed) == 2


def test_two_loops_get_the_remedy_of_per_tensor(compare_runs: Compared) -> None:
    runs = [[call(1, {name: norm}, eps, "global") for name, norm in NORMS[0].items()] for eps in (0.0, 1e-6)]
    assert any(PER_TENSOR in line for line in sentences.report_lines(compare_runs(*runs)))


def test_an_eps_within_max_ulp_is_reported_with_its_remedy(compare_runs: Compared) -> None:
    comparison = compare_runs(OLD[:1], NEW[:1], max_ulp=64)
    assert comparison.exit_code == 0
    printed = sentences.report_lines(comparison)
    (line,) = [line for line in printed if line.startswith(EPS)]
    assert "This difference first appears at step 1: coefficient of 'b' is 0.5 and 0.49999" in line
    assert line.endswith("which --max-ulp 64 allows.")
    assert any(PER_TENSOR in line for line in printed)
    report = model.build(comparison)
    assert [each.mistake for each in report.unreported] == ["another eps of the clip"]
    assert (
        "<b>Another eps of the clip</b>: b.jsonl differs from a.jsonl as if eps were 1e-06 instead of 0"
        in page.render(report)
    )


def test_an_eps_is_reported_after_a_first_difference_that_is_rounding(compare_runs: Compared) -> None:
    """The first call clips nothing, and the eps of the second one has an effect that could be rounding."""
    small = {"w": 0.125, "b": SMALL}
    old, new = (
        [call(1, small), OLD[0] | {"step": 2}],
        [call(1, small | {"w": add_ulps(0.125, 1)}, 1e-6), NEW[0] | {"step": 2}],
    )
    comparison = compare_runs(old, new)
    assert cause_kinds(comparison) == ["another eps of the clip", "rounding"]
    assert comparison.first
    assert comparison.first.step == 2
    assert cause_kinds(compare_runs(old, new, max_ulp=None)) == ["another eps of the clip"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (call(1, {"w": 1e3}, 0.0), call(1, {"w": add_ulps(1e3, 1)}, 1e-6)),  # 1e-6 changes no float32 here
        (call(1, {"w": 0.125, "b": SMALL}), call(1, {"w": 0.125, "b": SMALL}, 1e-6)),  # no gradient is clipped
        (call(1, {"w": 2.0, "b": 0.5}), call(1, {"w": 4.0, "b": 1.0}, 1e-6)),  # scaled gradients
    ],
)
def test_an_eps_without_effect_or_beside_other_gradients_is_no_cause(compare_runs: Compared, a: Any, b: Any) -> None:
    clipped = [call(2, {"w": 3.0}), call(2, {"w": 3.0})]  # at least one call of a run must clip
    comparison = compare_runs([a, clipped[0]], [b, clipped[1]], max_ulp=64)
    assert comparison.other_eps is None
    assert "another eps of the clip" not in {each.kind for each in comparison.findings}


def test_a_difference_can_follow_from_an_earlier_eps(compare_runs: Compared) -> None:
    jump = call(3, {"w": 2.1, "b": NEAR}, 1e-6)
    printed = sentences.report_lines(compare_runs(OLD, [*NEW[:2], jump]))
    assert "This difference might follow from the different eps of the clips at step 1." in printed


def test_an_eps_explains_no_jump_of_a_weight(compare_runs: Compared) -> None:
    def runs(moved: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        old, new = ([call(step, {"w": 2.0}, eps) for step in (1, 2)] for eps in (0.0, 1e-6))
        for line, weight in zip((*old, *new), (1.0, 2.0, 1.0, add_ulps(2.0, moved)), strict=True):
            line["parameters"]["w"]["weight"] = weight
        return old, new

    eps, jump = compare_runs(*runs(7549)).divergences.items()
    assert [cause.kind for cause in eps[1]] == ["another eps of the clip"]
    assert [cause.kind for cause in jump[1]] == ["another optimizer", "another eps of the clip"]
    small = compare_runs(*runs(100))
    assert {cause.kind for causes in small.divergences.values() for cause in causes} == {"another eps of the clip"}


# -- how closely runs agree


def test_a_passing_report_has_the_largest_differences_and_their_steps(compare_runs: Compared) -> None:
    new = [call(1, {"w": add_ulps(2.0, 3), "b": 0.5}), call(2, {"w": 2.0, "b": add_ulps(SMALL, 35)}), OLD[2]]
    losses = [
        [{"step": step, "logged": {"loss": loss}} for step, loss in enumerate(run, 1)]
        for run in ((2.0, 1.0), (2.0, add_ulps(1.0, 2)))
    ]
    comparison = compare_runs([*OLD, *losses[0]], [*new, *losses[1]], max_ulp=64)
    assert comparison.exit_code == 0
    printed = sentences.report_lines(comparison)
    where = "in all 3 calls that were compared, up to 64 ULP. The largest difference is"
    assert f"Gradients' norms are equal {where} 35 ULP or 3.3e-06 relatively, at step 2." in printed
    assert f"Coefficients are equal {where} 6 ULP or 3.6e-07 relatively, at step 1." in printed
    where = where.replace("in all 3 calls that were compared", "at all 2 steps")
    assert f"loss is equal {where} 2 ULP or 2.4e-07 relatively, at step 2." in printed
    report = model.build(comparison)
    gradients = next(each for each in report.agreements if each.stage == "gradient")
    assert (gradients.greatest_ulps, gradients.greatest_at_step, gradients.beyond_rounding_at_step) == (35, 2, None)
    html = page.render(report)
    assert "<dd>35 ULP or 3.3e-06 relatively</dd><dt>largest difference (64 ULP allowed)</dt>" in html
    assert "<dd>0</dd><dt>differences</dt>" in page.render(model.build(compare_runs(OLD, OLD)))


def test_a_loss_differs_from_its_first_difference_beyond_rounding_on(compare_runs: Compared) -> None:
    def with_losses(run: list[Any], *losses: float) -> list[Any]:
        return [*run, *({"step": step, "logged": {"loss": loss}} for step, loss in enumerate(losses, 1))]

    old, jump = with_losses(OLD, 2.0, 1.0), with_losses(OLD, add_ulps(2.0, 1), 1.5)
    comparison = compare_runs(old, jump, max_ulp=None)
    assert comparison.first
    assert (comparison.first.step, comparison.first.stage) == (2, "loss")
    (text,) = [line for line in sentences.report_lines(comparison) if line.startswith("loss")]
    assert text == "loss differs from step 2 on: 1.0 and 1.5 at this step. The values differ by at most 33 %."
    close = with_losses(OLD, add_ulps(2.0, 1), add_ulps(1.0, 5))
    (text,) = [line for line in sentences.report_lines(compare_runs(old, close)) if line.startswith("loss")]
    end = ". The values differ by at most 6e-07 relatively, which can be rounding"
    advice = "A small mistake can cause the same difference. To find out, run both scripts in float64."
    assert text.endswith(f"{end}. {advice}")
    close = with_losses(OLD, 2.0 + 2.0**-51, 1.0)
    wide = [[{**each, "dtype": "float64"} if "call" in each else each for each in run] for run in (old, close)]
    (text,) = [line for line in sentences.report_lines(compare_runs(*wide)) if line.startswith("loss")]
    assert text.endswith(". The values differ by at most 2.2e-16 relatively, which can be rounding.")


def test_norms_that_first_differ_by_rounding_have_two_steps(compare_runs: Compared) -> None:
    new = [call(1, {"w": add_ulps(2.0, 1), "b": 0.5}), OLD[1], call(3, {"w": 3.0, "b": NEAR})]
    text = next(line for line in sentences.report_lines(compare_runs(OLD, new)) if line.startswith("Gradients' norms"))
    assert text.startswith("Gradients' norms differ from the first step on, by at most ")
    assert text.endswith(". From step 3 on, they differ by more than 64 ULP.")


def test_rounding_of_a_small_norm_is_measured_at_the_size_of_the_total_norm(compare_runs: Compared) -> None:
    near, far = ([call(2, {"w": 2.0, "b": add_ulps(SMALL, ulps)})] for ulps in (249, 2000))
    same = compare_runs(OLD[1:2], near, max_ulp=64)
    assert same.exit_code == 0
    text = " ".join(sentences.report_lines(same))
    assert "up to 64 ULP of the total norm. The largest difference is 249" in text
    (cause,) = compare_runs(OLD[1:2], near).findings
    assert (
        "the first difference is 249 ULP of the compared numbers, but only 3.9 ULP of the total norm. "
        in cause.sentence
    )
    assert "by up to 64 ULP. To allow such differences, pass --max-ulp 64." in cause.sentence
    (cause,) = compare_runs(OLD[1:2], far, max_ulp=64).findings
    assert "2000 ULP of the compared numbers, but only 31 ULP of the total norm. " in cause.sentence
    assert "--max-ulp" not in cause.sentence


def test_the_largest_ulp_and_relative_differences_can_be_of_different_numbers(compare_runs: Compared) -> None:
    """3 ULP just below 2 are less than 2 ULP just above 1."""
    below = add_ulps(2.0, -10)
    old = [call(1, {"w": below}), call(2, {"w": 1.0})]
    new = [call(1, {"w": add_ulps(below, 3)}), call(2, {"w": add_ulps(1.0, 2)})]
    (agreement,) = [each for each in compare_runs(old, new).agreements if each.stage == "gradient"]
    assert (agreement.greatest_ulps, agreement.greatest_at_step) == (3, 1)
    assert agreement.greatest_relative == pytest.approx(2 * 2.0**-23, rel=1e-3)
