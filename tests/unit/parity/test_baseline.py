"""`unified-clip parity --baseline`: what changed since an earlier report, what is worse, and the exit status."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.cases import ONE_CASE, suite
from support.parity.reports import clip_result, known, native, one_case, report

from unified_clip import cli
from unified_clip.parity.known.entries import KnownDifference
from unified_clip.parity.report import baseline, build, change_rows, junit, page, write
from unified_clip.parity.results import (
    SCHEMA,
    Change,
    FrameworkResult,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    UnifiedClipResult,
)
from unified_clip.parity.suite.schema import SuiteError
from unified_clip.parity.workers import pool
from unified_clip.tensors.types import Stage


def of(**of_torch: UnifiedClipResult | NativeResult) -> ParityReport:
    """A report of one case on NumPy and PyTorch, with PyTorch's results by mode."""
    torch = FrameworkResult.model_validate(of_torch or {"host": clip_result()})
    versions = {"numpy": "2.4", "torch": "2.13"}
    return report(one_case(numpy=FrameworkResult(host=clip_result()), torch=torch), versions=versions)


def torch(
    old: UnifiedClipResult | NativeResult, new: UnifiedClipResult | NativeResult, mode: str = "host"
) -> list[Change]:
    return baseline.changes(of(**{mode: old}), of(**{mode: new}))


def change(
    kind: Any, framework: str, what: str, case: str, before: str, after: str, worse: bool = False, why: str = ""
) -> Change:
    texts = {"kind": kind, "framework": framework, "what": what, "case": case, "before": before, "after": after}
    return Change(**texts, worse=worse, why=why)


# -- what changed


def test_the_same_report_has_not_changed() -> None:
    one = of(host=clip_result("different", math.inf, detail="raised"), native=native())
    one.known = [known(), known("no case shows this difference")]
    assert baseline.changes(one, one.model_copy(deep=True)) == []


def test_another_verdict_is_told_with_both() -> None:
    (found,) = torch(clip_result("close", 1.0), clip_result("different", 3.0))
    assert found == change("verdict", "torch", "host path", "one", "close, 1 ULP", "different, 3 ULP", worse=True)
    (found,) = torch(clip_result("different", 3.0), clip_result())
    assert (found.before, found.after, found.worse) == ("different, 3 ULP", "equal", False)


def test_a_native_without_a_result_has_no_function_to_name() -> None:
    (found,) = torch(native("crashed", None, "", function=None), native(), "native")
    assert (found.before, found.after) == ("crashed", "clip known, 0.01")


def test_another_size_is_one_that_is_more_than_a_tenth_larger_or_smaller() -> None:
    kinds = [
        [each.kind for each in torch(native(norm=0.01), native(norm=size), "native")]
        for size in (0.01, 0.0105, 0.012, 0.005)
    ]
    assert kinds == [[], ["numbers"], ["size"], ["size"]]
    (found,) = torch(native(norm=0.01), native(norm=0.02), "native")
    assert found == change("size", "torch", "framework's function", "one", "clip known, 0.01", "clip known, 0.02")


def test_numbers_that_moved_within_their_verdict_are_told() -> None:
    assert [each.kind for each in torch(clip_result("close", 1.0, "b"), clip_result("close", 1.0, "c"), "device")] == [
        "numbers"
    ]


def test_a_case_that_is_another_one_is_told_once() -> None:
    new = of(host=clip_result(sha256="b"))
    new.cases[0].sha256 = {"norm": "b"}
    new.cases[0].stages_apart = []
    (found,) = baseline.changes(of(), new)
    assert found.why.startswith("the exact result is not that of the baseline, so the gradients or the call")
    assert found == change("numbers", "", "the exact result", "one", "norm a", "norm b", True, found.why)
    judged = build.against(new, [found])
    assert judged.exit_code == 1
    lost = "FAIL: 1 case on numpy, torch: 1 result that cannot be compared as in the baseline "
    why = found.why.partition(". ")[0]
    assert judged.verdict == f"{lost}(the exact result, one: {why})."
    (problem,) = judged.problems
    assert (problem.what, problem.detail, problem.cases) == ("the exact result", found.why, ["one"])
    assert failures(judged) == [found.why]


