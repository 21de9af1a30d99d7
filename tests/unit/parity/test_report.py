"""The files of a report: the published schema, the form xunit2, and sizes within the limits of CI."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from support.parity.reports import native, one_case
from support.parity.runs import NORM_OFF, run_suite_with, unchanged_outcome, wrong_outcome

from unified_clip._kit.report_model import json_schema
from unified_clip.parity.known.entries import KnownDifference
from unified_clip.parity.report import build, junit, page, terminal, write
from unified_clip.parity.results import FrameworkResult, KnownDifferenceResult, NativeResult, ParityReport

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def failed_report(tmp_path_factory: pytest.TempPathFactory) -> ParityReport:
    return run_suite_with(tmp_path_factory.mktemp("failed"), wrong_outcome)


@pytest.fixture(scope="module")
def passed_report(tmp_path_factory: pytest.TempPathFactory) -> ParityReport:
    return run_suite_with(tmp_path_factory.mktemp("passed"), unchanged_outcome)


def different(cause: str, kind: str, size: float, **fields: Any) -> NativeResult:
    problem = f"{cause} (numbers differ by {100 * size:.0f} %)"
    return native("different", size, problem=problem, cause=cause, cause_kind=kind, **fields)


def test_differences_with_one_kind_of_cause_are_one_problem_with_the_largest_size() -> None:
    eps, threshold = "as if eps were 0.001 instead of 0", "as if the threshold were {} instead of 1"
    natives = [
        different(eps, "another eps of the clip", 0.02),
        different(eps, "another eps of the clip", 0.5),
        different(threshold.format(2), "another threshold", 0.03),
        different(threshold.format(4), "another threshold", 0.03),
    ]
    cases = [one_case(f"{number}", torch=FrameworkResult(native=each)) for number, each in enumerate(natives)]
    problems = build.build_report(["torch"], cases).problems
    assert [(each.detail, each.cases) for each in problems] == [
        ("as if eps were 0.001 instead of 0 (numbers differ by up to 50 %)", ["1", "0"]),
        ("as if the threshold were 2 instead of 1 in this case (numbers differ by 3 %)", ["2", "3"]),
    ]


def test_the_xml_has_the_function_and_the_command_of_a_failure() -> None:
    failed = native("different", 0.5, problem="off", function="optax.f").model_copy(
        update={"reproduce": "unified-clip x"}
    )
    run = build.build_report(["jax"], [one_case("a", jax=FrameworkResult(native=failed))])
    (entry,) = [each for tests in junit.test_suites(run) for each in tests.entries if each.mark]
    assert entry.mark is not None
    assert (entry.group, entry.mark.numbers) == ("jax.optax.f", ["To see this result, run unified-clip x"])


def test_cases_with_problems_come_first_and_a_form_without_numbers_has_none() -> None:
    wrong = native("different", 0.0, "form", "gradient 0 has the shape [1] instead of []", function="torch.f")
    natives = {"right": native("equal", 0.0, ""), "wrong": wrong}
    run = build.build_report(
        ["torch"], [one_case(name, torch=FrameworkResult(native=each)) for name, each in natives.items()]
    )
    assert [case.name for case in run.cases] == ["right", "wrong"]
    assert re.findall(r"^\| (right|wrong) \|", write.as_markdown(run), re.MULTILINE)[:2] == ["wrong", "right"]
    html = page.render(run)
    assert re.findall(r'<tr id="case-(\d)">.*?(right|wrong)<', html) == [("1", "wrong"), ("2", "right")]
    assert "Relative distance" not in html


def test_the_xml_names_no_framework_twice_and_a_known_difference_by_its_case() -> None:
    fields: dict[str, Any] = {"framework": "torch", "function": "torch.f", "reason": "it adds squares"}
    entry = KnownDifference(size=0.5, cases=["one *"], **fields)
    known = KnownDifferenceResult(
        kind="value", listed_size=0.5, size=0.5, problem="", cases=["one a"], entry=entry, **fields
    )
    cases = [one_case("one a", torch=FrameworkResult(native=native("known", 0.5, function="torch.f")))]
    suites = junit.test_suites(build.build_report(["torch"], cases, [known]))
    assert {(each.group, each.name) for tests in suites for each in tests.entries} >= {
        ("torch.f", "one a"),
        ("known.torch", "torch.f: one *"),
    }


def test_an_accepted_difference_is_counted_once() -> None:
    cases = [
        one_case(name, torch=FrameworkResult(native=native("known", 0.5, function=function)))
        for name, function in (("a", "clip.py:f"), ("b", "torch.f"), ("c", "torch.f"))
    ]
    verdict = build.build_report(["torch"], cases).verdict
    assert verdict.startswith("PASS: 0 results of your functions are right, and 1 known difference is accepted. ")
    assert verdict.endswith("2 differences of the frameworks' functions are known.")


EPS = "as if eps were 1 instead of 0"


def test_the_finding_comes_first_and_each_advice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    natives = [
        different(cause, kind, 0.02, function="clip.py:f").model_copy(update={"reproduce": f"unified-clip {kind}"})
        for cause, kind in ((EPS, "eps"), ("every element is NaN", "NaN"), (EPS, "with other numbers"))
    ]
    cases = [one_case(f"{number}", torch=FrameworkResult(native=each)) for number, each in enumerate(natives * 2)]
    run = build.build_report(["torch"], cases)
    assert run.verdict == (
        "FAIL: 6 of 6 results of your functions are wrong (torch, clip.py:f: as if eps were 1 instead of 0; 2 more "
        "findings below)."
    )
    terminal.show(run, tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{run.verdict}\n- torch, clip.py:f\n  - as if eps were 1 instead of 0 (")
    assert printed.count("\n  - ") == 3
    text = write.as_markdown(run)
    assert text.startswith(f"# Parity report\n\n{run.verdict}\n\n## Problems\n")
    steps = build.next_steps(run)
    assert len(steps) == 2
    html = unescape(page.render(run))
    for view in (printed, text, html.replace("<code>", "`").replace("</code>", "`")):
        assert [view.count(step) for step in steps] == [1, 1]
    assert "--accept" not in run.problems[0].detail
    assert html.index(run.problems[0].detail) < html.index("Compared with exact arithmetic")
    terminal.show(run, tmp_path, accepting=True)
    assert [line[:16] for line in capsys.readouterr().out.splitlines() if "--accept" in line] == ["Before --accept:"]
    monkeypatch.setattr(sys, "argv", ["elsewhere/unified-clip"])
    terminal.show(run, tmp_path)
    assert "To rerun one case, run `elsewhere/unified-clip eps`" in capsys.readouterr().out


# -- JSON


def test_the_published_schema_is_that_of_the_models() -> None:
    published = (DOCS / "parity.schema.json").read_text(encoding="utf-8")
    assert published == json_schema(ParityReport, "unified_clip parity report"), (
        "run python -m unified_clip.parity.results"
    )


@pytest.mark.parametrize("name", ["passed_report", "failed_report"])
def test_reports_fit_the_published_schema_without_other_keys(name: str, request: pytest.FixtureRequest) -> None:
    data = json.loads(json.dumps(request.getfixturevalue(name).as_json(), allow_nan=False))
    schema = json.loads((DOCS / "parity.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(data)
    assert ParityReport.model_validate(data).as_json() == data


# -- JUnit

ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
    "testcase": {"name", "classname", "time"},
    "system-out": set(),
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase", "system-out"},
    "testcase": {"failure", "error", "skipped"},
}
"""The elements and attributes that Jenkins' junit-10.xsd and other readers support."""


