"""The guides in `docs/porting/`: pages show parts of the files, and the current output of the commands.

In the first steps, all sums are exact (`docs/porting/make_data.py`), so both programs of a guide have equal clip
records. Later, the frameworks add up in different orders. The records then agree within the rounding of `unified-clip
compare`, 64 ULP.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.port import pages as pages
from support.port.pages import FILES, GUIDES, PAIRS, PORT, PORTING, SHOWN, TOLERANT, VERIFY, WRONG

from unified_clip.recording import rounding
from unified_clip.tensors.files import formats

STEPS = 10

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")

Bits = list[bytes]


class Proof(NamedTuple):
    status: int
    output: str
    out: Path
    """The folder with both recordings, and their gradients."""


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Proof]:
    @functools.cache
    def run(guide: str) -> Proof:
        out = tmp_path_factory.mktemp(guide)
        return Proof(*pages.run_command(VERIFY.format(guide=guide) + TOLERANT, "--out", str(out)), out)

    return run


# -- the page and the files


@pytest.mark.parametrize("guide", GUIDES)
def test_the_page_shows_parts_of_the_files(guide: str) -> None:
    shown = pages.blocks_of(guide, FILES, "python")
    assert [
        block in pages.source(guide, name) for block, name in zip(shown, ("before.py", "after.py"), strict=True)
    ] == [
        True,
        True,
    ]
    assert all("clip" in block for block in shown)


def test_the_index_has_every_guide_and_is_found_from_the_page_about_the_tool() -> None:
    index = (PORTING / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| .*\((\w+)\.md\)", index, re.M) == list(GUIDES)
    others = {"README", "old_environment", "optimizers_and_layers"}
    assert {path.stem for path in PORTING.glob("*.md")} == {*GUIDES, *others}
    assert "(porting/README.md)" in (PORTING.parent / "port.md").read_text(encoding="utf-8")


def test_the_data_is_that_of_its_script() -> None:
    script = runpy.run_path(str(PORTING / "make_data.py"))
    source = np.random.default_rng(script["SEED"])
    for name in ("weights", "batches"):
        with np.load(PORTING / f"{name}.npz") as stored:
            expected = script[name](source)
            assert list(stored) == list(expected)
            for key, array in expected.items():
                assert stored[key].dtype == np.float32
                assert np.array_equal(stored[key], array)
                assert np.array_equal(array * 8, np.round(array * 8))


# -- the output of the tool


def test_the_overview_shows_the_commands_and_the_output_of_the_tool() -> None:
    commands = [command.replace("\\\n    ", "").strip() for command in pages.blocks_of("README", PAIRS, "sh")]
    assert commands == [PORT.format(guide=SHOWN), VERIFY.format(guide=SHOWN) + TOLERANT]
    status, output = pages.run_command(commands[0])
    assert (status, pages.blocks_of("README", PAIRS, "text")[0]) == (1, pages.file_part(output))


@pytest.mark.parametrize("guide", GUIDES)
def test_the_port_has_the_lines_of_the_tool_in_their_order(guide: str) -> None:
    _, output = pages.run_command(PORT.format(guide=guide))
    suggested = [
        line.partition("#")[0].strip() for line in pages.file_part(output).partition("write:\n")[2].splitlines()
    ]
    imports = [line for line in suggested if line.startswith("import ")]
    expected = [line for line in suggested if line not in imports]
    assert any("clip" in line for line in expected)
    assert imports
    written = [line.strip() for line in pages.source(guide, "after.py").splitlines()]
    places = [written.index(line) for line in expected]
    assert places == sorted(places)
    assert set(imports) <= {*written, "import unified_clip.torch"}


# -- the proof


def rows(text: str) -> list[list[str]]:
    lines = [re.split("[┃│]", line)[1:-1] for line in text.splitlines() if line.startswith(("┃", "│"))]
    return [[cell.strip() for cell in line] for line in lines]


def about(line: str) -> str:
    return NUMBER.sub("#", line)


def numbers(cell: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(cell)]


@pytest.mark.nightly
@pytest.mark.parametrize("guide", GUIDES)
def test_the_pair_agrees_up_to_rounding(guide: str, proof: Callable[[str], Proof]) -> None:
    assert TOLERANT.split()[1] == str(rounding.ROUNDING)
    status, output, _ = proof(guide)
    assert status == 0, output
    *_, tensors, update, verdicts = zip(*rows(output)[1:], strict=True)
    assert verdicts == ("same",) * STEPS
    assert all(numbers(cell)[0] <= rounding.ROUNDING for cell in (*tensors, *update))


@pytest.mark.nightly
def test_the_overview_shows_the_sentences(proof: Callable[[str], Proof]) -> None:
    assert pages.blocks_of("README", PAIRS, "text")[1] == pages.sentences(proof(SHOWN).output)


def gradients(out: Path, side: str) -> Iterator[Bits]:
    """Return the gradients of each step before the clip, independent of their order, names and layout."""
    lines = map(json.loads, (out / side / "recording.jsonl").read_text(encoding="utf-8").splitlines()[1:])
    for line in (line for line in lines if "call" in line):
        stored = formats.load(out / side / line["gradients"])
        yield sorted(np.sort(tensor.array, axis=None).tobytes() for tensor in stored.values())


@pytest.mark.nightly
def test_without_a_tolerance_the_cause_is_rounding() -> None:
    status, output = pages.run_command(VERIFY.format(guide=SHOWN))
    assert status == 1
    assert re.findall(r"^(\w[\w ]*): ", output, re.MULTILINE)[0] == "Rounding"


# -- wrong ports

MISTAKES = {
    "paddle_static": "Clipping after the step",
    "paddle_dygraph": "Per tensor for global",
    "tensorflow_1": "Another eps of the clip",
    "tensorflow_2": "The clip does not reach the step",
    "keras": "Per tensor for global",
}


@pytest.mark.nightly
@pytest.mark.parametrize("guide", GUIDES)
def test_a_wrong_port_is_named_as_on_the_page(guide: str, tmp_path: Path) -> None:
    status, output = pages.run_command(pages.write_wrong_port(guide, tmp_path))
    assert status == 1, output
    (shown,) = pages.blocks_of(guide, WRONG, "text")
    assert re.fullmatch(rf"{MISTAKES[guide]}: .* \(step 1\)\.", shown.splitlines()[0])
    assert len(pages.FINDING.findall(shown)) == 1
    assert about(pages.findings(output)) == about(shown)


# -- set_gradient_clip


@pytest.mark.nightly
def test_paddle_ignores_set_gradient_clip_and_verify_reports_it(tmp_path: Path) -> None:
    path = pages.write_silent_program(tmp_path)
    verify, _ = pages.silent_commands(path)
    status, output = pages.run_command(verify)
    assert (status, output.partition(" has no clip calls")[0]) == (
        2,
        f"unified-clip: error UC603: The recording of {path}:step",
    )
