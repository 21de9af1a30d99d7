"""A suite of a user's own: one file, of rules and thresholds; the list of known differences is kept by command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.parity.reports import clip_result, native, one_case

from unified_clip import cli
from unified_clip.parity import cli as parity_cli
from unified_clip.parity.known import entries, match, update
from unified_clip.parity.known.entries import NativeDeviation
from unified_clip.parity.report import build
from unified_clip.parity.results import FrameworkResult, ParityReport
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import scaffold
from unified_clip.parity.suite.schema import TOLERANCE, SuiteError
from unified_clip.tensors.arithmetic import rounded
from unified_clip.tensors.types import densify

SUITE = """
[frameworks.numpy]

[[gradients]]
name = "worked example"
tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]

[[cases]]
gradients = ["worked example"]
"""


def written(directory: Path, text: str, name: str = "suite.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def names(path: Path) -> list[str]:
    return [case.name.removeprefix("worked example: ") for case in suites.read(path).cases]


def test_every_rule_is_run_with_every_threshold(tmp_path: Path) -> None:
    rules = "rules = ['clip_grad_norm_', 'clip_by_value', 'global_norm']\nthresholds = [0.5, 10]"
    assert names(written(tmp_path, SUITE + rules)) == [
        "clip_grad_norm_(max_norm=0.5)",
        "clip_grad_norm_(max_norm=10)",
        "clip_by_value(clip_value_min=-0.5, clip_value_max=0.5)",
        "clip_by_value(clip_value_min=-10, clip_value_max=10)",
        "global_norm()",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = ['clip_grad_norm_']", "rules needs thresholds. Add thresholds, or use calls instead of rules"),
        (
            "calls = [{ call = 'global_norm' }]\nthresholds = [1.0]",
            "thresholds needs rules. Add rules, or remove thresholds",
        ),
        ("thresholds = [1.0]", "the table has no call. Give calls, rules with thresholds, or configs"),
        (
            "rules = ['clip_norm']\nthresholds = [1]",
            "cases 1, rules, call: 'clip_norm': there is no such function. Did you mean clip_by_norm",
        ),
        ("rules = ['clip_grads_with_norm_']\nthresholds = [1]", "Move it to calls, with the keys max_norm, total_norm"),
        ("rules = ['clip_grad_norm_']\nthresholds = [nan]", "thresholds 1: it is nan. Give 0 or more.$"),
        ("rules = ['clip_grad_norm_']\nthresholds = [-1.0]", "thresholds 1: it is -1.0. Give 0 or more.$"),
        (
            "rules = ['clip_grad_norm_']\nthresholds = [1.0, 1.0]",
            "or in an earlier one. Remove the repeated",
        ),
    ],
)
def test_rules_and_thresholds_that_are_wrong_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        suites.read(written(tmp_path, SUITE + text))


RULES = "rules = ['clip_grad_norm_']\nthresholds = [0.5]"


def test_a_suite_may_be_a_file_of_any_name(tmp_path: Path) -> None:
    assert names(written(tmp_path, SUITE + RULES, "clip.toml")) == ["clip_grad_norm_(max_norm=0.5)"]


def test_a_tolerance_is_of_the_suite_or_of_a_framework(tmp_path: Path) -> None:
    text = "tolerance = 1e-3\n[frameworks.torch]\n[frameworks.jax]\ntolerance = 1e-2\n" + SUITE + RULES
    found = suites.read(written(tmp_path, text)).frameworks
    assert [found[name].tolerance for name in ("numpy", "torch", "jax")] == [1e-3, 1e-3, 1e-2]


# -- a suite that is written

LITERAL = {"tiny norm", "zeros", *(f"signs and shapes{end}" for end in ("", " as float32", " as float64"))}
"""The lists of gradients that every written suite has."""


def test_init_writes_a_suite_for_the_files_it_is_given_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a.npz", 3.0), ("b.npz", 4.0)):
        np.savez(name, weight=np.array([value], np.float32))
    for arguments in (["parity", "init", "--suite", "after"], ["parity", "--suite", "before", "init", "a.npz"]):
        assert cli.main(arguments) == 0
        assert cli.main(arguments) == 2
        assert "exists already. Edit it, or pass another directory" in capfd.readouterr().err
    both, one = suites.read(Path("after")), suites.read(Path("before"))
    assert {case.gradients_name for case in both.cases} == {"a.npz", "b.npz", *LITERAL}
    assert {case.gradients_name for case in one.cases} == {"a.npz", *LITERAL}
    assert "the total norms are 3 and 4: the first threshold is below all, the second above all" in Path(
        "after/suite.toml"
    ).read_text(encoding="utf-8")
    assert "the total norm is 3: the first threshold is below it, the second above it" in Path(
        "before/suite.toml"
    ).read_text(encoding="utf-8")
    assert not Path("parity").exists()


@pytest.mark.parametrize("interrupted", ["unified_clip.parity.suite.scaffold._text", "pathlib.Path.write_text"])
def test_init_leaves_no_suite_when_it_is_interrupted(
    interrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_half(path: Path, text: str, **_: str) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write(text[:100])
        raise KeyboardInterrupt

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interrupted, write_half if interrupted.endswith("write_text") else interrupt)
    assert cli.main(["parity", "init"]) == 130
    assert capsys.readouterr().err == "unified-clip: interrupted\n"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_init_writes_an_example_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", "init"]) == 0
    found = suites.read(Path("parity"))
    assert {case.gradients_name for case in found.cases} == {"worked example", *LITERAL}
    assert found.known is None


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 3e38])
def test_init_writes_a_suite_for_gradients_without_a_norm_to_go_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", weight=np.full(2, value, np.float32))
    np.savez("b.npz", weight=np.full(1, 3.0, np.float32))
    assert cli.main(["parity", "init", "a.npz"]) == 0
    assert cli.main(["parity", "init", "a.npz", "b.npz", "--suite", "both"]) == 0
    one, both = suites.read(Path("parity")), suites.read(Path("both"))
    assert "threshold is below" not in Path("parity/suite.toml").read_text(encoding="utf-8")
    assert [case.arguments.get("max_norm") for case in one.cases[:2]] == [1.0, 100.0]
    assert [case.arguments.get("max_norm") for case in both.cases[:2]] == [1.0, 6]


@pytest.mark.parametrize(
    ("value", "dtypes", "untested"),
    [
        (0.0, [], True),
        (0.0, ["float16", "float32"], True),
        (1e-20, ["float16"], True),
        (1e-20, ["float16", "float32"], False),
        (1e-20, [], False),
    ],
)
def test_saved_gradients_of_only_zeros_test_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float, dtypes: list[str], untested: bool
) -> None:
    np.savez(tmp_path / "a.npz", weight=np.full(2, value, np.float32), bias=np.zeros((0, 3), np.float32))
    cases = f"[[cases]]\ngradients = ['a', 'b']\ncalls = [{{ call = 'global_norm' }}]\ndtypes = {dtypes}\n"
    lists = "[[gradients]]\nname = 'a'\nfile = 'a.npz'\n[[gradients]]\nname = 'b'\ntensors = [{ values = [1.0] }]\n"
    (tmp_path / "suite.toml").write_text(f"[frameworks.numpy]\n{lists}{cases}", encoding="utf-8")
    assert cli.main(["parity", "--suite", str(tmp_path), "--out", str(tmp_path / "out")]) == (3 if untested else 0)
    problem = f"FAIL: {2 * max(len(dtypes), 1)} cases on numpy: nothing tests the gradients 'a'."
    assert (problem in capsys.readouterr().out) == untested


@pytest.mark.parametrize("norm", [0.6099, 5.477, 3e-5, 1.0, 2.0, 4.095, 700.3])
def test_init_chooses_a_coefficient_that_no_short_dtype_holds(norm: float) -> None:
    """With half the norm as the threshold, a function that rounds its coefficient to bfloat16 would pass."""
    coef = float(scaffold._below([norm])) / norm
    assert 0.2 < coef < 0.35
    for dtype in ("bfloat16", "float16"):
        assert abs(float(rounded(np.asarray(coef), dtype)) / coef - 1) > 5e-5 > TOLERANCE, dtype
    several = float(scaffold._below([norm, 1.1 * norm, 1.7 * norm]))
    assert not any(scaffold._is_short(several / each) for each in (norm, 1.1 * norm, 1.7 * norm))


def test_init_tells_files_of_one_name_apart_and_writes_where_a_suite_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        np.savez(f"{name}/g.npz", weight=np.ones(2, np.float32))
    assert cli.main(["parity", "init", "a/g.npz", "b/g.npz", "a/g.npz", "--suite", "of mine/both.toml"]) == 0
    assert "unified-clip parity --suite 'of mine/both.toml'" in capsys.readouterr().out
    found = suites.read(Path("of mine/both.toml"))
    assert {case.gradients_name for case in found.cases} == {"a/g.npz", "b/g.npz", *LITERAL}


# -- the list of known differences


VERSIONS = {"torch": "2.13"}


def test_init_writes_signs_and_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", "init"]) == 0
    cases = [case for case in suites.read(Path("parity")).cases if "signs and shapes" in case.gradients_name]
    gradients = [dense for case in cases for each in case.gradients if (dense := densify(each))]
    assert {gradient.dtype for gradient in gradients} == {"float32", "float64"}
    assert () in {gradient.shape for gradient in gradients}
    assert all((gradient.values() < 0).any() for gradient in gradients)
    assert {case.call_form.transposed for case in cases} == {True, False}
    assert any(case.arguments.get("max_norm") == math.inf for case in cases)


def run(sizes: dict[str, float], known: list[entries.KnownDifference] | None) -> ParityReport:
    """A run in which PyTorch's function differs by these sizes, by the name of the case."""
    cases = []
    found = {("torch", name): NativeDeviation("torch.norm", "value", size, size) for name, size in sizes.items()}
    judgements, results = match.match_deviations(known, found, {"torch": VERSIONS, "jax": {}})
    for place, (judgement, problem) in judgements.items():
        differing = native(judgement, sizes[place[1]], problem=problem, function="torch.norm")
        cases.append(one_case(place[1], torch=FrameworkResult(host=clip_result(), native=differing)))
    return build.report(["torch"], cases, results, versions=VERSIONS)


