"""The report of ported code: the lines of each clip in text and JSON, and the files of the report."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.port import snippets
from support.port.sites import CLIP, MINE, PADDLE, TORCH, VALUE, at_run_time, report_of, report_with_everything, site

from unified_clip import ClipConfig
from unified_clip._kit.coded_error import CodedError
from unified_clip._kit.report_model import json_schema
from unified_clip.port import catalog
from unified_clip.port.port_file import port
from unified_clip.port.ported_clip import Meaning, PortedFile, Target, UnreadableFile
from unified_clip.port.report import build, model, terminal

DOCS = Path(__file__).parents[3] / "docs"


def report_data(*sites: Any, **options: Any) -> Any:
    return report_of([PortedFile(Path("a.py"), b"before", b"after", sites)], **options)


def the_clip(data: Any) -> Any:
    ((clip,),) = [file.clips for file in data.files]
    return clip


# -- what is said of a clip


def test_a_clip_with_the_same_rule_has_rounding_and_known_differences() -> None:
    data = report_data(site(TORCH, CLIP, becomes=MINE, after=CLIP))
    clip = the_clip(data)
    assert (clip.same, clip.comparison) == (True, None)
    assert clip.difference == "Both clips have the same rule. The results differ by rounding only."
    differences = {data.known[number - 1].when: data.known[number - 1].by for number in clip.known}
    assert differences["norms and coefficients of 16-bit gradients are rounded to 16 bits"] == "0.67 %"
    assert data.rounding == 1e-5
    assert clip.becomes_known == []


def test_a_clip_with_another_rule_has_its_differences() -> None:
    data = report_data(site("paddle.nn.ClipGradByGlobalNorm", PADDLE, becomes=TORCH, after=CLIP))
    clip = the_clip(data)
    assert clip.same is False
    assert clip.difference.startswith("The configurations differ in: eps. For a norm of n, the relative difference ")
    (comparison,) = data.comparisons
    assert comparison.differences == [model.SettingDifference(about="eps", before="0", after="1e-06")]
    assert (comparison.before, comparison.after) == (clip.meaning, clip.becomes_meaning)
    assert clip.becomes_known


def test_a_threshold_that_is_known_at_run_time_only_is_its_code() -> None:
    data = report_data(site(TORCH, at_run_time("args.clip"), becomes=MINE, after=at_run_time("args.clip")))
    assert the_clip(data).same is True
    (meaning,) = data.meanings
    assert meaning.threshold == "args.clip"
    assert "with c = args.clip. n is" in meaning.sentences[0]


def test_bounds_that_are_known_at_run_time_only_are_named() -> None:
    (meaning,) = report_data(site("tensorflow.clip_by_value", Meaning(VALUE.config, "low, high"))).meanings
    assert meaning.sentences[0] == "Clip each element to [low, high]. NaN stays NaN."


def test_bounds_of_a_script_that_are_known_at_run_time_only_are_named() -> None:
    source = b"import tensorflow as tf\n\ngrads = [tf.clip_by_value(grad, -limit, limit) for grad in grads]\n"
    (meaning,) = report_of([port(Path("a.py"), source)]).meanings
    assert meaning.sentences[0] == "Clip each element to [-limit, limit]. NaN stays NaN."


@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("a", ""), ("", "b")])
def test_a_threshold_from_another_expression_is_not_called_the_same(before: str, after: str) -> None:
    clip = the_clip(report_data(site(TORCH, at_run_time(before), becomes=MINE, after=at_run_time(after))))
    assert clip.same is False
    assert f"The threshold changes from {before or 1} to {after or 1}." in clip.difference


def test_clips_that_were_not_rewritten_have_no_differences() -> None:
    clip = the_clip(report_data(site(TORCH, CLIP, verdict="flagged", reason="no step is in sight")))
    assert (clip.same, clip.difference, clip.becomes_meaning) == (None, "", None)
    assert clip.known


def test_clips_of_other_tensors_have_no_known_differences() -> None:
    data = report_data(site("tensorflow.clip_by_value", VALUE, verdict="left", reason="no gradient"))
    clip = the_clip(data)
    assert (clip.measured_as, clip.known, data.known) == ("", [], [])
    assert "does:" not in terminal.as_text(data)


def test_a_clip_without_a_meaning_is_reported_with_its_reason_only() -> None:
    data = report_data(site("tensorflow.clip_by_average_norm", None, verdict="flagged", reason="by norm / size"))
    assert (the_clip(data).meaning, data.meanings) == (None, [])
    assert "why: by norm / size" in terminal.as_text(data)


# -- counts, and what to do


@pytest.mark.parametrize(
    ("verdicts", "options", "headline", "next_"),
    [
        ([], {}, "1 file read, 0 clips found.", "There is nothing to do."),
        (["left"], {}, "1 clip found: 0 rewritten, 0 flagged, 1 left.", "There is nothing to do."),
        (["flagged"], {}, "0 rewritten, 1 flagged", "Next: rewrite the flagged clips by hand."),
        (
            ["rewritten"], {}, "1 rewritten, 0 flagged",
            "Next: review the changes with --format diff and write them with --write.",
        ),
        (
            ["rewritten"], {"target": "drop-in"}, "1 rewritten",
            "Next: review the changes with --to drop-in --format diff and write them with --to drop-in --write.",
        ),
        (["rewritten"], {"written": True}, "1 rewritten", "Next: make the checks in the report and run the tests."),
        (
            ["rewritten", "flagged"], {"written": True}, "2 clips found: 1 rewritten, 1 flagged, 0 left.",
            "Next: rewrite the flagged clips by hand. Then make the checks in the report and run the tests.",
        ),
        (
            [], {"unread": [UnreadableFile(Path("b.py"), "line 1: invalid syntax")]},
            "0 clips found. 1 file was not read.", "Next: fix or pass the files that were not read.",
        ),
    ],
)  # fmt: skip
def test_counts_have_the_next_step(verdicts: list[Any], options: dict[str, Any], headline: str, next_: str) -> None:
    sites = [site(TORCH, CLIP, verdict=verdict) for verdict in verdicts]
    after = b"after" if "rewritten" in verdicts else b"before"
    data = report_of([PortedFile(Path("a.py"), b"before", after, sites)], **options)
    assert headline in data.headline
    assert data.next == next_
    assert terminal.as_text(data).endswith(f"{data.headline}\n{next_}\n")


def test_every_package_whose_clips_are_read_belongs_to_a_framework() -> None:
    packages = {name.partition(".")[0] for name in catalog.clip_functions()}
    assert packages - catalog.FRAMEWORKS.keys() == {"Tensor", "numpy", "tf"}


def test_files_without_a_clip_are_counted_and_not_listed() -> None:
    data = report_of([PortedFile(Path("a.py"), b"x", b"x"), PortedFile(Path("b.py"), b"x", b"x", [site(TORCH, CLIP)])])
    assert (data.summary.files, [file.path for file in data.files]) == (2, ["b.py"])


# -- text


def test_the_text_has_everything_of_each_clip() -> None:
    text = terminal.as_text(report_with_everything())
    assert "src/train.py\n  12:4  rewritten  torch.nn.utils.clip_grad_norm_ -> unified_clip.torch.clip" in text
    assert "\n      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" in text
    assert "does: Multiply all gradients by min(1, c / " in text
    assert "\n          eps: 0 -> 1e-06\n" in text
    assert "paddle.fluid.clip.GradientClipByGlobalNorm, measured as paddle.nn.ClipGradByGlobalNorm: [" in text
    assert "why: an optimizer's own clip\n" in text
    assert "write:\n          for each in optimizers:\n              clip.attach_to(each)  # a long line a" in text
    assert "src/broken.py was not read: line 3: invalid syntax\n" in text


def test_long_text_that_repeats_becomes_a_reference() -> None:
    text = terminal.as_text(report_with_everything())
    assert text.count("This formula is PyTorch's rule") == 2  # for 1, and for args.clip
    assert text.count("    does: as at src/train.py:12:4\n") == 1
    assert text.count("    check: the learning rate, since") == 1
    assert text.count("    check: as at src/train.py:12:4\n") == 1
    assert (
        text.count("    differs: Both clips have the same rule. The results differ by rounding only.\n") == 3
    )  # it is short
    references = re.findall(r"^  \[\d+\] (.*)$", text, re.MULTILINE)
    assert references
    assert len(set(references)) == len(references)


def test_the_text_of_a_thousand_clips_stays_short() -> None:
    sites = [dataclasses.replace(site(TORCH, CLIP, becomes=MINE, after=CLIP), line=line) for line in range(1000)]
    lines = terminal.as_text(report_data(*sites)).splitlines()
    assert len(lines) < 1000 * 5 + 40
    assert max(map(len, lines)) < 400


def test_consecutive_numbers_are_a_range() -> None:
    assert model.spans([7, 1, 2, 3, 9, 10]) == ["1-3", "7", "9-10"]


def test_a_terminal_gets_colours_and_a_file_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.show(report_with_everything())
    plain = capsys.readouterr().out
    assert plain == terminal.as_text(report_with_everything())
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    terminal.show(report_with_everything())
    coloured = capsys.readouterr().out
    assert "\x1b[1;31mflagged" in coloured
    lines = re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    assert "          eps: 0 -> 1e-06" in lines
    assert sum("a long line " * 11 in line for line in lines) == 1  # code is not broken
    assert all(len(line) <= 60 for line in lines if "clip_grad_norm_(" not in line and "a long line" not in line)


# -- JSON


SCHEMA = json_schema(model.Report, "unified_clip port report")


def test_the_published_schema_is_that_of_the_models() -> None:
    assert (DOCS / "port.schema.json").read_text(encoding="utf-8") == SCHEMA, "run model.py"


def test_reports_fit_the_published_schema() -> None:
    schema = json.loads(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(build.as_json(report_with_everything())), schema)


def test_inf_and_nan_are_strings_in_json() -> None:
    off = Meaning(ClipConfig(rule="global_norm", threshold=math.inf))
    data = report_data(site(TORCH, CLIP, becomes=MINE, after=off), site("tensorflow.clip_by_norm", CLIP))
    assert math.inf in [each.size for each in data.known]
    assert model.Report.model_validate_json(build.as_json(data)) == data


# -- files


@pytest.mark.parametrize("name", ["port.txt", "port.json", "PORT.HTML", f"port{'t' * 246}.txt"])
def test_a_report_is_written_by_its_suffix(tmp_path: Path, name: str) -> None:
    build.write(tmp_path / name, report_with_everything())
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith({"t": "src/train.py", "j": "{", "H": "<!doctype html>"}[name.partition(".")[2][0]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("port.md", "the name of a report must end in .txt or .json or .html. Pass such a name."),
        ("port", "the name of a report must end in .txt or .json or .html"),
        ("no/such/port.txt", "port.txt cannot be written: No such file or directory"),
        ("a.json", "a.json cannot be written: it is a directory."),
        (f"{'t' * 300}.txt", ".txt cannot be written: File name too long. Pass a path with shorter names."),
        (f"{'t' * 300}/port.txt", "/port.txt cannot be written: File name too long. Pass a path with shorter names."),
    ],
)
def test_an_unwritable_report_is_rejected_before_any_work(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(CodedError, match=re.escape(message)):
        build.writer(tmp_path / name)


def test_a_read_only_report_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(CodedError, match=r"port\.txt cannot be written: Permission denied\. Pass another path"):
        build.write(tmp_path / "port.txt", report_with_everything())
    assert not list(tmp_path.iterdir())


def test_a_report_on_a_read_only_file_system_is_rejected_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(CodedError, match=r"port\.txt cannot be written: Read-only file system\. Correct the path"):
        build.writer(tmp_path / "port.txt")
    monkeypatch.setattr(build, "writer", lambda _: lambda _: "text")  # the file system may change during the work
    with pytest.raises(CodedError, match=r"port\.txt cannot be written: Read-only file system\. Correct the path"):
        build.write(tmp_path / "port.txt", report_with_everything())


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    build.write(tmp_path / "port.json", report_with_everything())
    assert build.read(tmp_path / "port.json") == report_with_everything()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not a report of `unified-clip port`: Invalid JSON"),
        ("[]", "is not a report of `unified-clip port`: Input should be"),
        ('{"version": 1}', "is not a report of `unified-clip port`. At version: Input should be 2"),
    ],
)
def test_a_file_that_is_no_report_is_rejected(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "port.json").write_text(text, encoding="utf-8")
    with pytest.raises(CodedError, match=re.escape(message)):
        build.read(tmp_path / "port.json")


# -- what is left to port by hand

STEP = """\
import torch
def train(model, optimizer, world):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    {}
    optimizer.step()
    dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("source", "target", "places"),
    [
        (snippets.PADDLE, "torch", [["paddle.optimizer.SGD (line 5)"]]),
        (snippets.PADDLE, "drop-in", []),
        (STEP.format("pass"), "torch", []),
        (STEP.format("dist.all_reduce(flat)"), "torch", [["line 4", "line 3"]]),
        (STEP.format("p.data.mul_(1 - lr * weight_decay)"), "drop-in", [["line 4", "line 3"]]),
    ],
)
def test_the_report_ends_with_what_is_left_to_port_by_hand(source: str, target: Target, places: list[Any]) -> None:
    data = report_of([port(Path("a.py"), source.encode(), target)], target=target)
    assert [
        [place for place in each if place in line] for each, line in zip(places, data.by_hand, strict=True)
    ] == places
    assert terminal.as_text(data).endswith("".join(f"  {line}\n" for line in data.by_hand) or f"{data.next}\n")