def failures(judged: ParityReport) -> list[str]:
    return [mark.attrib["message"] for mark in ElementTree.fromstring(junit.as_xml(judged)).iter("failure")]


def test_a_number_that_is_no_longer_compared_fails_the_run() -> None:
    def run(verdict: Any, norm: float | None) -> ParityReport:
        return of(native=native(verdict, norm, "", function="clip.py:f", gradients=0.0))

    for before in (run("equal", 0.0), run("close", 1e-7), run("different", 0.5)):
        (found,) = baseline.changes(before, run("no norm", None))
        assert found.worse
        assert found.why.startswith("the baseline compared the norm, but the function no longer returns it. To write a")
        assert failures(build.against(run("no norm", None), [found])) == [found.why]
    assert not any(each.worse for each in baseline.changes(run("no norm", None), run("equal", 0.0)))
    assert not any(each.worse for each in baseline.changes(run("equal", 0.0), run("close", 1e-7)))
    accepted = of(native=native("known", None, "raises", function="clip.py:f"))
    assert not any(each.worse for each in baseline.changes(run("equal", 0.0), accepted))


def test_another_cause_is_another_failure() -> None:
    def run(kind: str, cause: str, norm: float) -> ParityReport:
        return of(native=native("different", norm, problem=f"{cause}.", cause=cause, cause_kind=kind))

    out, weighted = run("left out", "the norm leaves out 'b'", 0.5), run("weights", "'b' has the weight 0.5", 0.51)
    assert [each.worse for each in baseline.changes(out, weighted)] == [True]
    assert [each.worse for each in baseline.changes(out, run("left out", "the norm leaves out 'a'", 0.51))] == [True]
    assert [each.worse for each in baseline.changes(out, run("left out", "so 'b' is left out", 0.51))] == [False]
    assert baseline.changes(out, run("weights", "the same numbers, which a later version explains", 0.5)) == []


def test_known_differences_with_one_reason_have_names_of_their_own() -> None:
    entries = [known("no case shows this difference", None), known("no case shows this difference", None), known()]
    names = [
        case.attrib["name"] for case in ElementTree.fromstring(junit.as_xml(with_known(*entries))).iter("testcase")
    ]
    assert [name for name in names if name.startswith("clip: so")] == ["clip: so", "clip: so (2)", "clip: so (3)"]
    judged = build.against(
        with_known(*entries), baseline.changes(with_known(*entries[::2], known()), with_known(*entries))
    )
    assert [each.excused for each in judged.problems] == [True, False]


def test_versions_are_told() -> None:
    new = of()
    new.versions["torch"] = "2.14"
    assert baseline.changes(of(), new) == [change("version", "torch", "", "", "2.13", "2.14")]


def test_what_is_new_or_gone_is_told() -> None:
    old, new = of(host=clip_result(), device=clip_result()), of(host=clip_result(), native=native("equal", 0.0, ""))
    assert {(each.kind, each.what, each.before, each.after) for each in baseline.changes(old, new)} == {
        ("gone", "device path", "equal", ""),
        ("new", "framework's function", "", "clip equal"),
    }


def test_a_whole_framework_or_case_is_told_once() -> None:
    small, large = of(), of()
    large.frameworks.append("jax")
    large.cases[0].frameworks["jax"] = FrameworkResult(host=clip_result(), device=clip_result())
    large.cases.append(large.cases[0].model_copy(update={"name": "two"}, deep=True))
    new, gone = baseline.changes(small, large), baseline.changes(large, small)
    assert new == [change("new", "jax", "", "", "", ""), change("new", "", "", "two", "", "")]
    assert gone == [change("gone", "jax", "", "", "", ""), change("gone", "", "", "two", "", "")]
    strict, larger = build.strict(small), build.strict(large)
    assert [each.worse for each in baseline.changes(large, strict)] == [True, True]
    assert not any(each.worse for each in baseline.changes(small, larger))
    judged = build.against(strict, baseline.changes(large, strict))
    assert judged.exit_code == 1
    assert (
        "2 results that cannot be compared as in the baseline (jax: the baseline has it, but this run does not)"
        in judged.verdict
    )
    assert "two" in page.render(judged), "the page has no section of a case that was not run"
    why = f"the baseline has it, but this run does not. {baseline.ADVICE}"
    assert [(each.what, each.detail, each.cases) for each in judged.problems] == [
        ("jax", why, []),
        ("the suite", why, ["two"]),
    ]
    assert failures(judged) == [why, why]
    large.cases[1].frameworks["jax"].host = clip_result("different", 3.0)
    worse = change("new", "jax", "host path", "two", "", "different, 3 ULP", worse=True)
    assert baseline.changes(small, large) == [worse, *new]


def test_a_known_difference_that_is_larger_than_listed_has_both_sizes() -> None:
    old = known(size=0.01, listed_size=0.01)
    fields = {"framework": "torch", "function": "clip", "kind": "value", "size": 0.01, "cases": ["one"], "reason": "so"}
    entry = KnownDifference.model_validate(fields | {"within": 4.0})
    sizes = {
        "listed 0.01, but measured 0.5": known(size=0.5, listed_size=0.01),
        "as listed, 0.03": known(size=0.03, finite_size=0.03, listed_size=0.01, entry=entry),
        "listed 0.01, but measured 0.05": known(size=0.05, finite_size=0.05, listed_size=0.01, entry=entry),
    }
    for text, new in sizes.items():
        (moved,) = baseline.changes(with_known(old), with_known(new))
        assert (moved.before, moved.after) == ("as listed, 0.01", text)


# -- what is worse


def differing(*stages: Stage) -> ParityReport:
    new = of()
    new.cases[0].stages_apart = list(stages)
    return new


def with_known(*entries: KnownDifferenceResult) -> ParityReport:
    new = of()
    new.known = list(entries)
    return new


NOTHING_WRONG = [of(), of(host=clip_result("crashed", math.inf, None)), build.report([], [])]


@pytest.mark.parametrize(
    "wrong",
    [
        of(host=clip_result("different", 3.0)),
        of(host=clip_result("different", math.inf, detail="raised ValueError")),
        of(native=native("different", problem="not listed as a known difference")),
        differing("norm"),
        with_known(known("no case shows this difference", None)),
        with_known(known(), known("no case shows this difference", None)),
        with_known(known("no case shows this difference", None), known()),
    ],
    ids=["ours", "ours raises", "native", "between frameworks", "known", "one of two alike", "the first of them"],
)
def test_whatever_is_wrong_is_worse_where_the_baseline_has_it_not_and_excused_where_it_has(wrong: ParityReport) -> None:
    for old in NOTHING_WRONG:
        assert [each.worse for each in baseline.changes(old, wrong)].count(True) == 1
        assert not any(each.worse for each in baseline.changes(wrong, old))
    assert not any(each.worse for each in baseline.changes(wrong, wrong))


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (of(host=clip_result("different", 10.0)), of(host=clip_result("different", 11.0)), False),
        (of(host=clip_result("different", 10.0)), of(host=clip_result("different", 12.0)), True),
        (of(host=clip_result("different", 10.0)), of(host=clip_result("different", 5.0)), False),
        (
            of(host=clip_result("different", math.inf, detail="a")),
            of(host=clip_result("different", math.inf, detail="b")),
            True,
        ),
        (of(host=clip_result("close", 1.0)), of(host=clip_result("close", 2.0)), False),
        (of(host=clip_result()), of(host=clip_result("crashed", math.inf, None)), False),
        (differing("norm"), differing("norm", "tensors"), True),
        (differing("norm", "tensors"), differing("norm"), False),
        (of(native=native()), of(native=native(norm=0.5)), False),
        (of(native=native("different", problem="a")), of(native=native("different", 0.5, problem="b")), True),
        (
            of(native=native("different", problem="a")),
            of(native=native("different", kind="raises", problem="b")),
            True,
        ),
    ],
)
def test_what_was_wrong_is_worse_where_it_is_larger_or_another(
    old: ParityReport, new: ParityReport, worse: bool
) -> None:
    assert any(each.worse for each in baseline.changes(old, new)) == worse


