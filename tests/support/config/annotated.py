"""Annotated sources for `unified-clip config check`, in tests/data/check/cases.

    == a title
    @ include = ["encoder.*"]
    -- a.py
    clip_grad_norm_(model.parameters(), 5.0)  # clip: drift 5

A line that begins with @ belongs to clip.toml, which accepts other families unless it has a table [check]. Without a
line that begins with --, the file is a.py. An annotation lists the results of all clips of a line, and a threshold that
differs. It also lists where a clip is missing, and entries of clip.toml without effect: "unused". In a file without
comments, it follows the file's name.

To write the annotations of all cases as the check is now, run this file, and read the diff.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CASES = Path(__file__).parents[2] / "data/check/cases"
CLIP_CONFIG = 'rule = "global_norm"\nthreshold = 1.0\nfamily = "pytorch"\n'
NEAREST = '\n[check]\nnearest = ["**"]\n'
MARK = re.compile(r"\s*# clip: (.*)$")
WITH_COMMENTS = re.compile(r"\.(py|sh|ya?ml|toml|gin)$")

Clips = dict[tuple[str, int], list[str]]
"""{(file, line): results}. The line of a file without comments is 0."""


class Case(NamedTuple):
    name: str
    config: str
    files: dict[str, str]
    clips: Clips


def cases(path: Path) -> Iterator[Case]:
    for block in path.read_text().split("== ")[1:]:
        title, *lines = block.rstrip("\n").split("\n")
        config: list[str] = []
        files: dict[str, list[str]] = {}
        clips: Clips = {}
        name = "a.py"
        for line in lines:
            text, mark = MARK.sub("", line), MARK.search(line)
            if text.startswith("@ "):
                config.append(text.removeprefix("@ "))
                if mark is not None:
                    clips["clip.toml", len(config)] = mark[1].split(", ")
                continue
            if text.startswith("-- "):
                name, text = text.removeprefix("-- "), ""
                files[name] = []
            else:
                files.setdefault(name, []).append(text)
            if mark is not None:
                clips[name, len(files[name])] = mark[1].split(", ")
        yield Case(title, "\n".join(config), {name: "\n".join([*text, ""]) for name, text in files.items()}, clips)


def found(case: Case) -> Clips:
    """Check the files of a case in the working directory, which is empty."""
    from unified_clip import ClipConfig
    from unified_clip.check import check_files, files_to_check

    config = f"{CLIP_CONFIG}{case.config}{'' if '[check]' in case.config else NEAREST}"
    for name, text in {**case.files, "clip.toml": config}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    clip = Path("clip.toml")
    rules = ClipConfig.load(clip).check
    declared = [key.path for key in rules.key] if rules else []
    report = check_files.check(clip, [Path()], files_to_check.files([Path()], clip, declared))
    thresholds = {
        (each.path, each.line, each.column, each.clip): f" {difference.found.split(',')[0]}"  # without what it means
        for each in report.findings
        for difference in each.differences
        if difference.about == "threshold"
    }
    clips: Clips = {}
    for each in report.clips:
        line = each.line if WITH_COMMENTS.search(each.path) else 0
        threshold = thresholds.get((each.path, each.line, each.column, each.clip), "")
        clips.setdefault((each.path, line), []).append(f"{each.result}{threshold}")
    last = len(case.config.splitlines())
    for each in report.findings:
        if each.kind in ("missing", "unused"):
            line = each.line - CLIP_CONFIG.count("\n") if each.path == "clip.toml" else each.line
            if each.path != "clip.toml" or 0 < line <= last:
                clips.setdefault((each.path, line), []).append(each.kind)
    return clips


def _updated(path: Path) -> str:
    blocks = []
    for case, block in zip(cases(path), path.read_text().split("== ")[1:], strict=True):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            clips = found(case)
        name, number, of_config, lines = "a.py", 0, 0, []
        for line in block.rstrip("\n").split("\n"):
            text = MARK.sub("", line)
            is_config = text.startswith("@ ")
            of_config += is_config
            if text.startswith("-- "):
                name, number = text.removeprefix("-- "), 0
            elif lines and not is_config:
                number += 1
            place = ("clip.toml", of_config) if is_config else (name, number)
            results = clips.pop(place, None) if lines else None
            lines.append(f"{text}  # clip: {', '.join(results)}" if results else text)
        assert not clips, (path.name, case.name, clips)
        blocks.append("\n".join(lines).rstrip("\n"))
    return "".join(f"== {block}\n\n" for block in blocks).rstrip("\n") + "\n"


if __name__ == "__main__":
    for path in [Path(each).resolve() for each in sys.argv[1:]] or sorted(CASES.iterdir()):
        path.write_text(_updated(path))
