"""The guides in `docs/porting/`: pages show the files, and the current output of the commands.

In the first steps, all sums are exact (`docs/porting/make_data.py`), so both programs of a guide have equal clip
records. Later, the frameworks add up in different orders. The records then agree within the rounding of `unified-clip
compare`, 64 ULP.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.port import pages as pages
from support.port.pages import AFTER, BEFORE, GUIDES, PORTING, PROOF, SAYS, SILENT, WRONG
from support.tiers import sampled

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.recording import rounding
from unified_clip.tensors.files import safetensors

STEPS = 10
EXACT = 1
"""The number of steps in which all sums are exact in any order."""

NORM = math.ldexp(rounding.ROUNDING, -23)
"""The relative tolerance of norms and coefficients on the page. Their last bits depend on the processor."""

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
        (command,) = pages.blocks_of(guide, PROOF, "sh")
        return Proof(*pages.run_command(command, "--out", str(out)), out)

    return run


@pytest.fixture(scope="module")
def report() -> Callable[[str], dict[str, Any]]:
    """The report of `verify` without a tolerance, as JSON."""

    @functools.cache
    def run(guide: str) -> dict[str, Any]:
        (command,) = pages.blocks_of(guide, PROOF, "sh")
        _, output = pages.run_command(pages.without_max_ulp(command), "--format", "json")
        parsed: dict[str, Any] = json.loads(output)
        return parsed

    return run


# -- the page and the files


@pytest.mark.parametrize("guide", sampled(GUIDES, 3))
def test_the_page_shows_the_whole_files(guide: str) -> None:
    assert pages.blocks_of(guide, BEFORE, "python") == [pages.source(guide, "before.py")]
    assert pages.blocks_of(guide, AFTER, "python") == [pages.source(guide, "after.py")]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_page_ends_with_what_to_look_out_for(guide: str) -> None:
    *_, (heading, end) = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", pages.page(guide).read_text("utf-8"), re.M | re.S)
    assert heading == "Pitfalls"
    points = re.findall(r"^- (.*?)(?=^- |\Z)", end, re.M | re.S)
    assert len(points) >= 10


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


@pytest.mark.parametrize("guide", GUIDES)
def test_the_page_shows_the_output_of_the_tool(guide: str) -> None:
    (command,) = pages.blocks_of(guide, SAYS, "sh")
    status, output = pages.run_command(command)
    if "--format diff" in command:
        assert (status, pages.blocks_of(guide, SAYS, "diff")) == (0, [output])
    else:
        assert (status, pages.blocks_of(guide, SAYS, "text")) == (1, [pages.file_part(output)])


def lines_of_the_tool(guide: str) -> list[str]:
    """Return the lines that the tool writes, or asks you to write. Lines of the old framework are left out."""
    if differences := pages.blocks_of(guide, SAYS, "diff"):
        added = [line[1:].strip() for line in differences[0].splitlines() if re.match(r"\+(?!\+)", line)]
        return [line for line in added if not re.search(r"\b(paddle|tf)\.", line)]
    (output,) = pages.blocks_of(guide, SAYS, "text")
    return [line.partition("#")[0].strip() for line in output.partition("write:\n")[2].splitlines()]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_port_has_the_lines_of_the_tool_in_their_order(guide: str) -> None:
    expected = [line for line in lines_of_the_tool(guide) if not line.startswith("import ")]
    assert any("clip" in line for line in expected)
    imports = [line for line in lines_of_the_tool(guide) if line.startswith("import unified_clip")]
    written = [line.strip() for line in pages.source(guide, "after.py").splitlines()]
    places = [written.index(line) for line in expected]
    assert places == sorted(places)
    assert set(imports or ["import unified_clip.torch"]) <= set(written)


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
def test_the_pair_agrees_up_to_rounding_and_the_page_shows_the_table(guide: str, proof: Callable[[str], Proof]) -> None:
    command, shown = pages.blocks_of(guide, PROOF, "sh")[0], pages.blocks_of(guide, PROOF, "text")[0]
    assert command.split("--max-ulp ")[1].strip() == str(rounding.ROUNDING)
    status, output, _ = proof(guide)
    assert status == 0, output
    head, *steps = rows(shown)
    assert [head, len(steps)] == [rows(output)[0], STEPS]
    for page_row, output_row in zip(steps, rows(output)[1:], strict=True):
        step, *exact, tensors, update, verdict = zip(page_row, output_row, strict=True)
        assert step[0] == step[1]
        assert verdict == ("same", "same")
        for shown_cell, cell in exact:
            assert about(shown_cell) == about(cell)
            assert numbers(shown_cell) == pytest.approx(numbers(cell), rel=NORM)
        assert all(numbers(cell)[0] <= rounding.ROUNDING for cell in (*tensors, *update))
    sentences = [line for line in output.splitlines() if line[:1].isalpha()]
    assert sentences == [line for line in shown.splitlines() if line[:1].isalpha()]


def gradients(out: Path, side: str) -> Iterator[Bits]:
    """Return the gradients of each step before the clip, independent of their order, names and layout."""
    lines = map(json.loads, (out / side / "recording.jsonl").read_text(encoding="utf-8").splitlines()[1:])
    for line in (line for line in lines if "call" in line):
        stored = safetensors.load(out / side / line["gradients"])
        yield sorted(np.sort(tensor.array, axis=None).tobytes() for tensor in stored.values())


def clips(calls: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the norm and the coefficient of each clip of a step, independent of their order."""
    (call,) = calls
    return sorted(zip(np.atleast_1d(call["norm"]), np.atleast_1d(call["coef"]), strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("guide", GUIDES)
def test_clip_events_are_identical_if_the_gradients_are(
    guide: str, proof: Callable[[str], Proof], report: Callable[[str], dict[str, Any]]
) -> None:
    out, steps = proof(guide).out, report(guide)["steps"]
    alike = [old == new for old, new in zip(gradients(out, "old"), gradients(out, "new"), strict=True)]
    assert len(steps) == len(alike) == STEPS
    assert all(alike[:EXACT])
    for step in steps[: alike.index(False) if False in alike else STEPS]:
        assert clips(step["old"]) == clips(step["new"])


ROUNDS_TWICE = "keras"
"""The guide whose old code rounds each clipped gradient twice, so equal gradients differ after the clip."""


@pytest.mark.nightly
@pytest.mark.parametrize("guide", GUIDES)
def test_the_first_difference_is_rounding_and_the_page_explains_it(
    guide: str, report: Callable[[str], dict[str, Any]]
) -> None:
    findings = report(guide)["findings"]
    first = EXACT if guide == ROUNDS_TWICE else EXACT + 1
    assert [finding["mistake"] for finding in findings] in ([], ["rounding"])
    assert all(finding["step"] >= first for finding in findings)
    why, _, where = pages.blocks_of(guide, PROOF, "text")[1].splitlines()
    steps = "|".join(map(str, range(first, STEPS + 1)))
    assert re.fullmatch(rf"Rounding: .* \(at most \d+ ULP\) \(step ({steps})\)\.", why)
    assert re.match(rf"The clipped gradients differ from step ({steps}) on", where)
    explained = pages.page(guide).read_text(encoding="utf-8").partition(where)[2].partition("## ")[0]
    assert "sum the products of a matrix multiplication in different orders" in " ".join(explained.split())


@pytest.mark.nightly
@pytest.mark.parametrize("guide", GUIDES)
def test_some_steps_clip_and_some_do_not(guide: str, report: Callable[[str], dict[str, Any]]) -> None:
    clipped = [min(coef for _, coef in clips(step["new"])) < 1 for step in report(guide)["steps"]]
    assert 2 <= clipped.count(True) <= STEPS - 2


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

TRAIN = """
import importlib.util, sys
import numpy as np

weights, arrays = (dict(np.load(f"{sys.argv[1]}/{name}.npz")) for name in ("weights", "batches"))
batches = [dict(zip(arrays, values)) for values in zip(*arrays.values())]
for path in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for step, (parameters, _) in enumerate(module.step(weights, batches)):
        np.savez(f"{path}.{step}.npz", **parameters)
"""


def trained(tmp_path: Path, sources: dict[str, str]) -> dict[str, list[dict[str, np.ndarray[Any, Any]]]]:
    paths = {name: tmp_path / f"{name}.py" for name in sources}
    for name, path in paths.items():
        path.write_text(sources[name], encoding="utf-8")
    environment = os.environ | CPU_ONLY | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", TRAIN, str(PORTING), *map(str, paths.values())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {name: [dict(np.load(f"{path}.{step}.npz")) for step in range(STEPS)] for name, path in paths.items()}


@pytest.mark.nightly
def test_paddle_ignores_set_gradient_clip_and_verify_reports_it(tmp_path: Path) -> None:
    path = pages.write_silent_program(tmp_path)
    verify, _ = pages.blocks_of("paddle_static", SILENT, "sh")
    status, output = pages.run_command(verify.replace("paddle_static/before.py", str(path)))
    assert (status, [output.replace(str(path), "paddle_static/before.py")]) == (
        2,
        pages.blocks_of("paddle_static", SILENT, "text"),
    )


@pytest.mark.nightly
def test_the_drop_in_clips_unlike_set_gradient_clip_of_paddle(tmp_path: Path) -> None:
    path = pages.write_silent_program(tmp_path)
    ignored = path.read_text(encoding="utf-8")
    _, port = pages.blocks_of("paddle_static", SILENT, "sh")
    status, difference = pages.run_command(port.replace("paddle_static/before.py", str(path)))
    shown = pages.blocks_of("paddle_static", SILENT, "diff")[1]
    assert (status, difference.replace(str(path).lstrip("/"), "paddle_static/before.py")) == (0, shown)
    pages.run_command(f"unified-clip port {path} --to drop-in --write --force")
    sources = {
        "before": pages.source("paddle_static", "before.py"),
        "ignored": ignored,
        "dropped_in": path.read_text(encoding="utf-8"),
    }
    parameters = trained(tmp_path, sources)

    def distances(name: str) -> list[float]:
        pairs = zip(parameters["before"], parameters[name], strict=True)
        return [max(float(np.abs(a[key] - b[key]).max()) for key in a) for a, b in pairs]

    assert all(distance > 0.01 for distance in distances("ignored"))
    assert all(distance <= math.ldexp(STEPS, -23) for distance in distances("dropped_in"))
