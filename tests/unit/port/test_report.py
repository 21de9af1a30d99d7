"""The report of ported code: the lines of each clip in text and JSON, and the files of the report."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.port.sites import CLIP, MINE, TORCH, VALUE, at_run_time, report_of, report_with_everything, site

from unified_clip._kit.report_model import json_schema
from unified_clip.port import catalog
from unified_clip.port.port_files import port
from unified_clip.port.ported_clip import Meaning, PortedFile, UnreadableFile
from unified_clip.port.report import build, model, terminal

DOCS = Path(__file__).parents[3] / "docs"


def report_data(*sites: Any, **options: Any) -> Any:
    return report_of([PortedFile(Path("a.py"), b"before", b"after", sites)], **options)


def the_clip(data: Any) -> Any:
    ((clip,),) = [file.clips for file in data.files]
    return clip


# -- what is said of a clip


def test_a_clip_has_the_known_differences_of_its_function() -> None:
    data = report_data(site(TORCH, CLIP, becomes=MINE))
    differences = {data.known[number - 1].when: data.known[number - 1].by for number in the_clip(data).known}
    assert differences["norms of 16-bit gradients are rounded to 16 bits"] == "0.67 %"
    assert data.rounding == 1e-5


def test_a_threshold_that_is_known_at_run_time_only_is_named() -> None:
    (meaning,) = report_data(site(TORCH, at_run_time("args.clip"), becomes=MINE)).meanings
    assert meaning.threshold == "args.clip"
    assert "with c = args.clip. n is" in meaning.sentences[0]


def test_bounds_that_are_known_at_run_time_only_are_named() -> None:
    (meaning,) = report_data(site("tensorflow.clip_by_value", Meaning(VALUE.config, "low, high"))).meanings
    assert meaning.sentences[0] == "Clip each element to [low, high]. NaN stays NaN."


def test_bounds_of_a_script_that_are_known_at_run_time_only_are_named() -> None:
    source = b"import tensorflow as tf\n\ngrads = [tf.clip_by_value(grad, -limit, limit) for grad in grads]\n"
    (meaning,) = report_of([port(Path("a.py"), source)]).meanings
    assert meaning.sentences[0] == "Clip each element to [-limit, limit]. NaN stays NaN."


def test_the_default_of_an_option_is_no_known_threshold() -> None:
    option = "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--clip', default=0.5)\n"
    source = f"{option}args = p.parse_args()\ntorch.nn.utils.clip_grad_norm_(ps, args.clip)\n"
    (meaning,) = report_of([port(Path("a.py"), source.encode())]).meanings
    assert meaning.threshold == "args.clip"


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
        (["rewritten"], {"written": True}, "1 rewritten", "Next: run the tests."),
        (
            ["rewritten", "flagged"], {"written": True}, "2 clips found: 1 rewritten, 1 flagged, 0 left.",
            "Next: rewrite the flagged clips by hand. Then run the tests.",
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
    assert "paddle.fluid.clip.GradientClipByGlobalNorm, measured as paddle.nn.ClipGradByGlobalNorm: [" in text
    assert "why: an optimizer's own clip\n" in text
    assert "write:\n          for each in optimizers:\n              clip.attach_to(each)  # a long line a" in text
    assert "src/broken.py was not read: line 3: invalid syntax\n" in text


def test_long_text_that_repeats_becomes_a_reference() -> None:
    text = terminal.as_text(report_with_everything())
    assert text.count("This formula is PyTorch's rule") == 2  # for 1, and for args.clip
    assert text.count("    does: as at src/train.py:12:4\n") == 1
    references = re.findall(r"^  \[\d+\] (.*)$", text, re.MULTILINE)
    assert references
    assert len(set(references)) == len(references)


def test_the_text_of_a_thousand_clips_stays_short() -> None:
    sites = [dataclasses.replace(site(TORCH, CLIP, becomes=MINE), line=line) for line in range(1000)]
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
    data = report_data(site(TORCH, CLIP, becomes=MINE), site("tensorflow.clip_by_norm", CLIP))
    assert math.inf in [each.size for each in data.known]
    assert model.Report.model_validate_json(build.as_json(data)) == data
