"""The page of a report says what parity.json says, needs nothing but itself, and does what it should in a browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from support.parity.reports import known
from support.parity.runs import NORM_OFF, run, wrong

from unified_clip.parity.judge.verdict import VERDICTS, NativeVerdict, VerdictKind
from unified_clip.parity.report import page, write
from unified_clip.parity.results import ParityReport
from unified_clip.recording.runs import RecordedCall

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[3] / "docs"


def calls(lines: list[dict[str, Any]]) -> list[RecordedCall]:
    return [RecordedCall.model_validate({"call": "clip_grad_norm_", **line}) for line in lines]


CALLS = calls(
    [
        {"step": step, "threshold": 1.0, "norm": norm, "clipped": norm > 1}
        for step, norm in enumerate([0.5, 2.0, math.inf, 0.25, 4.0], 1)
    ]
)
"""Of which three steps are clipped."""


def rendered(data: Any, recorded: Sequence[RecordedCall] = ()) -> str:
    """The page of a report as it is read from its file."""
    return page.render(ParityReport.model_validate(data), recorded)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of a run in which much is wrong, as it is read from its file."""
    directory = tmp_path_factory.mktemp("failed")
    write.write(run(directory, wrong), directory)
    return json.loads((directory / "parity.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def html(failed: Any) -> str:
    return rendered(failed, CALLS)


def test_the_page_is_written_beside_the_others_and_made_of_the_json_alone(failed: Any, tmp_path: Path) -> None:
    again = run(tmp_path, wrong)
    write.write(again, tmp_path)
    written = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert written == rendered(json.loads((tmp_path / "parity.json").read_text(encoding="utf-8")))


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)|url\(|@import|https?:""", html)


def test_what_comes_from_suites_and_workers_cannot_become_html(failed: Any, html: str) -> None:
    assert "<script>throw" not in html
    assert "&lt;script&gt;throw Error(&#39;case&#39;)&lt;/script&gt;: get_total_norm()" in html
    evil = '"><img src=x onerror=alert(1)>'
    result = failed["cases"][0]["frameworks"]["torch"]["native"]
    data = {**failed, "verdict": f"FAIL: {evil}", "versions": {evil: evil}, "titles": {"torch": evil}}
    data["problems"] = [{"what": evil, "detail": evil, "framework": None, "mode": None, "cases": []}]
    said = dict.fromkeys(("framework", "function", "reason", "versions", "problem"), evil)
    data["known"] = [known(**said, cases=[]).as_json()]
    data["notes"] = [evil]
    data["baseline"] = [
        {**dict.fromkeys(("framework", "what", "case", "before", "after"), evil), "kind": "verdict", "worse": True}
    ]
    data["cases"] = [{**failed["cases"][0], "name": evil, "frameworks": {"torch": {"native": {**result}}}}]
    data["cases"][0]["frameworks"]["torch"]["native"] |= dict.fromkeys(
        ("detail", "function", "reproduce", "problem"), evil
    )
    made = rendered(data, calls([{"step": 1, "norm": 1.0, "threshold": 1.0, "call": evil}]))
    assert "<img" not in made
    assert made.count("&lt;img src=x") > 8


def test_a_native_that_gives_something_else_than_numbers_is_said_to(failed: Any) -> None:
    case = failed["cases"][0]
    native = {**case["frameworks"]["torch"]["native"], "kind": "form", "detail": "[1.0]; [2.0]", "problem": ""}
    data = {**failed, "cases": [{**case, "frameworks": {"torch": {"native": native}}}], "problems": []}
    words = 'shapes, dtypes or the number of gradients differ: <span class="said">[1.0]; [2.0]</span>'
    assert words in rendered(data)


def test_the_page_tells_what_changed_since_a_baseline_and_what_is_worth_a_note(failed: Any) -> None:
    texts = {"framework": "torch", "what": "", "case": "", "before": "2.12", "after": "2.13"}
    changes = [{"kind": "version", **texts, "worse": False}]
    made = rendered({**failed, "baseline": changes, "notes": ["The process of torch printed 'hello'."]})
    assert "<p>Against the baseline: changes: 1, of which 0 fail the run.</p>" in made
    assert "<td>2.12</td><td>2.13</td>" in made
    assert "The process of torch printed &#39;hello&#39;." in made
    assert "Since the baseline" not in rendered(failed)


def test_known_differences_are_shown_with_the_versions_they_are_about(failed: Any) -> None:
    entry = known(reason="why", versions="torch<3", cases=[])
    assert "why (torch&lt;3)" in rendered({**failed, "known": [entry.as_json()]})


def test_of_results_that_are_equal_there_is_nothing_to_open(failed: Any, html: str) -> None:
    cells = [
        (mode, cell) for case in failed["cases"] for on in case["frameworks"].values() for mode, cell in on.items()
    ]
    told = sum(cell["verdict"] != "equal" for _, cell in cells)
    assert 0 < told < len(cells)
    columns = re.findall(r'<article class="card" data-column="([\d ]*)"', html)
    assert sum(len(numbers.split()) for numbers in columns if numbers != "0") == told


def test_results_with_the_same_text_share_a_card(failed: Any) -> None:
    case = failed["cases"][0]
    crash = {**case["frameworks"]["torch"]["native"], "verdict": "crashed", "detail": "no memory", "details": None}
    own = {"verdict": "crashed", "detail": "no memory", "details": None, "reproduce": "unified-clip parity --case one"}
    own |= {"ulps": 0.0, "cause": "", "stages": {}, "sha256": None}
    frameworks = {"torch": {"host": own, "device": own, "native": crash}, "jax": {"host": own}}
    data = {**failed, "frameworks": ["torch", "jax"], "problems": [], "cases": [{**case, "frameworks": frameworks}]}
    cards = re.findall(
        r'<article class="card" data-column="([\d ]*)">\n<h4>.*?</span> (.*?)(?: <code>.*)?</h4>', rendered(data)
    )
    assert cards == [
        ("1 2 4", "torch, host path and device path; jax, host path"),
        ("3", "torch, framework&#39;s function"),
    ]
    assert rendered(data).count("unified-clip parity --case one") == 1


def test_every_verdict_has_a_meaning_and_a_colour() -> None:
    assert set(VERDICTS) == {*get_args(VerdictKind), *get_args(NativeVerdict)}
    style = (Path(page.__file__).parent / "web" / "page.css").read_text(encoding="utf-8")
    assert [name for name in VERDICTS if f"\n.{name.replace(' ', '-')} {{" not in style] == []


def test_a_verdict_without_a_meaning_is_an_error(failed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {verdict for kinds in failed["summary"]["host"].values() for verdict in kinds}
    assert "different" in counts
    monkeypatch.delitem(VERDICTS, "different")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'different' is not in list"):
        rendered(failed)


def test_a_page_of_thousands_of_results_stays_small(failed: Any) -> None:
    cases = [{**case, "name": f"{case['name']} {number}"} for case in failed["cases"] for number in range(85)]
    many = rendered({**failed, "cases": cases, "problems": []})
    assert len(cases) == 510
    assert len(many.encode()) < 3e6


# -- in a browser

TAB, ENTER, DOWN = "\ue004", "\ue007", "\ue015"
"""As WebDriver names keys."""


@pytest.fixture
def opened(browser: Any, html: str, tmp_path: Path) -> Any:
    """The page of the failed run, from the disk; no script of it has failed at the end."""
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    browser.get((tmp_path / "index.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


def all_of(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def visible(browser: Any, selector: str) -> list[str]:
    return [element.text for element in all_of(browser, selector) if element.is_displayed()]


def choose(browser: Any, id_: str, text: str) -> None:
    """As somebody with a keyboard does."""
    element = browser.find_element("id", id_)
    element.clear() if element.tag_name == "input" else None
    element.send_keys(text)


def shown(browser: Any) -> list[str]:
    return visible(browser, "#matrix tbody tr:not(.more) > th")


def test_the_verdict_comes_first_and_says_what_failed(opened: Any, failed: Any) -> None:
    assert opened.title == "Fail: parity report"
    assert visible(opened, "h1") == [failed["verdict"].replace(": ", "\n", 1)]
    assert all_of(opened, "h1")[0].location["y"] < 120
    assert NORM_OFF in visible(opened, ".wrong")[0]


def test_the_matrix_filters_by_text_framework_mode_and_verdict(opened: Any) -> None:
    assert len(shown(opened)) == 6
    choose(opened, "name", "WORKED total")
    assert shown(opened) == [NORM_OFF]
    assert visible(opened, "#count") == ["1 of 6 cases"]
    choose(opened, "name", "nothing has this name")
    assert visible(opened, "#count") == ["0 of 6 cases"]
    all_of(opened, ".filters button")[0].send_keys(ENTER)
    opened.execute_async_script("setTimeout(arguments[0])")
    assert visible(opened, "#count") == ["6 of 6 cases"]
    choose(opened, "verdict", "different")
    assert len(shown(opened)) == 4
    choose(opened, "mode", "host")
    assert shown(opened) == [NORM_OFF]
    assert visible(opened, "#matrix thead tr:last-child th") == ["host path", "host path"]
    choose(opened, "framework", "numpy")
    assert shown(opened) == []
    choose(opened, "verdict", "equal")
    assert len(shown(opened)) == 6
    assert visible(opened, "#matrix thead tr:first-child th") == ["case", "numpy"]


def test_a_row_opens_with_the_keyboard_and_shows_the_numbers(opened: Any) -> None:
    buttons = all_of(opened, "#matrix tbody button")
    all_of(opened, ".filters button")[0].send_keys(TAB)  # to the scrolled region, and then to what is in it
    opened.switch_to.active_element.send_keys(TAB)
    assert opened.switch_to.active_element == buttons[0]
    assert opened.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    buttons[0].send_keys(DOWN)
    assert opened.switch_to.active_element == buttons[1]
    assert buttons[1].text == NORM_OFF
    buttons[1].send_keys(" ")
    assert buttons[1].get_attribute("aria-expanded") == "true"
    (numbers, *_) = visible(opened, "tr.more .numbers")
    assert "unified_clip 5.5 0x1.6000000000000p+2 47,761 ULP nearer" in numbers
    (summary, *_) = [each for each in all_of(opened, "tr.more summary") if each.is_displayed()]
    summary.send_keys(ENTER)  # enter
    assert "--frameworks torch" in visible(opened, "tr.more pre")[0]
    buttons[1].send_keys(" ")
    assert visible(opened, "tr.more .numbers") == []


def test_a_link_from_what_is_wrong_opens_the_case_even_if_it_is_filtered_out(opened: Any) -> None:
    choose(opened, "name", "nothing has this name")
    (link, *_) = [each for each in all_of(opened, ".wrong a") if each.text == NORM_OFF]
    link.send_keys(ENTER)
    opened.execute_async_script("setTimeout(arguments[0], 50)")
    assert opened.switch_to.active_element.text == NORM_OFF
    assert opened.switch_to.active_element.get_attribute("aria-expanded") == "true"


def test_every_control_can_be_reached_and_has_a_name(opened: Any) -> None:
    unnamed = """return [...document.querySelectorAll('a, button, input, select, summary, [tabindex]')].filter(
        (each) => !(each.innerText || each.getAttribute('aria-label') || each.labels?.length || each.textContent.trim()
            || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)"""
    assert opened.execute_script(unnamed) == []
    assert opened.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0
    assert opened.execute_script("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0


def test_plots_are_drawn(opened: Any) -> None:
    for name, marks in (("histogram", "rect"), ("norms", "path.mark"), ("record", "path.norm, .clipped")):
        boxes = opened.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((each) => {"
            "const box = each.getBoundingClientRect(); return [box.width, box.height]})",
            ", ".join(f"#{name} {mark}" for mark in marks.split(", ")),
        )
        assert boxes
        assert all(width + height > 2 for width, height in boxes), name


def test_dark_and_print_have_colours_of_their_own(opened: Any) -> None:
    def look(**emulated: Any) -> list[Any]:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        return opened.execute_script(  # type: ignore[no-any-return]
            "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            "getComputedStyle(document.querySelector('.filters')).display,"
            "document.querySelector('.wrong details pre').checkVisibility()]"
        )

    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    assert look(media="screen", features=light) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "flex", False]
    assert look(media="screen", features=dark) == ["rgb(16, 20, 24)", "rgb(228, 232, 236)", "flex", False]
    assert look(media="print", features=dark) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "none", True]
    assert len(opened.print_page()) > 10_000
    look(media="screen", features=light)


def narrowed(browser: Any, width: int) -> None:
    metrics = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_a_text_stands_where_no_case_matches(opened: Any) -> None:
    assert visible(opened, "#no-match") == []
    choose(opened, "name", "nothing has this name")
    assert visible(opened, "#no-match") == ["No case matches these filters. Change them, or choose “Show all”."]
    assert visible(opened, "#matrix") == []
    choose(opened, "name", "worked")
    assert visible(opened, "#no-match") == []
    assert visible(opened, "#matrix") != []


def test_the_address_keeps_the_filters(opened: Any) -> None:
    choose(opened, "name", "worked & total")
    choose(opened, "name", "worked total")
    choose(opened, "mode", "host path")
    address = opened.current_url
    opened.get("about:blank")
    opened.get(address)
    assert shown(opened) == [NORM_OFF]
    assert [opened.find_element("id", id_).get_property("value") for id_ in ("name", "mode")] == [
        "worked total",
        "host",
    ]
    all_of(opened, ".filters button")[0].send_keys(ENTER)
    opened.execute_async_script("setTimeout(arguments[0], 20)")
    assert opened.current_url.endswith("#cases")


def test_a_filter_that_the_report_does_not_have_is_left_out(opened: Any) -> None:
    page_url = opened.current_url
    opened.get("about:blank")
    opened.get(f"{page_url}#framework=mindspore&name=worked")
    assert len(shown(opened)) == 3


def test_modes_have_one_name_in_the_filter_and_the_matrix(opened: Any) -> None:
    options = {each.get_attribute("textContent") for each in all_of(opened, "#mode option")[1:]}
    columns = {each.get_attribute("textContent") for each in all_of(opened, "#matrix > thead tr:last-child th")}
    assert columns == options


def test_what_is_wider_than_the_screen_says_so(opened: Any) -> None:
    def hints() -> list[str]:
        return visible(opened, "#cases .scroll-hint")

    opened.execute_script("document.querySelector('.tall table').style.minWidth = '3000px'")
    opened.execute_async_script("setTimeout(arguments[0], 50)")
    assert hints() == ["Scroll sideways for more →"]
    opened.execute_script("document.querySelector('#cases .tall').scrollLeft = 3000")
    opened.execute_async_script("setTimeout(arguments[0], 50)")
    assert hints() == []


def test_the_name_of_a_framework_stays_over_its_columns(opened: Any) -> None:
    """On a narrow screen, the matrix is scrolled: each name ends within the columns of its framework."""
    narrowed(opened, 400)
    inside = """const region = document.querySelector("#cases .tall");
        return [0, 40, 80, 120, 160].every((left) => { region.scrollLeft = left;
            return [...document.querySelectorAll("#matrix > thead tr:first-child th:not(.corner)")].every((th) => {
                const over = th.getBoundingClientRect(), name = th.firstChild.getBoundingClientRect();
                return name.left >= over.left && name.right <= over.right; }); })"""
    assert opened.execute_script(inside)
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_is_wider_than_the_screen(opened: Any) -> None:
    opened.execute_script("document.querySelectorAll('#matrix button').forEach((each) => each.click())")
    beyond = "const box = document.querySelector('.tall'); return box.scrollWidth - box.clientWidth"
    assert opened.execute_script(beyond) == 0
    narrowed(opened, 360)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= 360
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_tiles_count_the_verdicts_that_the_json_has(failed: Any, html: str) -> None:
    results = [
        (mode, result["verdict"])
        for case in failed["cases"]
        for modes in case["frameworks"].values()
        for mode, result in modes.items()
    ]
    own = [verdict for mode, verdict in results if mode != "native"]
    kept = sum(verdict in ("equal", "close", "flushed") for verdict in own)
    tiles = re.findall(r'<div class="(.*?)"><dd>(.*?)</dd><dt>(.*?)</dt></div>', html)
    assert 0 < kept < len(own)
    assert tiles[0] == ("", str(len(failed["cases"])), "cases")
    assert tiles[2] == ("different", f"{kept} of {len(own)}", "results of unified_clip within the contract")
    assert tiles[-1][1] == str(len(failed["problems"]))


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 %"), (1, "0.1 %"), (999, "33 %"), (2999, "99.9 %"), (3000, "100 %")]
)
def test_a_share_is_rounded_but_never_to_all_or_nothing(
    count: int, words: str, failed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = page.View(ParityReport.model_validate(failed))
    monkeypatch.setattr(page.View, "counts", lambda *_: [("equal", count), ("known", 3000 - count)])
    assert view.percent(view.columns[0], count) == words
