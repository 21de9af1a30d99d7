"""Clips in Python source: they are read without running the source, rejected with a reason, and written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from packaging.version import Version

from unified_clip import ClipConfig
from unified_clip.config.documents import Document
from unified_clip.config.formats import FORMATS, Imported
from unified_clip.config.schema import Settings
from unified_clip.errors import ConfigError


def read(name: str, text: str) -> Imported:
    document = FORMATS[name].parse(text, "train.py")
    return FORMATS[name].read(FORMATS[name].inheritance.compose(document, no_other_file), None)


def no_other_file(path: Path, name: str) -> Document:
    raise AssertionError(f"{name} is opened")


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
    again = read("paddle", written).settings
    low, high = (again["min"], again["max"]) if "min" in again else (-again["threshold"], again["threshold"])
    expected = bounds.get("threshold")
    assert (low, high) == ((bounds["min"], bounds["max"]) if expected is None else (-expected, expected))


def test_bounds_that_are_infinite_clip_nothing() -> None:
    for settings in (Settings(rule="value", min=-math.inf, max=math.inf), Settings(rule="value", threshold=math.inf)):
        written = FORMATS["paddle"].dump(FORMATS["paddle"].write(settings, Version("3.3.1")))
        assert "grad_clip = None" in written


def test_source_is_never_run(tmp_path: Path) -> None:
    text = f"import paddle\nopen({str(tmp_path / 'ran')!r}, 'w')\nclip = paddle.nn.ClipGradByNorm(1.0)"
    assert read("paddle", text).settings["threshold"] == 1.0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["mmengine", "mmcv"])
@pytest.mark.parametrize("base", ["", "model = dict()", "{table} = dict(type='T')"])
def test_delete_stays_an_argument_if_no_base_file_sets_the_dict(name: str, base: str, tmp_path: Path) -> None:
    table, key = ("optim_wrapper", "clip_grad") if name == "mmengine" else ("optimizer_config", "grad_clip")
    text = f"lr_config = total_epochs = 1\n{table} = dict({key}=dict(max_norm=1, _delete_=True))\n"
    (tmp_path / "base.py").write_text(base.format(table=table))
    (tmp_path / "a.py").write_text(("_base_ = ['base.py']\n" if base else "") + text)
    with pytest.raises(ConfigError, match=rf"{table}\.{key}\._delete_: .* Remove (_delete_|the argument)\.$"):
        ClipConfig.import_from(tmp_path / "a.py", name)
    (tmp_path / "base.py").write_text(f"{table} = dict({key}=dict(max_norm=5))")
    (tmp_path / "a.py").write_text("_base_ = ['base.py']\n" + text)
    assert ClipConfig.import_from(tmp_path / "a.py", name).threshold == 1.0
