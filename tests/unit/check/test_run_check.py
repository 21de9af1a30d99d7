"""A run check says "as in the configuration" only if it has compared something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recordings import clip_line, write_recording

from unified_clip import ClipConfig
from unified_clip.check import run_check
from unified_clip.check.model import CheckReport
from unified_clip.recorder.hooks import NOT_RECORDED
from unified_clip.recording import runs

STEP: dict[str, Any] = {"step": 1, "optimizer": "torch.optim.SGD", "settings": {"lr": 0.1}, "place": "a.py:1"}
LOST = {"step": 1, "warning": f"a call of torch.nn.utils.clip_grad_norm_ {NOT_RECORDED}: ValueError"}
CONFIG = ClipConfig(rule="global_norm", threshold=1.0)
UNCHECKED = "not all steps were checked"


def checked(folder: Path, lines: list[Any], config: ClipConfig = CONFIG) -> CheckReport:
    run = runs.read(write_recording(folder / "run.jsonl", lines))
    return run_check.check(run, config, Path("clip.toml"))


def clip(step: int, **changes: Any) -> dict[str, Any]:
    return clip_line(step, {"a": 3.0, "b": 4.0}, **{"eps": 1e-6, "count": 2, "place": "a.py:1", **changes})


@pytest.mark.parametrize(
    ("lines", "on", "off"),
    [
        ([], ["unknown"], ["unknown"]),
        ([STEP], ["missing"], []),
        ([LOST, STEP], ["unknown"], ["unknown"]),  # the lost call could have clipped
    ],
)
def test_a_run_without_recorded_clips(tmp_path: Path, lines: list[Any], on: list[str], off: list[str]) -> None:
    for config, kinds in ((CONFIG, on), (ClipConfig(rule="none"), off)):
        assert [each.kind for each in checked(tmp_path, lines, config).findings] == kinds


def found(report: CheckReport) -> list[tuple[str, int, str]]:
    return [(each.kind, each.line, each.effect) for each in report.findings]


@pytest.mark.parametrize(
    ("lines", "is_partial", "kinds"),
    [
        ([clip(1), {**STEP, "gradients": 2}], False, []),
        ([clip(1), {**STEP, "clip_counts": {1: 2}}], False, []),
        ([clip(1)], True, []),  # no step is known
        ([clip(1), LOST, {**STEP, "gradients": 3}], True, ["unknown"]),  # the lost call could have clipped the third
        # two optimizers, whose clips may all come before both steps
        ([clip(1), clip(1), {**STEP, "gradients": 2}, {**STEP, "gradients": 2, "place": "a.py:9"}], True, []),
    ],
)
def test_the_headline_says_if_steps_were_not_checked(
    tmp_path: Path, lines: list[Any], is_partial: bool, kinds: list[str]
) -> None:
    report = checked(tmp_path, lines)
    assert [each.kind for each in report.findings] == kinds
    assert (UNCHECKED in report.headline, bool(report.notes or kinds)) == (is_partial, is_partial)


def test_the_headline_of_a_finding_says_so_too(tmp_path: Path) -> None:
    report = checked(tmp_path, [clip(1, threshold=2.0), LOST, {**STEP, "gradients": 3}])
    assert [each[0] for each in found(report)] == ["drift", "unknown"]
    assert UNCHECKED in report.headline


def test_other_processes_are_compared_by_their_settings(tmp_path: Path) -> None:
    other = clip(1, threshold=2.0, place="a.py:2", process=1)
    report = checked(tmp_path, [clip(1), other, {**STEP, "gradients": 2}])
    assert found(report) == [("drift", 2, "It does not clip as clip.toml does. Step 1.")]
    assert run_check.OTHER_PROCESSES.format(others="1 other process") in report.notes


def test_the_steps_of_each_optimizer_are_counted_alone(tmp_path: Path) -> None:
    """A schedule goes by the steps of the optimizer that uses the clip."""
    linear = {"schedule": "linear", "start": 1.0, "end": 3.0, "steps": 2}
    schedule = ClipConfig.model_validate({"rule": "global_norm", "threshold": linear})
    a, b = ({**STEP, "gradients": 2, "place": place} for place in ("a.py:5", "a.py:9"))
    first, second, third = (clip(step, threshold=float(step)) for step in (1, 2, 3))
    assert not checked(
        tmp_path, [first, a, first, b, second, a, second, b, third, a, third, b, third], schedule
    ).findings
    wrong = [first, a, first, b, {**third, "place": "a.py:2"}, a, second, b]
    assert found(checked(tmp_path, wrong, schedule)) == [("drift", 2, "It does not clip as clip.toml does. Step 2.")]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([1], "Step 1."),
        ([1, 2, 3, 7], "Steps 1 to 3, 7."),
        ([1, 3, 5, 7, 9], "Steps 1, 3, 5, 7, 9."),
        ([1, 3, 5, 7, 9, 11], "Steps 1, 3, 5, 7, 9, and 1 more range."),
    ],
)
def test_steps_are_listed_by_ranges(tmp_path: Path, steps: list[int], text: str) -> None:
    lines = [
        line
        for step in range(1, steps[-1] + 1)
        for line in (clip(step), {**STEP, "clip_counts": {0: 2} if step in steps else {1: 2}})
    ]
    assert found(checked(tmp_path, lines)) == [("missing", 1, text)]


WITHOUT_BIAS = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"])
GROUPS = ClipConfig.model_validate(
    {
        "rule": "global_norm", "threshold": 1.0,
        "groups": [{"name": "first", "include": ["a"], "threshold": 5.0}],
    }
)  # fmt: skip
SKIPS = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="skip")
ADAPTIVE = ClipConfig.model_validate({"rule": "global_norm", "adaptive": {"rule": "zclip"}})
INF = {"norm": float("inf"), "coef": 0.0, "parameters": {}}
OTHER = {**STEP, "place": "a.py:9"}

BY_VALUE = {"rule": "value", "threshold": [-2.0, 2.0], "norm": None, "coef": None, "eps": None}
BY_SLICES = {"rule": "slices", "norm": [5.0], "coef": [0.2]}

CASES: dict[str, tuple[ClipConfig, list[Any], list[tuple[str, int]]]] = {
    "a rule that no configuration has": (CONFIG, [{**clip(1), **BY_SLICES}], [("unknown", 1)]),
    "other bounds": (ClipConfig(rule="value", threshold=1.0), [{**clip(1), **BY_VALUE}], [("drift", 1)]),
    "the threshold of another group": (GROUPS, [clip_line(1, {"a": 3.0}, eps=1e-6, place="a.py:1")], [("drift", 1)]),
    "the clip of a group": (GROUPS, [clip_line(1, {"a": 3.0}, eps=1e-6, threshold=5.0)], []),
    "two optimizers with a clip each": (
        CONFIG, [clip(1), {**STEP, "gradients": 2}, clip(2), {**OTHER, "gradients": 3}], [("missing", 9)]
    ),
    "an unknown threshold": (CONFIG, [{**clip(1), "threshold": None}], [("unknown", 1)]),
    "no gradient is clipped": (CONFIG, [clip(1), clip(1, threshold=9.0, is_gradient=False)], []),
    "rounded to float32": (ClipConfig(rule="global_norm", threshold=0.1), [clip(1, threshold=0.10000000149011612)], []),
    "excluded": (WITHOUT_BIAS, [clip_line(1, {"a": 3.0, "a.bias": 4.0}, eps=1e-6, place="a.py:1")], [("drift", 1)]),
    "not excluded": (WITHOUT_BIAS, [clip(1)], []),
    "groups by one norm": (GROUPS, [clip(1)], [("drift", 1)]),
    "groups without names": (GROUPS, [clip(1, parameters={})], []),
    "inf is skipped": (SKIPS, [clip(1, **INF)], []),
    "inf is clipped": (SKIPS, [clip(1, **INF, watched=True)], [("drift", 1)]),
    "an adaptive threshold": (ADAPTIVE, [clip(1, threshold=7.0)], []),
    "fewer clips than gradients": (CONFIG, [clip(1), {**STEP, "gradients": 3}], [("missing", 1)]),
    "more clips than gradients": (CONFIG, [clip(1), {**STEP, "gradients": 1}], [("drift", 1)]),
    "two norms": (CONFIG, [clip(1, count=1), clip(1, count=1), {**STEP, "gradients": 2}], [("drift", 1)]),
    "a step without a clip": (CONFIG, [clip(1), STEP, STEP], [("missing", 1)]),
    "two optimizers": (CONFIG, [clip(1), STEP, clip(2), OTHER, clip(3), STEP, OTHER], [("missing", 9)]),
    "a hook that may clip": (CONFIG, [{**STEP, "clip_counts": {0: 2}, "hooks": 1}], [("unknown", 1)]),
    "unknown code that may clip": (CONFIG, [{**STEP, "clip_counts": {0: 2}, "changed": 1}], [("unknown", 1)]),
    "changed between the clip and the step": (
        CONFIG, [clip(1), {**STEP, "clip_counts": {1: 2}, "changed_after_clip": 1}], [("drift", 1)]
    ),
    "clipped before the last backward pass": (
        CONFIG, [clip(1), {**STEP, "clip_counts": {1: 2}, "clipped_early": 1}], [("drift", 1)]
    ),
    "all gradients of a step are excluded": (
        WITHOUT_BIAS, [clip(1), {**STEP, "clip_counts": {0: 1}, "unclipped": ["a.bias"]}], []
    ),
    "unknown names": (WITHOUT_BIAS, [clip(1), {**STEP, "clip_counts": {0: 1, 1: 2}}], [("unknown", 1)]),
    "names that are excluded": (
        WITHOUT_BIAS, [clip(1), {**STEP, "clip_counts": {0: 1, 1: 2}, "unclipped": ["a.bias"]}], []
    ),
}  # fmt: skip


def test_each_difference_is_found_at_its_line(tmp_path: Path) -> None:
    """All cases are one test, so that each change runs all of them."""
    for name, (config, lines, wanted) in CASES.items():
        assert (name, [each[:2] for each in found(checked(tmp_path, lines, config))]) == (name, wanted)


def test_with_another_rule_only_the_rule_and_the_threshold_differ(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path, [{**clip(1), **BY_VALUE}]).findings
    assert [each.about for each in finding.differences] == ["rule", "threshold"]


def test_a_place_with_one_wrong_call_is_listed_as_wrong(tmp_path: Path) -> None:
    report = checked(tmp_path, [clip(1), clip(2, threshold=2.0), clip(3)])
    assert [each.result for each in report.clips] == ["drift"]


def test_nearest_accepts_another_eps_only(tmp_path: Path) -> None:
    for changes, result, kinds in (({"eps": 0.0}, "near", []), ({"eps": 0.0, "threshold": 2.0}, "drift", ["drift"])):
        run = runs.read(write_recording(tmp_path / "run.jsonl", [clip(1, **changes)]))
        report = run_check.check(run, CONFIG, Path("clip.toml"), nearest=True)
        assert ([each.result for each in report.clips], [each.kind for each in report.findings]) == ([result], kinds)


@pytest.mark.parametrize(
    ("table", "lines", "result"),
    [
        ({"nearest": ["a.py"]}, [clip(1, eps=0.0)], "near"),
        ({"nearest": ["b.py"]}, [clip(1, eps=0.0)], "drift"),
        ({"nearest": ["a.py"]}, [clip(1, eps=0.0, threshold=2.0)], "drift"),
        ({"ignore": [{}]}, [clip(1, threshold=2.0)], "ignored"),
        ({"ignore": [{"path": "b.py"}]}, [clip(1, threshold=2.0)], "drift"),
        ({"ignore": [{"clip": "clip_by_value"}]}, [clip(1, threshold=2.0)], "drift"),
        ({"ignore": [{"threshold": 2.0}]}, [clip(1, threshold=2.0)], "ignored"),
        ({"ignore": [{"threshold": 2.0}]}, [clip(1, threshold=2.0), STEP, clip(2, threshold=3.0)], "drift"),
        ({"ignore": [{"threshold": 0.1}]}, [clip(1, threshold=0.10000000149011612, eps=0.0)], "ignored"),
        ({"ignore": [{"rule": "value", "threshold": 2.0}]}, [{**clip(1), **BY_VALUE}], "ignored"),
        ({"ignore": [{"rule": "global_norm"}]}, [clip(1, eps=0.0, threshold=2.0)], "ignored"),
        ({"ignore": [{"rule": "global_norm"}]}, [clip(1, norm_type=1.0)], "drift"),
        ({"ignore": [{"rule": "value"}]}, [clip(1, threshold=2.0)], "drift"),
        ({"ignore": [{"rule": "none"}]}, [clip(1, threshold=2.0)], "drift"),
    ],
)
def test_the_table_check_applies_to_the_place_of_a_clip(
    tmp_path: Path, table: dict[str, Any], lines: list[Any], result: str
) -> None:
    entries = [{"path": "a.py", "reason": "a sweep", **each} for each in table.get("ignore", [])]
    config = ClipConfig.model_validate({**CONFIG.data(), "check": {**table, "ignore": entries}})
    report = checked(tmp_path, [*lines, {**STEP, "gradients": 2}], config)
    assert [each.result for each in report.clips] == [result]
    assert len(report.findings) == (result == "drift")
    assert len(report.ignored) == (result == "ignored" or len(lines) > 1)


@pytest.mark.parametrize(("rule", "kinds"), [("none", []), ("global_norm", ["missing"])])
def test_an_entry_of_ignore_can_approve_a_step_without_a_clip(tmp_path: Path, rule: str, kinds: list[str]) -> None:
    entry = {"path": "a.py", "rule": rule, "reason": "a baseline"}
    config = ClipConfig.model_validate({**CONFIG.data(), "check": {"ignore": [entry]}})
    assert [each.kind for each in checked(tmp_path, [{**STEP, "clip_counts": {0: 2}}], config).findings] == kinds
