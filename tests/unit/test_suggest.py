"""A threshold is suggested from recorded norms, with the share of norms that it would have clipped."""

from __future__ import annotations

import math
import operator
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import adaptive

import unified_clip
from unified_clip import ClipConfig, suggest_threshold
from unified_clip.adaptive import AGC, EmaRatio, Percentile, Rule, ZClip

NORMS = [float(i) for i in range(1, 101)]


@pytest.mark.parametrize(("percentile", "threshold", "clipped"), [(90, 90.0, 0.1), (50, 50.0, 0.5), (100, 100.0, 0.0)])
def test_it_is_the_percentile_of_the_norms(percentile: float, threshold: float, clipped: float) -> None:
    result = suggest_threshold(reversed(NORMS), percentile)
    assert (result.threshold, result.clipped) == (threshold, clipped)
    assert list(result.norms) == NORMS[::-1]


@given(st.lists(st.floats(1e-30, 1e30), min_size=20, max_size=60), st.floats(1, 100))
def test_no_more_steps_are_clipped_than_was_asked_for(norms: list[float], percentile: float) -> None:
    result = suggest_threshold(norms, percentile)
    assert result.clipped <= 1 - percentile / 100 + 1e-12
    assert len(f"{result.threshold:.2e}") == len("1.23e+00") or float(f"{result.threshold:.2e}") == result.threshold


def test_norms_that_are_not_finite_are_left_out_and_told() -> None:
    result = suggest_threshold([*NORMS, math.nan, math.inf])
    assert (result.threshold, result.not_finite) == (90.0, 2)
    assert str(result) == (
        "threshold 90: the 90th percentile of 100 norms. It clips 10 % of the norms. "
        "Number of ignored NaN or infinite norms: 2"
    )


def test_the_first_steps_can_be_left_out() -> None:
    assert suggest_threshold([1e6] * 50 + NORMS, skip=50).threshold == 90.0


def test_a_recording_is_read(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl") as run:
        for norm in NORMS:
            run.next_step()
            unified_clip.clip_grad_norm_([np.array([norm])], max_norm=math.inf)
    assert suggest_threshold(tmp_path / "run.jsonl").threshold == 90.0
    with unified_clip.record(tmp_path / "each.jsonl"):
        clip = ClipConfig(rule="norm", threshold=1.0)
        for norm in NORMS:
            clip([np.array([3 * norm]), np.array([4 * norm])])
    assert suggest_threshold(tmp_path / "each.jsonl").threshold == 450.0  # one norm over both


def test_what_configurations_told_is_read() -> None:
    clip = ClipConfig(rule="none")
    lasts = []
    for norm in NORMS:
        clip([np.array([norm])])
        lasts.append(clip.last)
    assert suggest_threshold(lasts).threshold == 90.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((NORMS[:19],), ValueError, "there are 19 finite norms, and at least 20 are needed"),
        (([math.nan] * 30,), ValueError, "there are 0 finite norms"),
        ((NORMS, 0), ValueError, "percentile is 0. Pass a number above 0 and up to 100"),
        ((NORMS, 101.0), ValueError, r"percentile is 101\.0"),
        ((NORMS, "90"), ValueError, "percentile is '90'"),
        ((5.0,), TypeError, "records has the type float. Pass the path of a recording, or a list"),
        ((["a"] * 30,), TypeError, "position 0 of records has the type str. Pass the total norm of each step"),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        suggest_threshold(*arguments)
    with pytest.raises(ValueError, match="skip is -1"):
        suggest_threshold(NORMS, skip=-1)


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (lambda: None, 'call ClipConfig(rule="none").attach_to(optimizer) to record the norms of its gradients'),
        (
            lambda: unified_clip.clip_by_value(np.array([2.0]), -1.0, 1.0),
            "run.jsonl: None of the 1 recorded calls has a total norm, because all calls clip by value or",
        ),
    ],
)
def test_a_recording_without_total_norms_is_refused(tmp_path: Path, clip: Callable[[], object], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unified_clip.ClipWarning)
        with unified_clip.record(tmp_path / "run.jsonl"):
            clip()
    with pytest.raises(ValueError, match=re.escape(message)):
        suggest_threshold(tmp_path / "run.jsonl")


@pytest.mark.parametrize("text", ["", "{}\n", '{"step": 1, "norm": 2.0}\n' * 30])
def test_a_file_without_the_header_of_a_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=r"a\.jsonl is not a complete recording from unified_clip\.record: the first line is not the header",
    ):
        suggest_threshold(tmp_path / "a.jsonl")


def test_a_plot_names_the_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="Install the extra `bench`: pip install"):
        suggest_threshold(NORMS).plot(tmp_path / "norms.svg")


@pytest.mark.parametrize("rule", [ZClip(), EmaRatio(), Percentile(), Percentile(window=7)])
def test_rules_are_replayed_on_the_norms(rule: Rule) -> None:
    name = {ZClip: "zclip", EmaRatio: "ema_ratio", Percentile: "percentile"}[type(rule)]
    given = [1.0 + step % 5 / 10 + 20 * (step in (40, 41, 60)) for step in range(80)]
    given[30], given[50] = math.nan, math.inf
    norms = [norm for norm in given if math.isfinite(norm)]
    suggested = suggest_threshold(given)
    replay = suggested.replay(rule)
    expected = [threshold for threshold, _ in adaptive.steps({"rule": name, **vars(rule)}, norms)]
    assert replay.thresholds == expected
    assert replay.clipped == sum(map(operator.gt, norms, expected)) / len(norms) > 0
    assert f"clips {100 * replay.clipped:.3g} % of {len(norms)} norms, at thresholds from" in str(replay)


@pytest.mark.parametrize("rule", ["zclip", {"rule": "zclip"}, ZClip, AGC(), None])
def test_only_rules_for_the_total_norm_are_replayed(rule: Any) -> None:
    suggested = suggest_threshold([1.0] * 40)
    with pytest.raises(TypeError, match=r"the adaptive rule is .*\. Pass a rule for the total norm, such as ZClip\(\)"):
        suggested.replay(rule)


def test_a_file_that_does_not_exist_is_named_with_the_command_that_records_one(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"my run\.jsonl: no such file\. .*unified-clip record 'my run\.jsonl' -- "
    ):
        suggest_threshold(tmp_path / "my run.jsonl")
