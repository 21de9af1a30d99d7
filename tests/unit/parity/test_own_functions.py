"""Functions of the user in suites: they are judged as a framework's functions, and every report names them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from support.parity.cases import case, dense, suite
from support.parity.reports import native, one_case, report

from unified_clip import cli
from unified_clip.parity import exit_status, run_suite
from unified_clip.parity.call_outcome import Failure
from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.judged_result import judge_result
from unified_clip.parity.modes import NATIVE
from unified_clip.parity.report import compared_functions, junit, markdown, page, terminal, terminal_case
from unified_clip.parity.results import FrameworkResult, NativeResult
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import select
from unified_clip.parity.suite.schema import FrameworkTable, SuiteError
from unified_clip.parity.workers.worker_files import WorkItem

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


def write_suite(folder: Path, functions: str = NAMES, code: str = CLIP, more: str = "", cases: str = CASES) -> Path:
    (folder / "clip.py").write_text(code, encoding="utf-8")
    return suite(folder, cases, frameworks=f"[frameworks.numpy]\n{more}\n[frameworks.numpy.functions]\n{functions}")


def test_a_suite_compares_several_functions_of_one_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [
        f"[frameworks.{name}]\nframework = 'numpy'\n[frameworks.{name}.functions]\n"
        f"clip_by_global_norm = 'clip.py:{function}'\n"
        for name, function in (("first", "clip"), ("second", "off"), ("third", "in_place"))
    ]
    write_suite(tmp_path, "", more="\n".join(tables))
    read = suites.read(tmp_path)
    modes = {name: list(table.modes) for name, table in read.frameworks.items()}
    assert modes == {"numpy": ["host"], "first": [NATIVE], "second": [NATIVE], "third": [NATIVE]}
    assert cli.main(["parity", "--suite", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    cause = "as if the threshold were 0.499089 instead of 0.5, or as if eps were 0.01 instead of 0"
    assert f"- second, clip.py:off: {cause} (numbers differ by 0.18 %). Case: worked example: " in printed
    assert "Your functions for first and second, compared with each other: 1 different." in printed
    assert "under [frameworks.third.returns]" in printed


def test_functions_of_the_user_need_a_list_of_known_differences(tmp_path: Path) -> None:
    file = write_suite(tmp_path) / "suite.toml"
    text = file.read_text(encoding="utf-8")
    assert "known = 'known.toml'\n" in text
    file.write_text(text.replace("known = 'known.toml'\n", ""), encoding="utf-8")
    with pytest.raises(SuiteError, match=r'the run passes even if your functions are wrong\. Add known = "known.toml"'):
        suites.read(file)


def test_every_view_names_functions_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = write_suite(tmp_path, f"{NAMES}global_norm = 'clip.py:total'".replace("clip.py:clip'", "clip.py:off'"))
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(where), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    line = "Compared with exact arithmetic in 4 cases on numpy: unified_clip, clip.py:off (numpy), clip.py:in_place "
    line += "(numpy), clip.py:each (numpy) and clip.py:total (numpy)."
    cause = "as if the threshold were 0.499089 instead of 0.5, or as if eps were 0.01 instead of 0"
    problem = f"numpy, clip.py:off: {cause} (numbers differ by 0.18 %)"
    assert line in printed
    assert problem in printed
    verdict = f"FAIL: 1 of 4 results of your functions is wrong (numpy, clip.py:off: {cause})."
    assert printed.startswith(verdict)
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert all("clip.py:off" in text for text in texts.values())
    assert all("your function" in texts[suffix] for suffix in (".html", ".md", ".xml"))
    assert line in texts[".html"]
    assert line in texts[".md"]
    natives = [each["frameworks"]["numpy"]["native"] for each in json.loads(texts[".json"])["cases"]]
    assert [each["verdict"] for each in natives] == ["different", "close", "equal", "equal"]
    assert '<testsuite name="numpy, your function clip.py:off" tests="1" failures="1"' in texts[".xml"]


GRADIENTS_ONLY = """
def only(grads, max_norm):
    return clip(grads, max_norm, 1e-6)[0]

def without_eps(grads, max_norm):
    return clip(grads, max_norm)[0]
"""


def test_reports_name_functions_without_a_norm_and_find_their_causes(tmp_path: Path) -> None:
    small = (
        CASES.replace("max_norm = 0.5", "max_norm = 1e-6").replace("3.0, 4.0", "3e-6, 4e-6").replace("1.0, 2.0", "1e-6")
    )
    table = (
        "clip_by_global_norm = 'clip.py:only'\nclip_grad_norm_ = 'clip.py:without_eps'\n[frameworks.numpy.returns]\n"
    )
    table += "clip_by_global_norm = 'gradients'\nclip_grad_norm_ = 'gradients'"
    small_suite = suites.read(
        write_suite(
            tmp_path, table, CLIP + GRADIENTS_ONLY, cases=small.replace("clip_norm = 0.5", "clip_norm = 100.0", 1)
        )
    )
    run = run_suite.run(small_suite)
    above, below = (each.frameworks["numpy"].native for each in run.cases[:2])
    assert above
    assert below
    assert (above.verdict, above.norm) == ("no norm", None)
    assert "as if eps were 0 instead of 1e-06" in below.problem
    assert "clip.py:only (numpy, gradients only)" in compared_functions.line(run)
    assert markdown.native(run.cases[0].frameworks["numpy"]) == "no norm"
    assert run.summary.natives["numpy"] == {"different": 1, "no norm": 1}
    assert "numpy, your function: clip.py:only: no norm" in "\n".join(terminal_case.lines(run))


RAISING = """
def raising(grads, max_norm):
    if max_norm < 1:
        raise RuntimeError("no device")
    return clip(grads, max_norm)
"""


@pytest.mark.parametrize(("threshold", "is_compared"), [("0.5", False), ("2.0", True)])
def test_a_function_that_always_raises_fails_the_run_and_is_not_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threshold: str, is_compared: bool
) -> None:
    """A list that accepts its error would hide that nothing was compared."""
    cases = f"""
    [[gradients]]
    name = "given"
    tensors = [{{ values = [3.0, 4.0] }}]
    [[cases]]
    gradients = ["given"]
    calls = [
        {{ call = "clip_by_global_norm", clip_norm = 0.25 }},
        {{ call = "clip_by_global_norm", clip_norm = {threshold} }},
    ]
    """
    where = write_suite(tmp_path, "clip_by_global_norm = 'clip.py:raising'", CLIP + RAISING, cases=cases)
    out = tmp_path / "out"
    command = ["parity", "--suite", str(where), "--out", str(out)]
    assert cli.main(command) == 1
    verdict = capsys.readouterr().out.splitlines()[0]
    assert "results of your functions" in verdict
    assert "was compared" not in verdict  # the error itself is the finding
    assert cli.main([*command, "--accept"]) == (0 if is_compared else 1)
    known = where / "known.toml"
    assert ("RuntimeError" in known.read_text(encoding="utf-8")) == is_compared
    known.write_text(
        "[[known]]\nframework = 'numpy'\nfunction = 'clip.py:raising'\nsize = 'raises RuntimeError'\n"
        "cases = ['*']\nreason = 'no device'\n",
        encoding="utf-8",
    )
    capsys.readouterr()
    assert cli.main(command) == (0 if is_compared else 3)
    printed = capsys.readouterr().out
    why = "no result of clip.py:raising (numpy) was compared: the function raised an error in each case that should "
    why += "return a result"
    assert (why in printed) != is_compared
    errors = list(fromstring((out / "parity.xml").read_text(encoding="utf-8")).iter("error"))
    assert len(errors) == (not is_compared)
    case_name = "given: clip_by_global_norm(clip_norm=0.25)"  # its other cases may return a result
    assert cli.main(["parity", "--suite", str(where), "--case", case_name]) == 0
    assert "was compared" not in capsys.readouterr().out


@pytest.mark.parametrize(("function", "fails"), [("clip.py:clip", True), ("optax.clip", False)])
def test_a_framework_may_reject_all_cases_that_are_known_differences(function: str, fails: bool) -> None:
    raising = FrameworkResult(host=None, native=native("known", None, "raises", function=function))
    assert exit_status.always_raising(report(one_case(numpy=raising))) == ([f"{function} (numpy)"] if fails else [])


NOTHING = """
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
    where = write_suite(tmp_path, "clip_by_global_norm = 'clip.py:nothing'", CLIP + NOTHING, cases=cases)
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(where), "--out", str(out)]) == 3
    printed = capsys.readouterr().out
    assert (
        f"nothing tests {untested}: in each case that could test it, the exact result equals the gradients" in printed
    )
    assert printed.startswith(f"FAIL: nothing tests {untested}.")
    assert len(list(fromstring((out / "parity.xml").read_text(encoding="utf-8")).iter("error"))) == 1
    name = f"given: clip_by_global_norm(clip_norm={threshold})"
    assert cli.main(["parity", "--suite", str(where), "--case", name]) == 0


