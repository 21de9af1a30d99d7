"""The effect of a finding: the parameters that only one clip changes, and the size of a difference of the family."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, TORCH, Check, only_finding

from unified_clip.check import output

NORM, VALUE = TORCH.removesuffix("\n"), (TORCH % "0.5").replace("grad_norm", "grad_value")


def test_the_text_names_the_settings_that_follow_from_the_rule(check: Check) -> None:
    report = check({"a.py": VALUE})
    names = [difference.about for difference in only_finding(report).differences]
    assert names == ["rule", "threshold", "norm", "eps", "the result if the norm is not finite"]
    lines = output.as_text(report).splitlines()
    assert lines[1:4] == [
        "  rule: value; wanted: global_norm",
        "  threshold: 0.5; wanted: 1",
        "  also different: norm, eps, the result if the norm is not finite",
    ]
    assert "also different" not in output.as_text(check({"a.py": NORM % "5.0"}, CLIP_CONFIG))


@pytest.mark.parametrize(
    ("source", "settings", "effect"),
    [
        (NORM % "0.5", "", ""),
        (
            NORM % "1.0",
            'exclude = ["*.bias", "*.scale"]\n',
            "this clip clips all parameters, but clip.toml leaves *.bias and *.scale unclipped.",
        ),
        (NORM % "1.0", 'include = ["a.*"]\n', "this clip clips all parameters, but clip.toml clips only a.*."),
        (
            NORM % "0.5",
            'exclude = ["*.bias"]\n',
            "this clip clips all parameters, but clip.toml leaves *.bias unclipped.",
        ),
        (
            NORM % "1.0",
            'exclude = ["*.bias"]\neps = 0.0\n',
            "this clip clips all parameters, but clip.toml leaves *.bias unclipped. For a norm of n, the relative "
            "difference between the two clip coefficients is at most 1e-06 / n, apart from rounding. With threshold = "
            "1, the difference is at most 1e-06.",
        ),
    ],
)
def test_the_parameters_that_only_one_clip_changes_are_named(
    check: Check, source: str, settings: str, effect: str
) -> None:
    assert only_finding(check({"a.py": source}, CLIP_CONFIG + settings)).effect == effect


def test_a_clip_has_the_differences_of_its_own_family(check: Check) -> None:
    paddle = "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(0.5)\n"
    of_torch, of_paddle = check({"a.py": NORM % "0.5", "b.py": paddle}).findings
    assert [each.about for each in of_torch.differences] == ["threshold"]
    assert [each.about for each in of_paddle.differences] == ["threshold", "eps"]


def test_the_long_result_of_a_norm_that_is_not_finite_is_printed_once(check: Check) -> None:
    files = {"a.py": NORM % "1.0", "b.py": NORM.replace("grad_norm_(", "grad_norm_(  ") % "0.5"}
    printed = output.as_text(check(files, CLIP_CONFIG + 'nonfinite = "skip"\n'))
    about = "  the result if the norm is not finite: "
    first, second = [line for line in printed.splitlines() if line.startswith(about)]
    assert first.startswith(f"{about}If the norm is infinite, finite gradients become 0, ")
    assert "all gradients become NaN; wanted: If the total norm is NaN or infinite, the step is skipped." in first
    assert second == f"{about}as in a.py:3:1"
