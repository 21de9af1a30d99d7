"""The code blocks of the pages in `docs/porting/`. `python tests/support/port/pages.py` writes them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PORTING = Path(__file__).parents[3] / "docs" / "porting"
GUIDES = ("paddle_static", "paddle_dygraph", "tensorflow_1", "tensorflow_2", "keras")

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^## (.*)$", re.MULTILINE)

BEFORE, SAYS, AFTER, PROOF = "Before", "The tool's report", "After", "The proof"
WRONG = "A wrong port"
SILENT = "Programs with `set_gradient_clip`"

FINDING = re.compile(r"^\S[^\n]*: [^\n]* \(step \d+\)\.\n(?:  [^\n]*\n)*", re.MULTILINE)
"""What differs, and the step. The next lines say how to mend it."""


@dataclass(frozen=True)
class Block:
    section: str
    language: str
    code: str
    span: tuple[int, int]


def page(guide: str) -> Path:
    return PORTING / f"{guide}.md"


def blocks(guide: str) -> list[Block]:
    text = page(guide).read_text(encoding="utf-8")
    headings = [(result.start(), result[1]) for result in SECTION.finditer(text)]
    result = []
    for block in BLOCK.finditer(text):
        section = next(name for start, name in reversed(headings) if start < block.start())
        result.append(Block(section, block[1], block[2], block.span(2)))
    return result


def blocks_of(guide: str, section: str, language: str) -> list[str]:
    return [each.code for each in blocks(guide) if (each.section, each.language) == (section, language)]


def run_command(command: str, *options: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONSAFEPATH": "1"}
    environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1", "KERAS_BACKEND": "tensorflow"}
    name, *arguments = shlex.split(command.replace("\\\n", " "))
    assert name == "unified-clip"
    arguments_of_call = [sys.executable, "-m", "unified_clip", *arguments, *options]
    completed = subprocess.run(
        arguments_of_call, capture_output=True, encoding="utf-8", env=environment, cwd=PORTING, check=False
    )
    return completed.returncode, completed.stdout + (completed.stderr if completed.returncode > 1 else "")


def file_part(report: str) -> str:
    return report.partition("\n\n")[0] + "\n"


def findings(output: str) -> str:
    found = "".join(FINDING.findall(output))
    assert found, output
    return found


def gradient_difference(output: str) -> str:
    return "".join(line for line in output.splitlines(True) if line.startswith("The clipped gradients differ"))


def without_max_ulp(command: str) -> str:
    return re.sub(r" --max-ulp \d+", "", command)


def apply_difference(code: str, difference: str) -> str:
    lines = difference.splitlines(True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
    assert code.count(old) == 1, old
    return code.replace(old, new)


def source(guide: str, name: str) -> str:
    return (PORTING / guide / name).read_text(encoding="utf-8")


def write_wrong_port(guide: str, directory: Path) -> str:
    (difference,) = blocks_of(guide, WRONG, "diff")
    path = directory / "after.py"
    path.write_text(apply_difference(source(guide, "after.py"), difference), encoding="utf-8")
    return without_max_ulp(blocks_of(guide, PROOF, "sh")[0]).replace(f"{guide}/after.py", str(path))


def write_silent_program(directory: Path) -> Path:
    path = directory / "before.py"
    path.write_text(
        apply_difference(source(GUIDES[0], "before.py"), blocks_of(GUIDES[0], SILENT, "diff")[0]), encoding="utf-8"
    )
    return path


# -- writing


def expected_blocks(guide: str, directory: Path) -> Iterator[tuple[str, str, list[str]]]:
    yield BEFORE, "python", [source(guide, "before.py")]
    yield AFTER, "python", [source(guide, "after.py")]
    for language in ("diff", "text"):
        if blocks_of(guide, SAYS, language):
            output = run_command(blocks_of(guide, SAYS, "sh")[0])[1]
            yield SAYS, language, [output if language == "diff" else file_part(output)]
    command = blocks_of(guide, PROOF, "sh")[0]
    output = run_command(without_max_ulp(command))[1]
    yield PROOF, "text", [run_command(command)[1], findings(output) + gradient_difference(output)]
    yield WRONG, "text", [findings(run_command(write_wrong_port(guide, directory))[1])]
    if guide == GUIDES[0]:
        path = write_silent_program(directory)
        difference, _ = blocks_of(guide, SILENT, "diff")
        commands = (each.replace(f"{guide}/before.py", str(path)) for each in blocks_of(guide, SILENT, "sh"))
        refused, dropped_in = (run_command(each)[1] for each in commands)
        yield SILENT, "text", [refused.replace(str(path), f"{guide}/before.py")]
        yield SILENT, "diff", [difference, dropped_in.replace(str(path).lstrip("/"), f"{guide}/before.py")]


def write_page(guide: str, directory: Path) -> None:
    expected = {(section, language): codes for section, language, codes in expected_blocks(guide, directory)}
    text = page(guide).read_text(encoding="utf-8")
    for block in reversed(blocks(guide)):
        codes = expected.get((block.section, block.language))
        if codes:
            start, end = block.span
            text = text[:start] + codes.pop() + text[end:]
    page(guide).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    for each in sys.argv[1:] or GUIDES:
        with tempfile.TemporaryDirectory() as scratch:
            write_page(each, Path(scratch))
