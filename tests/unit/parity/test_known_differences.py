"""Known differences of the frameworks' functions: which deviation an entry covers, and which entries are stale."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.parity.reports import native, one_case

from unified_clip.parity.known import match
from unified_clip.parity.known.entries import KnownDifference, NativeDeviation, as_size, parts
from unified_clip.parity.report import build
from unified_clip.parity.results import FrameworkResult

KNOWN = KnownDifference(framework="torch", function="torch.*", cases=["long *"], size=0.1, reason="sums in float32")

KNOWN._file, KNOWN._find_line = "known.toml", lambda: 6

STALE = "no case shows this difference. Correct or remove the entry in known.toml, line 6"


def deviation(kind: Any = "value", size: float = 0.09, function: str = "torch.norm", **fields: Any) -> NativeDeviation:
    return NativeDeviation(function, kind, size, **fields)


def judge(known: list[KnownDifference], **deviations: NativeDeviation) -> tuple[list[str], list[str]]:
    """Return (verdicts, problems). The names of the cases are keywords with spaces for `_`."""
    places: dict[match.Place, match.Deviation] = {
        ("torch", name.replace("_", " ")): each for name, each in deviations.items()
    }
    judgements, entries = match.match_deviations(known, places)
    problems = [*(problem for _, problem in judgements.values()), *(entry.problem for entry in entries)]
    return [verdict for verdict, _ in judgements.values()], [problem for problem in problems if problem]


SORTS: dict[str, tuple[float | str, NativeDeviation]] = {
    "numbers": (0.1, deviation()),
    "touched": (0.1, deviation("touched", 0.02)),
    "inf": (math.inf, deviation(not_finite="norm")),
    "raises": ("raises TypeError", deviation("raises", 0.0, detail="TypeError: why")),
    "raises another": ("raises KeyError", deviation("raises", 0.0, detail="KeyError: 3")),
    "the wrong error": ("error TypeError", deviation("error", 0.0, detail="TypeError: why; the case expects KeyError")),
    "returns": ("returns", deviation("returns", 0.0)),
    "inputs": ("inputs", deviation("inputs", 0.0)),
    "silent": ("silent", deviation("silent", 0.0)),
    "form": ("form", deviation("form", 0.0)),
    "form and numbers": ("form 0.1", deviation("form")),
    "form and inf": ("form inf", deviation("form", not_finite="gradients")),
    "elements": ("elements", deviation("elements", 0.0)),
}


def test_an_entry_covers_only_differences_of_its_sort() -> None:
    alike = {"numbers": {"numbers", "touched"}, "touched": {"numbers", "touched"}}
    for size, (listed, _) in SORTS.items():
        entry = KNOWN.model_copy(update={"size": listed})
        covered = {name for name, (_, each) in SORTS.items() if judge([entry], long_a=each) == (["known"], [])}
        assert covered == alike.get(size, {size})
        for name, (_, other) in SORTS.items():
            if name in covered or (size, name) == ("form and numbers", "form"):  # whose numbers have become too small
                continue
            verdicts, problems = judge([entry], long_a=other)
            assert (verdicts, len(problems)) == (["different"], 1), "the entry of this case is not also stale"
            assert problems[0].endswith(f"{match.LISTED}: {entry.in_words}")


@pytest.mark.parametrize("sort", [name for name in SORTS if name != "touched"])
def test_a_size_describes_its_difference(sort: str) -> None:
    size, difference = SORTS[sort]
    written = as_size(*parts(difference))
    assert KNOWN.model_copy(update={"size": written}).bounds(difference)
    assert type(written) is type(size)


@pytest.mark.parametrize(("size", "verdict"), [(0.109, "known"), (0.111, "different"), (1e-9, "known")])
def test_a_difference_may_be_a_tenth_larger_than_listed(size: float, verdict: str) -> None:
    assert judge([KNOWN], long_a=deviation(size=size))[0] == [verdict]
    assert judge([KNOWN.model_copy(update={"size": "form 0.1"})], long_a=deviation("form", size))[0] == [verdict]


@pytest.mark.parametrize(("size", "is_stale"), [(0.0101, False), (0.0099, True)])
def test_an_entry_that_has_become_ten_times_too_large_is_stale(size: float, is_stale: bool) -> None:
    small = deviation(size=size)
    assert len(judge([KNOWN], long_a=small)[1]) == is_stale
    assert judge([KNOWN], long_a=small, long_b=deviation()) == (["known", "known"], [])
    assert judge([KNOWN.model_copy(update={"also": ["jax"]})], long_a=small)[1] == []
    assert len(judge([KNOWN], long_a=small, long_b=deviation(size=0.5))[1]) == 1, "only the larger difference"


def test_the_message_has_both_sizes() -> None:
    (problem,) = judge([KNOWN], long_a=deviation(size=0.5))[1]
    assert problem == "numbers differ by 50 %, and the cause is unknown; listed: 10 %"
    (problem,) = judge([KNOWN], long_a=deviation(size=0.5, norm=0.4, gradients=0.5))[1]
    assert problem == "numbers differ by 50 %, the norm by 40 %, and the cause is unknown; listed: 10 %"


@pytest.mark.parametrize(
    "changes", [{"framework": "jax"}, {"function": "torch.nn.*"}, {"cases": ["short *"]}, {"cases": ["*long"]}]
)
def test_an_entry_for_another_place_covers_nothing_and_is_stale(changes: dict[str, Any]) -> None:
    verdicts, (new, stale) = judge([KNOWN.model_copy(update=changes)], long_a=deviation())
    beginning, _, end = STALE.partition(" Correct")
    assert (verdicts, stale.startswith(beginning), stale.endswith(end)) == (["different"], True, True)
    assert match.LISTED not in new


def test_each_name_of_a_case_has_to_occur() -> None:
    right = deviation("", 0.0)
    assert judge([KNOWN], long_a=right) == (["equal"], [STALE])
    both = KNOWN.model_copy(update={"cases": ["long *", "wide *"]})
    wide = STALE.replace("no case", "no case that matches 'wide *'")
    assert judge([both], long_a=deviation()) == (["known"], [wide])
    assert judge([both], long_a=deviation(), wide_a=deviation()) == (["known", "known"], [])
    misspelt = KNOWN.model_copy(update={"cases": ["long list"]})
    (_, stale) = judge([misspelt], long_lists=deviation())[1]
    assert "No case is called 'long list'. Did you mean 'long lists'?" in stale
    places: dict[match.Place, match.Deviation] = {("torch", "long lists"): deviation()}
    (entry,) = match.match_deviations([misspelt], places, ["long list", "long lists"])[1]
    assert "Did you mean" not in entry.problem, "the case exists, but this run did not call the function with it"


def test_an_entry_of_a_function_that_the_run_did_not_call_says_so() -> None:
    entry = KNOWN.model_copy(update={"function": "clip.py:clip"})
    assert "did not call this function" in judge([entry], long_a=deviation(function="clip.py:new"))[1][1]
    assert judge([entry], long_a=deviation("", 0.0, "clip.py:clip"))[1] == [STALE]


def test_two_entries_may_cover_one_case() -> None:
    loose = KNOWN.model_copy(update={"cases": ["*"], "size": 0.5})
    assert judge([KNOWN, loose], long_a=deviation(), long_b=deviation(size=0.4)) == (["known", "known"], [])


def test_rounding_is_close_and_needs_no_entry() -> None:
    close, equal = (NativeDeviation("torch.norm", norm=norm) for norm in (1e-7, 0.0))
    assert judge([], a=close, b=equal) == (["close", "equal"], [])
    assert judge([], a=deviation()) == (["different"], ["numbers differ by 9 %, and the cause is unknown"])


def test_an_empty_reason_fails_with_the_place_to_write_it() -> None:
    entry = KNOWN.model_copy(update={"reason": ""})
    places: dict[match.Place, match.Deviation] = {("torch", "long a"): deviation()}
    results = match.match_deviations([entry], places)[1]
    run = build.build_report(["torch"], [one_case("long a", torch=FrameworkResult(native=native()))], results)
    assert run.exit_code == 1
    assert "stale" not in run.verdict
    assert "known.toml, line 6" in run.problems[0].detail
    assert (run.problems[0].file, run.problems[0].line) == ("known.toml", 6)


@pytest.mark.parametrize(
    ("cause", "size", "text"),
    [
        ("every element is NaN", 0.5, "every element is NaN (finite numbers differ by 50 %)"),
        ("every element is NaN", 0.0, "every element is NaN"),
        ("as if p were 1", 0.5, "as if p were 1 (numbers differ by 50 %, with inf or NaN in the resulting gradients)"),
    ],
)
def test_a_cause_that_names_nan_is_not_said_twice(cause: str, size: float, text: str) -> None:
    assert match.in_words(deviation(not_finite="gradients", cause=cause), size) == text