def test_without_a_list_differences_are_told_and_fail_nothing() -> None:
    told = run({"one": 0.5}, None)
    assert told.exit_code == 0
    assert told.cases[0].natives["torch"].verdict == "different"
    assert run({"one": 0.5}, []).exit_code == 1


def test_what_is_accepted_is_known_in_the_next_run(tmp_path: Path) -> None:
    path, sizes = tmp_path / "known.toml", {"one": 0.5, "two": 0.25}
    assert update.write(path, run(sizes, [])) == (0, 0, 0, 1)
    (entry,) = entries.read(path)
    assert (entry.function, entry.kind, entry.size, entry.cases) == ("torch.norm", "value", 0.5, ["one", "two"])
    assert run(sizes, [entry]).exit_code == 0
    assert update.write(path, run(sizes, [entry])) == (1, 0, 0, 0)


@pytest.mark.parametrize("text", [None, "", "# ours\nknown = []\n", "known = []\n# ours\n"])
def test_accepting_nothing_and_then_a_difference_writes_a_list_that_can_be_read(
    tmp_path: Path, text: str | None
) -> None:
    path, sizes = tmp_path / "known.toml", {"one": 0.5}
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert update.write(path, run({}, [])) == (0, 0, 0, 0)
    assert entries.read(path) == []
    assert update.write(path, run(sizes, [])) == (0, 0, 0, 1)
    assert run(sizes, entries.read(path)).exit_code == 0
    assert update.write(path, run({}, entries.read(path))) == (0, 0, 1, 0)
    assert update.write(path, run(sizes, entries.read(path))) == (0, 0, 0, 1)
    assert path.read_text(encoding="utf-8").startswith("# ours\n" if text else "[[known]]")
    assert run(sizes, entries.read(path)).exit_code == 0