def test_the_exit_status_is_for_what_is_worse_and_for_frameworks_without_results() -> None:
    def status(kind: Any, *changes: Change) -> list[int]:
        run = of(host=clip_result(kind))
        return [run.exit_code, build.against(run, list(changes)).exit_code]

    moved = change("size", "torch", "host path", "one", "", "")
    worse = moved.model_copy(update={"worse": True})
    assert status("equal") == [0, 0]
    assert status("equal", moved) == [0, 0]
    assert status("different", moved) == [1, 0]
    assert status("different", moved, worse) == [1, 1]
    assert status("crashed", moved) == [3, 3]
    assert status("missing") == [3, 3]


def rows(*found: Change) -> list[list[str]]:
    return change_rows.rows(found)


def test_what_is_worse_comes_first_and_what_is_alike_is_one_line() -> None:
    found = [change("size", "torch", "host path", name, f"close, {name}", "close, 9") for name in ("1", "2")]
    found += [change("verdict", "torch", "host path", "3", before, "equal") for before in ("close, 1", "flushed")]
    assert rows(*found) == [
        ["", "torch, host path", "another size", "close, 1", "close, 9", "2 cases, first 1"],
        ["", "torch, host path", "another verdict", "close, 1", "equal", "3"],
        ["", "torch, host path", "another verdict", "flushed", "equal", "3"],
    ]
    old, new = (
        of(host=clip_result("close", 1.0), native=native()),
        of(host=clip_result("different", 2.0), native=native()),
    )
    new.versions["torch"] = "2.14"
    assert [row[:3] for row in rows(*baseline.changes(old, new))] == [
        ["fails", "torch, host path", "another verdict"],
        ["", "torch", "another version"],
    ]


# -- the file


def put(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "old.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def written(**changed: Any) -> dict[str, Any]:
    """The JSON of a report, with other values of some keys."""
    return {**of(host=clip_result(), native=native()).as_json(), **changed}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in written().items() if name != key}


def result_with(mode: str, **changed: Any) -> dict[str, Any]:
    data = written()
    data["cases"][0]["frameworks"]["torch"][mode] |= changed
    return data


def test_a_baseline_is_read_as_it_is(tmp_path: Path) -> None:
    assert baseline.read(put(tmp_path, written()), ["one", "two"], ["torch"]).as_json() == written()


def test_keys_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert baseline.read(put(tmp_path, written(later=1)), ["one"], ["torch"]).as_json() == written()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a parity.json: Expecting property name"),
        ("[" * 100_000, "is not a parity.json: maximum recursion depth"),
        ("[]", "is not a parity.json: the file: Input should be"),
        ("3", "is not a parity.json: the file: Input should be"),
        (
            {},
            "is not a parity.json: the key schema is missing. To write a new baseline, run the same command with --out",
        ),
        (without("schema"), "the key schema is missing"),
        (written(schema=1), "has schema 1. This version reads schema 2 only"),
        (without("cases"), "is not a parity.json: cases: Field required"),
        (written(cases=[{}]), "is not a parity.json: cases.0.name: Field required"),
        (written(versions=[]), "is not a parity.json: versions: Input should be"),
        (written(frameworks=3), "is not a parity.json: frameworks: Input should be"),
        (
            written(known=[{**known().as_json(), "size": "large"}]),
            "is not a parity.json: known.0.size: Input should be",
        ),
        (result_with("host", ulps="far"), "is not a parity.json: cases.0.frameworks.torch.host.ulps: Input should be"),
        (result_with("native", norm="far"), "is not a parity.json: cases.0.frameworks.torch.native.norm"),
    ],
)
def test_what_is_no_baseline_is_refused_with_the_reason(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        baseline.read(put(tmp_path, content), ["one"], ["torch"])


def test_a_baseline_of_something_else_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, written())
    with pytest.raises(SuiteError, match="has none of the cases of this run"):
        baseline.read(path, ["another"], ["torch"])
    with pytest.raises(SuiteError, match="has no results of jax, paddle"):
        baseline.read(path, ["one"], ["jax", "paddle"])
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        baseline.read(tmp_path / "absent", ["one"], ["torch"])


