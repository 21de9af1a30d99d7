"""Known differences of the frameworks' functions: which deviation an entry covers, and which entries are stale."""

from __future__ import annotations

from typing import Any

import pytest
from support.parity.reports import native, one_case

from unified_clip.parity.known import match
from unified_clip.parity.known.entries import KnownDifference, NativeDeviation, recorded_cause
from unified_clip.parity.report import build
from unified_clip.parity.results import FrameworkResult, KnownDifferenceResult

KNOWN = KnownDifference(
    framework="torch",
    function="torch.*",
    kind="value",
    cases=["long *"],
    reason="a short accumulator",
    size=0.1,
    within=2.0,
)

DEVIATIONS = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.09)}

UNLISTED = "numbers differ by 9 %, and the cause is unknown"

STALE = "no case shows this difference"


def judge_deviations(
    known: list[KnownDifference], deviations: dict[tuple[str, str], NativeDeviation]
) -> tuple[dict[str, str], list[str]]:
    judgements, entries = match.match_deviations(known, deviations, {"torch": {"torch": "2.13.0+cpu"}, "paddle": {}})
    problems = [*(problem for _, problem in judgements.values()), *(entry.problem for entry in entries)]
    return {name: judgement for (_, name), (judgement, _) in judgements.items()}, list(filter(None, problems))


def test_a_known_difference_is_known() -> None:
    assert judge_deviations([KNOWN], DEVIATIONS) == ({"long tensor": "known"}, [])


def test_an_entry_of_a_renamed_function_of_the_user_names_the_key_to_change() -> None:
    entry = KNOWN.model_copy(update={"function": "clip.py:clip"})
    deviations = {("torch", "long tensor"): NativeDeviation("clip.py:clip_grads", "value", 0.09)}
    renamed = (
        f"{STALE}. The run did not call this function. If you renamed the function, write the new name into the entry"
    )
    assert judge_deviations([entry], deviations)[1][1] == renamed
    called = {("torch", "long tensor"): NativeDeviation("clip.py:clip", "", 0.0)}
    assert judge_deviations([entry], called)[1] == [STALE]


def test_an_unlisted_difference_is_different() -> None:
    judgements, problems = judge_deviations([], DEVIATIONS)
    assert judgements == {"long tensor": "different"}
    assert problems == [UNLISTED]


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "paddle"},
        {"function": "torch.nn.*"},
        {"kind": "touched"},
        {"cases": ["short *"]},
        {"cases": ["*long"]},
    ],
)
def test_an_entry_for_another_difference_covers_nothing(changes: dict[str, Any]) -> None:
    _, problems = judge_deviations([KNOWN.model_copy(update=changes)], DEVIATIONS)
    if "kind" in changes:  # a single problem: the entry is not reported as stale
        listed = "'a short accumulator', which covers only this difference: gradients that should be unchanged are "
        assert problems == [f"{UNLISTED}; listed: {listed}changed"]
    else:
        assert problems == [UNLISTED, STALE]


def test_a_stale_entry_is_a_problem() -> None:
    nothing = {("torch", "long tensor"): NativeDeviation("torch.norm")}
    assert judge_deviations([KNOWN], nothing) == ({"long tensor": "equal"}, [STALE])
    patterns = KNOWN.model_copy(update={"cases": ["long *", "wide *"]})
    assert judge_deviations([patterns], DEVIATIONS)[1] == ["no case that matches 'wide *' shows this difference"]


def test_an_entry_whose_cases_have_another_difference_is_not_reported_a_second_time() -> None:
    entry = KNOWN.model_copy(update={"cases": ["long *", "wide"]})
    results = {
        ("torch", name): NativeDeviation(
            "torch.norm", "raises" if name.startswith("long") else "", detail="KeyError: 3"
        )
        for name in ("long tensor", "long list", "wide", "short")
    }
    problems = judge_deviations([entry], results)[1]
    listed = "KeyError: 3; listed: 'a short accumulator', which covers only this difference: numbers differ"
    assert [listed in problem for problem in problems] == [True, True, False]
    assert problems[2] == "no case that matches 'wide' shows this difference"
    wide = {("torch", "wide"): NativeDeviation("torch.norm", "value", 0.09)}
    assert len(judge_deviations([entry], results | wide)[1]) == 2


