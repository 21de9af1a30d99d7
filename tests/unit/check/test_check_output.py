"""`unified-clip config check`, the command: its exit status, and its output as text, JSON, SARIF and annotations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip import cli
from unified_clip.check import model, output
from unified_clip.check.cli import FORMATS
from unified_clip.check.model import CheckReport

DATA = Path(__file__).parents[2] / "data" / "check"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **files: str) -> tuple[int, str, str]:
        for name, text in {
            "clip.toml": CLIP_CONFIG,
            **{key.replace("_", "."): text for key, text in files.items()},
        }.items():
            Path(name).write_text(text)
        return cli.main(["config", "check", *arguments]), *capsys.readouterr()

    return call


def test_the_status_is_0_if_all_clips_are_the_same_and_1_if_not(run: Any) -> None:
    status, out, _ = run("clip.toml", ".", ds_json=DEEPSPEED % "1.0")
    line = "ds.json:1 same DeepSpeed: gradient_clipping (pytorch)\n"
    assert status == 0
    assert (
        out.startswith(f"{line}note: ds.json:1 DeepSpeed: gradient_clipping: With fp16, "),
        out.endswith("\n1 clip: 1 as in clip.toml.\n"),
    ) == (True, True)
    status, out, _ = run("clip.toml", ".", ds_json=DEEPSPEED % "0.5")
    assert status == 1
    assert out.splitlines()[:2] == ["ds.json:1:1 drift DeepSpeed: gradient_clipping", "  threshold: 0.5; wanted: 1"]


def test_equal_findings_are_printed_once_with_their_places(run: Any) -> None:
    files = {f"{name}_json": DEEPSPEED % "0.5" for name in "abcdefg"} | {"other_json": DEEPSPEED % "0.25"}
    _, out, _ = run("clip.toml", ".", **files)
    titles = [line for line in out.splitlines() if " drift " in line]
    assert [title.split(":")[0] for title in titles] == ["a.json", "other.json"]
    places = ", ".join(f"{name}.json:1:1" for name in "bcdefg")
    assert f"  also at: {places}\n" in out
    files |= {f"z{number}_json": DEEPSPEED % "0.5" for number in range(3)}
    _, out, _ = run("clip.toml", ".", **files)
    places = ", ".join(f"{name}.json:1:1" for name in "bcdef")
    assert f"  also at: {places}, and 4 more places in 4 files. To list all places, add --format json\n" in out
    _, out, _ = run("clip.toml", ".", "--format", "json")
    assert len(json.loads(out)["findings"]) == 11


def test_steps_whose_norm_is_not_finite_are_a_note_for_all_files_of_a_kind(check: Check) -> None:
    bf16 = DEEPSPEED.replace("{", '{"bf16": {"enabled": true}, ', 1)
    files = {f"{name}.json": bf16 % "1.0" for name in "ab"} | {"c.json": bf16 % "0.5"}
    report = check(files)
    assert [each.about for each in only_finding(report).differences] == ["threshold"]
    (note,) = report.notes
    assert note.startswith(
        "a.json:1 (and 2 more) DeepSpeed: gradient_clipping: With bf16 and without bf16.check_grad_overflow, "
    )
    assert note.endswith(
        " DeepSpeed makes a step without a clip if the norm is not finite. With clip.toml, these steps are clipped."
    )


def test_a_success_has_a_line_for_each_clip_or_for_each_kind_if_there_are_many(run: Any) -> None:
    value = "import torch\n\ntorch.nn.utils.clip_grad_value_(model.parameters(), 0.1)\n"
    sources = {"a_py": (TORCH % "1.0") * 2, "c_py": value, "clip_toml": CLIP_CONFIG + IGNORE.format("c.py")}
    lines = [f"a.py:{line} same torch.nn.utils.clip_grad_norm_ (pytorch)" for line in (3, 6)]
    lines += ["c.py:3 ignored torch.nn.utils.clip_grad_value_: a sweep", "3 clips: 2 as in clip.toml, 1 ignored."]
    for format_ in ("text", "github"):
        assert run("clip.toml", ".", "--format", format_, **sources)[1].splitlines() == lines
    status, out, _ = run("clip.toml", ".", b_py=(TORCH % "1.0") * 18, **sources)
    assert (status, out.splitlines()) == (
        0,
        [
            "20 x same torch.nn.utils.clip_grad_norm_ (pytorch), files: 2",
            "c.py:3 ignored torch.nn.utils.clip_grad_value_: a sweep",
            "21 clips: 20 as in clip.toml, 1 ignored.",
        ],
    )


def test_every_format_of_the_command_has_a_writer() -> None:
    assert tuple(output.WRITERS) == FORMATS


def test_the_json_has_every_clip_with_its_result(run: Any) -> None:
    family = "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(1.0)\n"
    sources = {"a_py": TORCH % "2.0", "b_py": TORCH % "args.norm", "c_py": family, "d_json": DEEPSPEED % "1.0"}
    clips = json.loads(run("clip.toml", ".", "--nearest", "--format", "json", **sources)[1])["clips"]
    assert [(each["path"], each["result"], each["format"], each["family"]) for each in clips] == [
        ("a.py", "drift", "", "pytorch"),
        ("b.py", "unknown", "", ""),
        ("c.py", "near", "", "paddle"),
        ("d.json", "same", "deepspeed", "pytorch"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clip.toml", "gone"), "gone cannot be read: No such file or directory"),
        (("gone.toml", "."), "gone.toml cannot be read"),
        (("a.yaml", "."), "there is no such key"),
    ],
)
def test_a_check_that_compares_nothing_fails(run: Any, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run(*arguments, a_yaml="a: 1\n")
    assert (status, out) == (2, "")
    assert message in err


def test_the_json_follows_its_schema(run: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[3] / "docs" / "check.schema.json").read_text())
    _, out, _ = run("clip.toml", ".", "--format", "json", a_py=TORCH % "2.0")
    jsonschema.Draft202012Validator(schema).validate(json.loads(out))
    assert json.loads(model.json_schema(CheckReport, "unified_clip config check report")) == schema


def test_sarif_has_every_finding_and_suppresses_ignored_ones(run: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    clip = CLIP_CONFIG + IGNORE.format("a.py")
    _, out, _ = run("clip.toml", ".", "--format", "sarif", clip_toml=clip, a_py=TORCH % "2.0", b_py=TORCH % "3.0")
    log = json.loads(out)
    schema = json.loads((DATA / "sarif_subset.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(log)
    first, second = log["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "b.py"},
        "region": {"startLine": 3, "startColumn": 1},
    }
    assert (first["level"], first["ruleId"], first.get("suppressions")) == ("error", "clip-drift", None)
    assert second["suppressions"] == [{"kind": "external", "justification": "a sweep"}]


def test_annotations_of_github_escape_what_would_end_them(run: Any) -> None:
    _, out, _ = run("clip.toml", ".", "--format", "github", **{"a,b:c_py": TORCH % "2.0"})
    annotation, headline = out.splitlines()
    assert annotation.startswith("::error file=a%2Cb%3Ac.py,line=3,col=1,title=A clip differs")
    assert "%0Athreshold: 2; wanted: 1%0A" in annotation
    assert headline == "1 clip: 1 not as in clip.toml."


def test_equal_clips_of_a_file_are_two_issues_of_gitlab(check: Check) -> None:
    issues = json.loads(output.as_gitlab(check({"a.py": (TORCH % "2.0") * 2})))
    assert len({issue["fingerprint"] for issue in issues}) == 2


@pytest.mark.parametrize("threshold", ["1.0", "2.0"])
@pytest.mark.parametrize("format_", ["text", "github"])
def test_a_file_that_is_named_like_a_log_command_is_none(run: Any, format_: str, threshold: str) -> None:
    _, out, _ = run("clip.toml", ".", "--format", format_, **{"::stop-commands::x_py": TORCH % threshold})
    commands = [line for line in out.splitlines() if line.lstrip().startswith("::")]
    assert len(commands) == (format_ == "github" and threshold == "2.0")
    assert not any(line.startswith("::stop") for line in commands)
    assert r"\x3a:stop-commands::x.py:3" in out or commands


def test_a_file_has_no_colours_of_the_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run("clip.toml", ".", "--out", "r.txt", a_py=TORCH % "2.0")
    assert "\x1b[" in out
    assert "\x1b" not in Path("r.txt").read_text()
    assert Path("r.txt").read_text().startswith("a.py:3:1 drift torch.nn.utils.clip_grad_norm_\n")


def test_the_result_can_be_written_to_a_file(run: Any, tmp_path: Path) -> None:
    status, out, err = run("clip.toml", ".", "--format", "json", "--out", "check.json", a_py=TORCH % "2.0")
    assert (status, err) == (1, "")
    assert out.startswith("a.py:3:1 drift torch.nn.utils.clip_grad_norm_"), "the log of a CI job shows the findings"
    assert out.endswith("\n1 clip: 1 not as in clip.toml.\n")
    assert json.loads((tmp_path / "check.json").read_text())["counts"]["clips"] == 1
    for file in ("a.py", "clip.toml"):
        before = Path(file).read_text()
        status, _, err = run("clip.toml", "a.py", "--out", file)
        assert (status, Path(file).read_text()) == (2, before)
        assert "which is one of the files that the check reads" in err
    status, _, err = run("clip.toml", ".", "--out", "no/such/dir", a_py=TORCH % "2.0")
    assert status == 2
    assert "no/such/dir" in err


def test_another_family_differs_unless_nearest_is_enough(run: Any) -> None:
    source = "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(1.0)\n"
    status, out, _ = run("clip.toml", ".", a_py=source)
    assert status == 1
    assert "eps: 0; wanted: 1e-06" in out
    assert (
        "To accept a difference of only the family or the eps, pass --nearest, or add the file to check.nearest.\n"
        in out
    )
    assert "\n    Or to clip by clip.toml: " in out
    status, out, _ = run("clip.toml", ".", "--nearest", a_py=source)
    assert status == 0
    assert out.startswith(
        "a.py:3 near paddle.nn.ClipGradByGlobalNorm (paddle)\nnote: a.py:3 paddle.nn.ClipGradByGlobal"
    )
    assert run("clip.toml", ".", "--nearest", a_py=source.replace("1.0", "1.1"))[0] == 1


def test_findings_that_differ_only_in_the_path_of_their_entry_are_printed_once(check: Check) -> None:
    text = output.as_text(check({f"{name}.py": "grad_clip = 1.0\nscale(grads, grad_clip)\n" for name in "abc"}))
    assert text.count("declare the key in check.key") == 1
    assert "  also at: b.py:1:1, c.py:1:1\n" in text
