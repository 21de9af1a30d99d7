"""Suites in one file, with rules and thresholds, as users write them."""

from __future__ import annotations

from pathlib import Path

SUITE = """
[frameworks.numpy]

[[gradients]]
name = "worked example"
tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]

[[cases]]
gradients = ["worked example"]
"""


def write_suite_file(directory: Path, text: str, name: str = "suite.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


RULES = "rules = ['clip_grad_norm_']\nthresholds = [0.5]"