WRONG_TABLES = [
    (
        "clip_by_global_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nclip_by_global_norm = 'nothing'",
        "",
        'clip_grad_norm_, but not for clip_by_global_norm. Write "gradients", or remove this line',
    ),
    (
        "clip_by_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nclip_by_norm = 'gradients'",
        "",
        "because the result of clip_by_norm always has the same form. Remove this line",
    ),
    (
        "clip_by_norm = 'clip.py:clip'\n[frameworks.numpy.returns]\nglobal_norm = 'gradients'",
        "",
        "functions has no global_",
    ),
    ("clip_by_norm = 'clip.py'", "", "clip_by_norm: it is 'clip.py'. Give a file and a function name"),
    ("clip_by_norn = 'clip.py:clip'", "", "clip_by_norn: there is no such function. Did you mean clip_by_norm?"),
    ("GradientClipByNorm = 'clip.py:clip'", "", "your function cannot replace a class, a hook or an adaptive rule."),
    (
        "clip_by_norm = 'clip.py:clip'",
        "modes = ['host']",
        "the mode that calls your function. Add 'native' to frameworks.numpy.modes",
    ),
    ("clip_by_norm = 'clap.py:clap'", "", "there is no file {}/clap.py. Correct the path"),
    (
        "clip_by_norm = './clip.py:clap'",
        "",
        "{}/clip.py has no function 'clap'. Did you mean clip?",
    ),
    (
        "clip_by_norm = 'clip.py:normalized'",
        "",
        "{}/clip.py has no function 'normalized'. Use one of total, clip, off, in_place, each.",
    ),
    ("clip_by_norm = 'empty.py:clap'", "", "{}/empty.py has no function 'clap'. Correct the name, or the path"),
    ("clip_by_norm = 'cases.py:clip'", "", "cases.py: Line 2 is not valid Python: "),
    ("clip_by_value = 'clip.py:clip'", "", "no case calls clip_by_value in the mode native on numpy. Remove this"),
]


