"""The table by rule: which cases share a row, and the verdicts on unified_clip's names in a row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.parity.cases import dense, suite
from support.parity.runs import Result, run_suite_with, unchanged_outcome

from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.modes import HOST, NATIVE
from unified_clip.parity.report import by_rule, page
from unified_clip.parity.results import ParityReport
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.case import Case

FRAMEWORKS = """
    [frameworks.torch]
    title = "PyTorch"
    modes = ["host", "native"]
    [frameworks.tensorflow]
    title = "TensorFlow"
    modes = ["host", "native"]
"""

CASES = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
    [[cases]]
    gradients = ["worked example"]
    calls = [
      { call = "clip_grad_norm_", max_norm = 0.5 },
      { call = "clip_by_global_norm", clip_norm = 0.5 },
      { call = "clip_grad_value_", clip_value = 0.25 },
      { call = "clip_by_value", clip_value_min = -0.25, clip_value_max = 0.25 },
      { call = "clip_by_value", clip_value_min = -0.25, clip_value_max = 0.5 },
      { call = "clip_grad_norm_", max_norm = 0.5, norm_type = 1 },
      { call = "clip_by_norm", clip_norm = 0.5 },
    ]
"""


def data_of(directory: Path, change: Any = unchanged_outcome, cases: str = CASES) -> Any:
    return run_suite_with(directory, change, cases, FRAMEWORKS).as_json()


def rows_of(data: Any) -> dict[str, by_rule.RuleRow]:
    return {row.rule: row for row in by_rule.rule_rows(ParityReport.model_validate(data), ["torch", "tensorflow"])}


def rule_of(directory: Path, call: str, **more: str) -> str | None:
    cases = CASES.partition("    [[cases]]")[0] + f'[[cases]]\ngradients = ["worked example"]\ncalls = [{call}]\n'
    cases += "".join(f"{key} = {value}\n" for key, value in more.items())
    (case,) = suites.read(suite(directory, cases, frameworks=FRAMEWORKS)).cases
    return case.rule


def test_names_of_two_families_share_a_row(tmp_path: Path) -> None:
    row = rows_of(data_of(tmp_path))["total norm, threshold 0.5"]
    assert [case.call for case in row.cases] == ["clip_grad_norm_", "clip_by_global_norm"]


def test_the_same_bounds_share_a_row_and_other_ones_do_not(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    values = [case["rule"] for case in data["cases"] if "value" in case["call"]]
    assert values == ["by value, from -0.25 to 0.25", "by value, from -0.25 to 0.25", "by value, from -0.25 to 0.5"]


def test_results_differ_where_the_families_do(tmp_path: Path) -> None:
    """PyTorch adds 1e-6 to the norm."""
    rows = rows_of(data_of(tmp_path))
    assert list(rows["total norm, threshold 0.5"].results.values()) == [["clip_grad_norm_"], ["clip_by_global_norm"]]
    assert list(rows["by value, from -0.25 to 0.25"].results.values()) == [["clip_grad_value_", "clip_by_value"]]


def test_a_wrong_result_on_the_host_path_is_not_called_exact(tmp_path: Path) -> None:
    def wrong(framework: str, mode: str, case: Case, outcome: CallOutcome) -> Result:
        is_wrong = mode == HOST and framework == "torch" and case.call_name == "clip_by_global_norm"
        return dataclasses.replace(outcome, norm=dense(7.0)) if is_wrong else outcome

    assert rows_of(data_of(tmp_path))["total norm, threshold 0.5"].is_exact
    data = data_of(tmp_path, wrong)
    assert not rows_of(data)["total norm, threshold 0.5"].is_exact
    assert "not exact on every framework" in page.render(ParityReport.model_validate(data))


def test_functions_of_a_row_have_their_numbers(tmp_path: Path) -> None:
    def wrong(framework: str, mode: str, case: Case, outcome: CallOutcome) -> Result:
        off = mode == NATIVE and framework == "tensorflow" and outcome.norm
        return (
            dataclasses.replace(outcome, norm=dense(outcome.norm.values() * 1.5)) if off and outcome.norm else outcome
        )

    (exact,) = rows_of(data_of(tmp_path, wrong))["total norm of order 1, threshold 0.5"].functions("torch")
    (off,) = rows_of(data_of(tmp_path, wrong))["total norm of order 1, threshold 0.5"].functions("tensorflow")
    assert (exact.result.norm, off.result.norm) == (0.0, 0.5)
    assert exact.result.verdict == "equal" != off.result.verdict


@pytest.mark.parametrize(
    "call",
    [
        '{ call = "clip_by_norm", clip_norm = 1.0, axes = [0] }',
        '{ call = "clip_by_global_norm", clip_norm = 1.0, use_norm = 2.0 }',
        '{ call = "clip_grad_norm_", max_norm = 1.0, error_if_nonfinite = true }',
    ],
)
def test_a_call_without_a_counterpart_has_no_rule(call: str, tmp_path: Path) -> None:
    assert rule_of(tmp_path, call) is None


def test_a_call_in_another_form_has_no_rule(tmp_path: Path) -> None:
    assert rule_of(tmp_path, '{ call = "global_norm" }') == "total norm, measured"
    assert rule_of(tmp_path, '{ call = "global_norm" }', container='"dict"') is None


def test_a_row_of_one_framework_compares_nothing_and_is_left_out(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    for case in data["cases"]:
        case["frameworks"].pop("tensorflow")
    assert by_rule.rule_rows(ParityReport.model_validate(data), ["torch"]) == []
    assert "The same clip on each framework" not in page.render(ParityReport.model_validate(data))


def test_a_function_without_numbers_has_the_kind_of_its_difference_and_one_that_was_not_run_says_so(
    tmp_path: Path,
) -> None:
    data = data_of(tmp_path)
    (case,) = [case for case in data["cases"] if case["rule"] == "total norm, threshold 0.5" and "grad" in case["call"]]
    case["frameworks"]["torch"][NATIVE] |= {"verdict": "known", "kind": "raises", "norm": None, "gradients": None}
    data["frameworks"].append("jax")
    data["cases"][-1]["frameworks"]["jax"] = data["cases"][-1]["frameworks"]["torch"]
    section = page.render(ParityReport.model_validate(data)).partition('id="by-rule"')[2].partition("</section>")[0]
    assert section.count("it raises an error, but should return a result") == 1
    assert ">none<" not in section
    assert '<td><span class="none">not run</span></td>' in section
