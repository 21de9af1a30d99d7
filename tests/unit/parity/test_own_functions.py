"""Functions of the user in suites: they are judged as a framework's functions, and every report names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from support.parity.cases import suite

from unified_clip import cli
from unified_clip.parity import run_suite
from unified_clip.parity.modes import NATIVE
from unified_clip.parity.report import view
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import select
from unified_clip.parity.suite.schema import SuiteError

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

def only(grads, max_norm):
    return clip(grads, max_norm)[0]

def raising(grads, max_norm):
    if max_norm < 1:
        raise RuntimeError("no device")
    return clip(grads, max_norm)

def nothing(grads, max_norm):
    return grads, float(total(grads))

def lost(grads, max_norm):
    return 3
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


def one_list(tensors: str, *calls: str) -> str:
    named = f"[[gradients]]\nname = 'given'\ntensors = [{tensors}]\n[[cases]]\ngradients = ['given']\n"
    return f"{named}calls = [{', '.join(f'{{ {call} }}' for call in calls)}]\n"


def by_global_norm(threshold: float) -> str:
    return f"call = 'clip_by_global_norm', clip_norm = {threshold}"


def write_suite(folder: Path, functions: str = NAMES, more: str = "", cases: str = CASES) -> Path:
    (folder / "clip.py").write_text(CLIP, encoding="utf-8")
    return suite(folder, cases, frameworks=f"[frameworks.numpy]\n{more}\n[frameworks.numpy.functions]\n{functions}")


def run_command(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    status = cli.main(["parity", "--suite", str(folder), "--out", str(folder / "out"), *options])
    return status, json.loads((folder / "out/parity.json").read_text(encoding="utf-8"))


def test_a_suite_compares_several_functions_of_one_framework(tmp_path: Path) -> None:
    functions = {"first": "clip", "second": "off", "third": "in_place"}
    tables = [
        f"[frameworks.{name}]\nframework = 'numpy'\n[frameworks.{name}.functions]\n"
        f"clip_by_global_norm = 'clip.py:{function}'\n"
        for name, function in functions.items()
    ]
    write_suite(tmp_path, "", more="\n".join(tables))
    read = suites.read(tmp_path)
    modes = {name: list(table.modes) for name, table in read.frameworks.items()}
    assert modes == {"numpy": ["host"], "first": [NATIVE], "second": [NATIVE], "third": [NATIVE]}
    for name in functions:  # the framework's own functions run only in its own table
        assert [item.case.name for item in run_suite.work_items(read, name)] == [GLOBAL]
    alone = select.only_frameworks(read, ["first"])
    assert [item.case.name for item in run_suite.work_items(alone, "first")] == [GLOBAL]
    status, data = run_command(tmp_path)
    problems = {problem["framework"]: problem for problem in data["problems"]}
    assert (status, problems.keys()) == (1, {"second", "third"})
    natives = {name: data["cases"][0]["frameworks"][name]["native"] for name in functions}
    assert {name: each["verdict"] for name, each in natives.items()} == {
        "first": "equal", "second": "different", "third": "unreadable",
    }  # fmt: skip
    assert natives["second"]["cause_kind"] == "another threshold"
    assert "[frameworks.third.returns]" in natives["third"]["detail"]


def test_a_table_of_another_environment_or_for_named_cases_also_runs_the_frameworks_functions(tmp_path: Path) -> None:
    table = "[frameworks.first]\nframework = 'numpy'\n{}\n[frameworks.first.functions]\nclip_by_global_norm = "
    table += "'clip.py:clip'"
    named = CASES.replace("    calls = [", "    frameworks = ['first']\n    calls = [")
    for more, cases in (("python = 'old/bin/python'", CASES), ("", named)):
        read = suites.read(write_suite(tmp_path, "", more=table.format(more), cases=cases))
        assert len(run_suite.work_items(read, "first")) == 4


def test_every_view_names_functions_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_suite(tmp_path, f"{NAMES}global_norm = 'clip.py:total'".replace("clip.py:clip'", "clip.py:off'"))
    status, data = run_command(tmp_path)
    assert (status, data["verdict"].partition(" (")[0]) == (1, "FAIL: 1 of 4 results of your functions is wrong")
    assert [(each["function"], each["cases"]) for each in data["problems"]] == [("clip.py:off", [GLOBAL])]
    natives = [each["frameworks"]["numpy"]["native"] for each in data["cases"]]
    assert [each["verdict"] for each in natives] == ["different", "close", "equal", "equal"]
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()}
    texts[".out"] = capsys.readouterr().out
    for name in ("off", "in_place", "each", "total"):
        assert all(f"clip.py:{name}" in text for text in texts.values())
    assert '<testsuite name="numpy, your function clip.py:off" tests="1" failures="1"' in texts[".xml"]


def test_functions_without_a_norm_are_judged_by_their_gradients(tmp_path: Path) -> None:
    """The function has no eps, which shows only with a tiny norm."""
    functions = "clip_by_global_norm = 'clip.py:only'\nclip_grad_norm_ = 'clip.py:only'\n[frameworks.numpy.returns]\n"
    functions += "clip_by_global_norm = 'gradients'\nclip_grad_norm_ = 'gradients'"
    cases = one_list(
        "{ values = [3e-6, 4e-6] }, { values = [1e-6] }",
        by_global_norm(100.0),
        "call = 'clip_grad_norm_', max_norm = 1e-6",
    )
    run = run_suite.run(suites.read(write_suite(tmp_path, functions, cases=cases)))
    right, wrong = (each.frameworks["numpy"].native for each in run.cases)
    assert right
    assert wrong
    assert (right.verdict, right.norm, right.lacks_norm) == ("no norm", None, True)
    assert (wrong.verdict, wrong.cause_kind) == ("different", "another eps of the clip")
    assert "clip.py:only (numpy, gradients only)" in view.compared(run)
    assert view.native(run.cases[0].frameworks["numpy"]) == "no norm"


@pytest.mark.parametrize(("threshold", "is_compared"), [(0.5, False), (2.0, True)])
def test_a_function_that_always_raises_fails_the_run_and_is_not_accepted(
    tmp_path: Path, threshold: float, is_compared: bool
) -> None:
    """A list that accepts its error would hide that nothing was compared."""
    cases = one_list("{ values = [3.0, 4.0] }", by_global_norm(0.25), by_global_norm(threshold))
    known = write_suite(tmp_path, "clip_by_global_norm = 'clip.py:raising'", cases=cases) / "known.toml"
    assert run_command(tmp_path)[0] == 1
    assert run_command(tmp_path, "--accept")[0] == (0 if is_compared else 1)
    assert ("RuntimeError" in known.read_text(encoding="utf-8")) == is_compared
    entry = "[[known]]\nframework = 'numpy'\nfunction = 'clip.py:raising'\nsize = 'raises RuntimeError'\n"
    known.write_text(f"{entry}cases = ['*']\nreason = 'no device'\n", encoding="utf-8")
    status, data = run_command(tmp_path)
    assert (status, len(data["problems"])) == ((0, 0) if is_compared else (3, 1))
    root = fromstring((tmp_path / "out/parity.xml").read_text(encoding="utf-8"))
    assert len(list(root.iter("error"))) == (not is_compared)
    assert {"numpy.host", "numpy.clip:raising"} <= {each.get("classname") for each in root.iter("testcase")}
    one = "given: clip_by_global_norm(clip_norm=0.25)"  # its other cases may return a result
    assert cli.main(["parity", "--suite", str(tmp_path), "--case", one]) == 0


@pytest.mark.parametrize(
    ("tensors", "threshold", "untested"),
    [
        ("{ values = [3.0, 4.0] }", 100.0, "clip.py:nothing (numpy)"),
        ("{ values = [0.0, 0.0] }", 0.5, "unified_clip"),
        ("{ values = [], shape = [0, 3] }", 0.5, "unified_clip"),
    ],
)
def test_cases_that_test_nothing_fail_the_run(tmp_path: Path, tensors: str, threshold: float, untested: str) -> None:
    """A function that does nothing would pass."""
    cases = one_list(tensors, by_global_norm(threshold), "call = 'global_norm'")
    write_suite(tmp_path, "clip_by_global_norm = 'clip.py:nothing'", cases=cases)
    status, data = run_command(tmp_path)
    assert (status, data["untested"], len(data["problems"])) == (3, [untested], 1)
    assert len(list(fromstring((tmp_path / "out/parity.xml").read_text(encoding="utf-8")).iter("error"))) == 1
    name = f"given: clip_by_global_norm(clip_norm={threshold})"
    assert cli.main(["parity", "--suite", str(tmp_path), "--case", name]) == 0


def test_a_run_that_leaves_out_all_functions_of_the_user_is_an_error(tmp_path: Path) -> None:
    read = suites.read(
        write_suite(tmp_path, more="[frameworks.torch]\n[frameworks.torch.functions]\nglobal_norm = 'clip.py:total'")
    )
    for modes in (["native"], ["numpy:native", "torch:native"]):
        with pytest.raises(SuiteError, match=r"--without .*native: the run would call none of your functions \(clip"):
            select.without(read, modes)
    assert select.without(read, ["torch:native"]).frameworks["numpy"].modes[-1] == "native"


def test_a_function_whose_result_is_unreadable_fails_the_run(tmp_path: Path) -> None:
    run = run_suite.run(suites.read(write_suite(tmp_path, "clip_by_norm = 'clip.py:lost'")))
    assert (run.exit_code, [problem.function for problem in run.problems]) == (3, ["clip.py:lost"])


def test_a_suite_without_its_list_of_known_differences_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_suite(tmp_path, NAMES.replace("clip.py:clip'", "clip.py:off'")) / "known.toml").unlink()
    for options in (["--case", GLOBAL], ["--out", str(tmp_path / "out")]):
        assert cli.main(["parity", "--suite", str(tmp_path), *options]) == 1
        assert "known.toml does not exist yet, so every difference fails the run." in capsys.readouterr().out
