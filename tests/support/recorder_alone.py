"""Record a script by `python recorder`, without the rest of unified_clip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import unified_clip.recorder

FOLDER = Path(unified_clip.recorder.__file__).parent

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

Lines = list[dict[str, Any]]


def lines(file: Path) -> Lines:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]


def record_alone(script: Path, before: str = "") -> Path:
    """before: Code that runs before the recorder."""
    file = script.with_name("alone.jsonl")
    arguments = [str(FOLDER), str(file), str(script)]
    code = f"import sys, runpy; sys.argv = {arguments!r}; {before}runpy.run_path({str(FOLDER)!r}, run_name='__main__')"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, timeout=300, cwd=script.parent)
    return file


def record_by_command(script: Path) -> Path:
    file = script.with_name("command.jsonl")
    command = [sys.executable, "-m", "unified_clip", "record", str(file), "--norms", "--", sys.executable, str(script)]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=300, cwd=script.parent)
    return file


def differences(a: Lines, b: Lines) -> dict[str, list[tuple[Any, Any]]]:
    """Return {field: different values} of two recordings of one script. Numbers may differ by rounding."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for left, right in zip(a, b, strict=True):
        for key in {*left, *right} - {"seconds"}:
            if not _is_near(left.get(key), right.get(key)):
                found.setdefault(key, []).append((left.get(key), right.get(key)))
    return found


def _is_near(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_near(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_near, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2e-6 * max(abs(a), abs(b))
    return bool(a == b)
