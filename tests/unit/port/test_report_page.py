"""Ported code in the page of a parity report, and in a page of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.parity.cases import suite
from support.parity.runs import run_suite_with, unchanged_outcome
from support.port.sites import CLIP, TORCH, report_of, report_with_everything, site

from unified_clip import cli
from unified_clip.parity.report import page
from unified_clip.port.ported_clip import PortedFile
from unified_clip.port.report import build

ONE_CASE = """
[[gradients]]
name = "five"
tensors = [{ values = [3.0, 4.0] }]
[[cases]]
gradients = ["five"]
calls = [{ call = "get_total_norm" }]
"""
NUMPY = "[frameworks.numpy]\nmodes = ['host']"


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_suite_with(tmp_path_factory.mktemp("parity"), unchanged_outcome)


def rows(html: str) -> list[str]:
    body = html.partition('<table class="known stacked" id="clips">')[2].partition("</table></div>")[0]
    return re.findall(r"<tr>.*?</tr>", body.partition("<tbody>")[2], re.DOTALL)


def test_the_page_of_a_parity_report_has_a_section_if_a_port_report_was_passed(parity: Any) -> None:
    html = page.render(parity, ported=report_with_everything())
    assert '<a href="#ported">Ported code</a>' in html
    assert '<section id="ported"' in html
    assert "ported" not in page.render(parity).partition("<body>")[2]


def test_flagged_clips_come_first_and_left_ones_last(parity: Any) -> None:
    for html in (page.render(parity, ported=report_with_everything()), page.render_ported(report_with_everything())):
        verdicts = re.findall(r'class="chip (\w+)"', "".join(rows(html)))
        assert verdicts == ["flagged", "rewritten", "rewritten", "rewritten", "rewritten", "left"]


def test_a_row_has_all_of_its_clip() -> None:
    flagged, lines, first, *_ = rows(page.render_ported(report_with_everything()))
    assert '<code>src/<wbr>old.<wbr>py<span class="count">:9:4</span></code>' in flagged
    assert "an optimizer&#39;s own clip" in flagged
    assert "<code>for each in optimizers:\n    clip.attach_to(each)  # a long line a" in lines
    assert 'colspan="5"' in lines
    assert re.search(r"measured as tf.clip_by_norm: <a href=\"#native-\d+\">\d+(-\d+)?</a>", flagged)
    assert "<code>torch.nn.utils.clip_grad_norm_</code> → <code>unified_clip.torch.clip_grad_norm_</code>" in first
    assert "Both clips have the same rule. The results differ by rounding only." in first
    assert "Check: the learning rate" in first


def test_lines_that_several_clips_need_are_on_the_page_once() -> None:
    clips = [site(TORCH, CLIP, verdict="flagged", line=line, suggestion=["clip = 1", "clip()"]) for line in (3, 7)]
    data = report_of([PortedFile(Path("a.py"), b"x", b"x", clips)])
    assert page.render_ported(data).count("clip = 1") == 1
    assert [clip.suggested_at for clip in data.files[0].clips] == ["", "a.py:3:4"]


def test_every_link_leads_somewhere(parity: Any) -> None:
    for html in (page.render(parity, ported=report_with_everything()), page.render_ported(report_with_everything())):
        assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r' id="([^"]+)"', html))


def test_the_page_has_meanings_and_known_differences() -> None:
    html = page.render_ported(report_with_everything())
    assert (
        "with c = args.clip. n is their total norm (the root of the sum of squares). This formula is PyTorch&#39;s"
        in html
    )
    assert "the value of <code>args.clip</code> is only known at run time" in html
    assert "<td>the total norm becomes 0.9999999</td>" in html
    assert "eps: 0 → 1e-06." in html
    assert "same total norm; the clipped norm of after is lower by 1e-06 times that of before</li>" in html
    assert "norms and coefficients of 16-bit gradients are rounded to 16 bits (0.67 %)" in html
    assert '<b class="problem">src/broken.py</b> was not read: line 3: invalid syntax' in html


def test_a_page_without_clips_has_a_sentence(parity: Any) -> None:
    html = page.render(parity, ported=report_of([PortedFile(Path("a.py"), b"x", b"x")]))
    assert "<p>1 file read, 0 clips found. There is nothing to do.</p>" in html
    assert rows(html) == []


def test_the_page_loads_no_other_file() -> None:
    assert not re.findall(
        r"""(?:src|href)=["'](?!#|data:,)|url\(|@import|https?:""", page.render_ported(report_with_everything())
    )


def test_texts_from_source_are_escaped() -> None:
    html = page.render_ported(report_with_everything('"><img src=x onerror=alert(1)>'))
    assert "<img" not in html
    assert html.count("&lt;img src=x") > 8


def test_the_command_takes_a_report_into_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = suite(tmp_path, ONE_CASE, frameworks=NUMPY)
    arguments = ["parity", "--suite", str(where), "--out", str(tmp_path / "out"), "--ported"]
    (tmp_path / "other.json").write_text(json.dumps({"version": 2}), encoding="utf-8")
    assert cli.main([*arguments, str(tmp_path / "other.json")]) == 2
    assert "other.json is not a report of `unified-clip port`. At target: Field required" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    build.write(tmp_path / "port.json", report_with_everything())
    assert cli.main([*arguments, str(tmp_path / "port.json")]) == 0
    assert len(rows((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))) == 7


# -- in a browser


@pytest.fixture(params=["alone", "in the parity report"])
def open_page(browser: Any, parity: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    html = (
        page.render_ported(report_with_everything())
        if request.param == "alone"
        else page.render(parity, ported=report_with_everything())
    )
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    browser.get((tmp_path / "index.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


@pytest.mark.nightly
def test_links_lead_to_their_targets(open_page: Any) -> None:
    (link, *_) = [each for each in open_page.find_elements("css selector", "#clips a") if "-" in each.text]
    link.click()
    target = open_page.execute_script("return document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= target < open_page.execute_script("return innerHeight")


def test_headings_cells_and_regions_have_names(open_page: Any) -> None:
    assert open_page.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0
    unnamed = "return [...document.querySelectorAll('a, pre, [role=region]')].filter((e) => !e.textContent.trim())"
    assert open_page.execute_script(unnamed) == []


@pytest.mark.nightly
def test_nothing_is_wider_than_the_screen(open_page: Any) -> None:
    box = "const box = document.querySelector('#clips').parentElement; return box.scrollWidth - box.clientWidth"
    assert open_page.execute_script(box) == 0
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    open_page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert open_page.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        open_page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
