"""Functions of the user take the place of a framework's: their results are judged, and none is left out in silence."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from support.parity.cases import WORKED, case, dense, suite
from support.parity.reports import native, one_case, report

import unified_clip.numpy
from unified_clip import cli
from unified_clip.parity import run_suite
from unified_clip.parity.adapters.numpy import Framework as Adapter
from unified_clip.parity.judge import oracle, own_pairs
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.known import entries, match, measure, update
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.modes import NATIVE
from unified_clip.parity.outcome import CallOutcome, Failure
from unified_clip.parity.report import baseline, compared, junit, markdown, page, terminal, terminal_case
from unified_clip.parity.results import CaseResult, FrameworkResult, NativeResult, OwnPair
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.suite.schema import Framework, SuiteError
from unified_clip.parity.workers import user_function, worker
from unified_clip.parity.workers.pool import WorkItem
from unified_clip.parity.workers.user_function import UserFunction
from unified_clip.tensors.types import Dense

CLIP = """
import numpy as np

def total(grads):
    return np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))

def clip(grads, max_norm, eps=0.0):
    scale = min(1.0, max_norm / (total(grads) + eps))
    return [(g * np.float32(scale)).astype(g.dtype) for g in grads], total(grads)

def off(grads, max_norm):
    return clip(grads, max_norm, 1e-2)

def in_place(grads, max_norm):
    clipped, norm = clip(grads, max_norm, 1e-6)
    for g, result in zip(grads, clipped):
        g[...] = result
    return np.float32(norm)

def each(g, max_norm):
    return clip([g], max_norm)[0][0]
"""

CASES = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
    [[cases]]
    gradients = ["worked example"]
    calls = [
      { call = "clip_by_global_norm", clip_norm = 0.5 },
      { call = "clip_grad_norm_", max_norm = 0.5 },
      { call = "clip_by_norm", clip_norm = 0.5 },
      { call = "global_norm" },
    ]
"""
GLOBAL = "worked example: clip_by_global_norm(clip_norm=0.5)"
NAMES = "clip_by_global_norm = 'clip.py:clip'\nclip_grad_norm_ = 'clip.py:in_place'\nclip_by_norm = 'clip.py:each'\n"


def written(folder: Path, functions: str = NAMES, code: str = CLIP, more: str = "", cases: str = CASES) -> Path:
    (folder / "clip.py").write_text(code, encoding="utf-8")
    return suite(folder, cases, frameworks=f"[frameworks.numpy]\n{more}\n[frameworks.numpy.functions]\n{functions}")


def test_functions_of_the_user_need_a_list_of_known_differences(tmp_path: Path) -> None:
    file = written(tmp_path) / "suite.toml"
    text = file.read_text(encoding="utf-8")
    assert "known = 'known.toml'\n" in text
    file.write_text(text.replace("known = 'known.toml'\n", ""), encoding="utf-8")
    with pytest.raises(SuiteError, match=r'the run passes whatever your functions return\. Add known = "known.toml"'):
        suites.read(file)


def test_every_view_names_functions_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = written(tmp_path, f"{NAMES}global_norm = 'clip.py:total'".replace("clip.py:clip'", "clip.py:off'"))
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(where), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    line = "Compared with exact arithmetic: unified_clip, clip.py:off (numpy), clip.py:in_place (numpy), clip.py:each "
    line += "(numpy) and clip.py:total (numpy)."
    problem = f"numpy, clip.py:off: {GLOBAL}: numbers differ, by 0.18 %; not listed as a known difference; "
    assert line in printed
    assert problem in printed
    assert "FAIL: 4 cases on numpy: 1 result of your functions not listed as known differences." in printed
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert all("clip.py:off" in text for text in texts.values())
    assert all("your function" in texts[suffix] for suffix in (".html", ".md", ".xml"))
    assert line in texts[".html"]
    assert line in texts[".md"]
    natives = [each["frameworks"]["numpy"]["native"] for each in json.loads(texts[".json"])["cases"]]
    assert [each["verdict"] for each in natives] == ["different", "close", "equal", "equal"]
    assert '<testsuite name="numpy, your function clip.py:off" tests="1" failures="1"' in texts[".xml"]


