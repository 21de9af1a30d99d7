"""The note of `unified-clip config check` about files that are not read."""

from __future__ import annotations

from pathlib import Path

from support.config.check_files import CLIP_CONFIG, TORCH, Check


def test_files_that_are_not_read_are_noted_if_they_name_a_clip(check: Check) -> None:
    names = [
        "b/x.gin",
        ".configs/z.yaml",
        "tune.cfg",
        "c.yaml.j2",
        "run.zsh",
        "run.bat",
        "run.ps1",
        "justfile",
        "b.env",
    ]
    files = {"a.py": TORCH % "1.0", "b/y.gin": "lr = 1\n", "Dockerfile": "FROM x\n", ".github/x.yml": "a: 1\n"}
    files[".venv/y.py"] = TORCH % "5.0"
    assert check(files).notes == []
    (note,) = check({**files, **dict.fromkeys(names, "max_grad_norm = 5.0\n")}).notes
    first = ", ".join(sorted(names, key=Path)[:3])
    assert note == f"The check does not read {len(names)} files with a clip's name: {first} and {len(names) - 3} more."
    assert check(files, CLIP_CONFIG, "a.py").notes == [], "a file, not a directory"


def test_a_function_that_hydra_calls_is_unknown(check: Check) -> None:
    hydra = "_target_: optax.chain\n_args_:\n- _target_: optax.clip_by_global_norm\n  max_norm: 5.0\n"
    (finding,) = check({"a.py": TORCH % "1.0", "opt.yaml": hydra}).findings
    assert (finding.line, finding.kind, finding.clip) == (3, "unknown", "optax.clip_by_global_norm")
