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

FILES, WRONG, SILENT = "Before and after", "A wrong port", "Programs with `set_gradient_clip`"
PAIRS = "The pairs"
"""The section of the overview with the output of `port` and `verify` for one pair."""

SHOWN = "paddle_dygraph"
PORT = "unified-clip port {guide}/before.py"
VERIFY = "unified-clip verify {guide}/before.py:step {guide}/after.py:step --weights weights.npz --batches batches.npz"
TOLERANT = " --max-ulp 64"

FINDING = re.compile(r"^\S[^\n]*: [^\n]* \(step \d+\)\.\n(?:  [^\n]*\n)*", re.MULTILINE)
"""What differs, and the step. The next lines say how to mend it."""


@dataclass(frozen=True)
class Block:
    section: str
    language: str
    code: str
    span: tuple[int, int]


def page(name: str) -> Path:
    return PORTING / f"{name}.md"


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


def sentences(output: str) -> str:
    """Return the lines below the table of `verify`."""
    return "".join(line for line in output.splitlines(True) if line[:1].isalpha())


def findings(output: str) -> str:
    found = "".join(FINDING.findall(output))
    assert found, output
    return found


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
    return VERIFY.format(guide=guide).replace(f"{guide}/after.py", str(path))


def write_silent_program(directory: Path) -> Path:
    path = directory / "before.py"
    path.write_text(
        apply_difference(source(GUIDES[0], "before.py"), blocks_of(GUIDES[0], SILENT, "diff")[0]), encoding="utf-8"
    )
    return path


def silent_commands(path: Path) -> tuple[str, str]:
    verify = VERIFY.format(guide=GUIDES[0]).replace(f"{GUIDES[0]}/before.py", str(path))
    return verify, f"unified-clip port {path} --to drop-in --format diff"


def hunk(difference: str) -> str:
    """Return the changed lines of a difference that adds an import."""
    return "".join(
        line for line in difference.splitlines(True) if re.match(r"[-+](?![-+])", line) and "import" not in line
    )


# -- writing


def expected_blocks(page_name: str, directory: Path) -> Iterator[tuple[str, str, list[str]]]:
    if page_name == "README":
        verify = VERIFY.format(guide=SHOWN)
        outputs = [run_command(command)[1] for command in (PORT.format(guide=SHOWN), verify + TOLERANT)]
        yield PAIRS, "text", [file_part(outputs[0]), sentences(outputs[1])]
        return
    yield WRONG, "text", [findings(run_command(write_wrong_port(page_name, directory))[1])]
    if page_name == GUIDES[0]:
        path = write_silent_program(directory)
        difference, _ = blocks_of(page_name, SILENT, "diff")
        _, port = silent_commands(path)
        yield SILENT, "diff", [difference, hunk(run_command(port)[1])]


def write_page(page_name: str, directory: Path) -> None:
    expected = {(section, language): codes for section, language, codes in expected_blocks(page_name, directory)}
    text = page(page_name).read_text(encoding="utf-8")
    for block in reversed(blocks(page_name)):
        codes = expected.get((block.section, block.language))
        if codes:
            start, end = block.span
            text = text[:start] + codes.pop() + text[end:]
    page(page_name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    for each in sys.argv[1:] or ("README", *GUIDES):
        with tempfile.TemporaryDirectory() as scratch:
            write_page(each, Path(scratch))