def called(folder: Path, body: str, one: Case | None = None, returns: str = "") -> dict[str, Any]:
    """The result of a function with this body, in this process, as the worker writes it."""
    file = Path(tempfile.mkdtemp(dir=folder)) / "clip.py"  # Python keeps the compiled code of a path for a second
    file.write_text(f"import numpy as np\ndef clip(grads, limit):\n    {body}\n", encoding="utf-8")
    user_function._load.cache_clear()  # of the file of an earlier call
    one = one or case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    described = {"call": one.call_name, "arguments": one.arguments, "call_form": one.call_form.model_dump()}
    described |= {"update": False, "raises": "", "user_function": None}
    described["user_function"] = UserFunction("clip.py:clip", file, "clip", f"numpy.{one.call_name}", returns)
    ((result, _),) = worker.run_cases(Adapter(), unified_clip.numpy, "native", [(described, one.gradients)])
    return result


WRONG_RESULTS = {
    "return grads": "clip.py:clip returned a list of 2",
    "raise SystemExit(3)": "clip.py:clip ended with SystemExit: 3. Return a result, or raise an error",
    "return grads[:1]": "clip.py:clip returned a list of 1. Return \\(clipped gradients, norm\\)",
    "pass": "returned None. Return",
    "return ['a', 'b'], 1.0": "returned str as a clipped gradient. Return",
    "return [Box() for g in grads], 1.0\nclass Box: pass": "returned clip.Box as a clipped gradient. Return",
    "return grads, 1.0\nassert not clip": "the file cannot be imported: line 4: AssertionError. Correct the file",
    "return grads, None": "returned a tuple of 2 whose norm is None. .*Or, if it returns gradients only, write "
    "clip_by_global_norm = .gradients. under .frameworks.numpy.returns.",
    "return grads, grads[0]": "returned numpy.ndarray with 2 elements as the norm. Return a norm with one element",
    "return grads, 1.0\nraise KeyError(3)": "the file cannot be imported: line 4: KeyError: 3. Correct the file",
    "return grads, 1.0\ndel clip": "the file has no function 'clip'. Correct the name",
    "return grads, 1.0\nclip = 3": "clip.py:clip is of type int, not a function. Write the name of a function",
}
"""The body of a function, and the error."""


def test_a_result_of_a_wrong_type_is_no_difference_that_could_be_accepted(tmp_path: Path) -> None:
    for body, message in WRONG_RESULTS.items():
        result = called(tmp_path, body)
        assert set(result) == {"unreadable"}, body
        assert re.search(message, result["unreadable"])


IN_PLACE = {
    "grads[:] = [g * 0 for g in grads]\n    return 1.0": "replaced items of its first argument, which changes no "
    "gradient of the caller. For each item, write gradient",
    "return [g * 0 for g in grads]": "returned a list of 2. Return the norm, and write the "
    "clipped values into the gradients. Or, if it returns gradients",
}
"""The body of a function that clips in place, and the error."""


def test_a_result_that_an_in_place_call_loses_is_an_error(tmp_path: Path) -> None:
    one = case([*WORKED], "clip_grad_norm_", max_norm=0.5)
    for body, message in IN_PLACE.items():
        assert re.search(message, called(tmp_path, body, one)["unreadable"]), body
    assert called(tmp_path, "grads[0][...] = 0\n    return 1.0", one)["name"] == "clip.py:clip"


def test_a_norm_that_is_not_returned_has_to_be_declared(tmp_path: Path) -> None:
    """A function that no longer returns its norm must not pass."""
    one = case([*WORKED], "clip_grad_norm_", max_norm=0.5)
    error = called(tmp_path, "grads[0][...] = 0", one)["unreadable"]
    advice = 'Or, if it returns no norm, write clip_grad_norm_ = "nothing" under [frameworks.numpy.returns]'
    assert error == f"clip.py:clip returned None. Return the norm. {advice}"
    assert called(tmp_path, "grads[0][...] = 0", one, "nothing")["name"] == "clip.py:clip"
    error = called(tmp_path, "grads[0][...] = 0\n    return 1.0", one, "nothing")["unreadable"]
    assert "Remove clip_grad_norm_ from [frameworks.numpy.returns], so that the norm is compared" in error
    by_value = case([*WORKED], "clip_grad_value_", clip_value=0.5)
    assert called(tmp_path, "grads[0][...] = 0", by_value)["name"] == "clip.py:clip"