def test_accepting_keeps_inline_entries(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    inline = (
        '{ framework = "torch", function = "torch.norm", kind = "value", size = 0.5, cases = ["one"], reason = "sums" }'
    )
    path.write_text(f"known = [{inline}]\n", encoding="utf-8")
    sizes = {"one": 0.5, "two": 0.25}
    assert update.write(path, run(sizes, entries.read(path))) == (0, 1, 0, 1)
    reasons = [(["one"], "sums"), (["two"], "numbers differ")]
    assert [(entry.cases, entry.reason) for entry in entries.read(path)] == reasons
    assert run(sizes, entries.read(path)).exit_code == 0


def test_accepting_again_drops_what_is_no_longer_true_and_keeps_words_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5}, []))
    text = path.read_text(encoding="utf-8").replace('reason = "numbers differ"', 'reason = "float32 # sums"')
    path.write_text(f"# ours\n{text}", encoding="utf-8")
    assert update.write(path, run({"one": 0.05}, entries.read(path))) == (0, 1, 0, 0)
    assert path.read_text(encoding="utf-8").startswith("# ours\n")
    (entry,) = entries.read(path)
    assert (entry.size, entry.reason) == (0.05, "float32 # sums")


@pytest.mark.parametrize("size", [0.5, 0.05])
def test_accepting_some_frameworks_keeps_the_entries_of_the_others(tmp_path: Path, size: float) -> None:
    """The entry of Paddle was measured in a run of all frameworks, and `--frameworks torch` measures nothing of it."""
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5}, []))
    other = path.read_text(encoding="utf-8").replace('"torch"', '"paddle"').replace("torch.norm", "paddle.clip")
    path.write_text(f"{other}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    compared = [entry for entry in entries.read(path) if entry.framework == "torch"]  # the engine leaves out others
    update.write(path, run({"one": size}, compared))
    paddle, torch = sorted(entries.read(path), key=lambda entry: entry.framework)
    assert (paddle.framework, paddle.function, paddle.size, paddle.cases) == ("paddle", "paddle.clip", 0.5, ["one"])
    assert (torch.framework, torch.size) == ("torch", size)
    assert run({"one": size}, [torch]).exit_code == 0


@pytest.mark.parametrize("sizes", [{"one": 2.0, "two": 0.5}, {"one": 2.0, "two": 2.0}])
def test_a_difference_that_has_grown_is_accepted_too(tmp_path: Path, sizes: dict[str, float]) -> None:
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5, "two": 0.5}, []))
    assert update.write(path, run(sizes, entries.read(path))) == (0, 1, 0, 0)
    assert run(sizes, entries.read(path)).exit_code == 0