def test_a_stale_entry_of_a_removed_case_fails_the_run_and_the_removed_case_does_not() -> None:
    cases = [one_case(name, torch=FrameworkResult(native=native())) for name in ("one", "two")]
    old, new = report(*cases, known=[known()]), report(cases[0], known=[known()])
    kept = build.against(new, baseline.changes(old, new))
    assert (kept.exit_code, change_rows.headline(kept.baseline or [])) == (
        0,
        "Against the baseline: changes: 1, of which 0 fail the run.",
    )
    new = report(cases[0], known=[known("no case shows this difference", None)])
    stale = build.against(new, baseline.changes(old, new))
    assert (stale.exit_code, change_rows.headline(stale.baseline or [])) == (
        1,
        "Against the baseline: changes: 2, of which 1 fail the run.",
    )


# -- the command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on a suite of one case, whose norm is 5; `norm` plants another."""
    where = suite(tmp_path, ONE_CASE)

    def call(out: str, *options: str, norm: float = 5.0) -> int:
        code = f"import numpy as np, unified_clip.numpy as uc; uc.global_norm = lambda *_: np.float32({norm})\n"
        code += "from unified_clip.parity.workers import worker; worker.main()"
        monkeypatch.setattr(pool, "command", lambda framework, python: [sys.executable, "-c", code, framework])
        monkeypatch.chdir(tmp_path)
        return cli.main(["parity", "--suite", str(where), "--out", out, *options])

    return call


def marks(report: Path) -> dict[str, str]:
    """What JUnit says of the one case."""
    suites = ElementTree.parse(report / "parity.xml").getroot()
    return {mark.tag: mark.attrib["message"] for case in suites.iter("testcase") for mark in case}


