"""The report as JUnit XML (xunit2) for CI systems: a test suite for each framework and mode, a test case for each case.

Jenkins' junit-10.xsd lists the attributes. GitLab and GitHub's reporters read the same.
"""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ..._display import safe
from ..modes import NATIVE, OURS
from ..results import FrameworkResult, ParityRun
from . import baseline


def as_xml(run: ParityRun) -> bytes:
    root = Element("testsuites", name="parity")
    for framework in run.frameworks:
        for path, title in OURS.items():
            _suite(root, run, framework, path, title, lambda cell, path=path: path in cell.verdicts)  # type: ignore[misc]
        _suite(root, run, framework, NATIVE, "its own functions", lambda cell: bool(cell.judgement or cell.failure))
    between = SubElement(root, "testsuite", name="between frameworks, host path")
    for row in run.cases:
        case = _case(between, row.case.name, "between")
        if row.differing_stages:
            _fail(
                case, run, ("", "between frameworks", row.case.name), f"other bits: {', '.join(row.differing_stages)}"
            )
    known = SubElement(root, "testsuite", name="known differences")
    for shown in run.known:
        entry = shown.known
        case = _case(known, f"{entry.function}: {entry.reason}", f"known.{entry.framework}")
        if shown.problem:
            _fail(
                case, run, (entry.framework, f"known difference, {entry.function}, {entry.reason!r}", ""), shown.problem
            )
    for suite in list(root):
        if len(suite):
            _count(suite, run)
        else:
            root.remove(suite)
    for attribute in ("tests", "failures", "errors"):  # there is none for what was skipped in all
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    _make_safe(root)
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(
    root: Element, run: ParityRun, framework: str, mode: str, title: str, holds: Callable[[FrameworkResult], bool]
) -> None:
    """Add the cases of a framework in a mode."""
    suite = SubElement(root, "testsuite", name=f"{framework}, {title}")
    for row in run.cases:
        cell = row.frameworks.get(framework)
        if cell is None or not holds(cell):
            continue
        case = _case(suite, row.case.name, f"{framework}.{mode}", cell.seconds.get(mode, 0.0))
        numbers = str(cell.details.get(mode, ""))
        verdict = cell.failure if mode == NATIVE else cell.verdicts[mode]
        what = (framework, OURS.get(mode, "its own function"), row.case.name)
        if verdict and verdict.is_failure:
            skipped = verdict.kind == "missing" and framework in run.may_be_missing
            _mark(case, "skipped" if skipped else "error", verdict.kind, verdict.detail, numbers)
        elif verdict and not verdict.agrees:
            _fail(case, run, what, verdict.detail, numbers)
        elif cell.problem:
            _fail(case, run, what, cell.problem, numbers)


def _case(suite: Element, name: str, group: str, seconds: float = 0.0) -> Element:
    return SubElement(suite, "testcase", classname=group, name=name, time=f"{seconds:.3f}")


def _fail(case: Element, run: ParityRun, key: baseline.Key, message: str, numbers: str = "") -> None:
    """Add a failure. If the baseline already had it, it is skipped: it does not change the exit status."""
    if run.changes is None or any(change.worse and change.is_about(key) for change in run.changes):
        _mark(case, "failure", "different", message, numbers)
    else:
        _mark(case, "skipped", "different", f"as in the baseline: {message}", numbers)


def _mark(case: Element, tag: str, kind: str, message: str, numbers: str = "") -> None:
    """Add a mark. Reporters show the message in lists, and the text, with the numbers, for one case."""
    mark = SubElement(case, tag, type=kind, message=message)
    mark.text = "\n".join([safe(message), *numbers.splitlines()])


def _make_safe(root: Element) -> None:
    """Escape characters that XML does not allow, and invisible ones."""
    for element in root.iter():
        element.attrib.update(safe(element.attrib))
        element.text = safe(element.text, keep="\n")


def _count(suite: Element, run: ParityRun) -> None:
    suite.set("tests", str(len(suite)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):.3f}")
    suite.set("timestamp", run.started.strftime("%Y-%m-%dT%H:%M:%S"))