def test_entries_about_other_versions_stay(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5}, []))
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(f'{text}versions = "torch{which}2"\n' for which in (">=", "<")), encoding="utf-8")
    assert update.write(path, run({"one": 0.05}, entries.read(path))) == (1, 1, 0, 0)
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


def renewed(directory: Path, sizes: dict[str, float], *listed: str) -> list[entries.KnownDifference]:
    """What such entries become where differences are of these sizes; then they are true."""
    path = written(directory, "".join(listed), "known.toml")
    update.write(path, run(sizes, entries.read(path)))
    found = entries.read(path)
    assert run(sizes, found).exit_code == 0
    return found


def test_an_entry_that_still_covers_something_keeps_what_else_it_says(tmp_path: Path) -> None:
    (entry,) = renewed(tmp_path, {"one": 3.0, "other": 2.5}, LISTED)
    assert (entry.function, entry.size, entry.within, entry.versions) == ("torch.*", 3.0, 4.0, "torch>=2")
    assert (entry.cases, entry.reason) == (["o*"], "float32 sums")
    assert (tmp_path / "known.toml").read_text(encoding="utf-8").startswith("\n[[known]] # ours\n")


def test_what_an_entry_does_not_cover_has_one_of_its_own(tmp_path: Path) -> None:
    first, second = renewed(tmp_path, {"one": 3.0, "two": 0.25}, LISTED)
    assert (first.cases, second.cases) == (["o*"], ["two"])
    assert (second.function, second.within, second.versions) == ("torch.norm", 1.1, "")


def test_of_entries_that_overlap_each_keeps_its_own_cases(tmp_path: Path) -> None:
    other = LISTED.replace('["o*", "n*"]', '["*e"]').replace("float32", "float16")
    first, second = renewed(tmp_path, {"one": 0.5, "other": 0.5, "three": 0.5}, LISTED, other)
    assert (first.cases, second.cases) == (["o*"], ["three"])


def test_an_entry_about_versions_that_nobody_reports_is_about_all_of_them(tmp_path: Path) -> None:
    (entry,) = renewed(tmp_path, {"one": 0.5}, LISTED.replace("torch>=2", "troch>=2"))
    assert (entry.versions, entry.within) == ("", 4.0)


def test_a_size_is_as_exact_as_the_factor_needs(tmp_path: Path) -> None:
    (entry,) = renewed(tmp_path, {"one": 0.12345}, LISTED.replace("4.0", "1.0"))
    assert entry.size == 0.12345


def test_of_two_entries_that_say_the_same_one_is_left(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5}, []))
    path.write_text(path.read_text(encoding="utf-8") * 2, encoding="utf-8")
    assert update.write(path, run({"one": 0.5}, entries.read(path))) == (0, 1, 1, 0)
    assert run({"one": 0.5}, entries.read(path)).exit_code == 0