def test_a_function_that_cannot_run_is_an_error_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text("\n[[cases", encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    for functions, more, message in WRONG_TABLES:
        with pytest.raises(SuiteError, match=re.escape(message.format(tmp_path))):
            suites.read(write_suite(tmp_path, functions, more=more))
    assert len(suites.read(write_suite(tmp_path, "clip_by_norm = 'clip.py:clip'")).frameworks["numpy"].functions) == 1


def test_cases_of_other_frameworks_or_modes_do_not_count_as_calls(tmp_path: Path) -> None:
    for only in ("modes = ['host']", "frameworks = ['torch']"):
        cases = f"{CASES}\n{only}"
        where = write_suite(tmp_path, "clip_by_norm = 'clip.py:clip'", cases=cases)
        with (where / "suite.toml").open("a", encoding="utf-8") as file:
            file.write("[frameworks.torch]")
        with pytest.raises(SuiteError, match="no case calls clip_by_norm"):
            suites.read(where)


def test_functions_that_a_run_leaves_out_are_named(tmp_path: Path) -> None:
    where = write_suite(tmp_path, NAMES)
    chosen = select.only_cases(suites.read(where), [GLOBAL], suites.read(where))
    notes = [f"Not called in this run: clip.py:{name} (numpy)." for name in ("in_place", "each")]
    run = run_suite.run(chosen)
    assert run.notes == notes
    assert compared_functions.line(run).endswith(": unified_clip and clip.py:clip (numpy).")


def test_a_run_that_leaves_out_all_functions_of_the_user_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = write_suite(tmp_path)
    command = ["parity", "--suite", str(where), "--out", str(tmp_path / "out"), "--without"]
    assert cli.main([*command, "native"]) == 2
    none = "--without native: the run would call none of your functions (clip.py:clip, clip.py:in_place, clip.py:each)"
    assert f"{none}, because they run only in numpy:native. Remove --without" in capsys.readouterr().err
    two = where / "suite.toml"
    frameworks = "[frameworks.torch]\n[frameworks.torch.functions]\nglobal_norm = 'clip.py:total'\n"
    two.write_text(two.read_text(encoding="utf-8") + frameworks, encoding="utf-8")
    assert cli.main([*command, "native,torch:device"]) == 2
    assert (
        "because they run only in numpy:native or torch:native. Type --without torch:device" in capsys.readouterr().err
    )
    assert select.without(suites.read(where), ["torch:native"]).frameworks["numpy"].modes[-1] == "native"


def test_a_function_whose_result_is_unreadable_was_called(tmp_path: Path) -> None:
    code = CLIP + "\ndef lost(grads, limit):\n    return 3\n"
    run = run_suite.run(suites.read(write_suite(tmp_path, "clip_by_norm = 'clip.py:lost'", code)))
    assert run.notes == []
    assert exit_status.is_incomplete(run)


def test_many_problems_do_not_hide_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        one_case(
            f"{number}",
            torch=FrameworkResult(native=native("different", None, "raises", problem="no", detail=f"{number}")),
        )
        for number in range(terminal.MOST_LINES + 10)
    ]
    terminal.show(report(*cases), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL: 50 of 50 results of the frameworks' functions have a new difference")
    assert lines[terminal.MOST_LINES + 1] == f"- and 11 more lines, in {tmp_path / 'parity.md'}"


def test_views_separate_functions_of_frameworks_and_of_the_user() -> None:
    results = [native("equal", function="clip"), native("different", function="clip.py:f", problem="no")]
    run = report(
        *(one_case(name, torch=FrameworkResult(native=result)) for name, result in zip("ab", results, strict=True))
    )
    assert compared_functions.line(run).endswith("the frameworks' own functions and clip.py:f (torch).")
    assert "1 of 1 result of your functions is wrong" in run.verdict
    assert "torch, framework&#39;s or your function" in page.render(run)
    names = [result.get("name") for result in fromstring(junit.as_xml(run))]
    assert names[:2] == ["torch, framework's function", "torch, your function clip.py:f"]
    assert "  torch, your function: clip.py:f: different: no" in terminal_case.lines(run)
    assert "The frameworks' functions and yours: 1 equal, 1 different on torch." in markdown.glance(run)


def test_a_function_without_a_result_keeps_its_name() -> None:
    framework, clip_case = FrameworkTable(functions={"global_norm": "clip.py:f"}), case([dense([1.0])], "global_norm")
    failure = Failure("unreadable", "why")
    result = judge_result(WorkItem(NATIVE, clip_case), oracle.expect(clip_case), failure, framework, ()).result
    assert isinstance(result, NativeResult)
    run = report(one_case("a", torch=FrameworkResult(native=result)))
    assert run.exit_code == 3
    assert compared_functions.line(run) == "Compared with exact arithmetic in 1 case on numpy, torch: nothing."
    assert list(markdown.problem_lines(run)) == ["- torch, your function, unreadable: why. Case: a"]
    assert markdown.native(run.cases[0].frameworks["torch"]) == "unreadable"


def test_a_suite_without_a_list_of_known_differences_prints_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = write_suite(tmp_path, NAMES.replace("clip.py:clip'", "clip.py:off'"))
    (where / "known.toml").unlink()
    note = "known.toml does not exist, so every difference fails the run."
    assert cli.main(["parity", "--suite", str(where), "--case", GLOBAL]) == 1
    printed = capsys.readouterr().out
    assert "numpy, your function: clip.py:off: different: as if " in printed
    assert note in printed
    assert cli.main(["parity", "--suite", str(where), "--out", str(tmp_path / "out")]) == 1
    assert note in capsys.readouterr().out


def test_problems_of_your_functions_come_before_problems_of_the_frameworks_functions() -> None:
    def wrong(function: str) -> FrameworkResult:
        return FrameworkResult(native=native("different", problem=f"{function} differs", function=function))

    run = report(
        one_case("one", jax=wrong("optax.clip")),
        one_case("two", jax=wrong("clip.py:f")),
        one_case("three", jax=wrong("optax.norm")),
        one_case("four", jax=wrong("clip.py:g")),
    )
    functions = ["clip.py:f", "clip.py:g", "optax.clip", "optax.norm"]
    assert [problem.function for problem in run.problems] == functions
