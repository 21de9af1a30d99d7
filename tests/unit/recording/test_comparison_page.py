"""The page of `unified-clip compare --html`: it shows the report, needs no other file, and works in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markupsafe import escape
from support.recordings import write_and_compare, write_recording

from unified_clip import cli
from unified_clip._kit.report_model import json_schema
from unified_clip.compare import recordings as compare
from unified_clip.compare.report import model, page
from unified_clip.compare.report.curves import MOST_COLUMNS, clip_points, number_points
from unified_clip.recording.recorded_run import RecordedCall

DOCS = Path(__file__).parents[3] / "docs"
EVIL = '"><img src=x onerror=alert(1)>\x1b[2J\u202e'


def clip_line(step: int, norm: float, threshold: float = 1.0) -> dict[str, Any]:
    coef = min(1.0, threshold / norm)
    numbers = {"threshold": threshold, "norm": norm, "coef": coef, "clipped": coef < 1, "norm_type": 2.0, "eps": 0.0}
    return {"step": step, "call": "clip_by_global_norm", "framework": "numpy", "rule": "global", **numbers}


def loss_line(step: int, value: float) -> dict[str, Any]:
    return {"step": step, "logged": {"loss": value}}


OLD = [line for step in range(1, 31) for line in (clip_line(step, 2.0 / step), loss_line(step, 5.0 / step))]
OTHER_THRESHOLD = [
    {**line, **clip_line(line["step"], line["norm"], 0.5)} if line["step"] >= 13 and "norm" in line else line
    for line in OLD
]

UNEXPLAINED = [clip_line(step, 1.7183 / step if step > 4 else 2.0 / step) for step in range(1, 31)]


def build_report(directory: Path, a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> model.ComparisonReport:
    return model.build(write_and_compare(directory, a, b))


def test_the_page_is_rendered_from_the_json_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write_recording(tmp_path / "a.jsonl", OLD), write_recording(tmp_path / "b.jsonl", OTHER_THRESHOLD)
    out = tmp_path / "report.html"
    assert cli.main(["compare", str(a), str(b), "--json", "--html", str(out)]) == 1
    data = json.loads(capsys.readouterr().out)
    assert out.read_text(encoding="utf-8") == page.render(model.ComparisonReport.model_validate(data))
    assert cli.main(["compare", str(a), str(b)]) == 1
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line in data["sentences"]] == data["sentences"]


def test_the_json_has_the_published_form(tmp_path: Path) -> None:
    published = (DOCS / "compare.schema.json").read_text(encoding="utf-8")
    expected = json_schema(model.ComparisonReport, "unified_clip comparison")
    assert published == expected, "type: python -m unified_clip.compare.report.model > docs/compare.schema.json"
    a = [
        {**line, "norm": "nan", "coef": "nan"} if line.get("step") == 3 and "norm" in line else line
        for line in OTHER_THRESHOLD
    ]
    for runs in ((OLD, a), (OLD, OLD)):
        jsonschema.validate(build_report(tmp_path, *runs).as_json(), json.loads(published))


def test_the_page_names_the_cause_and_marks_the_first_difference_in_each_plot(tmp_path: Path) -> None:
    html = page.render(build_report(tmp_path, OLD, OTHER_THRESHOLD))
    assert "<strong>DIFFERENT</strong> <span>The runs differ from step 13 on: another threshold." in html
    assert "<b>Another threshold</b>: the threshold is 0.5 in b.jsonl instead of 1" in html
    plots = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(plots) == 2, "norm and threshold, and the loss; neither norm nor loss differs"
    assert all("first difference: step 13" in plot for plot in plots)
    assert "A: 1 of 30 calls clipped, B: 1 of 30 calls clipped" in html


def test_equal_runs_have_no_causes(tmp_path: Path) -> None:
    html = page.render(build_report(tmp_path, OLD, OLD))
    assert "<strong>SAME</strong> <span>The runs follow the same recipe in 30 steps" in html
    assert 'id="causes"' not in html
    assert "first difference" not in html


def test_missing_losses_are_noted(tmp_path: Path) -> None:
    clips = [line for line in OLD if "norm" in line]
    without = page.render(build_report(tmp_path, clips, clips))
    assert str(escape(page.NO_LOSSES)) in without
    assert "To record the losses of" not in without
    html = page.render(build_report(tmp_path, OLD, clips))
    assert page.NO_LOSSES not in html
    assert "loss was not compared: only a.jsonl has it." in html
    assert "To record the losses of b.jsonl, log them" in html
    assert 'aria-label="loss"' in html


def test_names_are_escaped_in_html_and_on_the_terminal(tmp_path: Path) -> None:
    evil = [
        {**line, "call": EVIL, "framework": EVIL} if "norm" in line else {**line, "logged": {EVIL: 1.0}} for line in OLD
    ]
    processes = [{"arguments": [EVIL]}]
    path = write_recording(tmp_path / "a\x1b[2J<img>.jsonl", evil, processes=processes)
    html = page.render(model.build(compare.compare(path, write_recording(tmp_path / "b.jsonl", OTHER_THRESHOLD))))
    assert "<img" not in html
    assert not {"\x1b", "\u202e"} & set(html)
    assert "\\x1b[2J&lt;img&gt;.jsonl" in html


def test_a_long_run_has_few_points_and_keeps_its_extremes() -> None:
    lines = [
        RecordedCall.model_validate(clip_line(step, 100.0 if step == 7777 else 0.5)) for step in range(10, 100_000, 10)
    ]
    points = clip_points([*lines, RecordedCall.model_validate(clip_line(77_770, 100.0))])
    assert len(points) <= MOST_COLUMNS
    assert max(each.high or 0.0 for each in points) == 100.0
    assert sum(each.clipped for each in points) == 1
    assert sum(each.calls for each in points) == len(lines) + 1
    (point,) = number_points([(1, float("nan")), (1, 2.0), (1, float("inf"))])
    assert (point.low, point.high, point.not_finite) == (2.0, 2.0, 2)


# -- errors


def test_a_page_that_cannot_be_written_is_an_error_before_anything_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "no" / "report.html"
    assert cli.main(["compare", "missing.jsonl", "missing.jsonl", "--html", str(out)]) == 2
    message = f"{out} cannot be written: No such file or directory. Correct the path, or pass another path."
    assert capsys.readouterr().err == f"unified-clip: error UC205: {message}\n"


@pytest.mark.parametrize("name", ["a.jsonl", "link.jsonl"])
def test_a_recording_is_not_overwritten_by_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    a, b = write_recording(tmp_path / "a.jsonl", OLD), write_recording(tmp_path / "b.jsonl", OTHER_THRESHOLD)
    (tmp_path / "link.jsonl").symlink_to(a)
    before = a.read_bytes()
    assert cli.main(["compare", str(a), str(b), "--html", str(tmp_path / name)]) == 2
    assert f"--html would overwrite the recording {tmp_path / name}. Pass another file" in capsys.readouterr().err
    assert a.read_bytes() == before


# -- in a browser


def test_other_gradients_advise_where_to_look(tmp_path: Path) -> None:
    report = build_report(tmp_path, [line for line in OLD if "norm" in line], UNEXPLAINED)
    html = page.render(report)
    assert "Compare the updates of the earlier steps, then the data, the forward pass and the loss." in html
    assert 'aria-label="Distance of gradients"' in html
