"""Clip configurations in suites become the calls that clip alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parity.cases import suite

from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.schema import SuiteError

CONFIG_CASES = "[[gradients]]\nname = 'g'\ntensors = [{ values = [3.0, 4.0] }]\n[[cases]]\ngradients = ['g']\n"


@pytest.mark.parametrize(
    ("config", "calls"),
    [
        ('rule = "global_norm"\nthreshold = 1.0', [("clip_grad_norm_", {"max_norm": 1.0})]),
        (
            'rule = "global_norm"\nthreshold = 1.0\nnorm_type = inf',
            [("clip_grad_norm_", {"max_norm": 1.0, "norm_type": float("inf")})],
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\nfamily = "tensorflow"\neps = 0.0',
            [("clip_by_global_norm", {"clip_norm": 1.0})],
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\nfamily = "paddle"',
            [("GradientClipByGlobalNorm", {"clip_norm": 1.0})],
        ),
        ('rule = "norm"\nthreshold = 1.0\nfamily = "tensorflow"', [("clip_by_norm", {"clip_norm": 1.0})]),
        ('rule = "norm"\nthreshold = 1.0\nfamily = "paddle"', [("GradientClipByNorm", {"clip_norm": 1.0})]),
        ('rule = "value"\nthreshold = 0.5', [("clip_grad_value_", {"clip_value": 0.5})]),
        (
            'rule = "value"\nmin = -1.0\nmax = 0.5',
            [("clip_by_value", {"clip_value_min": -1.0, "clip_value_max": 0.5})],
        ),
        ('rule = "none"', [("get_total_norm", {})]),
        (
            'rule = "value"\nthreshold = { schedule = "cosine", start = 2.0, end = 1.0, steps = 9 }',
            [("clip_grad_value_", {"clip_value": 2.0}), ("clip_grad_value_", {"clip_value": 1.0})],
        ),
        (
            'rule = "value"\nthreshold = { schedule = "piecewise", values = [2.0, 1.0, 2.0], boundaries = [3, 4] }',
            [("clip_grad_value_", {"clip_value": 2.0}), ("clip_grad_value_", {"clip_value": 1.0})],
        ),
        (
            'rule = "value"\nthreshold = { schedule = "constant", value = 3.0 }',
            [("clip_grad_value_", {"clip_value": 3.0})],
        ),
    ],
)
def test_a_clip_configuration_becomes_the_equivalent_calls(
    tmp_path: Path, config: str, calls: list[tuple[str, dict[str, float]]]
) -> None:
    (tmp_path / "clip.toml").write_text(config, encoding="utf-8")
    read_suite = suites.read(suite(tmp_path, CONFIG_CASES + "configs = ['clip.toml']"))
    assert [(case.call_name, case.arguments) for case in read_suite.cases] == calls


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'rule = "norm"\nthreshold = 1.0',
            "clip.toml: one function call cannot apply this configuration: unified_clip has no function with",
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\neps = 0.5',
            "support eps. Copy the file, remove eps in the copy, and list the copy in `configs`",
        ),
        (
            'rule = "none"\nexclude = ["*.bias"]',
            "remove these keys in the copy, and list the copy in `configs`. To choose tensors, use the key `only` in",
        ),
        ('rule = "none"\nnonfinite = "skip"', "suites do not support nonfinite = 'skip'"),
        (
            'rule = "norm"\nthreshold = 1.0\nfamily = "paddle"\nnorm_type = 1',
            "unified_clip has no function with a norm_type other than 2 in the family paddle",
        ),
        ("rule = 3", "cases.toml, cases 1, configs: clip.toml, line 1, rule: it is 3"),
    ],
)
def test_a_configuration_without_an_equivalent_call_is_rejected(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "clip.toml").write_text(config, encoding="utf-8")
    with pytest.raises(SuiteError) as error:
        suites.read(suite(tmp_path, CONFIG_CASES + "configs = ['clip.toml']"))
    assert message in str(error.value)
    (tmp_path / "clip.toml").unlink()
    with pytest.raises(SuiteError, match=r"clip\.toml cannot be read"):
        suites.read(tmp_path)
