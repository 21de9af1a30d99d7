"""Clips in Python source: they are written, and not read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from packaging.version import Version

from unified_clip import ClipConfig
from unified_clip.config.formats import FORMATS
from unified_clip.config.schema import Settings
from unified_clip.errors import ConfigError


@pytest.mark.parametrize("name", ["optax", "paddle"])
def test_python_source_is_not_imported(name: str, tmp_path: Path) -> None:
    text = FORMATS[name].dump(FORMATS[name].write(Settings(rule="value", threshold=1.0), Version("9")))
    (tmp_path / "train.py").write_text(text)
    for from_ in (name, None):
        with pytest.raises(ConfigError, match=r"unified-clip port \S*train\.py\. ") as caught:
            ClipConfig.import_from(tmp_path / "train.py", from_)
        assert caught.value.code == "UC103"


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"min": -0.25, "max": 1.0}, "ClipGradByValue(max=1.0, min=-0.25)"),
        ({"min": -1.0, "max": 1.0}, "ClipGradByValue(max=1.0)"),
        ({"min": 0.0, "max": float("inf")}, 'ClipGradByValue(max=float("inf"), min=0.0)'),
        ({"min": float("-inf"), "max": 0.5}, 'ClipGradByValue(max=0.5, min=float("-inf"))'),
        ({"threshold": 0.0}, "ClipGradByValue(max=0.0, min=-0.0)"),
    ],
)
def test_paddle_s_clip_by_value_has_bounds(bounds: dict[str, float], text: str) -> None:
    settings = Settings(rule="value", **bounds)
    written = FORMATS["paddle"].dump(FORMATS["paddle"].write(settings, Version("3.3.1")))
    assert text in written


def test_bounds_that_are_infinite_clip_nothing() -> None:
    for settings in (Settings(rule="value", min=-math.inf, max=math.inf), Settings(rule="value", threshold=math.inf)):
        written = FORMATS["paddle"].dump(FORMATS["paddle"].write(settings, Version("3.3.1")))
        assert "grad_clip = None" in written


WRAPPER = "optim_wrapper = dict(type='OptimWrapper', clip_grad=clip)\n"


@pytest.mark.parametrize(
    ("source", "threshold"),
    [
        (f"clip = dict(max_norm=1.5)\n{WRAPPER}", 1.5),
        (f"clip = dict(max_norm=1.5)\nclip['max_norm'] = 5.0\n{WRAPPER}", None),
        (f"clip = dict(max_norm=1.5)\nchange(clip)\n{WRAPPER}", None),
        ("limit = 1.5\nother = [limit]\n" + WRAPPER.replace("=clip)", "=dict(max_norm=limit))"), 1.5),
        (f"clip = dict(max_norm=1.5)\n{WRAPPER}optim_wrapper['clip_grad'] = None\n", None),
    ],
)
def test_a_variable_that_a_configuration_changes_is_unknown(
    source: str, threshold: float | None, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(source)
    if threshold is None:
        with pytest.raises(ConfigError) as caught:
            ClipConfig.import_from(tmp_path / "a.py", "mmengine")
        assert caught.value.code == "UC106"
    else:
        assert ClipConfig.import_from(tmp_path / "a.py", "mmengine").threshold == threshold


def test_a_constant_that_a_configuration_reads_keeps_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("_base_ = 'b.py'\n\nmodel = dict(head=_base_.head)\n")
    with pytest.raises(ConfigError, match=r"a\.py, line 1, _base_: "):
        ClipConfig.import_from(tmp_path / "a.py", "mmengine")
