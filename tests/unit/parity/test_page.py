"""The page of a report: it has the values of parity.json, loads no other file, and works in a browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any, get_args

import pytest
from support.parity.reports import known
from support.parity.runs import NORM_OFF, run_suite_with, wrong_outcome

from unified_clip.parity.judge.verdict import VERDICTS, NativeVerdict, VerdictKind
from unified_clip.parity.report import page, write
from unified_clip.parity.results import ParityReport

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[3] / "docs"


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
    data = {**failed_report, "verdict": f"FAIL: {evil}", "versions": {evil: evil}, "titles": {"torch": evil}}
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


def test_results_with_the_same_text_share_a_card(failed_report: Any) -> None:
    case = failed_report["cases"][0]
    crash = {**case["frameworks"]["torch"]["native"], "verdict": "crashed", "detail": "no memory", "details": None}
    crashed = {
        "verdict": "crashed",
        "detail": "no memory",
        "details": None,
        "reproduce": "unified-clip parity --case one",
    }
    crashed |= {"ulps": 0.0, "cause": "", "stages": {}, "sha256": None}
    frameworks = {"torch": {"host": crashed, "device": crashed, "native": crash}, "jax": {"host": crashed}}
    data = {
        **failed_report,
        "frameworks": ["torch", "jax"],
        "problems": [],
        "cases": [{**case, "frameworks": frameworks}],
    }
    cards = re.findall(
        r'<article class="card" data-column="([\d ]*)">\n<h4>.*?</span> (.*?)(?: <code>.*)?</h4>', render_page(data)
    )
    assert cards == [
        ("1 2 4", "torch, host path and device path; jax, host path"),
        ("3", "torch, framework&#39;s function"),
    ]
    assert render_page(data).count("unified-clip parity --case one") == 1


def test_every_verdict_has_a_meaning_and_a_colour() -> None:
    assert set(VERDICTS) == {*get_args(VerdictKind), *get_args(NativeVerdict)}
    style = (Path(page.__file__).parent / "web" / "page.css").read_text(encoding="utf-8")
    assert [name for name in VERDICTS if f"\n.{name.replace(' ', '-')} {{" not in style] == []


def test_a_page_of_thousands_of_results_stays_small(failed_report: Any) -> None:
    cases = [{**case, "name": f"{case['name']} {number}"} for case in failed_report["cases"] for number in range(85)]
    large_page = render_page({**failed_report, "cases": cases, "problems": []})
    assert len(cases) == 510
    assert len(large_page.encode()) < 3e6


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


def test_the_verdict_comes_first_and_names_the_failures(open_page: Any, failed_report: Any) -> None:
    assert open_page.title == "Fail: parity report"
    assert visible_cases(open_page, "h1") == [failed_report["verdict"].replace(": ", "\n", 1)]
    assert find_all(open_page, "h1")[0].location["y"] < 120
    assert NORM_OFF in visible_cases(open_page, ".wrong")[0]


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


def test_a_link_from_a_problem_opens_its_case_even_if_it_is_filtered_out(open_page: Any) -> None:
    choose(open_page, "name", "nothing has this name")
    (link, *_) = [each for each in find_all(open_page, ".wrong a") if each.text == NORM_OFF]
    link.send_keys(ENTER)
    open_page.execute_async_script("setTimeout(arguments[0], 50)")
    assert open_page.switch_to.active_element.text == NORM_OFF
    assert open_page.switch_to.active_element.get_attribute("aria-expanded") == "true"


def test_every_control_can_be_reached_and_has_a_name(open_page: Any) -> None:
    unnamed = """return [...document.querySelectorAll('a, button, input, select, summary, [tabindex]')].filter(
        (each) => !(each.innerText || each.getAttribute('aria-label') || each.labels?.length || each.textContent.trim()
            || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)"""
    assert open_page.execute_script(unnamed) == []
    assert open_page.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0
    assert open_page.execute_script("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0


def test_dark_mode_and_print_have_their_own_colours(open_page: Any) -> None:
    def look(**emulated: Any) -> list[Any]:
        open_page.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        return open_page.execute_script(  # type: ignore[no-any-return]
            "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            "getComputedStyle(document.querySelector('.filters')).display,"
            "document.querySelector('.wrong details pre').checkVisibility()]"
        )

    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    assert look(media="screen", features=light) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "flex", False]
    assert look(media="screen", features=dark) == ["rgb(16, 20, 24)", "rgb(228, 232, 236)", "flex", False]
    assert look(media="print", features=dark) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "none", True]
    assert len(open_page.print_page()) > 10_000
    look(media="screen", features=light)


def filter_matrix(browser: Any, width: int) -> None:
    metrics = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_the_address_keeps_the_filters(open_page: Any) -> None:
    choose(open_page, "name", "worked & total")
    choose(open_page, "name", "worked total")
    choose(open_page, "mode", "host path")
    address = open_page.current_url
    open_page.get("about:blank")
    open_page.get(address)
    assert displayed_text(open_page) == [NORM_OFF]
    assert [open_page.find_element("id", id_).get_property("value") for id_ in ("name", "mode")] == [
        "worked total",
        "host",
    ]
    find_all(open_page, ".filters button")[0].send_keys(ENTER)
    open_page.execute_async_script("setTimeout(arguments[0], 20)")
    assert open_page.current_url.endswith("#cases")
    open_page.get("about:blank")
    open_page.get(f"{address.partition('#')[0]}#framework=mindspore&name=worked")  # an unknown framework is ignored
    assert len(displayed_text(open_page)) == 3


def test_wide_tables_have_a_hint_to_scroll(open_page: Any) -> None:
    def hints() -> list[str]:
        return visible_cases(open_page, "#cases .scroll-hint")

    open_page.execute_script("document.querySelector('.tall table').style.minWidth = '3000px'")
    open_page.execute_async_script("setTimeout(arguments[0], 50)")
    assert hints() == ["Scroll sideways for more →"]
    open_page.execute_script("document.querySelector('#cases .tall').scrollLeft = 3000")
    open_page.execute_async_script("setTimeout(arguments[0], 50)")
    assert hints() == []


def test_the_name_of_a_framework_stays_over_its_columns(open_page: Any) -> None:
    """On a narrow screen, the matrix is scrolled: each name ends within the columns of its framework."""
    filter_matrix(open_page, 400)
    inside = """const region = document.querySelector("#cases .tall");
        return [0, 40, 80, 120, 160].every((left) => { region.scrollLeft = left;
            return [...document.querySelectorAll("#matrix > thead tr:first-child th:not(.corner)")].every((th) => {
                const over = th.getBoundingClientRect(), name = th.firstChild.getBoundingClientRect();
                return name.left >= over.left && name.right <= over.right; }); })"""
    assert open_page.execute_script(inside)
    open_page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_is_wider_than_the_screen(open_page: Any) -> None:
    open_page.execute_script("document.querySelectorAll('#matrix button').forEach((each) => each.click())")
    beyond = "const box = document.querySelector('.tall'); return box.scrollWidth - box.clientWidth"
    assert open_page.execute_script(beyond) == 0
    filter_matrix(open_page, 360)
    assert open_page.execute_script("return document.documentElement.scrollWidth") <= 360
    open_page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_tiles_count_the_verdicts_of_the_json(failed_report: Any, html: str) -> None:
    results = [
        (mode, result["verdict"])
        for case in failed_report["cases"]
        for modes in case["frameworks"].values()
        for mode, result in modes.items()
    ]
    of_unified_clip = [verdict for mode, verdict in results if mode != "native"]
    kept = sum(verdict in ("equal", "close", "flushed") for verdict in of_unified_clip)
    tiles = re.findall(r'<div class="(.*?)"><dd>(.*?)</dd><dt>(.*?)</dt></div>', unescape(html))
    assert 0 < kept < len(of_unified_clip)
    of_functions = [verdict for mode, verdict in results if mode == "native"]
    right = sum(verdict in ("equal", "no norm", "close") for verdict in of_functions)
    assert "known" not in of_functions
    assert tiles == [
        ("different", f"{kept} of {len(of_unified_clip)}", "results of unified_clip are right"),
        ("different", f"{right} of {len(of_functions)}", "results of the frameworks' functions are right"),
        ("", str(len(failed_report["cases"])), "cases"),
    ]


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 %"), (1, "0.1 %"), (999, "33 %"), (2999, "99.9 %"), (3000, "100 %")]
)
def test_a_share_is_never_rounded_to_0_or_100_percent(
    count: int, words: str, failed_report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = page.PageView(ParityReport.model_validate(failed_report))
    monkeypatch.setattr(page.PageView, "counts", lambda *_: [("equal", count), ("known", 3000 - count)])
    assert view.percent(view.columns[0], count) == words
