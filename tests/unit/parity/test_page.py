"""The page of a report: it has the values of parity.json, loads no other file, and works in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from support.parity.reports import known
from support.parity.runs import NORM_OFF, run_suite_with, wrong_outcome

from unified_clip.parity.judge.verdict import VERDICTS, NativeVerdict, VerdictKind
from unified_clip.parity.report import page, write
from unified_clip.parity.results import ParityReport

pytestmark = pytest.mark.nightly


def render_page(data: Any) -> str:
    return page.render(ParityReport.model_validate(data))


@pytest.fixture(scope="module")
def failed_report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("failed")
    write.write(run_suite_with(directory, wrong_outcome), directory)
    return json.loads((directory / "parity.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def html(failed_report: Any) -> str:
    return render_page(failed_report)


def test_the_page_is_rendered_from_the_json_alone(failed_report: Any, tmp_path: Path) -> None:
    again = run_suite_with(tmp_path, wrong_outcome)
    write.write(again, tmp_path)
    written = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert written == render_page(json.loads((tmp_path / "parity.json").read_text(encoding="utf-8")))


def test_the_page_loads_no_other_file(html: str) -> None:
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)|url\(|@import|https?:""", html)


def test_texts_of_suites_and_workers_are_escaped(failed_report: Any, html: str) -> None:
    assert "<script>throw" not in html
    assert "&lt;script&gt;throw Error(&#39;case&#39;)&lt;/script&gt;: get_total_norm()" in html
    evil = '"><img src=x onerror=alert(1)>'
    result = failed_report["cases"][0]["frameworks"]["torch"]["native"]
    data = {**failed_report, "verdict": f"FAIL: {evil}", "versions": {evil: evil}}
    data["problems"] = [{"what": evil, "detail": evil, "framework": None, "mode": None, "cases": []}]
    texts = dict.fromkeys(("framework", "function", "reason", "problem"), evil)
    data["known"] = [known(**texts, cases=[]).as_json()]
    data["notes"] = [evil]
    data["cases"] = [{**failed_report["cases"][0], "name": evil, "frameworks": {"torch": {"native": {**result}}}}]
    data["cases"][0]["frameworks"]["torch"]["native"] |= dict.fromkeys(
        ("detail", "function", "reproduce", "problem"), evil
    )
    page_html = render_page(data)
    assert "<img" not in page_html
    assert page_html.count("&lt;img src=x") > 7


def test_every_verdict_has_a_meaning_and_a_colour() -> None:
    assert set(VERDICTS) == {*get_args(VerdictKind), *get_args(NativeVerdict)}
    style = (Path(page.__file__).parent / "web" / "page.css").read_text(encoding="utf-8")
    assert [name for name in VERDICTS if f"\n.{name.replace(' ', '-')} {{" not in style] == []


# -- in a browser

TAB, ENTER, DOWN = "\ue004", "\ue007", "\ue015"
"""The keys, as WebDriver names them."""


@pytest.fixture
def open_page(browser: Any, html: str, tmp_path: Path) -> Any:
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    browser.get((tmp_path / "index.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


def find_all(browser: Any, selector: str) -> list[Any]:
    elements: list[Any] = browser.find_elements("css selector", selector)
    return elements


def visible_cases(browser: Any, selector: str) -> list[str]:
    return [element.text for element in find_all(browser, selector) if element.is_displayed()]


def choose(browser: Any, id_: str, text: str) -> None:
    element = browser.find_element("id", id_)
    element.clear() if element.tag_name == "input" else None
    element.send_keys(text)


def displayed_text(browser: Any) -> list[str]:
    return visible_cases(browser, "#matrix tbody tr:not(.more) > th")


def test_the_matrix_filters_by_text_framework_mode_and_verdict(open_page: Any) -> None:
    assert len(displayed_text(open_page)) == 6
    choose(open_page, "name", "WORKED total")
    assert displayed_text(open_page) == [NORM_OFF]
    assert visible_cases(open_page, "#count") == ["1 of 6 cases"]
    choose(open_page, "name", "nothing has this name")
    assert visible_cases(open_page, "#count") == ["0 of 6 cases"]
    assert (len(visible_cases(open_page, "#no-match")), visible_cases(open_page, "#matrix")) == (1, [])
    find_all(open_page, ".filters button")[0].send_keys(ENTER)
    open_page.execute_async_script("setTimeout(arguments[0])")
    assert visible_cases(open_page, "#count") == ["6 of 6 cases"]
    choose(open_page, "verdict", "different")
    assert len(displayed_text(open_page)) == 4
    choose(open_page, "mode", "host")
    assert displayed_text(open_page) == [NORM_OFF]
    assert visible_cases(open_page, "#matrix thead tr:last-child th") == ["host path", "host path"]
    choose(open_page, "framework", "numpy")
    assert displayed_text(open_page) == []
    choose(open_page, "verdict", "equal")
    assert len(displayed_text(open_page)) == 6
    assert visible_cases(open_page, "#matrix thead tr:first-child th") == ["case", "numpy"]


def test_a_row_opens_with_the_keyboard_and_shows_the_numbers(open_page: Any) -> None:
    buttons = find_all(open_page, "#matrix tbody button")
    find_all(open_page, ".filters button")[0].send_keys(TAB)  # to the scrolled region, and then to what is in it
    open_page.switch_to.active_element.send_keys(TAB)
    assert open_page.switch_to.active_element == buttons[0]
    assert open_page.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    buttons[0].send_keys(DOWN)
    assert open_page.switch_to.active_element == buttons[1]
    assert buttons[1].text == NORM_OFF
    buttons[1].send_keys(" ")
    assert buttons[1].get_attribute("aria-expanded") == "true"
    (numbers, *_) = visible_cases(open_page, "tr.more .numbers")
    assert "unified_clip 5.5 0x1.6000000000000p+2 47,761 ULP nearer" in numbers
    (summary, *_) = [each for each in find_all(open_page, "tr.more summary") if each.is_displayed()]
    summary.send_keys(ENTER)  # enter
    assert "--frameworks torch" in visible_cases(open_page, "tr.more pre")[0]
    buttons[1].send_keys(" ")
    assert visible_cases(open_page, "tr.more .numbers") == []