def test_a_function_may_return_gradients_only(tmp_path: Path) -> None:
    for one in (
        case([*WORKED], "clip_grad_norm_", max_norm=0.5),
        case([*WORKED], "clip_by_global_norm", clip_norm=0.5),
    ):
        for body in ("return [g * 1 for g in grads]", "return [g * 1 for g in grads], None"):
            result = called(tmp_path, body, one, "gradients")
            assert (result.get("name"), result.get("fault")) == ("clip.py:clip", ""), result
        assert "returned float as a clipped gradient" in called(tmp_path, "return 1.0", one, "gradients")["unreadable"]


def test_the_remedy_for_a_wrong_result_is_not_rejected_again(tmp_path: Path) -> None:
    """Whatever the function returns, each setting that an error advises accepts the function."""
    returned = "return [g * 1 for g in grads]"
    both, only = f"{returned}, 1.0", returned
    global_ = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    norm, value = case([*WORKED], "clip_grad_norm_", max_norm=0.5), case([*WORKED], "clip_grad_value_", clip_value=0.5)
    error = called(tmp_path, both, global_, "gradients")["unreadable"]
    assert "returned a norm, too. Remove clip_by_global_norm from [frameworks.numpy.returns]" in error
    assert called(tmp_path, both, global_)["name"] == "clip.py:clip"
    for one in (norm, value):
        for returns in ("", "gradients"):
            error = called(tmp_path, both, one, returns)["unreadable"]
            advice = f'with {one.call_name} = "gradients" under [frameworks.numpy.returns]'
            problem = f"returned (clipped gradients, norm), which {one.call_name} cannot return"
            assert f"{problem}. Write a function that calls yours" in error
            assert advice in error
            assert ("Or name yours for clip_by_global_norm" in error) == (one is norm)
            assert ("To compare the norm, too, write the adapter of docs/own" in error) == (one is norm)
    for one in (global_, norm, value):
        error = called(tmp_path, only, one)["unreadable"]
        assert f'if it returns gradients only, write {one.call_name} = "gradients" under' in error
        assert called(tmp_path, only, one, "gradients")["name"] == "clip.py:clip"


ONLY = """
def only(grads, max_norm):
    return clip(grads, max_norm, 1e-6)[0]

def without_eps(grads, max_norm):
    return clip(grads, max_norm)[0]
"""


def test_reports_say_that_a_norm_was_not_compared_and_find_causes_without_it(tmp_path: Path) -> None:
    small = (
        CASES.replace("max_norm = 0.5", "max_norm = 1e-6").replace("3.0, 4.0", "3e-6, 4e-6").replace("1.0, 2.0", "1e-6")
    )
    table = (
        "clip_by_global_norm = 'clip.py:only'\nclip_grad_norm_ = 'clip.py:without_eps'\n[frameworks.numpy.returns]\n"
    )
    table += "clip_by_global_norm = 'gradients'\nclip_grad_norm_ = 'gradients'"
    one = suites.read(
        written(tmp_path, table, CLIP + ONLY, cases=small.replace("clip_norm = 0.5", "clip_norm = 100.0", 1))
    )
    run = run_suite.run(one)
    above, below = (each.frameworks["numpy"].native for each in run.cases[:2])
    assert above
    assert below
    assert (above.verdict, above.norm) == ("no norm", None)
    assert "as with eps 0 instead of 1e-06" in below.problem
    assert "clip.py:only (numpy, no norm)" in compared.line(run)
    assert markdown.native(run.cases[0].frameworks["numpy"]) == "no norm"
    assert run.summary.natives["numpy"] == {"different": 1, "no norm": 1}
    assert "numpy, your function: clip.py:only: no norm" in "\n".join(terminal_case.lines(run))


NOOP = """
def nothing(grads, max_norm):
    return grads, float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads)))
"""