@pytest.mark.nightly
def test_the_command_shows_what_changed_and_fails_for_what_is_worse(
    run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    off = 5.0 + 2.0**-20
    assert run("good") == 0
    assert run("same", "--baseline", "good/parity.json") == 0
    assert "Against the baseline: nothing changed." in capfd.readouterr().out
    assert run("bad", "--baseline", "good/parity.json", norm=off) == 1
    printed = capfd.readouterr().out
    assert "Against the baseline: changes: 1, of which 1 fail the run." in printed
    assert "another verdict" in printed
    assert "unified_clip against exact arithmetic" not in printed
    assert run("excused", "--baseline", "bad/parity.json", norm=off) == 0
    printed = capfd.readouterr().out
    assert "the baseline excuses 1 failure: 1 wrong result of unified_clip, of 1." in printed
    assert "\nexcused by the baseline: numpy, host path, different: " in f"\n{printed}"
    assert "The baseline excuses this failure, because the run of the baseline had it, too. The verdict of" in printed
    assert "that run: FAIL: 1 case on numpy: 1 wrong result of unified_clip, of 1." in printed
    assert "excused by the baseline: norm off by" in marks(tmp_path / "excused")["skipped"]
    assert run("strict", "--baseline", "bad/parity.json", "--strict", norm=off) == 1
    assert "excuse" not in capfd.readouterr().out
    assert "norm off by" in marks(tmp_path / "strict")["failure"]
    assert run("worse", "--baseline", "bad/parity.json", norm=6.0) == 1
    assert "norm off by" in marks(tmp_path / "worse")["failure"]
    assert run("bad", "--baseline", "bad/parity.json") == 0  # read before it is written
    data = json.loads((tmp_path / "bad" / "parity.json").read_text(encoding="utf-8"))
    (found,) = data["baseline"]
    assert (found["kind"], found["after"], found["worse"]) == ("verdict", "equal", False)
    text = (tmp_path / "bad" / "parity.md").read_text(encoding="utf-8")
    assert "## Since the baseline\n\n|  | what | change | before | now | cases |" in text


def test_the_command_refuses_what_is_no_baseline_before_it_runs(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {"schema": 1})
    assert run("out", "--baseline", "old.json") == 2
    assert "unified-clip: error UC302: The baseline old.json has schema 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_that_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    """A key that was added since needs a default: stored reports do not have it."""
    stored = Path(__file__).parents[2] / "data" / "parity" / "report_schema_2.json"
    assert json.loads(stored.read_text())["schema"] == SCHEMA, "store a report of the new schema beside this one"
    old = baseline.read(stored, ["worked example: global_norm()"], ["numpy"])
    assert baseline.changes(old, old.model_copy(deep=True)) == []
    (case,) = old.cases
    host = case.frameworks["numpy"].host
    assert isinstance(host, UnifiedClipResult)
    assert host.verdict == "equal"


def test_problems_have_their_function_and_whether_the_baseline_excuses_them(tmp_path: Path) -> None:
    def run(*sizes: float) -> ParityReport:
        natives = [native("different", size, problem="unlisted", function="clip.py:clip") for size in sizes]
        cases = [one_case(f"{i}", torch=FrameworkResult(native=each)) for i, each in enumerate(natives)]
        lost = one_case("lost", torch=FrameworkResult(host=clip_result("crashed", math.inf, None)))
        return report(*cases, lost, known=[known("stale", function="clip.py:other")])

    def problems(new: ParityReport) -> list[tuple[Any, ...]]:
        return [(each.framework, each.mode, each.function, each.excused, each.cases) for each in new.problems]

    old, new = run(0.1, 0.1), run(0.1, 0.5)
    crash, stale = ("torch", "host", None, False, ["lost"]), (None, None, "clip.py:other", False, [])
    assert problems(new) == [("torch", "native", "clip.py:clip", False, ["0", "1"]), crash, stale]
    compared = build.against(new, baseline.changes(old, new))
    assert problems(compared) == [
        ("torch", "native", "clip.py:clip", True, ["0"]),
        ("torch", "native", "clip.py:clip", False, ["1"]),
        crash,
        (*stale[:3], True, []),
    ]
    write.write(compared, tmp_path)
    data = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert [each["excused"] for each in data["problems"]] == [True, False, False, True]
    for name in ("parity.md", "index.html"):
        assert (tmp_path / name).read_text(encoding="utf-8").lower().count("excused by the baseline: ") == 2


# -- digests of the functions' results


def test_a_result_with_other_bits_and_the_same_distance_is_reported() -> None:
    old, new = (native(sha256={"norm": digest}) for digest in "ab")
    assert [each.kind for each in torch(old, new, "native")] == ["numbers"]
    assert baseline.notes(of(native=old), of(native=new)) == []


def test_a_baseline_whose_bits_cannot_be_compared_is_reported() -> None:
    old, new = native(sha256=None), native(sha256={"norm": "b"})
    assert torch(old, new, "native") == []
    (note,) = baseline.notes(of(native=old), of(native=new))
    assert note.endswith("not their bits, because the baseline has no digests of them.")
    other = of(native=native(sha256={"norm": "a"}))
    other.versions["torch"] = "2.12"
    assert [each.kind for each in baseline.changes(other, of(native=new))] == ["version"]
    assert baseline.notes(other, of(native=new)) == [
        "Only the distances of the frameworks' functions were compared with the baseline, not their bits, because the "
        "baseline has torch 2.12."
    ]


def test_a_run_of_functions_only_does_not_count_unified_clips_results() -> None:
    verdict = report(one_case(torch=FrameworkResult(native=native("close", 1e-7, "")))).verdict
    assert verdict == "PASS: 1 case on numpy, torch: unified_clip itself did not run."


# -- functions whose bits have changed

CLIP = """
import numpy as np

def clip(grads, max_norm):
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads)) + {eps}
    return [(g * np.float32(min(1.0, max_norm / norm))).astype(g.dtype) for g in grads], np.float32(norm)
