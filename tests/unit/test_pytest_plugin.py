"""The pytest plugin in a separate run of pytest: the fixture, its options, and the text of a failure."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from unified_clip._dispatch import ADAPTERS

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|toml|text)\n(.*?)```", re.DOTALL)

HEAD = """
    import numpy as np
    from unified_clip.testing import assert_gradients_equal

    GRADS = {"weight": np.array([3.0, 4.0], np.float32), "bias": None}
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.plugins = ["unified_clip.pytest_plugin"]
    return pytester


@pytest.mark.parametrize("place", ["option", "file"])
def test_an_option_replaces_what_the_file_says_and_both_may_have_spaces(inner: pytest.Pytester, place: str) -> None:
    inner.makepyfile(
        """
    def test_it(clip_parity, pytestconfig):
        python = pytestconfig.rootpath / "bin/python"
        assert clip_parity.keywords["frameworks"] == ["numpy", "torch"]
        assert clip_parity.keywords["interpreters"] == {"torch": python}
    """
    )
    names, python = ("numpy, torch", "bin/python") if place == "file" else ("jax", "other/python")
    inner.makeini(f"[pytest]\nclip_frameworks = {names}\nclip_interpreters = torch = {python}")
    options = ["--clip-frameworks", "numpy, torch,", "--clip-interpreter", "torch = bin/python"] * (place == "option")
    inner.runpytest_subprocess(*options).assert_outcomes(passed=1)


def test_a_failure_shows_the_call_and_what_differs_and_not_what_is_inside(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        HEAD
        + """
    def test_it():
        assert_gradients_equal(GRADS, {"weight": np.array([3.0, 5.0], np.float32), "bias": None})

    def test_that_there_are_no_options(clip_parity):
        assert clip_parity.keywords == {"frameworks": None, "interpreters": {}, "missing": "fail"}
    """
    )
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*assert_gradients_equal(GRADS, *",
            "E*AssertionError: the gradients differ",
            "E*weight: 1 of 2 elements differ",
            "E*  first at ?1?: a is 4.0 (0x1p+2), b is 5.0 (0x1.4p+2), 2097152 ulp apart",
            "test_a_failure_shows_*.py:*: AssertionError",
        ]
    )
    assert "__tracebackhide__" not in result.stdout.str()


def test_a_run_is_checked(inner: pytest.Pytester) -> None:
    (inner.path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\nfamily = "paddle"', encoding="utf-8")
    inner.makepyfile(
        test_it="""
    import numpy as np
    import pytest
    import unified_clip

    @pytest.mark.parametrize("threshold", [1.0, 5.0, None])
    def test_our_training(check_run, threshold):
        with check_run("clip.toml"):
            if threshold:
                unified_clip.clip_by_global_norm([np.array([3.0, 4.0])], threshold)

    def test_another_eps(check_run):
        with check_run("clip.toml", nearest=True):
            unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], 1.0)
    """
    )
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["E*test_it.py:9:1 drift clip_by_global_norm", "E*threshold: 5; wanted: 1"])
    result.stdout.fnmatch_lines(["E*run.jsonl:1:1 unknown run.jsonl"])


def test_a_suite_with_functions_of_the_user_is_run(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        clip="""
    import numpy as np

    def right(grads, clip_norm):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
        return [(g * min(1, clip_norm / norm)).astype(g.dtype) for g in grads], norm

    def wrong(grads, clip_norm):
        return right(grads, 2 * clip_norm)
    """,
        test_it="""
    import pytest

    @pytest.mark.parametrize("name", ["right", "wrong"])
    def test_our_function(clip_suite, name):
        clip_suite(f"{name}.toml", frameworks=["numpy"])
    """,
    )
    for name in ("right", "wrong"):
        text = f"""known = '{name}-known.toml'
        [frameworks.numpy]
        [frameworks.numpy.functions]
        clip_by_global_norm = 'clip.py:{name}'
        [[gradients]]
        name = 'example'
        tensors = [{{ values = [3.0, 4.0] }}]
        [[cases]]
        gradients = ['example']
        rules = ['clip_by_global_norm']
        thresholds = [1.0]"""
        (inner.path / f"{name}.toml").write_text(text, encoding="utf-8")
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: FAIL: 1 of 1 result of your functions is wrong (numpy, clip.py:wrong: *",
            "E*numpy, clip.py:wrong: *numbers differ by 100 %*Case: 'example: *",
        ]
    )


def test_an_interpreter_without_a_framework_is_refused(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_it(clip_parity): pass")
    result = inner.runpytest_subprocess("--clip-interpreter=paddle")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'paddle' is not FRAMEWORK=PATH. Write, for example, paddle=*"])


@pytest.mark.nightly
def test_the_page_about_ci_has_tests_that_run_with_its_options(inner: pytest.Pytester) -> None:
    blocks = dict(BLOCK.findall((ROOT / "docs" / "ci.md").read_text(encoding="utf-8")))
    inner.makepyfile(test_page=blocks["python"], test_strict=blocks["python"].replace(", max_ulp=1", ""))
    inner.makepyprojecttoml(blocks["toml"])
    result = inner.runpytest_subprocess("--clip-frameworks=numpy", "--strict-config")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines([f"E*{line}" for line in blocks["text"].replace("[", "?").splitlines()])
    inner.makepyfile(
        test_page="""
    def test_options(clip_parity, pytestconfig):
        python = pytestconfig.rootpath / "../paddle/bin/python"
        assert clip_parity.keywords == {
            "frameworks": ["torch", "paddle"], "interpreters": {"paddle": python}, "missing": "skip"
        }
    """
    )
    inner.runpytest_subprocess("test_page.py").assert_outcomes(passed=1)


def test_pytest_finds_the_plugin_where_it_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["pytest11"].items()
    assert hasattr(EntryPoint(name, value, "pytest11").load(), "clip_parity")


def test_the_plugin_loads_neither_numpy_nor_what_the_assertions_need() -> None:
    code = "import sys, unified_clip.pytest_plugin; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("numpy", "pydantic", "rich", "safetensors", "unified_clip.parity", "unified_clip.testing", *ADAPTERS)
    assert "unified_clip.pytest_plugin" in result
    assert [name for name in result if name.startswith(heavy)] == []
