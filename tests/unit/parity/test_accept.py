"""`unified-clip parity --accept` writes the list of known differences, and keeps the user's texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.parity.own_suites import RULES, SUITE, write_suite_file
from support.parity.reports import clip_result, native, one_case

from unified_clip import cli
from unified_clip.parity import cli as parity_cli
from unified_clip.parity.known import entries, match
from unified_clip.parity.known.accept import accept_differences
from unified_clip.parity.report import build, view
from unified_clip.parity.results import FrameworkResult, NativeResult, ParityReport

Differences = dict[str, float | NativeResult]


def run_with(differences: Differences, known: list[entries.KnownDifference] | None) -> ParityReport:
    natives = {
        name: each if isinstance(each, NativeResult) else native("different", each, function="torch.norm")
        for name, each in differences.items()
    }
    judgements, results = match.match_deviations(known, {("torch", name): each for name, each in natives.items()})
    cases = []
    for name, each in natives.items():
        each.verdict, each.problem = judgements["torch", name]
        cases.append(one_case(name, torch=FrameworkResult(host=clip_result(), native=each)))
    return build.build_report(["torch"], cases, results)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "known.toml"


def accept(path: Path, differences: Differences) -> tuple[int, ...]:
    """Accept the differences, write missing reasons, and check that the next run passes and changes nothing."""
    known = entries.read(path) if path.exists() else []
    changes = accept_differences(path, known, run_with(differences, known))
    path.write_text(path.read_text("utf-8").replace('reason = ""', 'reason = "ours # sums"'), "utf-8")
    text, known = path.read_text("utf-8"), entries.read(path)
    run = run_with(differences, known)
    assert run.exit_code != 1, run.verdict
    assert accept_differences(path, known, run) == (len(known), 0, 0, 0)
    assert path.read_text("utf-8") == text
    return changes


def listed(path: Path) -> list[tuple[list[str], float | str, str]]:
    return [(entry.cases, entry.size, entry.reason) for entry in entries.read(path)]


@pytest.mark.parametrize("text", [None, "", "# ours\nknown = []\n", "known = []\n# ours\n"])
def test_a_list_may_become_empty_and_full_again(path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert accept(path, {}) == (0, 0, 0, 0)
    assert accept(path, {"one": 0.5, "two": 0.25}) == (0, 0, 0, 1)
    assert listed(path) == [(["one", "two"], 0.5, "ours # sums")]
    assert accept(path, {}) == (0, 0, 1, 0)
    assert accept(path, {"one": 0.5}) == (0, 0, 0, 1)
    assert path.read_text(encoding="utf-8").startswith("# ours\n" if text else "[[known]]")


def test_accepting_again_keeps_texts_and_comments_and_removes_what_is_gone(path: Path) -> None:
    accept(path, {"one": 0.5, "two": 0.25, "inf": math.inf})
    path.write_text("# by hand\n" + path.read_text("utf-8").replace('reason = "ours', 'reason = "my'), "utf-8")
    assert accept(path, {"one": 0.5, "other": 0.9}) == (0, 1, 1, 1)
    assert path.read_text("utf-8").startswith("# by hand\n")
    assert listed(path) == [(["one"], 0.5, "my # sums"), (["other"], 0.9, "ours # sums")]


def test_a_run_that_writes_the_list_prints_no_problem_of_the_old_one(path: Path) -> None:
    accept(path, {"one": 0.5, "two": 0.25})
    run = run_with({"new": 0.1}, entries.read(path))
    assert ["known.toml" in line for line in view.problem_lines(run)] == [False, True]
    (line,) = view.problem_lines(run, accepting=True)
    assert "new" in line


def test_a_pattern_is_kept_and_its_size_follows_the_difference(path: Path) -> None:
    path.write_text(
        'known = [{ framework = "torch", function = "torch.*", size = 0.01, cases = ["one *"], reason = "sums" }]\n'
    )
    assert accept(path, {"one a": 0.005, "one b": 0.02}) == (0, 1, 0, 0)
    assert listed(path) == [(["one *"], 0.02, "sums")]
    assert accept(path, {"one a": 0.003}) == (1, 0, 0, 0), "a size is a limit"
    assert run_with({"one a": 0.001}, entries.read(path)).exit_code == 1, "which may not hide the next difference"
    assert accept(path, {"one a": 0.001}) == (0, 1, 0, 0)
    assert listed(path) == [(["one *"], 0.001, "sums")]


def test_an_entry_does_not_grow_for_a_difference_of_another_entry(path: Path) -> None:
    accept(path, {"one": 0.1})
    loose = path.read_text("utf-8").replace('"one"', '"*"').replace("0.1", "0.5")
    path.write_text(path.read_text("utf-8") + loose, "utf-8")
    assert accept(path, {"one": 0.4, "two": 0.4}) == (1, 0, 1, 0)
    assert listed(path) == [(["*"], 0.5, "ours # sums")]


def test_a_large_difference_does_not_hide_the_growth_of_a_small_one(path: Path) -> None:
    accept(path, {"large": 1.0, "small": 0.002, "alike": 0.0015, "inf": math.inf})
    assert [(cases, size) for cases, size, _ in listed(path)] == [
        (["large"], 1.0), (["alike", "small"], 0.002), (["inf"], math.inf),
    ]  # fmt: skip
    assert run_with({"large": 1.0, "small": 0.02, "alike": 0.0015, "inf": math.inf}, entries.read(path)).exit_code == 1
    assert accept(path, {"large": 1.0, "small": 0.9, "alike": 0.0015, "inf": math.inf}) == (2, 1, 0, 1)


def test_the_cause_or_the_error_is_the_reason_and_an_unknown_cause_needs_one(path: Path) -> None:
    def cause(sentence: str, kind: str, **fields: Any) -> NativeResult:
        return native(norm=0.02, cause=sentence, cause_kind=kind, **fields)

    form = "shapes, dtypes or the number of gradients differ"
    raises = "it raises an error, but should return a result"
    differences: Differences = {
        "a": cause("as if eps were 0", "eps"),
        "b": cause("as if eps were 0", "eps"),
        "c": cause("as if the threshold were 2", "threshold"),
        "d": cause("as if the threshold were 3", "threshold"),
        "e": native(norm=0.02),
        "f": native(norm=None, kind="raises", detail="KeyError: 3"),
        "g": native(norm=None, kind="raises", detail="TypeError: 4"),
        "h": native(norm=None, kind="returns", detail="[1.0]"),
        "i": native(norm=0.0, kind="form", detail="float32"),
        "j": native(norm=0.004, kind="form", detail="float32"),
    }
    accept(path, differences)
    assert listed(path) == [
        (["a", "b"], 0.02, "as if eps were 0"),
        (["c", "d"], 0.02, "as if the threshold were 2 (in the first of 2 cases)"),
        (["e"], 0.02, "ours # sums"),
        (["f"], "raises KeyError", f"{raises}: KeyError: 3"),
        (["g"], "raises TypeError", f"{raises}: TypeError: 4"),
        (["h"], "returns", "it returns a result, but should raise an error"),
        (["i"], "form", f"{form}: float32"),
        (["j"], "form 0.004", "ours # sums"),
    ]


def test_the_comment_on_a_difference_of_the_user_is_the_cause_in_this_run(path: Path) -> None:
    own: dict[str, Any] = {"kind": "form", "detail": "float32", "function": "clip.py:clip"}
    first = {"one": native(norm=0.5, cause="as if eps were 0", cause_kind="eps", **own)}
    accept_differences(path, [], run_with(first, []))
    written = path.read_text("utf-8")
    assert written.endswith('reason = "" # as if eps were 0\n')
    for reason, end in (
        ('reason = "" # as if eps were 0\n', f'reason = "" # {entries.KINDS["form"]}: float32\n'),
        ('reason = "why" # ticket 3\n', 'reason = "why" # ticket 3\n'),
        ("", '"one"]\n'),
    ):
        path.write_text(written.replace('reason = "" # as if eps were 0\n', reason), "utf-8")
        known = entries.read(path)
        assert accept_differences(path, known, run_with({"one": native(norm=0.0, **own)}, known)) == (0, 1, 0, 0)
        assert path.read_text("utf-8").endswith(end)


@pytest.mark.parametrize("listed_first", [True, False])
def test_entries_of_frameworks_that_were_not_run_are_kept(path: Path, listed_first: bool) -> None:
    accept(path, {"one": 0.5})
    text = path.read_text("utf-8")
    both = [text, text.replace('"torch"', '"jax"')]
    path.write_text("\n".join(both if listed_first else both[::-1]), "utf-8")
    known = entries.read(path)
    only_torch = [entry for entry in known if entry.framework == "torch"]
    assert accept_differences(path, known, run_with({"two": 0.5}, only_torch)) == (1, 0, 1, 1)
    assert sorted((entry.framework, *entry.cases) for entry in entries.read(path)) == [("jax", "one"), ("torch", "two")]


def test_one_entry_may_be_of_several_frameworks(path: Path) -> None:
    accept(path, {"one": 0.5})
    path.write_text(path.read_text("utf-8").replace('"torch"', '"torch"\nalso = ["jax"]'), "utf-8")
    known = entries.read(path)
    assert [(entry.framework, *entry.cases) for entry in known] == [("torch", "one"), ("jax", "one")]
    only_torch = run_with({"one": 0.5}, known[:1])
    assert accept_differences(path, known, only_torch) == (1, 0, 0, 0)
    small = path.with_name("small.toml")
    small.write_text(path.read_text("utf-8"), "utf-8")
    accept_differences(small, known, run_with({"one": 0.001}, known))
    assert run_with({"one": 0.001}, entries.read(small)).exit_code != 1, "no second run is needed"
    both = run_with({"one": 0.5}, known)
    assert [bool(each.problem) for each in both.known] == [False, True]
    assert accept_differences(path, known, both) == (0, 1, 0, 0)
    assert [(entry.framework, *entry.cases) for entry in entries.read(path)] == [("torch", "one")]


@pytest.mark.parametrize("options", [[], ["--accept"]])
def test_a_run_of_some_frameworks_does_not_change_entries_of_other_frameworks(
    tmp_path: Path, options: list[str]
) -> None:
    path = write_suite_file(tmp_path, 'known = "known.toml"\n[frameworks.torch]\n' + SUITE + RULES)
    entry = (
        '# by hand\n[[known]]\nframework = "torch"\nfunction = "torch.norm"\nsize = 0.5\n'
        'cases = ["*"]\nreason = "long sums"\n'
    )
    (path.parent / "known.toml").write_text(entry, encoding="utf-8")
    command = ["parity", "--suite", str(path), "--frameworks", "numpy", "--out", str(tmp_path / "out")]
    assert cli.main([*command, *options]) == 0
    assert (path.parent / "known.toml").read_text(encoding="utf-8") == entry


def test_accept_needs_a_list_of_known_differences(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = write_suite_file(tmp_path, SUITE + RULES), str(tmp_path / "out")
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 2
    assert "UC303" in capfd.readouterr().err
    write_suite_file(tmp_path, 'known = "known.toml"\n' + SUITE + RULES)
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0
    assert "known.toml does not exist yet, so every difference fails the run." in capfd.readouterr().out
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 0
    assert "0 kept, 0 changed, 0 removed, 0 added" in capfd.readouterr().out
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0


def test_accept_names_the_reasons_that_are_lacking(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert parity_cli._accept(run_with({"one": 0.5, "two": 0.001}, []), path, []) == 0
    printed = capfd.readouterr().out
    assert f"{path}, line 6" in printed
    assert "ACCEPTED" not in printed
    explained = native("different", 0.5, cause="as if", cause_kind="eps")
    assert parity_cli._accept(run_with({"one": explained}, []), path.with_name("b.toml"), []) == 0
    assert "ACCEPTED" in capfd.readouterr().out


@pytest.mark.parametrize("verdict", ["different", "crashed"])
def test_accept_writes_nothing_if_results_of_unified_clip_are_wrong_or_missing(
    path: Path, capfd: pytest.CaptureFixture[str], verdict: Any
) -> None:
    run = build.build_report(["torch"], [one_case("one", torch=FrameworkResult(host=clip_result(verdict)))])
    assert parity_cli._accept(run, path, []) == run.exit_code != 0
    assert "UC303" in capfd.readouterr().err
    assert not path.exists()