def test_an_entry_that_would_accept_any_size_is_rejected() -> None:
    fields = KNOWN.model_dump(exclude={"versions"})
    assert KnownDifference.model_validate(fields | {"within": 10.0}).within == 10.0
    with pytest.raises(ValueError, match=r"it is 1e\+09, so the entry would accept differences up to 1e\+09"):
        KnownDifference.model_validate(fields | {"within": 1e9})


def test_a_size_far_from_the_listed_size_is_a_problem() -> None:
    larger = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.5)}
    assert judge_deviations([KNOWN], larger) == (
        {"long tensor": "different"},
        ["numbers differ by 50 %, and the cause is unknown; listed: 10 %"],
    )
    smaller = {("torch", "long tensor"): NativeDeviation("torch.norm", "value", 0.02)}
    assert judge_deviations([KNOWN], smaller)[1] == ["the difference is 2 %, less than the listed 10 %"]


@pytest.mark.parametrize("versions", ["torch>=2.13", "torch>=2.8,<3", "torch==2.13.*"])
def test_an_entry_for_the_installed_versions_covers_the_difference(versions: str) -> None:
    entry = KNOWN.model_copy(update={"versions": versions})
    assert judge_deviations([entry], DEVIATIONS) == ({"long tensor": "known"}, [])
    assert judge_deviations([entry], {})[1] == [STALE]


@pytest.mark.parametrize("versions", ["torch<2.13", "torch>2.13", "torch>=2.8,<2.10"])
def test_an_entry_for_other_versions_covers_nothing_and_is_not_stale(versions: str) -> None:
    entry = KNOWN.model_copy(update={"versions": versions})
    limited = f"{UNLISTED}; listed only for {versions}: 'a short accumulator'"
    assert judge_deviations([entry], DEVIATIONS)[1] == [limited]
    assert judge_deviations([entry], {})[1] == []


def test_an_entry_for_a_version_applies_to_its_development_releases() -> None:
    entry = KNOWN.model_copy(update={"versions": "torch>=2.12"})
    assert entry.applies({"torch": "2.13.0.dev20260101"})


def test_an_entry_for_versions_of_an_unreported_package_is_a_problem() -> None:
    entry = KNOWN.model_copy(update={"versions": "pytorch<2.13"})
    (problem,) = judge_deviations([entry], DEVIATIONS)[1]
    unreported = "the run does not report the version of pytorch"
    assert problem == f"`versions` names pytorch, but {unreported}. Give versions of torch instead"


def test_two_entries_for_one_difference_are_a_problem() -> None:
    twice = KNOWN.model_copy(update={"reason": "a long tensor"})
    (problem, *_) = judge_deviations([KNOWN, twice], DEVIATIONS)[1]
    assert "; listed in 2 entries ('a short accumulator' and 'a long tensor')" in problem


def test_rounding_is_close_and_needs_no_entry() -> None:
    rounding = NativeDeviation("torch.norm", norm=1e-7)
    assert judge_deviations(
        [], {("torch", "a"): rounding, ("torch", "b"): NativeDeviation("torch.norm", norm=0.0)}
    ) == (
        {"a": "close", "b": "equal"},
        [],
    )


def known_entry(**fields: Any) -> KnownDifference:
    same = {"framework": "torch", "function": "torch.norm", "cases": ["long *"], "reason": "inf / inf"}
    return KnownDifference.model_validate({"kind": "value", **same, **fields})