@pytest.mark.parametrize("name", ["passed_report", "failed_report"])
def test_junit_has_the_form_xunit2(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write.write(request.getfixturevalue(name), tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    for element in [root, *root.iter("testsuite"), *root.iter("testcase")]:
        assert re.fullmatch(r"[0-9]+\.[0-9]{3}", element.attrib["time"])
    for child in root:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", child.attrib["timestamp"])
        assert int(child.attrib["tests"]) == len(child.findall("testcase")) > 0
    for count, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        assert int(root.attrib[count]) == len(list(root.iter(tag))) == sum(int(child.attrib[count]) for child in root)


def test_a_failure_has_a_message_for_lists_and_the_numbers_in_its_text(
    failed_report: ParityReport, tmp_path: Path
) -> None:
    write.write(failed_report, tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    failure = root.find(f"testsuite[@name='torch, host path']/testcase[@name='{NORM_OFF}']/failure")
    assert failure is not None
    assert (
        failure.get("message")
        == "as if the norm were computed in 16 bits (norm off by 4.78e+04 ULP). The norm is 8.21584 instead of 5.47723"
    )
    assert "0x1.6000000000000p+2" in str(failure.text)
    told = [each.text or "" for each in root.iter("system-out")]
    assert len(told) == 1
    assert told[0].startswith(failed_report.verdict)
    assert {error.get("message") for error in root.iter("error")} == {"\\x1b[31mred | </failure>\\x00"}


# -- Markdown


def test_a_summary_of_thousands_of_cases_is_cut_to_githubs_limit(
    failed_report: ParityReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        case.model_copy(update={"name": f"{case.name} №{number} é"})
        for case in failed_report.cases
        for number in range(60)
    ]
    large = build.build_report(failed_report.frameworks, cases, versions=failed_report.versions)
    full = write.as_markdown(large)
    monkeypatch.setattr(write, "MAX_BYTES", len(full.encode()) - 1)
    cut = write.as_markdown(large)
    assert 0 < len(cut.encode()) <= write.MAX_BYTES
    assert cut.startswith("# Parity report\n\nFAIL: ")
    left = re.findall(r"^([^:\n]+): (\d+) lines are left out here", cut, re.M)
    assert [title for title, _ in left] == ["The frameworks' functions", "unified_clip"]
    rows = [len(re.findall(r"^\| ", text, re.M)) for text in (full, cut)]
    assert rows[0] - rows[1] == sum(int(count) for _, count in left)
    assert "are left out" not in full


def test_problems_cannot_break_a_table_or_begin_html(failed_report: ParityReport) -> None:
    text = write.as_markdown(failed_report)
    assert "<script" not in text
    assert "&lt;script>throw Error('case')&lt;/script>: get_total_norm()" in text
    assert "red \\| &lt;/failure>" in text


# -- the disk


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for the size of a file")
def test_a_full_disk_leaves_no_part_of_a_report(tmp_path: Path, passed_report: ParityReport) -> None:
    import resource

    write.write(passed_report, tmp_path)
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert len(sizes) == 4
    write.remove(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[-1] - 1, limits[1]))  # only the largest file does not fit
    try:
        with pytest.raises(OSError, match="File too large"):
            write.write(passed_report, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
