"""The files of a report are what those who read them expect: a published schema, xunit2, and a size that CI takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from support.parity.runs import NORM_OFF, as_it_should_be, run, wrong

from unified_clip._report_model import json_schema
from unified_clip.parity.modes import HOST
from unified_clip.parity.report import build, markdown, write
from unified_clip.parity.results import ParityReport

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> ParityReport:
    return run(tmp_path_factory.mktemp("failed"), wrong)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> ParityReport:
    return run(tmp_path_factory.mktemp("passed"), as_it_should_be)


def result(data: Any, case: str, framework: str, mode: str) -> Any:
    (found,) = [each for each in data["cases"] if each["name"] == case]
    return found["frameworks"][framework][mode]


# -- JSON


def test_the_published_schema_is_that_of_the_models() -> None:
    held = (DOCS / "parity.schema.json").read_text(encoding="utf-8")
    assert held == json_schema(ParityReport, "unified_clip parity report"), "run python -m unified_clip.parity.results"


@pytest.mark.parametrize("name", ["passed", "failed"])
def test_reports_fit_the_published_schema_and_hold_nothing_else(name: str, request: pytest.FixtureRequest) -> None:
    data = json.loads(json.dumps(request.getfixturevalue(name).as_json(), allow_nan=False))
    schema = json.loads((DOCS / "parity.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(data)
    assert ParityReport.model_validate(data).as_json() == data


def test_a_difference_has_its_numbers_and_a_result_that_is_equal_none(failed: ParityReport) -> None:
    data = failed.as_json()
    details = result(data, NORM_OFF, "torch", HOST)["details"]
    assert (details["stage"], details["gradient"], details["dtype"]) == ("norm", None, "float32")
    assert details["ours"] == {"value": 5.5, "hex": "0x1.6000000000000p+2", "ulps": 47761.0}
    assert details["native"]["value"] == pytest.approx(1.5 * 30**0.5)
    assert details["nearer"] == "ours"
    assert result(data, NORM_OFF, "numpy", HOST)["details"] is None
    assert result(data, NORM_OFF, "numpy", HOST)["reproduce"] is None


def test_the_verdict_is_a_sentence_with_counts(passed: ParityReport, failed: ParityReport) -> None:
    assert passed.verdict == "PASS: 6 cases on numpy, torch: 18 results of unified_clip are exact."
    assert failed.verdict == (
        "FAIL: 6 cases on numpy, torch: 1 wrong result of unified_clip, of 18; "
        "1 case where frameworks differ from each other on the host path; "
        "4 results of the frameworks' functions not listed as known differences; 2 results missing (torch)."
    )


# -- JUnit

ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}
CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "error", "skipped"}}
"""What Jenkins' junit-10.xsd allows of elements and attributes, as far as reporters agree on them."""


@pytest.mark.parametrize("name", ["passed", "failed"])
def test_junit_has_the_form_xunit2(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write.write(request.getfixturevalue(name), tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    for element in [root, *root.iter("testsuite"), *root.iter("testcase")]:
        assert re.fullmatch(r"[0-9]+\.[0-9]{3}", element.attrib["time"])
    for each in root:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", each.attrib["timestamp"])
        assert int(each.attrib["tests"]) == len(each) > 0
    for count, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        assert int(root.attrib[count]) == len(list(root.iter(tag))) == sum(int(each.attrib[count]) for each in root)


def test_a_failure_has_a_message_for_lists_and_the_numbers_in_its_text(failed: ParityReport, tmp_path: Path) -> None:
    write.write(failed, tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    failure = root.find(f"testsuite[@name='torch, host path']/testcase[@name='{NORM_OFF}']/failure")
    assert failure is not None
    assert failure.get("message") == "norm off by 4.78e+04 ULP; as when the norm is rounded to bfloat16"
    assert "0x1.6000000000000p+2" in str(failure.text)
    assert {error.get("message") for error in root.iter("error")} == {"\\x1b[31mred | </failure>\\x00"}


def test_times_are_those_that_the_worker_took(passed: ParityReport, tmp_path: Path) -> None:
    slow = passed.model_copy(deep=True)
    slow.cases[0].frameworks["numpy"].by_mode[HOST].seconds = 0.25
    write.write(slow, tmp_path)
    root = ElementTree.parse(tmp_path / "parity.xml").getroot()
    assert root[0][0].get("time") == root[0].get("time") == root.get("time") == "0.250"


# -- Markdown


@pytest.mark.nightly
def test_a_summary_of_thousands_of_cases_is_cut_to_the_size_that_github_takes(failed: ParityReport) -> None:
    many = [
        case.model_copy(update={"name": f"{case.name} №{number} é"}) for case in failed.cases for number in range(1200)
    ]
    large = build.report(failed.frameworks, many, versions=failed.versions)
    whole, cut = markdown.as_markdown(large, most=10**9), markdown.as_markdown(large)
    assert len(whole.encode()) > 1024 * 1024 > markdown.MOST >= len(cut.encode()) > 0.9 * markdown.MOST
    assert cut.startswith("# Parity report\n\nFAIL: 7200 cases on numpy, torch")
    assert "## Versions\n\n- numpy 1.0\n- torch 1.0\n\n## unified_clip\n" in cut
    said = r"^([^:\n]+): (\d+) lines are left out here. index.html and parity.json have all.\n+"
    left = re.findall(said, cut, re.M)
    assert [title for title, _ in left] == ["The frameworks' functions"]
    kept = re.sub(said, "", cut, flags=re.M)
    rows = len(re.findall(r"^\| ", whole, re.M)) - len(re.findall(r"^\| ", kept, re.M))
    assert rows == sum(int(count) for _, count in left)
    assert "are left out" not in whole


def test_what_is_wrong_cannot_break_a_table_or_begin_html(failed: ParityReport) -> None:
    text = markdown.as_markdown(failed)
    assert "<script" not in text
    assert "&lt;script>throw Error('case')&lt;/script>: get_total_norm()" in text
    assert "red \\| &lt;/failure>" in text
