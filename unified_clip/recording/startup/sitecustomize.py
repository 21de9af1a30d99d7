"""Start the recording of a Python process, after the first import of a framework."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent

VARIABLE = "UNIFIED_CLIP_RECORD"
"""The environment variable that contains the argument `settings` of `_start` as JSON."""

MODULES = ("unified_clip", "torch", "tensorflow", "paddle", "jax", "keras", "optax")
"""The recording starts after the first import of one of these modules."""


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    if VARIABLE in os.environ:
        _wait_for_a_framework(json.loads(os.environ[VARIABLE]))
    _run_hidden()


def _wait_for_a_framework(settings: dict[str, object]) -> None:
    spec = importlib.util.spec_from_file_location("unified_clip_after_import", HERE / "after_import.py")
    assert spec is not None
    assert spec.loader is not None
    after_import = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(after_import)

    def after(module: str) -> None:
        if settings:  # else the recording has started
            _start(settings)
        if "unified_clip.recording.natives.hooks" in sys.modules:  # else the start has failed
            sys.modules["unified_clip.recording.natives.hooks"].HOOKS.add_imported(module)

    after_import.AfterImport({module: partial(after, module) for module in MODULES}).install()


def _start(settings: dict[str, object]) -> None:
    """Clear `settings`, so that the recording starts only once. An error must not end the user's script, so write it to
    a file."""
    package, directory = str(settings.pop("package")), str(settings["directory"])
    values = dict(settings)
    settings.clear()
    sys.path.append(package)
    try:
        from unified_clip.recording.launch.process import start

        start(**values)  # type: ignore[arg-type]  # written by the command
    except Exception:
        failed = Path(directory, f"{os.getpid()}.failed")
        failed.write_text(traceback.format_exc(), encoding="utf-8")
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
