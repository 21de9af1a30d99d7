"""The note of `unified-clip config check` about files that are not read."""

from __future__ import annotations

import pytest
from support.config.check_files import TORCH, Check


def test_files_that_are_not_read_are_counted_by_kind(check: Check) -> None:
    clip = "clip_by_global_norm.max_norm = 5.0\n"
    files = {
        "a.py": TORCH % "1.0",
        "b/x.gin": clip,
        "b/y.gin": "lr = 1\n",
        "b/c.yaml.j2": "a: {{ b }}\n",
    }
    (note,) = check(files).notes
    assert note == (
        "Unread files that may contain clips: 2 .gin, 1 .j2. Of these files, 1 names a clip, such as b/x.gin."
    )
    assert check(files, "rule = 'global_norm'\nthreshold = 1.0\n", "a.py").notes == [], "a file, not a directory"


def test_hidden_and_other_files_count_only_if_they_name_a_clip(check: Check) -> None:
    files = {
        "a.py": TORCH % "1.0", ".github/x.yml": "a: 1\n", "setup.cfg": "[a]\n", "Dockerfile": "FROM x\n",
        ".venv/y.py": TORCH % "5.0",
    }  # fmt: skip
    assert check(files).notes == []
    (note,) = check({**files, ".configs/z.yaml": "grad_clip: 1\n", "tune.cfg": "grad_clip = 1\n"}).notes
    assert note.startswith("Unread files that may contain clips: 1 .cfg, 1 in hidden directories. ")


def test_a_function_that_hydra_calls_is_unknown(check: Check) -> None:
    hydra = "_target_: optax.chain\n_args_:\n- _target_: optax.clip_by_global_norm\n  max_norm: 5.0\n"
    (finding,) = check({"a.py": TORCH % "1.0", "opt.yaml": hydra}).findings
    assert (finding.line, finding.kind, finding.clip) == (3, "unknown", "optax.clip_by_global_norm")


@pytest.mark.parametrize("name", ["run.zsh", "run.bat", "run.ps1", "justfile"])
def test_a_script_that_is_not_read_has_a_note_if_it_names_a_clip(check: Check, name: str) -> None:
    (note,) = check({"a.py": TORCH % "1.0", name: "python train.py --max-grad-norm 5.0\n"}).notes
    assert note.startswith("Unread files that may contain clips: 1 ")
    assert check({"a.py": TORCH % "1.0", name: "python evaluate.py\n"}).notes == []


def test_a_file_of_environment_variables_that_names_a_clip_has_a_note(check: Check) -> None:
    (note,) = check({"a.py": TORCH % "1.0", "b.env": "MAX_GRAD_NORM=0.1\n", "c.env": "SEED=1\n"}).notes
    assert note == ("Unread files that may contain clips: 1 .env. Of these files, 1 names a clip, such as b.env.")
