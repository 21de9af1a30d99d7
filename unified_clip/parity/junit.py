"""A run as JUnit XML, which CI systems show: a test suite for each framework and path, a test case for each case."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .compare import Verdict
from .engine import Run
from .launch import NATIVE, OURS


def as_xml(run: Run) -> bytes:
    root = Element("testsuites", name="parity")
    for framework in run.frameworks:
        for path, title in OURS.items():
            suite = SubElement(root, "testsuite", name=f"{framework}, {title}")
            for row in run.rows:
                if framework in row.cells and path in row.cells[framework].verdicts:
                    case = _case(suite, row.case.name, f"{framework}.{path}")
                    _judge(case, row.cells[framework].verdicts[path], framework in run.may_be_missing)
        suite = SubElement(root, "testsuite", name=f"{framework}, its own functions")
        for row in run.rows:
            if framework in row.cells and (row.cells[framework].judgement or row.cells[framework].failure):
                cell, case = row.cells[framework], _case(suite, row.case.name, f"{framework}.{NATIVE}")
                if cell.failure:
                    _judge(case, cell.failure, framework in run.may_be_missing)
                elif cell.problem:
                    _mark(case, "failure", "different", cell.problem)
    between = SubElement(root, "testsuite", name="between frameworks, host path")
    for row in run.rows:
        case = _case(between, row.case.name, "between")
        if row.apart:
            _mark(case, "failure", "different", f"other bits: {', '.join(row.apart)}")
    known = SubElement(root, "testsuite", name="known differences")
    for shown in run.known:
        case = _case(known, f"{shown.known.function}: {shown.known.reason}", f"known.{shown.known.framework}")
        if shown.problem:
            _mark(case, "failure", "known", shown.problem)
    for suite in list(root):
        if len(suite):
            _count(suite)
        else:
            root.remove(suite)
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _case(suite: Element, name: str, group: str) -> Element:
    return SubElement(suite, "testcase", name=name, classname=group)


def _judge(case: Element, verdict: Verdict, may_be_missing: bool) -> None:
    if verdict.agrees:
        return
    kind = "failure" if verdict.kind == "different" else "error"
    if verdict.kind == "missing" and may_be_missing:
        kind = "skipped"
    _mark(case, kind, verdict.kind, verdict.detail)


def _mark(case: Element, tag: str, kind: str, message: str) -> None:
    """Characters that XML does not allow, as a worker's last lines may hold, become question marks."""
    SubElement(case, tag, type=kind, message="".join(c if c.isprintable() else "?" for c in message))


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in suite)))
