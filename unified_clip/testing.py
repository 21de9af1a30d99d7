"""Assertions to test gradients, parity suites, and clip functions on every framework.

The assertions need the extra `cli`. In pytest, the fixture `clip_parity` calls `assert_clip_parity` with the
options of the pytest command. The fixture `clip_suite` calls `assert_suite_passes`.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

import unified_clip

from ._dispatch import ADAPTERS
from ._kit.display import safe
from .cli import not_installed
from .errors import ClipWarning
from .recording.lines import NO_CALLS

__all__ = ["assert_clip_parity", "assert_gradients_equal", "assert_suite_passes", "check_run"]

MOST_RTOL = 0.1
"""The largest `rtol`. A larger value would accept almost all differences."""

PASS_GRADIENTS = "Call backward() first, and pass a list instead of a generator."


def assert_gradients_equal(a: Any, b: Any, max_ulp: float = 0, *, rtol: float = 0) -> None:
    """Fail if two containers' gradients differ by more than both `max_ulp` and `rtol`. By default, all bits must agree.

    `a` and `b` can contain tensors of different frameworks. Tensors are compared by name, or by position if they have
    no names.

    Args:
        a: A tensor, or a list, a dict, (name, gradient) tuples or any other container that the clipping functions
            accept. None means no gradient. Allowed dtypes: float16, bfloat16, float32, float64, complex64 and
            complex128.
        b: The container to compare with `a`.
        max_ulp: The largest allowed difference of two elements in units in the last place (ULP). NaN equals NaN, and
            differs from a number by an infinite amount. 0.0 differs from -0.0 by 1.
        rtol: The largest allowed difference of two elements, divided by the largest element of the gradient in `b`. An
            element passes if its difference is within `max_ulp` or within `rtol`. Parity suites use `rtol=1e-5`. Pass
            `rtol` if the terms of a sum nearly cancel, because the results can then differ by many ULP.

    Raises:
        AssertionError: Names, dtypes, shapes or elements differ. For each gradient, the message shows the first element
            that differs, and the element with the largest difference. If several gradients differ by the same factor,
            the message begins with this factor.
        TypeError: A value is not a gradient. Parameters, Python numbers and tensors of booleans are not gradients.
        ValueError: max_ulp is negative, infinite or NaN. rtol is not in the range from 0 to 0.1. `a` and `b` are the
            same object. All gradients are empty or None.
        ModuleNotFoundError: The extra `cli` is not installed.

    Example:
        >>> import numpy as np
        >>> from unified_clip.testing import assert_gradients_equal
        >>> grads = {"weight": np.array([3.0, 4.0], np.float32), "bias": None}
        >>> assert_gradients_equal(grads, {"bias": None, "weight": np.array([3.0, 4.0], np.float32)})
        >>> assert_gradients_equal(grads, {"bias": None, "weight": np.array([3.0, 4.0000005], np.float32)})
        Traceback (most recent call last):
            ...
        AssertionError: the gradients differ
        weight: 1 of 2 elements differ
          first at [1]: a is 4.0 (0x1p+2), b is 4.0000005 (0x1.000002p+2), 1 ulp apart
    """
    __tracebackhide__ = True
    _need_extra()
    from .tensors import diff, in_memory

    if not 0 <= max_ulp < math.inf:
        raise ValueError(f"max_ulp is {max_ulp}. Pass a finite number that is at least 0")
    if not 0 <= rtol <= MOST_RTOL:
        raise ValueError(f"rtol is {rtol}. Pass a number from 0 to {MOST_RTOL}")
    if a is b:
        raise ValueError(
            "`a` and `b` are the same object, so nothing can differ. Pass a copy that you made before the clip"
        )
    left, right = in_memory.read_container(a), in_memory.read_container(b)
    _need_elements([*left.values(), *right.values()], "a and b have")
    differences = diff.describe(left, right, ("a", "b"), max_ulp, rtol)
    if differences:
        raise AssertionError(f"the gradients differ\n{differences}")


def assert_clip_parity(
    grads: Any,
    rule: str | Callable[..., Any],
    frameworks: Sequence[str] | None = None,
    *,
    missing: Literal["fail", "skip"] = "fail",
    interpreters: Mapping[str, str | PathLike[str]] | None = None,
    **arguments: Any,
) -> None:
    """Run a clip function of unified_clip on every framework. Fail if any bit differs from the exact result.

    To test a function of your own, use `assert_suite_passes`.

    Each framework runs in a separate process, on the CPU, so you can compare frameworks that cannot run in one process.
    The comparison is the same as for one case of `unified-clip parity`.

    Args:
        grads: Gradients of one framework: a tensor, a list, a dict or (name, gradient) tuples. The gradients are
            copied.
        rule: A public function or class, such as `unified_clip.clip_grad_norm_`, or its name, such as
            "clip_grad_norm_".
        frameworks: A list of the frameworks to test, from "torch", "tensorflow", "paddle", "jax", "mlx" and "numpy".
            The default is all installed frameworks.
        missing: What to do if a framework is not installed. "fail" fails the test. "skip" tests the
            installed frameworks, and marks the test as skipped if their results are right.
        interpreters: For each framework, the path of a Python interpreter that has the framework and the extra `cli`.
            The default is the interpreter that runs the test.
        arguments: The numeric arguments of the rule, such as `max_norm=1.0`.

    Raises:
        AssertionError: A framework crashed, hung or is not installed, or its result differs from the exact result. For
            a difference, the message names the framework, the tensor, the element and the two numbers.
        unittest.SkipTest: A framework is not installed, and `missing` is "skip".
        TypeError: A value in `grads` is not a gradient, or `frameworks` is a string.
        ValueError: The rule, an argument of the rule, a framework or the value of `missing` is unknown. Or all
            gradients in `grads` are empty or None.
        ModuleNotFoundError: The extra `cli` is not installed.

    Example:
        >>> import numpy as np
        >>> from unified_clip.testing import assert_clip_parity
        >>> grads = {"weight": np.array([3.0, 4.0], np.float32), "bias": np.array([1.0], np.float32)}
        >>> assert_clip_parity(grads, "clip_grad_norm_", frameworks=["numpy"], max_norm=1.0)
    """
    __tracebackhide__ = True
    _need_extra()
    _need_list(frameworks)
    from .parity import assert_parity
    from .parity.call_outcome import Failure
    from .parity.suite.schema import TIMEOUT

    pythons = {name: str(python) for name, python in (interpreters or {}).items()}
    names = list(dict.fromkeys(_installed(pythons) if frameworks is None else frameworks))
    _check(names, pythons, missing)
    case = assert_parity.make_case(grads, _name(rule), arguments)
    _need_elements(case.gradients, "grads has")
    chosen = {name: pythons.get(name, sys.executable) for name in names}
    outcomes = assert_parity.run(case, chosen, TIMEOUT)
    absent, wrong = assert_parity.problems(case, outcomes, chosen)
    failures = [each for each in outcomes.values() if isinstance(each, Failure) and each.kind != "missing"]
    title = "failed on a framework"
    if len(wrong) > len(failures):
        title = "differs between frameworks, or from the exact result"
    if missing == "fail":
        wrong = absent + wrong
    if wrong:
        call = case.name.removeprefix(f"{assert_parity.GIVEN}: ")
        lines = [f"{call} {title}", *wrong]
        raise AssertionError(safe("\n".join(lines), keep="\n"))
    if absent:
        raise SkipTest("; ".join(absent))


def assert_suite_passes(suite: str | PathLike[str], frameworks: Sequence[str] | None = None) -> None:
    """Run a parity suite, and fail if the suite does not pass. A suite can test your own functions.

    The command `unified-clip parity --suite SUITE` does the same, and also writes a report.

    Args:
        suite: A directory that contains suite.toml, or the path of a .toml file.
        frameworks: The frameworks to run. The default is all frameworks of the suite.

    Raises:
        AssertionError: The suite does not pass. The message contains the verdict and all problems.
        unified_clip.parity.suite.schema.SuiteError: The suite is invalid, or has none of the `frameworks`.
        TypeError: `frameworks` is a string.
        ModuleNotFoundError: The extra `cli` is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> from unified_clip.testing import assert_suite_passes
        >>> path = pathlib.Path(tempfile.mkdtemp(), "suite.toml")
        >>> text = '''
        ... [frameworks.numpy]
        ... [[gradients]]
        ... name = "example"
        ... tensors = [{ values = [3.0, 4.0] }]
        ... [[cases]]
        ... gradients = ["example"]
        ... rules = ["clip_grad_norm_"]
        ... thresholds = [1.0]
        ... '''
        >>> _ = path.write_text(text)
        >>> assert_suite_passes(path)
    """
    __tracebackhide__ = True
    _need_extra()
    _need_list(frameworks)
    from .parity import run_suite
    from .parity.report import build, view
    from .parity.suite import load, select

    chosen = load.read(Path(suite))
    if frameworks is not None:
        chosen = select.only_frameworks(chosen, list(frameworks))
    report = run_suite.run(chosen)
    if report.exit_code:
        lines = [report.verdict, *view.problem_lines(report), *build.next_steps(report), *report.notes]
        lines.append(view.compared(report))
        raise AssertionError(safe("\n".join(lines), keep="\n"))


@contextmanager
def check_run(clip: str | PathLike[str], *, nearest: bool = False) -> Iterator[None]:
    """Fail if the training steps in a `with` block clip otherwise than a clip configuration.

    The block is recorded as by `unified_clip.record`, on any framework. Each step of an optimizer must have clipped
    gradients, clipped once, after the backward pass and unscaled, by the rule and the threshold of `clip`.

    Args:
        clip: The file of a clip configuration.
        nearest: Accept clips that differ from the configuration only in their eps. Without it, they are accepted in the
            files of `check.nearest`.

    Raises:
        AssertionError: A clip differs, is missing or has an unknown effect, or nothing was recorded. The message is the
            report of `unified-clip record --check`.
        ConfigError: The file is not a clip configuration.
        ModuleNotFoundError: The extra `cli` is not installed.

    Source: unified_clip. docs/recording.md describes the check.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import unified_clip
        >>> from unified_clip.testing import check_run
        >>> path = pathlib.Path(tempfile.mkdtemp(), "clip.toml")
        >>> _ = path.write_text('rule = "global_norm"\\nthreshold = 1.0')
        >>> with check_run(path):
        ...     norm = unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], max_norm=1.0)
    """
    _need_extra()
    from .check import output, run_check
    from .config.clip_config import ClipConfig
    from .recording import runs

    config = ClipConfig.load(clip)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "run.jsonl")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NO_CALLS[:20]}", ClipWarning)  # the report says so
            with unified_clip.record(file, norms=config.uses_names):
                yield
        report = run_check.check(runs.read(file), config, Path(clip), nearest=nearest)
    if report.findings:
        raise AssertionError(safe(output.as_text(report), keep="\n"))


def _need_elements(gradients: Sequence[Any], subject: str) -> None:
    present = [gradient for gradient in gradients if gradient is not None]
    if not any(math.prod(gradient.shape) for gradient in present):
        what = "only empty gradients" if present else "no gradient"
        raise ValueError(f"{subject} {what}, so nothing can be compared. {PASS_GRADIENTS}")


def _need_list(frameworks: Sequence[str] | None) -> None:
    if isinstance(frameworks, str):
        raise TypeError(f"frameworks is {frameworks!r}. Pass a list of names, such as ['numpy']")


def _need_extra() -> None:
    if lacking := not_installed("parity"):
        raise ModuleNotFoundError(lacking)


def _installed(interpreters: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys(ADAPTERS.values())
    return [name for name in names if name in interpreters or importlib.util.find_spec(name) is not None]


def _check(frameworks: Sequence[str], interpreters: Mapping[str, str], missing: str) -> None:
    known = dict.fromkeys(ADAPTERS.values())
    unknown = [name for name in [*frameworks, *interpreters] if name not in known]
    if unknown or not frameworks:
        what = f"The framework {unknown[0]!r} is unknown" if unknown else "frameworks is empty"
        raise ValueError(f"{what}. Pass names among {', '.join(known)}")
    if missing not in ("fail", "skip"):
        raise ValueError(f"`missing` (clip_missing in pytest's configuration) is {missing!r}. Pass 'fail' or 'skip'")


def _name(rule: str | Callable[..., Any]) -> str:
    """Return the original name for an alias, such as `GradientClipByNorm` for `ClipGradByNorm`."""
    if isinstance(rule, str):
        name, _, method = rule.partition(".")
        original = getattr(unified_clip, name, None) if name in unified_clip.__all__ else None
        return f"{getattr(original, '__name__', name)}{method and f'.{method}'}"
    if getattr(rule, "__module__", "").partition(".")[0] != __package__:
        raise ValueError(
            f"{rule!r} is not a rule of unified_clip. Pass the name of a rule, such as 'clip_grad_norm_'. To test your "
            "own function, list it in a suite, and pass the suite to the fixture clip_suite or to "
            "assert_suite_passes: see docs/ci.md#pytest"
        )
    return str(getattr(rule, "__name__", rule))
