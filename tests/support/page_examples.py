"""The examples on the pages of `docs/integrations/`, and their output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)


def examples(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "integrations" / f"{page}.md").read_text(encoding="utf-8")
    matches = EXAMPLE.findall(text)
    assert len(matches) == text.count("```python") > 0
    return matches


def patched(code: str, diff: str) -> str:
    """Apply the hunks of a diff on a page. A line of context stands before the changed lines."""
    for context, removed, added in re.findall(r"((?:^ .*\n)*)((?:^-.*\n)*)((?:^\+.*\n)+)", diff, re.MULTILINE):
        old, new = (re.sub(r"^.", "", context + lines, flags=re.MULTILINE) for lines in (removed, added))
        assert code.count(old) == 1
        code = code.replace(old, new)
    return code


def printed(code: str, directory: Path, *, here: bool) -> str:
    (directory / "clip.toml").write_bytes((ROOT / "examples" / "clip.toml").read_bytes())
    if here:
        with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "example", "exec"), {"__name__": "example"})
        return out.getvalue()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(folder: Path, *arguments: str) -> str:
    """Run Python with these arguments in a folder, and return what it prints. Its status must be 0 or 1."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout
