"""A suite of the user: one file of rules and thresholds, which `unified-clip parity init` writes."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from support.parity.own_suites import RULES, SUITE, write_suite_file

from unified_clip import cli
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import new_suite


def case_names(path: Path) -> list[str]:
    return [case.name.removeprefix("worked example: ") for case in suites.read(path).cases]


def test_every_rule_is_run_with_every_threshold(tmp_path: Path) -> None:
    rules = "rules = ['clip_grad_norm_', 'clip_by_value', 'global_norm']\nthresholds = [0.5, 10]"
    assert case_names(write_suite_file(tmp_path, SUITE + rules)) == [
        "clip_grad_norm_(max_norm=0.5)",
        "clip_grad_norm_(max_norm=10)",
        "clip_by_value(clip_value_min=-0.5, clip_value_max=0.5)",
        "clip_by_value(clip_value_min=-10, clip_value_max=10)",
        "global_norm()",
    ]


def test_a_tolerance_is_of_the_suite_or_of_a_framework(tmp_path: Path) -> None:
    text = "tolerance = 1e-3\n[frameworks.torch]\n[frameworks.jax]\ntolerance = 1e-2\n" + SUITE + RULES
    frameworks = suites.read(write_suite_file(tmp_path, text)).frameworks
    assert [frameworks[name].tolerance for name in ("numpy", "torch", "jax")] == [1e-3, 1e-3, 1e-2]


LITERAL = {
    *("tiny norm", "tiniest norm", "large norm", "zeros", "bfloat16", "long", "many gradients"),
    *(f"signs and shapes{end}" for end in ("", " as float32", " as float64")),
}


def test_init_writes_a_suite_for_the_passed_files_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a.npz", 3.0), ("b.npz", 4.0)):
        np.savez(name, weight=np.array([value], np.float32))
    for arguments in (["parity", "init", "--suite", "after"], ["parity", "--suite", "before", "init", "a.npz"]):
        assert cli.main(arguments) == 0
        assert cli.main(arguments) == 2
        assert "exists already. Edit the file, or pass another directory" in capfd.readouterr().err
    suite_after, suite_before = suites.read(Path("after")), suites.read(Path("before"))
    assert {case.gradients_name for case in suite_after.cases} == {"a.npz", "b.npz", *LITERAL}
    assert {case.gradients_name for case in suite_before.cases} == {"a.npz", *LITERAL}
    assert "the total norms are 3 and 4: the first threshold is below all, the second above all" in Path(
        "after/suite.toml"
    ).read_text(encoding="utf-8")
    assert "the total norm is 3: the first threshold is below it, the second above it" in Path(
        "before/suite.toml"
    ).read_text(encoding="utf-8")
    assert not Path("parity").exists()


def test_init_without_files_writes_an_example_and_how_to_test_gradients_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files that only a framework reads are named in the command to type."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", "init"]) == 0
    _, reason, advice = capfd.readouterr().out.splitlines()
    assert "a worked example" in reason
    example_suite = Path("parity/suite.toml").rename("example.toml")
    np.savez("gradients.npz", weight=np.ones(2, np.float32))
    assert cli.main(shlex.split(advice.partition("run: unified-clip ")[2])) == 0
    assert capfd.readouterr().out.count("\n") == 1
    Path("parity/suite.toml").rename("own.toml")
    example_suite.rename("parity/suite.toml")
    example = suites.read(Path("parity"))
    assert {case.gradients_name for case in example.cases} == {"worked example", *LITERAL}
    assert example.known is None
    Path("gradients.pt").touch()
    assert cli.main(["parity", "--suite", "second", "init", "--frameworks", "numpy"]) == 0
    (advice,) = capfd.readouterr().out.splitlines()[1:]
    assert advice.endswith("init --suite second/suite.toml --frameworks numpy gradients.npz gradients.pt")


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 3e38])
def test_init_writes_a_suite_for_gradients_without_a_finite_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], value: float
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", weight=np.full(2, value, np.float32))
    np.savez("b.npz", weight=np.full(1, 3.0, np.float32))
    assert cli.main(["parity", "init", "a.npz"]) == 0
    assert cli.main(["parity", "init", "a.npz", "b.npz", "--suite", "both"]) == 0
    notes = [line for line in capfd.readouterr().out.splitlines() if line.startswith("The total norm of a.npz is ")]
    assert len(notes) == 2
    one_file, two_files = suites.read(Path("parity")), suites.read(Path("both"))
    assert "threshold is below" not in Path("parity/suite.toml").read_text(encoding="utf-8")
    assert [case.arguments.get("max_norm") for case in one_file.cases[:2]] == [1.0, 100.0]
    assert [case.arguments.get("max_norm") for case in two_files.cases[:2]] == [1.0, 6]


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
    problem = "FAIL: nothing tests the gradients 'a'."
    assert (problem in capsys.readouterr().out) == untested


def test_init_distinguishes_files_of_the_same_name_and_writes_to_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        np.savez(f"{name}/g.npz", weight=np.ones(2, np.float32))
    assert cli.main(["parity", "init", "a/g.npz", "b/g.npz", "a/g.npz", "--suite", "of mine/both.toml"]) == 0
    assert "unified-clip parity --suite 'of mine/both.toml'" in capsys.readouterr().out
    mine = suites.read(Path("of mine/both.toml"))
    assert {case.gradients_name for case in mine.cases} == {"a/g.npz", "b/g.npz", *LITERAL}


@pytest.mark.parametrize("before", [True, False])
def test_init_writes_the_chosen_frameworks_only(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(new_suite.PACKAGES, "mlx", "a package that is not installed")
    option = ["--frameworks", "numpy,mlx"]
    assert cli.main(["parity", *(option if before else []), "init", *([] if before else option)]) == 0
    assert "run: unified-clip parity init --frameworks numpy,mlx gradients.npz" in capsys.readouterr().out
    assert list(suites.read(Path("parity")).frameworks) == ["numpy", "mlx"]
    text = Path("parity/suite.toml").read_text(encoding="utf-8")
    assert "# mlx is not installed here. Install it, or set python to an interpreter" in text
    assert cli.main(["parity", "init", "--frameworks", "pytorch", "--suite", "other"]) == 2
    assert "unified_clip has no framework 'pytorch'. Choose from jax, mlx, numpy" in capsys.readouterr().err
    assert not Path("other").exists()
