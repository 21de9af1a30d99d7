"""Start the recording of a Python process, after the first import of a framework."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

VARIABLE = "UNIFIED_CLIP_RECORD"
"""The environment variable that contains the argument `settings` of `_start` as JSON."""

MODULES = ("unified_clip", "torch", "tensorflow", "paddle", "jax", "keras", "optax")
"""The recording starts after the first import of one of these modules."""


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    try:
        if VARIABLE in os.environ:
            _wait_for_a_framework(json.loads(os.environ[VARIABLE]))
    finally:
        _run_hidden()


def _wait_for_a_framework(settings: dict[str, Any]) -> None:
    recorder = load(HERE.parent)
    guard = importlib.import_module(f"{recorder.__name__}.guard")
    hook = guard.Hook("start of a recording", "this process is not recorded")
    notes = Path(str(settings["directory"]), f"{os.getpid()}.notes")
    remedy = "If a package is missing, install unified_clip in the Python environment of the command"

    def report(error: Exception) -> None:
        problem = f"process {os.getpid()} was not recorded: {guard.describe_error(error)}. {remedy}."
        with notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(problem) + "\n")

    hook.report = report

    def after(module: str) -> None:
        if settings:  # else the recording has started
            _start(settings, recorder, module)
        for package in (recorder.__name__, "unified_clip.recorder"):
            if f"{package}.hooks" in sys.modules:  # else the start has failed
                sys.modules[f"{package}.hooks"].HOOKS.add_imported(module)

    hook.after_import({module: partial(after, module) for module in MODULES})


def load(folder: Path) -> Any:
    """Import the folder `recorder` without the package that contains it."""
    spec = importlib.util.spec_from_file_location("unified_clip_recorder", str(folder / "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(settings: dict[str, Any], recorder: Any, framework: str) -> None:
    """Clear `settings`, so that the recording starts only once."""
    module, version = settings.pop("module"), settings.pop("version")
    values = dict(settings)
    settings.clear()
    if recorder.is_old_environment(framework):
        importlib.import_module(f"{recorder.__name__}.process").start_in_directory(**values, version=version)
        return
    package = str(HERE.parents[2])
    sys.path.append(package)
    try:
        importlib.import_module(module).start(**values)
    finally:
        sys.path.remove(package)


def _run_hidden() -> None:
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    main()
