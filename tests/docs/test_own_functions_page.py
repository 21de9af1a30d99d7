"""docs/own-functions.md: its suite, its functions, and what the command prints about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from unified_clip import ClipConfig, cli
from unified_clip.parity.known import entries
from unified_clip.parity.suite import load, own_functions
from unified_clip.parity.suite.public_calls import CALLS
from unified_clip.parity.workers import user_function
from unified_clip.testing import assert_gradients_equal

PAGE = (Path(__file__).parents[2] / "docs" / "own-functions.md").read_text(encoding="utf-8")
Array = npt.NDArray[Any]

ENTRY = "an entry of parity/known.toml"
TOP, TABLES = "parity/suite.toml, at the top", "parity/suite.toml, after the lines at the top"

IN_PLACE = """
import torch


def clip_(parameters, max_norm):
    total = torch.sqrt(sum((p.grad.float() ** 2).sum() for p in parameters))
    scale = max_norm / torch.clamp(total + 1e-6, min=max_norm)
    for p in parameters:
        p.grad.mul_(scale)
    return total
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the files of the page, and the entry of known.toml as the whole list."""
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^unified-clip (parity init .*)$", PAGE, re.MULTILINE)
    assert cli.main(command.split()) == 0
    capsys.readouterr()
    suite = (tmp_path / "parity" / "suite.toml").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(?:toml|python)\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
    blocks["parity/known.toml"] = blocks.pop(ENTRY)
    blocks["parity/suite.toml"] = f"{blocks.pop(TOP)}\n{blocks.pop(TABLES)}\n{suite}"
    assert len(blocks) == 6
    for path, text in blocks.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "ourclip_in_place.py").write_text(IN_PLACE, encoding="utf-8")
    return tmp_path


def test_the_suite_of_the_page_names_both_functions(folder: Path) -> None:
    suite = load.read(Path("parity"))
    assert {name: dict(framework.functions) for name, framework in suite.frameworks.items()} == {
        name: {"clip_by_global_norm": f"../ourclip_{name}.py:clip_by_global_norm"} for name in ("torch", "tensorflow")
    }
    (entry,) = suite.known or ()
    assert {case.name for case in suite.cases} >= set(entry.cases)


def test_the_case_of_the_page_for_an_argument_expects_an_error(folder: Path) -> None:
    hard = folder / "parity" / "hard.toml"
    (table,) = re.findall(r"```toml\n(\[\[cases\]\]\n.*?)```", PAGE, re.DOTALL)
    hard.write_text(f"{hard.read_text(encoding='utf-8')}\n{table}", encoding="utf-8")
    (case,) = [each for each in load.read(Path("parity")).cases if each.options.raises]
    assert (case.call_name, case.gradients_name) == ("clip_grad_norm_", "NaN")


def test_the_page_has_the_signature_of_each_name() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `f\(\w+,? ?(.*?)\)`.*?\| (.*?) \|$", PAGE, re.MULTILINE)
    signatures = {name: tuple(filter(None, arguments.split(", "))) for name, arguments, _ in rows}
    calls = {name: CALLS[name] for name in own_functions.REPLACEABLE}
    expected = {name: (*call.required, *(f"{option}=" for option in call.optional)) for name, call in calls.items()}
    assert signatures == expected
    returned = {name: user_function.FORMS[call.style] for name, call in calls.items()}
    assert {name: result for name, _, result in rows} == {
        name: text.partition(", and")[0] if CALLS[name].returns_norm or CALLS[name].style == "each" else "None"
        for name, text in returned.items()
    }
    assert {name for name, call in calls.items() if call.in_place} == {
        name for name in calls if f"| `{name}` | `f(list" in PAGE
    }


def without_rounding(line: str) -> str:
    """Whether two functions give the same bits or close numbers depends on the processor."""
    return re.sub(r"\d+ (close|equal)", r"N \1", line)


@pytest.mark.nightly
def test_the_command_prints_the_output_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (expected,) = entries.read(folder / "parity" / "known.toml")
    (folder / "parity" / "known.toml").write_text("", encoding="utf-8")
    assert cli.main(["parity", "--accept"]) == 0
    printed = capsys.readouterr().out.splitlines()
    block = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    wanted = list(map(without_rounding, block.splitlines()))
    assert [line for line in map(without_rounding, printed) if line in wanted] == wanted
    (number,) = re.findall(r"[Tt]wo of the (\d+) findings", PAGE)
    assert len([line for line in printed if re.search(r"(Case:|cases, such as) ", line)]) == int(number)
    written = entries.read(folder / "parity" / "known.toml")
    (same,) = [entry for entry in written if entry.cases == expected.cases and entry.framework == expected.framework]
    assert same.model_dump() | {"reason": expected.reason} == expected.model_dump()
    (fix,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    before, after = ("".join(re.findall(rf"^\{sign}(.*\n)", fix, re.MULTILINE)) for sign in "-+")
    function = folder / "ourclip_torch.py"
    code = function.read_text(encoding="utf-8")
    assert before in code
    function.write_text(code.replace(before, after), encoding="utf-8")
    assert cli.main(["parity", "--accept", "--frameworks", "torch"]) == 0
    assert "6 removed, 0 added" in capsys.readouterr().out
    known = folder / "parity" / "known.toml"
    known.write_text(known.read_text(encoding="utf-8").replace('reason = ""', 'reason = "we know"'), encoding="utf-8")
    assert cli.main(["parity", "--frameworks", "tensorflow"]) == 0
    function = folder / "ourclip_tensorflow.py"
    function.write_text(function.read_text(encoding="utf-8").replace("1e-3", "1e-2"), encoding="utf-8")
    assert cli.main(["parity", "--frameworks", "tensorflow"]) == 1
    assert "; listed: 0.018 %" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_adapter_of_the_page_is_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, old, new = folder / "parity" / "suite.toml", "ourclip_torch.py:", "ourclip_adapter.py:"
    text = suite.read_text(encoding="utf-8").replace('files = ["hard.toml"]\n', "").partition("# Other norms.")[0]
    assert text.count(old) == 1
    suite.write_text(text.replace(old, new), encoding="utf-8")
    (folder / "parity" / "known.toml").write_text("", encoding="utf-8")
    assert cli.main(["parity", "--accept"]) == 0
    assert f"{new}clip_by_global_norm (torch)" in capsys.readouterr().out


def test_the_expected_gradients_of_agc_find_a_wrong_threshold() -> None:
    (code,) = re.findall(r"`(ClipConfig\(rule=.*?parameters=parameters\))`", PAGE)
    random = np.random.default_rng(0)
    grads, parameters = (
        {name: random.standard_normal(shape, np.float32) for name, shape in (("weight", (4, 3)), ("bias", (4,)))}
        for _ in range(2)
    )
    expected = eval(code, {"ClipConfig": ClipConfig, "grads": grads, "parameters": parameters})

    def adaptive_clip(factor: float) -> dict[str, Array]:
        def norms(array: Array) -> Array:
            return np.sqrt((array**2).sum(axis=tuple(range(1, array.ndim)) or None, keepdims=True))

        limits = {name: factor * np.maximum(norms(each), 1e-3) for name, each in parameters.items()}
        return {name: each * np.minimum(1, limits[name] / norms(each)) for name, each in grads.items()}

    assert_gradients_equal(expected, adaptive_clip(0.01), rtol=1e-5)
    with pytest.raises(AssertionError, match="the gradients differ"):
        assert_gradients_equal(expected, adaptive_clip(0.02), rtol=1e-5)