def deviations_of_size(
    size: float, not_finite: Any = "", kind: Any = "value"
) -> dict[tuple[str, str], NativeDeviation]:
    return {("torch", "long tensor"): NativeDeviation("torch.norm", kind, size, not_finite=not_finite)}


def test_entries_for_inf_and_nan_and_for_finite_differences_do_not_cover_each_other() -> None:
    nan, finite = known_entry(not_finite="gradients"), known_entry(size=4.0)
    assert judge_deviations([nan], deviations_of_size(0.0, "gradients")) == ({"long tensor": "known"}, [])
    (problem,) = judge_deviations([nan], deviations_of_size(4.0))[1]
    assert problem == (
        "numbers differ by 400 %, and the cause is unknown; listed: 'inf / inf', which covers only inf or NaN in the "
        "gradients"
    )
    for where in ("norm", "norm and gradients"):
        assert len(judge_deviations([nan], deviations_of_size(0.0, where))[1]) == 1
    assert "which covers only finite numbers" in judge_deviations([finite], deviations_of_size(4.0, "gradients"))[1][0]
    assert "; listed: rounding only" in judge_deviations([nan], deviations_of_size(0.5, "gradients"))[1][0]


def test_an_entry_of_shapes_or_dtypes_bounds_the_numbers() -> None:
    form = known_entry(kind="form")
    assert judge_deviations([form], deviations_of_size(0.0, kind="form")) == ({"long tensor": "known"}, [])
    (problem,) = judge_deviations([form], deviations_of_size(6.0, kind="form"))[1]
    assert problem.endswith("numbers differ, too, by 600 %, and the cause is unknown; listed: rounding only")
    assert judge_deviations([known_entry(kind="form", size=6.0)], deviations_of_size(6.0, kind="form")) == (
        {"long tensor": "known"},
        [],
    )
    assert len(judge_deviations([form], deviations_of_size(0.0, "gradients", kind="form"))[1]) == 1
    assert len(judge_deviations([form], deviations_of_size(0.0, kind="elements"))[1]) == 1


def test_an_entry_for_an_error_covers_only_its_function() -> None:
    raises = KNOWN.model_copy(update={"kind": "raises", "size": 0.0})
    assert judge_deviations([raises], {("torch", "long tensor"): NativeDeviation("torch.norm", "raises")}) == (
        {"long tensor": "known"},
        [],
    )
    assert judge_deviations([raises], {("torch", "long tensor"): NativeDeviation("norm", "raises")})[0] == {
        "long tensor": "different"
    }


def deviations_with_cause(cause: str, size: float = 1.0) -> dict[tuple[str, str], NativeDeviation]:
    return {("torch", "long tensor"): NativeDeviation("torch.norm", "value", size, cause=cause, cause_kind=cause)}


def test_an_entry_with_a_cause_covers_no_other_and_no_unknown_cause() -> None:
    entry = known_entry(size=1.0, cause="not clipped")
    assert judge_deviations([entry], deviations_with_cause("not clipped")) == ({"long tensor": "known"}, [])
    (other_cause,) = judge_deviations([entry], deviations_with_cause("coefficient"))[1]
    assert other_cause == "coefficient (numbers differ by 100 %); listed: 'inf / inf', with the cause 'not clipped'"
    (unknown,) = judge_deviations([entry], deviations_with_cause(""))[1]  # the entry is not stale
    assert unknown.endswith("the cause is unknown; listed: 'inf / inf', with the cause 'not clipped'")
    several_cases = entry.model_copy(update={"cases": ["long tensor", "b"]})
    other_case = deviations_with_cause("") | {
        ("torch", "b"): deviations_with_cause("not clipped")["torch", "long tensor"]
    }
    assert len(judge_deviations([several_cases], other_case)[1]) == 1
    for cause in ("any", ["not clipped", "coefficient"]):
        assert judge_deviations([known_entry(size=1.0, cause=cause)], deviations_with_cause("coefficient")) == (
            {"long tensor": "known"},
            [],
        )
    (several,) = judge_deviations([known_entry(size=1.0, cause=["a", "b"])], deviations_with_cause("coefficient"))[1]
    assert several.endswith("with the cause 'a' or 'b'")
    assert judge_deviations([known_entry(size=1.0, cause="unknown")], deviations_with_cause("")) == (
        {"long tensor": "known"},
        [],
    )
    other_cause = judge_deviations([known_entry(size=1.0, cause="unknown")], deviations_with_cause("coefficient"))[1][0]
    assert other_cause.endswith("with the cause 'unknown'")