"""

KNOWN = """
[[known]]
framework = "numpy"
function = "clip.py:clip"
kind = "value"
size = 1e-3
within = 4.0
cause = "any"
cases = ["*"]
reason = "we add to the norm"
"""


@pytest.fixture
def changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, Change]]:
    """Run a function, then another one with the first report as the baseline. Return the status and what is printed."""
    functions = "[frameworks.numpy.functions]\nclip_by_global_norm = 'clip.py:clip'"
    cases = ONE_CASE.replace('{ call = "global_norm" }', '{ call = "clip_by_global_norm", clip_norm = 0.7 }')
    where = suite(tmp_path, cases, KNOWN, f"[frameworks.numpy]\n{functions}")

    def run(eps: str, *, processor: str = "", known: str = KNOWN) -> tuple[int, str, Change]:
        command = ["parity", "--suite", str(where), "--out"]
        (tmp_path / "clip.py").write_text(CLIP.format(eps="5e-3"), encoding="utf-8")
        assert cli.main([*command, str(tmp_path / "old")]) == 0
        old = tmp_path / "old" / "parity.json"
        data = json.loads(old.read_text(encoding="utf-8"))
        put(tmp_path, {**data, "processor": processor or data["processor"]})
        (tmp_path / "clip.py").write_text(CLIP.format(eps=eps), encoding="utf-8")
        (tmp_path / "known.toml").write_text(known, encoding="utf-8")
        capsys.readouterr()
        status = cli.main([*command, str(tmp_path / "new"), "--baseline", str(tmp_path / "old.json")])
        written = json.loads((tmp_path / "new" / "parity.json").read_text(encoding="utf-8"))
        (found,) = (each for each in written["baseline"] if each["what"] == "your function")
        return status, capsys.readouterr().out, Change.model_validate(found)

    return run


def test_a_function_that_has_changed_within_a_known_difference_fails_the_run(changed: Callable[..., Any]) -> None:
    status, printed, found = changed("5.1e-3")
    assert (status, found.worse) == (1, True)
    assert found.after == "clip.py:clip known, 0.001, with the same bits in a second call"
    assert found.why.startswith("the bits of this known difference are not those of the baseline, and a second call")
    assert "FAIL: 1 case on numpy: 1 known difference with other bits than in the baseline (numpy, your " in printed


def test_a_changed_function_is_accepted_by_another_reason_in_the_list(changed: Callable[..., Any]) -> None:
    status, _, found = changed("5.1e-3", known=KNOWN.replace("we add to", "we now add 5.1e-3 to"))
    assert (status, found.worse, found.why) == (0, False, "")


def test_a_function_that_is_not_deterministic_is_reported_and_fails_nothing(changed: Callable[..., Any]) -> None:
    status, printed, found = changed("5e-3 + 1e-4 * np.random.default_rng().random()")
    assert (status, found.worse) == (0, False)
    assert found.after.endswith("not deterministic: with other bits in a second call")
    assert "not deterministic" in printed


def test_another_processor_may_round_otherwise(changed: Callable[..., Any]) -> None:
    status, printed, found = changed("5.1e-3", processor="VAX, 1 cores")
    assert (status, found.worse) == (0, False)
    why = "because the baseline is from another processor (VAX, 1 cores)."
    assert f"Other bits of your functions than in the baseline do not fail this run, {why}" in printed


def test_only_changed_cases_are_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (of(native=native(sha256={"norm": digest})) for digest in "ab")
    old.processor = new.processor = "one"
    assert baseline.changed_bits(old, new) == [("torch", "one")]
    assert baseline.changed_bits(old, old) == []
    new.versions["torch"] = "2.14"
    assert baseline.changed_bits(old, new) == []


def test_a_result_within_the_tolerance_may_change_its_bits() -> None:
    """The suite's tolerance counts such a difference as rounding."""

    def run(digest: str, verdict: Any) -> ParityReport:
        found = of(native=native(verdict, 1e-7, "", sha256={"norm": digest}, second_call="equal"))
        found.processor = "one"
        return found

    assert not any(each.worse for each in baseline.changes(run("a", "close"), run("b", "close")))
    listed_in_both = [run(digest, "known") for digest in "ab"]
    for each in listed_in_both:
        each.known = [known()]
    assert [each.worse for each in baseline.changes(*listed_in_both)] == [True]