@pytest.mark.parametrize(
    ("tensors", "threshold", "untested"),
    [
        ("{ values = [3.0, 4.0] }", "100.0", "clip.py:nothing (numpy)"),
        ("{ values = [0.0, 0.0] }", "0.5", "unified_clip"),
        ("{ values = [], shape = [0, 3] }", "0.5", "unified_clip"),
    ],
)
def test_cases_that_test_nothing_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tensors: str, threshold: str, untested: str
) -> None:
    """A function that does nothing would pass."""
    cases = f"""
    [[gradients]]
    name = "given"
    tensors = [{tensors}]
    [[cases]]
    gradients = ["given"]
    calls = [{{ call = "clip_by_global_norm", clip_norm = {threshold} }}, {{ call = "global_norm" }}]
    """
    where = written(tmp_path, "clip_by_global_norm = 'clip.py:nothing'", CLIP + NOOP, cases=cases)
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(where), "--out", str(out)]) == 3
    printed = capsys.readouterr().out
    assert f"nothing tests {untested}: in each of its cases, the exact result equals the gradients" in printed
    assert f"FAIL: 2 cases on numpy: nothing tests {untested}." in printed
    assert len(list(fromstring((out / "parity.xml").read_text(encoding="utf-8")).iter("error"))) == 1
    name = f"given: clip_by_global_norm(clip_norm={threshold})"
    assert cli.main(["parity", "--suite", str(where), "--case", name]) == 0


def test_errors_and_other_dtypes_are_differences(tmp_path: Path) -> None:
    assert called(tmp_path, "raise KeyError(3)")["message"] == "KeyError: 3"
    right = called(tmp_path, "return list(grads), 1.0")
    assert (right["name"], right["fault"]) == ("clip.py:clip", "")
    one = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    outcome = CallOutcome(name="clip.py:clip", fault=called(tmp_path, "return [g * 1.0 for g in grads], 1.0")["fault"])
    assert outcome.fault == ""
    outcome.fault = called(tmp_path, "return [np.float64(g) for g in grads], 1.0")["fault"]
    deviation = measure.measure(one, oracle.expect(one), outcome)
    assert deviation
    assert (deviation.kind, deviation.detail) == ("form", "gradient 0 is float64 instead of float32")


def test_required_arguments_are_passed_by_position_and_optional_ones_by_keyword(tmp_path: Path) -> None:
    one = case([*WORKED], "clip_by_global_norm", clip_norm=0.5, use_norm=2.0)
    assert "unexpected keyword argument 'use_norm'" in called(tmp_path, "return grads, 1.0", one)["message"]
    assert called(tmp_path, "return grads, limit", dataclasses.replace(one, arguments={"clip_norm": 0.5}))["name"]


WRONG_TABLES = [
    (
        "clip_by_global_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nclip_by_global_norm = 'nothing'",
        "",
        'clip_grad_norm_, not for clip_by_global_norm. Write "gradients", or remove this line',
    ),
    (
        "clip_by_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nclip_by_norm = 'gradients'",
        "",
        "whose result has one form only. Remove this line",
    ),
    (
        "clip_by_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nglobal_norm = 'gradients'",
        "",
        "functions has no global_",
    ),
    ("clip_by_norm = 'clip.py'", "", "clip_by_norm: it is 'clip.py'. Give a file and its function"),
    ("clip_by_norn = 'clip.py:clip'", "", "clip_by_norn: there is no such function. Did you mean clip_by_norm?"),
    ("GradientClipByNorm = 'clip.py:clip'", "", "your function cannot replace a class, a hook or an adaptive rule."),
    (
        "clip_by_norm = 'clip.py:clip'",
        "modes = ['host']",
        "the mode that runs the function. Add 'native' to frameworks.numpy.modes",
    ),
    ("clip_by_norm = 'clap.py:clip'", "", "clap.py. clip.py defines 'clip'. Write clip_by_norm = \"clip.py:clip\""),
    ("clip_by_norm = 'clap.py:clap'", "", "there is no file {}/clap.py. Correct the path"),
    (
        "clip_by_norm = './clip.py:clap'",
        "",
        "{}/clip.py has no function 'clap'. Its functions are total, clip, off, in_place, each. "
        'Write clip_by_norm = "clip.py:clip"',
    ),
    (
        "clip_by_norm = 'clip.py:normalized'",
        "",
        'Its functions are total, clip, off, in_place, each. Write clip_by_norm = "clip.py:FUNCTION" with one',
    ),
    ("clip_by_norm = 'empty.py:clip'", "", "clip.py defines 'clip'. Write clip_by_norm = \"clip.py:clip\""),
    ("clip_by_norm = 'empty.py:clap'", "", "{}/empty.py has no function 'clap'. Correct the name, or the path"),
    ("clip_by_norm = 'many.py:clap'", "", "Its functions are f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, 2 more. Write"),
    ("clip_by_norm = 'cases.py:clip'", "", "cases.py is not valid Python: line 2: "),
    ("clip_by_value = 'clip.py:clip'", "", "no case calls clip_by_value in the mode native on numpy. Add clip_by"),
]
"""The functions, other keys of the framework, and the error."""