def test_an_entry_without_a_cause_is_reported_with_the_line_to_add() -> None:
    def result(entry: KnownDifference, **causes: str) -> KnownDifferenceResult:
        deviations = {
            ("torch", name): deviations_with_cause(cause)["torch", "long tensor"] for name, cause in causes.items()
        }
        (only,) = match.match_deviations([entry], deviations, {"torch": {}})[1]
        assert only.problem == ""
        return only

    entry = known_entry(size=1.0, cases=["*"])
    assert result(entry, one="16 bits").incomplete == 'cause = "16 bits"'
    assert result(entry, one="").incomplete == 'cause = "unknown"'
    assert result(entry, one="16 bits", two="", three="16 bits").incomplete == 'cause = ["16 bits", "unknown"]'
    for cause in ("any", "16 bits"):
        assert result(known_entry(size=1.0, cases=["*"], cause=cause), one="16 bits").incomplete == ""
    lacking = build.build_report(
        ["torch"], [one_case(torch=FrameworkResult(native=native()))], [result(entry, one="16 bits")]
    )
    assert lacking.verdict.endswith("1 difference of the frameworks' functions is known. 1 entry has no `cause`.")
    (note,) = build.notes_on_incomplete_entries(lacking.known)
    assert note.startswith(
        "In the list of known differences, 1 entry has no `cause`. An entry without `cause` "
        "accepts any difference up to its `size`"
    )
    assert f'add these lines to the entries: cause = "16 bits" (torch, torch.norm, {entry.reason!r}).' in note
    strict = build.with_strict(lacking)
    assert (lacking.exit_code, strict.exit_code) == (0, 1)
    assert strict.verdict == "FAIL: 1 known difference without `cause`."
    assert [each.detail for each in strict.problems] == [
        "'inf / inf': "
        'the entry has no `cause`, so the entry accepts any difference up to its `size`. Add the line cause = "16 '
        'bits", or run '
        "the command with --accept"
    ]
    (problem,) = build.with_strict(lacking, accepting=True).problems
    assert (
        problem.detail == "'inf / inf': the entry has no `cause`, so the entry accepts any difference up to its `size`"
    )


def test_entries_for_calls_without_numbers_need_no_cause() -> None:
    for kind in ("silent", "returns", "inputs"):
        assert not known_entry(kind=kind).lacks_cause
        assert recorded_cause(NativeDeviation("torch.norm", kind)) == ""


def test_an_entry_for_an_error_covers_only_its_class() -> None:
    error = {("torch", "long tensor"): NativeDeviation("torch.norm", "raises", detail="ValueError: empty")}
    assert judge_deviations([known_entry(kind="raises", cause="ValueError")], error) == ({"long tensor": "known"}, [])
    assert (
        "with the cause 'TypeError'" in judge_deviations([known_entry(kind="raises", cause="TypeError")], error)[1][0]
    )
    other = NativeDeviation("clip.py:clip", "error", detail="TypeError: clip(); the case expects RuntimeError")
    assert recorded_cause(other) == "TypeError"


def test_an_entry_for_other_versions_is_named_beside_the_cause() -> None:
    entry = known_entry(size=1.0, versions="torch<2.13")
    (problem,) = judge_deviations([entry], deviations_with_cause("coefficient"))[1]
    assert problem.endswith("; listed only for torch<2.13: 'inf / inf'")
