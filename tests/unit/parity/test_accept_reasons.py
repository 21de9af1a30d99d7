"""`unified-clip parity --accept`: the sizes, causes and reasons of the entries that it writes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.parity.reports import native, one_case, report

from unified_clip.parity import cli
from unified_clip.parity.known import entries, match
from unified_clip.parity.known.accept import accept_differences
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.report import build
from unified_clip.parity.results import FrameworkResult, ParityReport
from unified_clip.parity.suite.schema import SuiteError


def test_accepted_errors_have_the_error_as_their_reason(tmp_path: Path) -> None:
    cases = [
        one_case(name, torch=FrameworkResult(native=native(norm=None, kind="raises", detail=detail)))
        for name, detail in {"a": "KeyError: 3", "b": "KeyError: 3", "c": "TypeError: 4", "d": "TypeError: 5"}.items()
    ]
    accept_differences(tmp_path / "known.toml", report(*cases))
    kind = "it raises an error, but should return a result"
    assert [(entry.cases, entry.reason) for entry in entries.read(tmp_path / "known.toml")] == [
        (["a", "b"], f"{kind}: KeyError: 3"),
        (["c", "d"], f"{kind}: TypeError: 4 (in the first of 2 cases)"),
    ]


def test_accepting_a_large_difference_does_not_cover_a_small_one(tmp_path: Path) -> None:
    sizes = {"large": 1.0, "inf": math.inf, "small": 0.002, "alike": 0.0015}
    cases = [one_case(name, torch=FrameworkResult(native=native(norm=size))) for name, size in sizes.items()]
    path = tmp_path / "known.toml"
    accept_differences(path, report(*cases))
    finite, inf = entries.read(path)
    assert (finite.cases, finite.size) == ({"large": 1.0, "small": 0.002, "alike": 0.0015}, 0.0)
    assert (inf.cases, inf.size, inf.not_finite) == (["inf"], 0.0, "norm")
    assert path.read_text("utf-8").count("\n\n[[known]]\n") == 1


@pytest.mark.parametrize(
    ("small", "problem"),
    [
        (0.0021, ""),
        (0.02, "numbers differ by 2 %, and the cause is unknown; listed: 0.2 %"),
        (0.0004, "the difference is 0.04 %, less than the listed 0.2 %"),
    ],
)
def test_an_entry_lists_the_size_of_each_case(tmp_path: Path, small: float, problem: str) -> None:
    path = tmp_path / "known.toml"

    def judge(size: float) -> tuple[list[str], ParityReport]:
        sizes = {"large": 1.0, "small": size}
        deviations = {("torch", case): NativeDeviation("clip", "value", each) for case, each in sizes.items()}
        known = entries.read(path) if path.exists() else []
        judgements, results = match.match_deviations(known, deviations, {"torch": {}})
        problems = [*(problem for _, problem in judgements.values()), *(each.problem for each in results)]
        cases = [
            one_case(case, torch=FrameworkResult(native=native(norm=each, problem=judgements["torch", case][1])))
            for case, each in sizes.items()
        ]
        return list(filter(None, problems)), report(*cases, known=results)

    accept_differences(path, judge(0.002)[1])
    problems, run = judge(small)
    assert problems == [problem][: len(problem)]
    assert accept_differences(path, run) == ((1, 0, 0, 0) if not problem else (0, 1, 0, 0))
    (entry,) = entries.read(path)
    assert entry.cases == {"large": 1.0, "small": small if problem else 0.002}
    assert not judge(small)[0]


def test_accepting_writes_an_entry_for_each_cause_and_the_cause_as_its_reason(tmp_path: Path) -> None:
    causes = {
        "a": ("another eps of the clip", "as if eps were 0 instead of 1e-06"),
        "b": ("another eps of the clip", "as if eps were 0 instead of 1e-06"),
        "c": ("another threshold", "as if the threshold were 2 instead of 1"),
        "d": ("another threshold", "as if the threshold were 3 instead of 1"),
        "e": ("", ""),
    }
    cases = [
        one_case(name, torch=FrameworkResult(native=native(norm=0.02, cause_kind=kind, cause=sentence)))
        for name, (kind, sentence) in causes.items()
    ]
    accept_differences(tmp_path / "known.toml", report(*cases))
    assert {tuple(entry.cases): entry.reason for entry in entries.read(tmp_path / "known.toml")} == {
        ("a", "b"): "as if eps were 0 instead of 1e-06",
        ("c", "d"): "as if the threshold were 2 instead of 1 (in the first of 2 cases)",
        ("e",): "numbers differ, and the cause is unknown",
    }


def test_an_entry_for_other_dtypes_needs_a_reason_if_numbers_differ_too(tmp_path: Path) -> None:
    detail = "gradient 0 is float32 instead of bfloat16"
    cases = [
        one_case(name, torch=FrameworkResult(native=native("known", size, "form", finite_size=size, detail=detail)))
        for name, size in (("same numbers", 0.0), ("other numbers", 0.004))
    ]
    accept_differences(tmp_path / "known.toml", report(*cases))
    text = f"shapes, dtypes or the number of gradients differ: {detail}"
    assert {entry.cases[0]: (entry.reason, entry.lacks_reason) for entry in entries.read(tmp_path / "known.toml")} == {
        "same numbers": (text, False),
        "other numbers": (f"{text}. Numbers differ, too, and the cause is unknown", True),
    }


def unexplained(tmp_path: Path, reason: str = "numbers differ, and the cause is unknown") -> ParityReport:
    case = one_case("a", torch=FrameworkResult(native=native(norm=0.02, verdict="known")))
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "known.toml"
    accept_differences(path, report(case))
    path.write_text(path.read_text("utf-8").replace("numbers differ, and the cause is unknown", reason), "utf-8")
    deviations = {("torch", "a"): NativeDeviation("clip", "value", 0.02)}
    _, known = match.match_deviations(entries.read(path), deviations, {"torch": {}})
    return report(case, known=known)


def test_an_unknown_cause_needs_a_reason_of_the_user(tmp_path: Path) -> None:
    judged = unexplained(tmp_path)
    (note,) = build.notes_on_incomplete_entries(judged.known)
    problem = "the cause is unknown, and `reason` does not explain the difference"
    assert note.startswith(f"For 1 known difference, {problem}: torch, clip: a. Write")
    assert judged.exit_code == 0
    strict = build.with_strict(judged)
    assert strict.exit_code == 1
    assert "1 known difference has an unknown cause and no `reason`" in strict.verdict
    assert "stale" not in strict.verdict
    (problem,) = strict.problems
    does_not = "the cause is unknown, and `reason` does not explain the difference. Write why"
    assert problem.detail.startswith(f"'numbers differ, and the cause is unknown': {does_not}")
    assert build.with_strict(judged, accepting=True).exit_code == 0


def test_an_unknown_cause_with_a_reason_passes(tmp_path: Path) -> None:
    judged = unexplained(tmp_path, "we smooth the norm")
    assert build.notes_on_incomplete_entries(judged.known) == []
    assert build.with_strict(judged).exit_code == 0


def test_accept_prints_that_a_reason_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = unexplained(tmp_path)
    assert cli._accept(judged, tmp_path / "known.toml") == 0
    words = "1 known difference has an unknown cause and no `reason`. Write why you accept the difference"
    assert words in capsys.readouterr().out
    assert cli._accept(build.with_strict(judged, accepting=True), tmp_path / "known.toml") == 1
    assert words in capsys.readouterr().out
    explained = unexplained(tmp_path / "explained", "we smooth the norm")
    assert cli._accept(build.with_strict(explained, accepting=True), tmp_path / "explained" / "known.toml") == 0
    assert words not in capsys.readouterr().out


UNBOUNDED = """
[[known]]
framework = "torch"
function = "clip"
kind = "value"
size = inf
cases = ["n*"]
reason = "inf / inf"
"""


def test_an_infinite_size_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(UNBOUNDED, encoding="utf-8")
    with pytest.raises(SuiteError, match=r"known\.toml, line \d+, known 1, size: "):
        entries.read(file)
