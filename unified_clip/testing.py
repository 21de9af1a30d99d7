"""Assertions for tests: gradients that are equal bit for bit, and clipping that is the same on every framework.

They need the extra `cli`. In pytest the fixture `clip_parity` is `assert_clip_parity` with the options of the run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal
from unittest import SkipTest

import unified_clip

from ._dispatch import ADAPTERS
from ._display import safe
from .cli import not_installed

__all__ = ["assert_clip_parity", "assert_gradients_equal"]

TIMEOUT = 120.0
"""Seconds that a framework may take, from its start to its result."""

GIVE_GRADIENTS = "Call backward before it is read; a generator can be read once only."
"""What to do where there is no gradient at all."""


def assert_gradients_equal(a: Any, b: Any, max_ulp: float = 0) -> None:
    """Fail unless two containers hold the same gradients, bit for bit.

    Each side has one framework's tensors; the sides' frameworks may differ. Source: the contract of the parity engine,
    which compares by the same distance.

    Args:
        a: A tensor, or a list, a dict, (name, gradient) pairs or any other container that the clipping functions take;
            None for no gradient. Tensors of any shape, of float16, bfloat16, float32, float64, complex64 or complex128.
            Those with names are found by them, the others by their position.
        b: The same.
        max_ulp: By how many units in the last place two elements may differ. Any NaN equals any NaN, a NaN is
            infinitely far from a number, and the two zeros are 1 apart.

    Raises:
        AssertionError: The names, the dtypes, the shapes or elements differ. It names the tensors, the first element
            that differs and the one that differs most, with both numbers, in decimal and in hexadecimal.
        TypeError: Something is no gradient: a parameter, a plain number, a tensor of booleans.
        ValueError: max_ulp is negative or NaN, or neither a nor b holds a gradient.
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

    if not max_ulp >= 0:
        raise ValueError(f"max_ulp is {max_ulp}; give a number of 0 or more")
    ours, theirs = in_memory.read_container(a), in_memory.read_container(b)
    if not any(each is not None for each in (*ours.values(), *theirs.values())):
        raise ValueError(f"a and b hold no gradient, so nothing can be compared. {GIVE_GRADIENTS}")
    found = diff.describe(ours, theirs, ("a", "b"), max_ulp)
    if found:
        raise AssertionError(f"the gradients differ\n{found}")


def assert_clip_parity(
    grads: Any,
    rule: str | Callable[..., Any],
    frameworks: Sequence[str] | None = None,
    *,
    missing: Literal["fail", "skip"] = "fail",
    interpreters: Mapping[str, str | PathLike[str]] | None = None,
    **arguments: Any,
) -> None:
    """Fail unless a rule gives the same bits on every framework, and those that exact arithmetic gives.

    Each framework runs in a process of its own, on the host path, so none has to be imported here, and those that
    cannot live in one process are compared all the same. Starting them takes most of the time. Source: the parity
    engine, `unified-clip parity`, of which this is one case.

    Args:
        grads: Gradients of any one framework, as for `assert_gradients_equal`. They are copied.
        rule: A public name, "clip_grad_norm_", or the function or class itself, `unified_clip.clip_grad_norm_`.
        frameworks: Of "torch", "tensorflow", "paddle", "jax", "mlx" and "numpy" (default: those that are installed).
        missing: What to do when a framework is not installed: "fail", or "skip" once the others have been compared.
        interpreters: By framework, the Python to run it with, where it is not this one: it needs the framework and the
            extra `cli`.
        arguments: The rule's own, thresholds and such, as numbers.

    Raises:
        AssertionError: Results differ: it names the framework, the tensor, the element and both numbers. Or a framework
            crashed, hung or is not installed.
        unittest.SkipTest: A framework is not installed, with missing="skip". pytest takes it for a skip.
        TypeError: Something in grads is no gradient.
        ValueError: The rule, its arguments or the frameworks are not known, or grads holds no gradient.
        ModuleNotFoundError: The extra `cli` is not installed.

    Example:
        >>> import numpy as np
        >>> from unified_clip.testing import assert_clip_parity
        >>> grads = {"weight": np.array([3.0, 4.0], np.float32), "bias": np.array([1.0], np.float32)}
        >>> assert_clip_parity(grads, "clip_grad_norm_", frameworks=["numpy"], max_norm=1.0)
    """
    __tracebackhide__ = True
    _need_extra()
    from .parity import single_case

    pythons = {name: str(python) for name, python in (interpreters or {}).items()}
    chosen = list(dict.fromkeys(_installed(pythons) if frameworks is None else frameworks))
    _check(chosen, pythons, missing)
    case = single_case.make(grads, _name(rule), arguments)
    if not any(each is not None for each in case.gradients):
        raise ValueError(f"grads holds no gradient, so nothing can be compared. {GIVE_GRADIENTS}")
    outcomes = single_case.run(case, {name: pythons.get(name, sys.executable) for name in chosen}, TIMEOUT)
    absent, wrong = single_case.problems(case, outcomes)
    if missing == "fail":
        wrong = absent + wrong
    if wrong:
        call = case.name.removeprefix(f"{single_case.GIVEN}: ")
        lines = [f"{call} is not the same everywhere", *wrong]
        raise AssertionError(safe("\n".join(lines), keep="\n"))
    if absent:
        raise SkipTest("; ".join(absent))


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
        what = f"there is no framework {unknown[0]!r}" if unknown else "no framework is named"
        raise ValueError(f"{what}; there are {', '.join(known)}")
    if missing not in ("fail", "skip"):
        raise ValueError(f"missing is {missing!r}; it may be 'fail' or 'skip'")


def _name(rule: str | Callable[..., Any]) -> str:
    """The name by which cases call a rule: of an alias that of what it stands for."""
    if isinstance(rule, str):
        name, _, method = rule.partition(".")
        found = getattr(unified_clip, name, None) if name in unified_clip.__all__ else None
        return f"{getattr(found, '__name__', name)}{method and f'.{method}'}"
    if getattr(rule, "__module__", "").partition(".")[0] != __package__:
        raise ValueError(f"{rule!r} is not unified_clip's; pass one of its names, such as 'clip_grad_norm_'")
    return str(getattr(rule, "__name__", rule))