def test_entries_of_frameworks_that_were_not_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    update.write(path, run({"one": 0.5}, []))
    other = path.read_text(encoding="utf-8").replace('"torch"', '"jax"')
    path.write_text(path.read_text(encoding="utf-8") + other, encoding="utf-8")
    only_torch = [entry for entry in entries.read(path) if entry.framework == "torch"]
    assert update.write(path, run({"two": 0.5}, only_torch)) == (1, 0, 1, 1)
    assert sorted(entry.framework for entry in entries.read(path)) == ["jax", "torch"]


def test_numpy_alone_has_no_table_of_frameworks_functions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["parity", "--suite", str(written(tmp_path, SUITE + RULES)), "--out", str(out)]) == 0
    for text in (capfd.readouterr().out, (out / "parity.md").read_text(encoding="utf-8")):
        assert "PASS: 1 case on numpy" in text
        assert "The frameworks' functions" not in text


def test_each_suite_of_a_directory_gets_a_list_of_its_own() -> None:
    assert suites.add_known_list(suites.file_of(Path("parity"))) == 'Add known = "known.toml" at the top of ' + str(
        Path("parity", "suite.toml")
    )
    assert (
        suites.add_known_list(suites.file_of(Path("own.toml"))) == 'Add known = "own-known.toml" at the top of own.toml'
    )


@pytest.mark.parametrize("options", [[], ["--accept"]])
def test_a_run_of_some_frameworks_leaves_the_entries_of_the_others_alone(tmp_path: Path, options: list[str]) -> None:
    path = written(tmp_path, 'known = "known.toml"\n[frameworks.torch]\n' + SUITE + RULES)
    entry = (
        '# by hand\n[[known]]\nframework = "torch"\nfunction = "torch.norm"\nkind = "value"\nsize = 0.5\n'
        'cases = ["*"]\nreason = "long sums"\n'
    )
    (path.parent / "known.toml").write_text(entry, encoding="utf-8")
    command = ["parity", "--suite", str(path), "--frameworks", "numpy", "--out", str(tmp_path / "out")]
    assert cli.main([*command, *options]) == 0
    assert (path.parent / "known.toml").read_text(encoding="utf-8") == entry


def test_the_command_accepts_only_where_there_is_a_list(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, SUITE + RULES), str(tmp_path / "out")
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 2
    assert f'Add known = "known.toml" at the top of {path}.' in capfd.readouterr().err.replace("\n", " ")
    written(tmp_path, 'known = "known.toml"\n' + SUITE + RULES)
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0
    assert "known.toml does not exist, so every difference fails. To list" in capfd.readouterr().out
    assert cli.main(["parity", "--suite", str(path), "--accept", "--out", out]) == 0
    printed = capfd.readouterr().out
    assert "0 kept, 0 changed, 0 removed, 0 added" in printed
    assert "ACCEPTED" not in printed
    assert cli.main(["parity", "--suite", str(path), "--out", out]) == 0


def test_after_a_failed_run_accept_says_that_the_next_run_passes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, failed = tmp_path / "known.toml", run({"one": 0.5}, [])
    assert failed.exit_code == 1
    assert parity_cli._accept(failed, path) == 0
    advice = "Read it before you commit it.\nACCEPTED: the list now matches this run."
    assert f"0 kept, 0 changed, 0 removed, 1 added. {advice}" in capfd.readouterr().out
    assert parity_cli._accept(run({"one": 0.5}, entries.read(path)), path) == 0
    assert "ACCEPTED" not in capfd.readouterr().out


def test_an_accepted_difference_has_its_cause_and_a_new_cause_gets_a_new_reason(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"

    def accept(cause: str) -> entries.KnownDifference:
        found = native("different", 1.0, problem="unlisted", cause=f"as with {cause}", cause_kind=cause)
        of_list = [] if not path.exists() else entries.read(path)
        stale = match.match_deviations(of_list, {}, {"torch": VERSIONS})[1]
        update.write(path, build.report(["torch"], [one_case(torch=FrameworkResult(native=found))], stale))
        (entry,) = entries.read(path)
        return entry

    for cause in ("not clipped", "coefficient"):
        entry = accept(cause)
        assert (entry.cause, entry.reason) == (cause, f"as with {cause}")
