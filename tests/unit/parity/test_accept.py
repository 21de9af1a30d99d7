"""`unified-clip parity --accept` writes the list of known differences, and keeps the user's texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parity.own_suites import RULES, SUITE, write_suite_file
from support.parity.reports import clip_result, native, one_case

from unified_clip import cli
from unified_clip.parity import cli as parity_cli
from unified_clip.parity.known import entries, match
from unified_clip.parity.known.accept import accept_differences
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.report import build
from unified_clip.parity.results import FrameworkResult, ParityReport, UnifiedClipResult
from unified_clip.parity.suite import load as suites

VERSIONS = {"torch": "2.13"}


def run_with_differences(sizes: dict[str, float], known: list[entries.KnownDifference] | None) -> ParityReport:
    cases = []
    deviations = {("torch", name): NativeDeviation("torch.norm", "value", size, size) for name, size in sizes.items()}
    judgements, results = match.match_deviations(known, deviations, {"torch": VERSIONS, "jax": {}})
    for place, (judgement, problem) in judgements.items():
        differing = native(judgement, sizes[place[1]], problem=problem, function="torch.norm")
        cases.append(one_case(place[1], torch=FrameworkResult(host=clip_result(), native=differing)))
    return build.build_report(["torch"], cases, results, versions=VERSIONS)


def test_without_a_list_differences_are_reported_without_failing_the_run() -> None:
    result = run_with_differences({"one": 0.5}, None)
    assert result.exit_code == 0
    assert result.cases[0].natives["torch"].verdict == "different"
    assert run_with_differences({"one": 0.5}, []).exit_code == 1


def test_an_accepted_difference_is_known_in_the_next_run(tmp_path: Path) -> None:
    path, sizes = tmp_path / "known.toml", {"one": 0.5, "two": 0.25}
    assert accept_differences(path, run_with_differences(sizes, [])) == (0, 0, 0, 1)
    (entry,) = entries.read(path)
    assert (entry.function, entry.kind, entry.size, entry.cases) == ("torch.norm", "value", 0.5, ["one", "two"])
    assert run_with_differences(sizes, [entry]).exit_code == 0
    assert accept_differences(path, run_with_differences(sizes, [entry])) == (1, 0, 0, 0)


@pytest.mark.parametrize("text", [None, "", "# ours\nknown = []\n", "known = []\n# ours\n"])
def test_accepting_nothing_and_then_a_difference_writes_a_list_that_can_be_read(
    tmp_path: Path, text: str | None
) -> None:
    path, sizes = tmp_path / "known.toml", {"one": 0.5}
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert accept_differences(path, run_with_differences({}, [])) == (0, 0, 0, 0)
    assert entries.read(path) == []
    assert accept_differences(path, run_with_differences(sizes, [])) == (0, 0, 0, 1)
    assert run_with_differences(sizes, entries.read(path)).exit_code == 0
    assert accept_differences(path, run_with_differences({}, entries.read(path))) == (0, 0, 1, 0)
    assert accept_differences(path, run_with_differences(sizes, entries.read(path))) == (0, 0, 0, 1)
    assert path.read_text(encoding="utf-8").startswith("# ours\n" if text else "[[known]]")
    assert run_with_differences(sizes, entries.read(path)).exit_code == 0


def test_accepting_keeps_inline_entries(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    inline = (
        '{ framework = "torch", function = "torch.norm", kind = "value", size = 0.5, cases = ["one"], reason = "sums" }'
    )
    path.write_text(f"known = [{inline}]\n", encoding="utf-8")
    sizes = {"one": 0.5, "two": 0.25}
    assert accept_differences(path, run_with_differences(sizes, entries.read(path))) == (0, 1, 0, 1)
    reasons = [(["one"], "sums"), (["two"], "numbers differ, and the cause is unknown")]
    assert [(entry.cases, entry.reason) for entry in entries.read(path)] == reasons
    assert run_with_differences(sizes, entries.read(path)).exit_code == 0


def test_accepting_again_removes_stale_entries_and_keeps_texts_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5}, []))
    text = path.read_text(encoding="utf-8").replace(
        'reason = "numbers differ, and the cause is unknown"', 'reason = "float32 # sums"'
    )
    path.write_text(f"# ours\n{text}", encoding="utf-8")
    assert accept_differences(path, run_with_differences({"one": 0.05}, entries.read(path))) == (0, 1, 0, 0)
    assert path.read_text(encoding="utf-8").startswith("# ours\n")
    (entry,) = entries.read(path)
    assert (entry.size, entry.reason) == (0.05, "float32 # sums")


@pytest.mark.parametrize("size", [0.5, 0.05])
def test_accepting_some_frameworks_keeps_the_entries_of_other_frameworks(tmp_path: Path, size: float) -> None:
    """The entry of Paddle was measured in a run of all frameworks, and `--frameworks torch` measures nothing of it."""
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5}, []))
    paddle_entry = path.read_text(encoding="utf-8").replace('"torch"', '"paddle"').replace("torch.norm", "paddle.clip")
    path.write_text(f"{paddle_entry}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    compared = [entry for entry in entries.read(path) if entry.framework == "torch"]  # the engine leaves out others
    accept_differences(path, run_with_differences({"one": size}, compared))
    paddle, torch = sorted(entries.read(path), key=lambda entry: entry.framework)
    assert (paddle.framework, paddle.function, paddle.size, paddle.cases) == ("paddle", "paddle.clip", 0.5, ["one"])
    assert (torch.framework, torch.size) == ("torch", size)
    assert run_with_differences({"one": size}, [torch]).exit_code == 0


@pytest.mark.parametrize("sizes", [{"one": 2.0, "two": 0.5}, {"one": 2.0, "two": 2.0}])
def test_a_larger_difference_can_be_accepted(tmp_path: Path, sizes: dict[str, float]) -> None:
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5, "two": 0.5}, []))
    assert accept_differences(path, run_with_differences(sizes, entries.read(path))) == (0, 1, 0, 0)
    assert run_with_differences(sizes, entries.read(path)).exit_code == 0


def test_entries_for_other_versions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5}, []))
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(f'{text}versions = "torch{which}2"\n' for which in (">=", "<")), encoding="utf-8")
    assert accept_differences(path, run_with_differences({"one": 0.05}, entries.read(path))) == (1, 1, 0, 0)
    assert [entry.versions for entry in entries.read(path)] == ["torch>=2", "torch<2"]


LISTED = """
[[known]] # ours
framework = "torch"
function = "torch.*"
kind = "value"
size = 0.5
within = 4.0
cases = ["o*", "n*"]
reason = "float32 sums"
versions = "torch>=2"
"""


def renew_entries(directory: Path, sizes: dict[str, float], *listed: str) -> list[entries.KnownDifference]:
    path = write_suite_file(directory, "".join(listed), "known.toml")
    accept_differences(path, run_with_differences(sizes, entries.read(path)))
    listed_entries = entries.read(path)
    assert run_with_differences(sizes, listed_entries).exit_code == 0
    return listed_entries


def test_entries_have_a_blank_line_between_them(tmp_path: Path) -> None:
    path = write_suite_file(tmp_path, LISTED.strip() + "\n", "known.toml")
    assert accept_differences(path, run_with_differences({"one": 0.5, "two": 0.25}, entries.read(path))) == (0, 1, 0, 1)
    first, second = path.read_text(encoding="utf-8").split("\n\n")
    assert (first[:9], second[:9]) == ("[[known]]", "[[known]]")


def test_an_entry_that_still_covers_a_case_keeps_its_other_keys(tmp_path: Path) -> None:
    (entry,) = renew_entries(tmp_path, {"one": 3.0, "other": 2.5}, LISTED)
    assert (entry.function, entry.size, entry.within, entry.versions) == ("torch.*", 3.0, 4.0, "torch>=2")
    assert (entry.cases, entry.reason) == (["o*"], "float32 sums")
    assert (tmp_path / "known.toml").read_text(encoding="utf-8").startswith("\n[[known]] # ours\n")


def test_a_difference_that_no_entry_covers_gets_its_own_entry(tmp_path: Path) -> None:
    first, second = renew_entries(tmp_path, {"one": 3.0, "two": 0.25}, LISTED)
    assert (first.cases, second.cases) == (["o*"], ["two"])
    assert (second.function, second.within, second.versions) == ("torch.norm", 1.1, "")


def test_overlapping_entries_keep_their_own_cases(tmp_path: Path) -> None:
    overlapping = LISTED.replace('["o*", "n*"]', '["*e"]').replace("float32", "float16")
    first, second = renew_entries(tmp_path, {"one": 0.5, "other": 0.5, "three": 0.5}, LISTED, overlapping)
    assert (first.cases, second.cases) == (["o*"], ["three"])


def test_an_entry_for_versions_that_no_worker_reports_applies_to_all_versions(tmp_path: Path) -> None:
    (entry,) = renew_entries(tmp_path, {"one": 0.5}, LISTED.replace("torch>=2", "troch>=2"))
    assert (entry.versions, entry.within) == ("", 4.0)


def test_a_size_has_the_digits_that_its_factor_needs(tmp_path: Path) -> None:
    (entry,) = renew_entries(tmp_path, {"one": 0.12345}, LISTED.replace("4.0", "1.0"))
    assert entry.size == 0.12345


def test_duplicate_entries_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5}, []))
    path.write_text(path.read_text(encoding="utf-8") * 2, encoding="utf-8")
    assert accept_differences(path, run_with_differences({"one": 0.5}, entries.read(path))) == (0, 1, 1, 0)
    assert run_with_differences({"one": 0.5}, entries.read(path)).exit_code == 0


def test_entries_of_frameworks_that_were_not_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    accept_differences(path, run_with_differences({"one": 0.5}, []))
    jax_entry = path.read_text(encoding="utf-8").replace('"torch"', '"jax"')
    path.write_text(path.read_text(encoding="utf-8") + jax_entry, encoding="utf-8")
    only_torch = [entry for entry in entries.read(path) if entry.framework == "torch"]
    assert accept_differences(path, run_with_differences({"two": 0.5}, only_torch)) == (1, 0, 1, 1)
    assert sorted(entry.framework for entry in entries.read(path)) == ["jax", "torch"]


def test_numpy_alone_has_no_table_of_frameworks_functions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(write_suite_file(tmp_path, SUITE + RULES)), "--out", str(out)]) == 0
    for text in (capfd.readouterr().out, (out / "parity.md").read_text(encoding="utf-8")):
        assert "\nPASS: " in f"\n{text}"
        assert "The frameworks' functions" not in text


def test_each_suite_of_a_directory_gets_its_own_list() -> None:
    assert suites.known_list_advice(suites.file_of(Path("parity"))) == 'Add known = "known.toml" at the top of ' + str(
        Path("parity", "suite.toml")
    )
    assert (
        suites.known_list_advice(suites.file_of(Path("own.toml")))
        == 'Add known = "own-known.toml" at the top of own.toml'
    )


@pytest.mark.parametrize("options", [[], ["--accept"]])
def test_a_run_of_some_frameworks_does_not_change_entries_of_other_frameworks(
    tmp_path: Path, options: list[str]
) -> None:
    path = write_suite_file(tmp_path, 'known = "known.toml"\n[frameworks.torch]\n' + SUITE + RULES)
    entry = (
        '# by hand\n[[known]]\nframework = "torch"\nfunction = "torch.norm"\nkind = "value"\nsize = 0.5\n'
        'cases = ["*"]\nreason = "long sums"\n'
    )
    (path.parent / "known.toml").write_text(entry, encoding="utf-8")
    command = ["parity", "--suite", str(path), "--frameworks", "numpy", "--out", str(tmp_path / "out")]
    assert cli.main([*command, *options]) == 0
    assert (path.parent / "known.toml").read_text(encoding="utf-8") == entry


def test_accept_needs_a_list_of_known_differences(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = write_suite_file(tmp_path, SUITE + RULES), str(tmp_path / "out")
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 2
    assert f'Add known = "known.toml" at the top of {path}.' in capfd.readouterr().err.replace("\n", " ")
    write_suite_file(tmp_path, 'known = "known.toml"\n' + SUITE + RULES)
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0
    assert "known.toml does not exist, so every difference fails the run." in capfd.readouterr().out
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 0
    printed = capfd.readouterr().out
    assert "--accept" not in printed
    assert "0 kept, 0 changed, 0 removed, 0 added" in printed
    assert "ACCEPTED" not in printed
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0


def test_after_a_failed_run_accept_says_that_the_next_run_passes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, failed = tmp_path / "known.toml", run_with_differences({"one": 0.5}, [])
    assert failed.exit_code == 1
    assert parity_cli._accept(failed, path) == 0
    advice = "Read the file before you commit it.\nACCEPTED: the list of known differences now matches this run."
    assert f"0 kept, 0 changed, 0 removed, 1 added. {advice}" in capfd.readouterr().out
    assert parity_cli._accept(run_with_differences({"one": 0.5}, entries.read(path)), path) == 0
    assert "ACCEPTED" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (clip_result("different"), "results of unified_clip are wrong"),
        (clip_result("crashed"), "results are missing, or nothing is tested"),
    ],
)
def test_accept_names_the_results_that_it_cannot_accept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], result: UnifiedClipResult, why: str
) -> None:
    path = tmp_path / "known.toml"
    run = build.build_report(["torch"], [one_case("one", torch=FrameworkResult(host=result))], [], versions=VERSIONS)
    assert parity_cli._accept(run, path) == run.exit_code
    message = f"{path} was not changed, because {why}. Correct"
    assert message in capfd.readouterr().err.replace("\n", " ")
    assert not path.exists()


def test_an_accepted_difference_has_its_cause_and_a_new_cause_gets_a_new_reason(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"

    def accept(cause: str) -> entries.KnownDifference:
        differing = native("different", 1.0, problem="unlisted", cause=f"as with {cause}", cause_kind=cause)
        of_list = [] if not path.exists() else entries.read(path)
        stale = match.match_deviations(of_list, {}, {"torch": VERSIONS})[1]
        accept_differences(
            path, build.build_report(["torch"], [one_case(torch=FrameworkResult(native=differing))], stale)
        )
        (entry,) = entries.read(path)
        return entry

    for cause in ("not clipped", "coefficient"):
        entry = accept(cause)
        assert (entry.cause, entry.reason) == (cause, f"as with {cause}")
