"""Control characters in names and messages reach no output, and text such as `[ab]` is no markup."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.parity.cases import suite
from support.recordings import complete

from unified_clip import cli
from unified_clip._kit import display
from unified_clip.parity.workers import run_worker

HOSTILE = "[ab]\x1b[2J\x00\u202e\u2066\x7f\x9b\r\n::error::x"
SHOWN = r"[ab]\x1b[2J\x00\u202e\u2066\x7f\x9b\r\n::error::x"
IN_A_PATH = HOSTILE.replace("\x00", "")
SHOWN_IN_A_PATH = SHOWN.replace(r"\x00", "")

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\n::error")
"""Characters that no output may have. Line breaks are allowed, except before a log command."""

WRONG = "import numpy as np, unified_clip.numpy as uc; uc.global_norm = lambda *_: np.float32(6)"

CASES = """
    [[gradients]]
    name = %s
    tensors = [{ values = [3.0, 4.0] }]
    [[cases]]
    gradients = [%s]
    calls = [{ call = "global_norm" }]
"""


def line(norms: dict[str, float], **changes: Any) -> dict[str, Any]:
    parameters = {name: {"norm": norm, "shape": [2]} for name, norm in norms.items()}
    fields = {"rule": "global", "threshold": 1.0, "norm_type": 2.0, "eps": 0.0, "norm": 5.0, "coef": 0.2}
    return {"step": 1, "call": "clip_by_global_norm", **fields, "parameters": parameters, **changes}


def written(path: Path, *lines: dict[str, Any]) -> Path:
    header = {"unified_clip": "0.1.0", "schema": 1, "started": "2026-01-01T00:00:00Z", "norms": True}
    path.write_text("".join(json.dumps(each) + "\n" for each in (header, *map(complete, lines))))
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("encoder.layer_0[0]: Gewicht, 权重 😀 | <b>", "encoder.layer_0[0]: Gewicht, 权重 😀 | <b>"),
        ("a\udcff\u2028\u200f\ufeff", r"a\udcff\u2028\u200f\ufeff"),
        ("w\u200beight\u200c\u200d\u2060\u00ad", r"w\u200beight\u200c\u200d\u2060\xad"),
        ("w\u3164\ufe0f\U000e0061", r"w\u3164\ufe0f\U000e0061"),
        ("::stop-commands::x.py", r"\x3a:stop-commands::x.py"),
        ("\u2003 ::error::x", "\u2003 \\x3a:error::x"),
        ("a ##[error]b ##vso[task.complete]", r"a #\x23[error]b #\x23vso[task.complete]"),
        ("a::b :c ## [0.1] # ##x", "a::b :c ## [0.1] # ##x"),
    ],
)
def test_control_characters_and_log_commands_are_escaped_and_nothing_else(text: str, shown: str) -> None:
    assert display.safe(text) == shown
    assert display.safe({text: [text, (text, 1.5, None)]}) == {shown: [shown, [shown, 1.5, None]]}


def test_line_breaks_can_be_kept() -> None:
    assert display.safe("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
    assert display.safe("::2", keep="\n\t") == "::2"


def test_a_report_has_no_control_characters_in_any_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = json.dumps(HOSTILE).replace("\x7f", "\\u007f")
    directory = suite(tmp_path, CASES % (name, name))
    code = f"{WRONG}\nfrom unified_clip.parity.workers import worker; worker.main()"
    monkeypatch.setattr(run_worker, "command", lambda framework, python: [python, "-c", code, framework])
    assert cli.main(["parity", "--suite", str(directory), "--out", str(tmp_path / "report")]) == 1
    outputs = {"terminal": capsys.readouterr().out}
    outputs |= {each: (tmp_path / "report" / each).read_text() for each in ("parity.md", "index.html", "parity.xml")}
    for where, text in outputs.items():
        assert not RAW.search(text), where
        assert SHOWN in text.replace("<wbr>", ""), where
        assert r"\[ab" not in text, where
    names = [case.get("name", "") for case in ElementTree.fromstring(outputs["parity.xml"]).iter("testcase")]
    assert any(SHOWN in each for each in names)
    data = json.loads((tmp_path / "report" / "parity.json").read_text())
    assert HOSTILE in data["cases"][0]["name"]


def test_comparing_recordings_prints_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / f"{IN_A_PATH}.jsonl".replace("/", ""), line({HOSTILE: 3.0, "b": 4.0}))
    b = written(tmp_path / "b.jsonl", line({HOSTILE: 3.5, "b": 4.0}))
    assert cli.main(["compare", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    assert not RAW.search(out)
    assert SHOWN_IN_A_PATH in out
    assert r"\[ab" not in out
    failed: dict[str, Any] = {"rule": None, "norm": None, "coef": None, "step": 2, "error": HOSTILE}
    written(a, line({}), line({}, step=2))
    written(b, line({}), line({}, **failed))
    assert cli.main(["compare", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    assert not RAW.search(out)
    assert SHOWN in out


def test_error_messages_have_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / IN_A_PATH)
    for arguments in (
        ["parity", "--suite", absent],
        ["compare", absent, absent],
        ["explain", absent],
        ["port", absent],
        ["config", "import", absent],
        ["parity", "--suite", str(tmp_path / "new"), "init", f"{absent}.npz"],
    ):
        assert cli.main(arguments) == 2
        err = capsys.readouterr().err
        assert not RAW.search(err), arguments
        assert SHOWN_IN_A_PATH in err, arguments


# -- commands to type


@pytest.mark.parametrize(
    ("started", "on_path", "shown"),
    [
        ("bin/unified-clip", "other", "bin/unified-clip"),
        ("bin/unified-clip", "", "bin/unified-clip"),
        ("bin/unified-clip", "bin", "unified-clip"),
        ("my bin/unified-clip", "bin", "'my bin/unified-clip'"),
        ("lib/unified_clip/__main__.py", "", f"{sys.executable} -m unified_clip"),
        ("lib/unified_clip/__main__.py", str(Path(sys.executable).parent), "unified-clip"),
        ("lib/pytest/__main__.py", "", "unified-clip"),
    ],
)
def test_commands_to_type_name_the_program_as_it_was_started(
    started: str, on_path: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [started, "record"])
    monkeypatch.setattr("shutil.which", lambda name: f"{on_path}/{name}" if on_path else None)
    assert cli.main(["record", "run.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.partition(": ")[0] == "unified-clip"
    assert line.endswith(f"Type: {shown} record run.jsonl -- python train.py")
    text = "run `{} parity`. unified-clip is a program"
    assert display.as_started(text.format("unified-clip")) == text.format(shown)