def test_a_function_that_could_not_run_is_an_error_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text("\n[[cases", encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    (tmp_path / "many.py").write_text("".join(f"def f{i}(): ...\n" for i in range(12)), encoding="utf-8")
    for functions, more, message in WRONG_TABLES:
        with pytest.raises(SuiteError, match=re.escape(message.format(tmp_path))):
            suites.read(written(tmp_path, functions, more=more))
    assert len(suites.read(written(tmp_path, "clip_by_norm = 'clip.py:clip'")).frameworks["numpy"].functions) == 1


def test_cases_of_other_frameworks_or_modes_do_not_count_as_calls(tmp_path: Path) -> None:
    for only in ("modes = ['host']", "frameworks = ['torch']"):
        cases = f"{CASES}\n{only}"
        where = written(tmp_path, "clip_by_norm = 'clip.py:clip'", cases=cases)
        with (where / "suite.toml").open("a", encoding="utf-8") as file:
            file.write("[frameworks.torch]")
        with pytest.raises(SuiteError, match="no case calls clip_by_norm"):
            suites.read(where)


def test_functions_that_a_run_leaves_out_are_named(tmp_path: Path) -> None:
    where = written(tmp_path, NAMES)
    chosen = suites.only_cases(suites.read(where), [GLOBAL], suites.read(where))
    notes = [f"Not called in this run: clip.py:{name} (numpy)." for name in ("in_place", "each")]
    run = run_suite.run(chosen)
    assert run.notes == notes
    assert compared.line(run) == "Compared with exact arithmetic: unified_clip and clip.py:clip (numpy)."


def test_a_run_that_leaves_out_all_functions_of_the_user_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = written(tmp_path)
    command = ["parity", "--suite", str(where), "--out", str(tmp_path / "out"), "--without"]
    assert cli.main([*command, "native"]) == 2
    none = "--without native: the run would call none of your functions (clip.py:clip, clip.py:in_place, clip.py:each)"
    assert f"{none}, which need numpy:native. Remove --without" in capsys.readouterr().err
    two = where / "suite.toml"
    frameworks = "[frameworks.torch]\n[frameworks.torch.functions]\nglobal_norm = 'clip.py:total'\n"
    two.write_text(two.read_text(encoding="utf-8") + frameworks, encoding="utf-8")
    assert cli.main([*command, "native,torch:device"]) == 2
    assert "which need numpy:native or torch:native. Type --without torch:device" in capsys.readouterr().err
    assert suites.without(suites.read(where), ["torch:native"]).frameworks["numpy"].modes[-1] == "native"


def test_a_function_whose_result_is_unreadable_was_called(tmp_path: Path) -> None:
    code = CLIP + "\ndef lost(grads, limit):\n    return 3\n"
    run = run_suite.run(suites.read(written(tmp_path, "clip_by_norm = 'clip.py:lost'", code)))
    assert run.notes == []
    assert run.is_incomplete


def test_tables_of_many_cases_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = FrameworkResult(native=native("different", problem="no"))
    for count, tables in ((2, 2), (terminal.MOST_CASES + 1, 0)):
        run = report(*(one_case(f"case {number}", torch=failing) for number in range(count)))
        terminal.show(run, tmp_path)
        printed = capsys.readouterr().out
        assert printed.startswith(f"torch, clip: {count} cases, first case 0: no")
        assert printed.count("┃ case") == tables
        assert (f"parity.md has tables of the {count} cases" in printed) == (not tables)


def test_accepted_errors_have_the_error_as_their_reason(tmp_path: Path) -> None:
    cases = [
        one_case(name, torch=FrameworkResult(native=native(norm=None, kind="raises", detail=detail)))
        for name, detail in {"a": "KeyError: 3", "b": "KeyError: 3", "c": "TypeError: 4", "d": "TypeError: 5"}.items()
    ]
    update.write(tmp_path / "known.toml", report(*cases))
    what = "it raises an error, but should return a result"
    assert [(entry.cases, entry.reason) for entry in entries.read(tmp_path / "known.toml")] == [
        (["a", "b"], f"{what}: KeyError: 3"),
        (["c", "d"], f"{what}: TypeError: 4 (in the first of 2 cases)"),
    ]


def clipped(norm: float, *gradients: list[float], raised: Any = ()) -> CallOutcome:
    return CallOutcome(dense(norm), [dense(values) for values in gradients], raised=raised, name="clip.py:f")


def test_functions_of_two_frameworks_are_compared_with_each_other() -> None:
    one = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    first = clipped(5.0, [0.3, 0.4], [0.1, 0.2])
    others = {
        ("equal", "equal"): first,
        ("close", "close, by 1.5e-06"): clipped(5.0, [0.3, 0.4000006], [0.1, 0.2]),
        ("different", "different, by 20 %"): clipped(5.0, [0.3, 0.5], [0.1, 0.2]),
        ("known", "known, by 17 %"): clipped(6.0, [0.3, 0.4], [0.1, 0.2]),
        ("known", "known, only one of them has inf or NaN in the norm"): clipped(math.inf, [0.3, 0.4], [0.1, 0.2]),
        ("known", "known, they return gradients of other shapes"): clipped(5.0, [0.3, 0.4, 0.1, 0.2]),
        ("different", "different, only one of them raises an error"): clipped(5.0, raised=["KeyError"]),
        ("known", "known, the list of gradients is long: compared with the exact result only"): None,
    }
    for (verdict, words), other in others.items():
        natives = {name: native(function="clip.py:f", verdict=kind) for name, kind in (("a", "equal"), ("b", verdict))}  # type: ignore[arg-type]
        natives["c"] = native("equal", function="optax.clip")
        outcomes = {"a": first, "b": other, "c": first}
        (pair,) = own_pairs.compare(one, natives, outcomes, dict.fromkeys("abc", Framework()))
        assert own_pairs.in_words(pair) == words
        assert (pair.left, pair.right, pair.verdict) == ("a", "b", verdict)


def test_functions_that_return_the_same_numbers_in_other_shapes_differ() -> None:
    one = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
    row, column = (
        CallOutcome(dense(5.0), [Dense("float32", np.ones(shape, np.float32))], name="clip.py:f")
        for shape in ((1, 4), (2, 2))
    )
    natives = {name: native(function="clip.py:f", verdict="known") for name in "ab"}
    (pair,) = own_pairs.compare(one, natives, {"a": row, "b": column}, dict.fromkeys("ab", Framework()))
    assert own_pairs.in_words(pair) == "known, they return gradients of other shapes"


def own_results(*calls: tuple[str, str], pairs: Sequence[tuple[str, str]] = ()) -> list[CaseResult]:
    """A case for each (framework, public name), with a result of a function of the user."""
    cases = []
    for framework, call in calls:
        result = FrameworkResult(native=native("equal", function="clip.py:f"))
        changes: dict[str, Any] = {"call": call, "own_pairs": []}
        if pairs:
            changes["own_pairs"] = [OwnPair(left=a, right=b, verdict="equal", size=0.0, detail="") for a, b in pairs]
        cases.append(one_case(f"{framework} {call}", **{framework: result}).model_copy(update=changes))
    return cases


def test_functions_without_a_common_name_are_named_with_what_to_write() -> None:
    jax = Framework(functions={"clip_by_global_norm": "j.py:f"})
    torch = Framework(functions={"clip_grad_norm_": "t.py:f"})
    both = {"torch": torch, "jax": jax}
    (note,) = own_pairs.uncompared(own_results(("torch", "clip_grad_norm_"), ("jax", "clip_by_global_norm")), both)
    assert note == (
        "Your functions that were not compared with each other: t.py:f (torch, clip_grad_norm_), j.py:f (jax, "
        "clip_by_global_norm). Functions of two frameworks are compared if both are listed under one name. For "
        "example, "
        "write a function that calls t.py:f and has the signature of clip_by_global_norm, and add under "
        '[frameworks.torch.functions]: clip_by_global_norm = "FILE.py:FUNCTION". See '
        "docs/own-functions.md#your-functions-with-each-other."
    )
    same = {"torch": Framework(functions={"clip_by_global_norm": "t.py:f"}), "jax": jax}
    calls = [(name, "clip_by_global_norm") for name in same]
    (note,) = own_pairs.uncompared(own_results(*calls), same)
    assert note.endswith("(jax, clip_by_global_norm). No case has results of two of them.")
    assert own_pairs.uncompared(own_results(*calls, pairs=[("torch", "jax")]), same) == []
    assert own_pairs.uncompared(own_results(("torch", "clip_grad_norm_")), both) == []
    adapted = {"torch": Framework(functions={**torch.functions, "clip_by_global_norm": "t.py:adapter"}), "jax": jax}
    cases = own_results(("torch", "clip_grad_norm_")) + own_results(*calls, pairs=[("torch", "jax")])
    assert own_pairs.uncompared(cases, adapted) == []
    per_tensor = {"torch": torch, "jax": Framework(functions={"clip_by_norm": "j.py:each"})}
    cases = own_results(("torch", "clip_grad_norm_"), ("jax", "clip_by_norm"))
    (note,) = own_pairs.uncompared(cases, per_tensor)
    assert "For example" not in note  # an adapter could not turn one rule into the other
    assert note.endswith("are listed under one name. See docs/own-functions.md#your-functions-with-each-other.")
    third = {**same, "numpy": Framework(functions={"clip_by_value": "n.py:f"})}
    cases = own_results(*calls, pairs=[("torch", "jax")]) + own_results(("numpy", "clip_by_value"))
    (note,) = own_pairs.uncompared(cases, third)
    assert "other: n.py:f (numpy, clip_by_value). Functions of" in note
    assert own_pairs.uncompared(own_results(("jax", "clip_by_global_norm")), {"jax": jax}) == []


def test_reports_have_the_comparison_of_functions_with_each_other() -> None:
    pairs = [
        OwnPair(left="jax", right="numpy", verdict=verdict, size=0.5, detail="")
        for verdict in ("different", "known", "equal")
    ]
    cases = [one_case(pair.verdict).model_copy(update={"own_pairs": [pair]}) for pair in pairs]
    run = report(*cases)
    line = "Your functions with each other, jax and numpy: 1 different, 1 equal, 1 known."
    assert line in markdown.headline(run)
    assert "## Your functions with each other" in markdown.as_markdown(run)
    assert "| known | jax and numpy | known | 5.0e-01 | - |" in markdown.as_markdown(run)
    (own,) = [each for each in fromstring(junit.as_xml(run)) if each.get("name") == "between your functions"]
    assert [own.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    assert "jax and numpy, your functions with each other: known, by 50 %" in "\n".join(terminal_case.lines(run))


def test_views_keep_the_frameworks_functions_and_those_of_the_user_apart() -> None:
    results = [native("equal", function="clip"), native("different", function="clip.py:f", problem="no")]
    run = report(
        *(one_case(name, torch=FrameworkResult(native=each)) for name, each in zip("ab", results, strict=True))
    )
    assert compared.line(run).endswith("the frameworks' own functions and clip.py:f (torch).")
    assert "1 result of the frameworks' functions and yours not listed" in run.verdict
    assert "torch, framework&#39;s or your function" in page.render(run)
    names = [each.get("name") for each in fromstring(junit.as_xml(run))]
    assert names[:2] == ["torch, framework's function", "torch, your function clip.py:f"]
    assert "  torch, your function: clip.py:f: different: no" in terminal_case.lines(run)
    assert [key[1] for key in baseline._entries(run) if key[0]] == ["framework's function", "your function"]
    assert "The frameworks' functions and yours: torch 1 equal, 1 different." in markdown.headline(run)


def test_a_function_without_a_result_keeps_its_name() -> None:
    framework, one = Framework(functions={"global_norm": "clip.py:f"}), case([dense([1.0])], "global_norm")
    failure = Failure("unreadable", "why")
    result = judge_result(WorkItem(NATIVE, one), oracle.expect(one), failure, framework, ()).result
    assert isinstance(result, NativeResult)
    run = report(one_case("a", torch=FrameworkResult(native=result)))
    assert run.exit_code == 3
    assert compared.line(run) == "Compared with exact arithmetic: nothing."
    assert markdown.problem_lines(run) == ["torch, your function, unreadable: a: why"]
    assert markdown.native(run.cases[0].frameworks["torch"]) == "unreadable"


def test_a_suite_whose_list_does_not_exist_yet_prints_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = written(tmp_path, NAMES.replace("clip.py:clip'", "clip.py:off'"))
    (where / "known.toml").unlink()
    note = "known.toml does not exist, so every difference fails. To list the differences, run unified-clip parity "
    note += f"--suite {where} --accept"
    assert cli.main(["parity", "--suite", str(where), "--case", GLOBAL]) == 1
    printed = capsys.readouterr().out
    assert "numpy, your function: clip.py:off: different: numbers differ, by 0.18 %" in printed
    assert note in printed
    assert cli.main(["parity", "--suite", str(where), "--out", str(tmp_path / "out")]) == 1
    assert note in capsys.readouterr().out


def test_accepting_a_large_difference_does_not_cover_a_small_one(tmp_path: Path) -> None:
    sizes = {"large": 1.0, "inf": math.inf, "small": 0.002, "alike": 0.0015}
    cases = [one_case(name, torch=FrameworkResult(native=native(norm=size))) for name, size in sizes.items()]
    update.write(tmp_path / "known.toml", report(*cases))
    listed = {tuple(entry.cases): (entry.size, entry.not_finite) for entry in entries.read(tmp_path / "known.toml")}
    assert listed == {("large",): (1.0, ""), ("inf",): (0.0, "norm"), ("alike", "small"): (0.002, "")}


def test_accepting_writes_an_entry_for_each_cause_and_the_cause_as_its_reason(tmp_path: Path) -> None:
    causes = {
        "a": ("another eps", "as with eps 0 instead of 1e-06"),
        "b": ("another eps", "as with eps 0 instead of 1e-06"),
        "c": ("another threshold", "as with a threshold of 2 instead of 1"),
        "d": ("another threshold", "as with a threshold of 3 instead of 1"),
        "e": ("", ""),
    }
    cases = [
        one_case(name, torch=FrameworkResult(native=native(norm=0.02, cause_kind=kind, cause=sentence)))
        for name, (kind, sentence) in causes.items()
    ]
    update.write(tmp_path / "known.toml", report(*cases))
    assert {tuple(entry.cases): entry.reason for entry in entries.read(tmp_path / "known.toml")} == {
        ("a", "b"): "as with eps 0 instead of 1e-06",
        ("c", "d"): "as with a threshold of 2 instead of 1 (in the first of 2 cases)",
        ("e",): "numbers differ",
    }


UNBOUNDED = """
[[known]]
framework = "torch"
title = "no number"
function = "clip"
kind = "value"
size = inf
cases = ["n*"]
reason = "inf / inf"
"""


def test_an_entry_without_a_bound_is_rejected_and_accepting_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f"{UNBOUNDED}\n{UNBOUNDED.replace('torch', 'jax')}", encoding="utf-8")
    with pytest.raises(
        SuiteError, match=r"size = inf would accept any number, in 2 of 2 entries.*Run the command with --accept once"
    ):
        entries.read(file)
    found = {("torch", "no norm"): (0.0, "norm"), ("torch", "nothing"): (0.5, "norm"), ("torch", "now"): (4.0, "")}
    known = [entry for entry in entries.read(file, accepting=True) if entry.framework == "torch"]
    deviations = {
        place: NativeDeviation("clip", "value", size, not_finite=where) for place, (size, where) in found.items()
    }
    judgements, results = match.match_deviations(known, deviations, {"torch": {}})
    cases = [
        one_case(
            name,
            torch=FrameworkResult(
                native=native(finite_size=size, not_finite=where, problem=judgements["torch", name][1])
            ),
        )
        for (_, name), (size, where) in found.items()
    ]
    update.write(file, report(*cases, known=results))
    listed = [
        (entry.framework, entry.size, entry.not_finite, entry.title, entry.reason) for entry in entries.read(file)
    ]
    assert listed == [
        ("torch", 0.5, "norm", "no number", "inf / inf"),
        ("torch", 4.0, "", "no number", "inf / inf"),
        ("jax", 0.0, "norm and gradients", "no number", "inf / inf"),
    ]
