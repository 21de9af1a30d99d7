"""Each hook that observes or registers fails in turn. The training is the same, and one warning reports the hook."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import observed_training
from support.kits import Kit, in_a_new_process
from support.processes.warm import SAFE_PATH
from support.tiers import quick_on, where

import unified_clip
from unified_clip.recorder import guard
from unified_clip.recorder.guard import REGISTRY, Call, Hook

COMMAND = [sys.executable, *SAFE_PATH, "-m", "unified_clip", "record"]
PRINT_INSTEAD = guard.print_instead
SUPPORT = Path(observed_training.__file__)

UNUSED = (
    "import of ", "kernels in ", "compilers", "fork", "options of pytest",  # once per process
    "a clip of a graph", "read a loss",  # not on all frameworks
)  # fmt: skip
"""Hooks whose names begin so do not run in the training of every framework. Other tests break them."""


pytestmark = where(lambda kit: kit.name in observed_training.TRAIN)


class Fault:
    """Make a hook fail, at the beginning or at the end of what it observes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, at_end: bool) -> None:
        self.count = 0
        run = Hook.run

        def broken(hook: Hook, observe: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            steps = args[0] if args and inspect.isgenerator(args[0]) else None
            is_end = steps is not None and inspect.getgeneratorstate(steps) == inspect.GEN_SUSPENDED
            if hook.name != name or is_end != at_end:
                return run(hook, observe, *args, **kwargs)
            self.count += 1
            return run(hook, steps.throw if is_end else self.fail, ZeroDivisionError("broken"))

        monkeypatch.setattr(Hook, "run", broken)

    def fail(self, error: Exception) -> None:
        raise error


def train(kit: Kit, path: Path) -> tuple[list[bytes], list[str]]:
    path.unlink(missing_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with unified_clip.record(path, norms=True):
            result = observed_training.bits(kit.name)
        gc.collect()  # while warnings are caught: a recording whose end fails leaves its file open
    return result, [str(each.message) for each in caught if issubclass(each.category, unified_clip.ClipWarning)]


def used_hooks(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> set[str]:
    names, run = set(), Hook.run

    def logged(hook: Hook, *args: Any, **kwargs: Any) -> Any:
        names.add(hook.name)
        return run(hook, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Hook, "run", logged)
        work()
    return names


@quick_on("torch", "paddle")
@pytest.mark.parametrize("at_end", [False, True])
def test_a_hook_that_fails_changes_no_result_and_warns_once(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: bool
) -> None:
    expected = observed_training.bits(kit.name)
    train(kit, tmp_path / "run.jsonl")  # installs the hooks
    used = used_hooks(monkeypatch, lambda: train(kit, tmp_path / "run.jsonl"))
    for name in sorted(used):
        monkeypatch.setattr(REGISTRY[name], "_is_reported", False)
        with monkeypatch.context() as patch:
            fault = Fault(patch, name, at_end)
            result, messages = train(kit, tmp_path / "run.jsonl")
        assert result == expected, name
        reports = [each for each in messages if "ZeroDivisionError: broken" in each]
        assert len(reports) == bool(fault.count), (name, messages)
        for report in reports:
            assert REGISTRY[name].lost in report
            assert unified_clip.__version__ in report
        assert fault.count or at_end, name


@quick_on("paddle", "numpy")
def test_the_training_runs_every_hook(kit: Kit, tmp_path: Path) -> None:
    """In a new process, because other tests import other frameworks. One piece of code wraps all functions of
    frameworks, so the training may leave out some of these functions, whose names contain a dot."""
    script = f"""
import sys
sys.path.insert(0, {str(SUPPORT.parents[1])!r})
import unified_clip
from support.observed_training import bits
from support.tiers import where
from unified_clip.recorder.guard import REGISTRY, Hook
names, run = set(), Hook.run
Hook.run = lambda hook, *args, **kwargs: [names.add(hook.name), run(hook, *args, **kwargs)][1]
with unified_clip.record({str(tmp_path / "run.jsonl")!r}, norms=True):
    bits({kit.name!r})
unused = (name for name in REGISTRY if name not in names and "." not in name)
print(*(name for name in unused if not name.startswith({UNUSED!r})), sep=",")
"""
    assert in_a_new_process(script).splitlines()[-1] == ""


@quick_on("paddle")
@pytest.mark.parametrize("broken", ["none", "import", "compilers", "end of a recording"])
def test_a_recorded_command_keeps_its_output_and_its_exit_status(kit: Kit, tmp_path: Path, broken: str) -> None:
    name = f"import of {kit.name}" if broken == "import" else broken
    path = os.pathsep.join([str(SUPPORT.parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    script = [sys.executable, SUPPORT, kit.name, name]
    plain = subprocess.run([sys.executable, SUPPORT, kit.name, "none"], env=environment, capture_output=True, text=True)
    recorded = subprocess.run(
        [*COMMAND, tmp_path / "run.jsonl", "--", *script], env=environment, capture_output=True, text=True
    )
    assert recorded.returncode == plain.returncode == observed_training.STATUS, recorded.stderr + plain.stderr
    assert recorded.stdout == plain.stdout
    ran = broken == "end of a recording" or (broken != "none" and kit.name == "torch")
    ran |= broken == "import" and kit.name in ("tensorflow", "paddle")
    assert recorded.stderr.count(f"ZeroDivisionError: {name}") == ran, recorded.stderr


def test_warnings_as_errors_do_not_end_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyError("x")

    hook = Hook("a test", "Nothing is lost")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.delitem(REGISTRY, hook.name)
        patch.setattr(guard, "print_instead", PRINT_INSTEAD)
        warnings.simplefilter("error")
        assert hook.run(fail) is None
        assert hook.run(fail) is None
    assert capsys.readouterr().err.count("Nothing is lost: KeyError: 'x'") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_an_error_of_the_observed_function_reaches_the_caller(error: type[BaseException]) -> None:
    seen, calls = [], []

    def function(values: list[int]) -> None:
        calls.append(list(values))
        raise error

    def observe(call: Call) -> Iterator[None]:
        list(call.args[0])
        try:
            yield
        finally:
            seen.append(type(call.error))
            raise OSError

    hook = Hook("a test", "Nothing is lost")
    del REGISTRY[hook.name]
    with pytest.raises(error), pytest.warns(unified_clip.ClipWarning, match="Nothing is lost: OSError"):
        hook.around(function, observe, reads=True)(iter([1, 2]))
    assert (calls, seen) == ([[1, 2]], [error])
