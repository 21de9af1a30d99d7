"""`unified-clip port --mark` and `--check`: comments above flagged clips, and a check that nothing is left to port."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.tiers import nightly

from unified_clip import cli
from unified_clip.port import flag_comments
from unified_clip.port.port_file import port

CERTAIN = "import torch\n\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
FLAGGED = "import optax\n\noptimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))\n"


HOME = Path(__file__).parents[2] / "data" / "port"
EXPECTED: list[dict[str, Any]] = tomllib.loads((HOME / "expected.toml").read_text(encoding="utf-8"))["file"]
CORPUS = [HOME / "sources" / file["path"] for file in EXPECTED if not file["error"]]
QUICK = CORPUS[::6]
REST = [path for path in CORPUS if path not in QUICK]


def mark(content: bytes, path: Path = Path("a.py"), *, rewritten: bool = False) -> bytes:
    file = port(path, content)
    return flag_comments.mark(file, "torch", False, rewritten=rewritten).after


@pytest.mark.parametrize("path", [*QUICK, *nightly(*REST)], ids=lambda path: path.stem)
def test_marks_change_no_code_and_are_replaced_by_the_next_run(path: Path) -> None:
    content = path.read_bytes()
    file = port(path, content)
    once = flag_comments.mark(file, "torch", False, rewritten=False).after
    assert ast.dump(ast.parse(once)) == ast.dump(ast.parse(content))
    assert (once != content) == any(site.verdict == "flagged" for site in file.sites)
    assert mark(once, path) == once
    assert flag_comments.OLD_MARK.sub(b"", once) == content


def test_a_mark_stands_above_the_statement_with_its_indentation() -> None:
    source = FLAGGED.replace("optimizer =", "def build():\n    return (\n        1,\n       ").replace(
        "0.1))", "0.1)))"
    )
    text = mark(source.encode()).decode()
    lines = text.splitlines()
    assert lines[3].startswith("    # unified-clip: An optax transformation is part of an optimizer")
    assert lines[lines.index("    return (") - 1].startswith("    #   ")


def test_a_statement_that_begins_inside_a_string_is_marked_above_it() -> None:
    source = FLAGGED.replace("optimizer", 'text = """a\nb"""; optimizer')
    text = mark(source.encode()).decode()
    assert 'text = """a\nb""";' in text
    assert text.index("# unified-clip:") < text.index('text = """')


def test_line_breaks_and_encodings_are_kept() -> None:
    content = ("# -*- coding: latin-1 -*-\n# é\n" + FLAGGED).replace("\n", "\r\n").encode("latin-1")
    text = mark(content)
    assert b"# \xe9\r\n" in text
    assert b"\n" not in text.replace(b"\r\n", b"")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(CERTAIN)
    (tmp_path / "b.py").write_text(FLAGGED)
    return tmp_path


def test_the_command_marks_flagged_clips_and_rewrites_others_only_with_write(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["port", ".", "--mark", "--force"]) == 1
    assert "1 comment above flagged clips. Each comment begins with `# unified-clip:`" in capsys.readouterr().err
    assert (folder / "a.py").read_text() == CERTAIN
    assert (folder / "b.py").read_text().count("# unified-clip: ") == 1
    assert cli.main(["port", ".", "--mark", "--write", "--force"]) == 1
    assert "unified_clip.torch.clip_grad_norm_" in (folder / "a.py").read_text()
    assert (folder / "b.py").read_text().count("# unified-clip: ") == 1
    (folder / "b.py").write_text((folder / "b.py").read_text().replace(FLAGGED.splitlines()[2], "pass"))
    assert cli.main(["port", ".", "--mark", "--force"]) == 0
    assert (folder / "b.py").read_text() == "import optax\n\npass\n", "the clip is gone, and its mark with it"


def test_a_check_fails_if_a_clip_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert cli.main(["port", "a.py", "--check"]) == 1
    assert cli.main(["port", "a.py"]) == 0, "it would be rewritten with certainty"
    assert cli.main(["port", "b.py", "--check"]) == 1
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    cli.main(["port", "a.py", "--write", "--force"])
    assert cli.main(["port", "a.py", "--check"]) == 0
    assert cli.main(["port", "a.py", "--check", "--write"]) == 2
    assert "--check changes no file" in capsys.readouterr().err


def test_marks_need_a_clean_repository(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["port", "b.py", "--mark"]) == 2
    assert "add --force" in capsys.readouterr().err
    assert (folder / "b.py").read_text() == FLAGGED
