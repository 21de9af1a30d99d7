"""Write the report as JUnit XML (xunit2). The attributes follow Jenkins' junit-10.xsd.

Each combination of a framework and a mode is a test suite, and each case is a test case.
"""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ..._kit.display import safe
from ..exit_status import always_raising, is_problem
from ..judge import own_function_pairs
from ..modes import TITLES
from ..results import FrameworkResult, NativeResult, ParityReport, Result
from . import compared_functions
from .build import ALWAYS_RAISES, UNTESTED


def as_xml(report: ParityReport) -> bytes:
    root = Element("testsuites", name="parity")
    for framework in report.frameworks:
        _add_framework(root, report, framework)
    _add_between_frameworks(root, report)
    _add_pairs_of_functions(root, report)
    _add_known_differences(root, report)
    _add_untested(root, report)
    for suite in list(root):
        if len(suite):
            _count(suite, report)
        else:
            root.remove(suite)
    for attribute in ("tests", "failures", "errors"):  # xunit2 has no total of skipped tests
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    for element in root.iter():  # escape characters that XML does not allow, and invisible ones
        element.attrib.update(safe(element.attrib))
        element.text = safe(element.text, keep="\n")
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add_framework(root: Element, report: ParityReport, framework: str) -> None:
    for mode in TITLES:
        titles = {
            _title(mode, result)
            for case in report.cases
            if (result := case.frameworks.get(framework, FrameworkResult()).get(mode))
        }
        for title in sorted(titles):
            suite = SubElement(root, "testsuite", name=f"{framework}, {title}")
            _add_results(suite, report, framework, mode, title)


def _add_between_frameworks(root: Element, report: ParityReport) -> None:
    suite = SubElement(root, "testsuite", name="between frameworks, host path")
    for row in report.cases:
        case = _case(suite, row.name, "between")
        if row.differing_stages:
            _mark(case, "failure", "different", f"different bits: {', '.join(row.differing_stages)}")


def _add_pairs_of_functions(root: Element, report: ParityReport) -> None:
    suite = SubElement(root, "testsuite", name="between your functions")
    for row in report.cases:
        for pair in row.own_pairs:
            case, words = _case(suite, row.name, f"own.{pair.left}.{pair.right}"), own_function_pairs.in_words(pair)
            if pair.verdict in ("different", "known"):
                _mark(case, "failure" if pair.verdict == "different" else "skipped", pair.verdict, words)


def _add_known_differences(root: Element, report: ParityReport) -> None:
    suite = SubElement(root, "testsuite", name="known differences")
    count = Counter[tuple[str, str]]()
    for entry in report.known:
        name = f"{entry.function}: {entry.reason}"
        count[entry.framework, name] += 1
        number = count[entry.framework, name]
        case = _case(suite, f"{name} ({number})" if number > 1 else name, f"known.{entry.framework}")
        if entry.problem:
            _mark(case, "failure", "different", entry.problem)


def _add_untested(root: Element, report: ParityReport) -> None:
    suite = SubElement(root, "testsuite", name="what the cases test")
    for what in report.untested:
        _mark(_case(suite, what, "untested"), "error", "untested", UNTESTED, "")
    for what in always_raising(report):
        _mark(_case(suite, what, "not compared"), "error", "not compared", ALWAYS_RAISES, "")


def _title(mode: str, result: Result) -> str:
    title = compared_functions.title(mode, result)
    return f"{title} {result.function}" if isinstance(result, NativeResult) and result.is_users else title


def _add_results(suite: Element, report: ParityReport, framework: str, mode: str, title: str) -> None:
    for row in report.cases:
        result = row.frameworks[framework].get(mode) if framework in row.frameworks else None
        if result is None or _title(mode, result) != title:
            continue
        case = _case(suite, row.name, f"{framework}.{mode}", result.seconds)
        numbers = "\n".join(compared_functions.numbers(result))
        is_wrong = is_problem(report, framework, result)
        if result.is_failure:
            _mark(case, "error" if is_wrong else "skipped", result.verdict, result.detail, numbers)
        elif isinstance(result, NativeResult) and result.problem:
            _mark(case, "failure", "different", result.problem, numbers)
        elif is_wrong:
            _mark(case, "failure", "different", result.detail, numbers)


def _case(suite: Element, name: str, group: str, seconds: float = 0.0) -> Element:
    return SubElement(suite, "testcase", classname=group, name=name, time=f"{seconds:.3f}")


def _mark(case: Element, tag: str, kind: str, message: str, numbers: str = "") -> None:
    mark = SubElement(case, tag, type=kind, message=message)
    mark.text = "\n".join([safe(message), *numbers.splitlines()])


def _count(suite: Element, report: ParityReport) -> None:
    suite.set("tests", str(len(suite)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):.3f}")
    suite.set("timestamp", report.started.strftime("%Y-%m-%dT%H:%M:%S"))
