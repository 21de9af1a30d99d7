"""Examples of pages for this framework run: the quickstart, the calls of docs/config.md, and docs/own-functions.md."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.kits import KITS, Kit
from support.tiers import is_at_least, where
from support.trainers.configured_calls import OF_FRAMEWORK, run

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


def test_the_example_runs(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", QUICKSTART, re.DOTALL)
    examples = [block for block in blocks if f"import {kit.name}" in block[0].splitlines()[0]]
    assert len(examples) == 1
    ((code, printed),) = examples
    assert len(blocks) == len({each.name for each in KITS.values()})
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert bool(printed) == (kit.name in ("tensorflow", "jax", "numpy"))  # others begin with random weights
    assert re.fullmatch(re.escape(printed) or r"\d+\.\d\n", capsys.readouterr().out)


@pytest.fixture
def clip_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")
    (text,) = re.findall(r"for example in `clip.toml`:\n\n```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    (tmp_path / "clip.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def calls() -> list[tuple[str, str]]:
    table = CONFIGURATION.partition("| you have | call |\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| (.*) \| `(.*)` \|$", table, re.MULTILINE)


def test_the_table_has_calls_for_all_frameworks() -> None:
    assert [call.partition("(")[0] for _, call in calls()] == [
        "clip", "clip.clip_", "clip.attach_to", "grad_clip=clip.as_paddle", "clip.as_optax",
    ]  # fmt: skip
    assert all(any(name in have for have, _ in calls()) for name in OF_FRAMEWORK)


def is_for(kit: Kit, have: str) -> bool:
    named = [framework for name, framework in OF_FRAMEWORK.items() if name in have]
    return not named or kit.name in named


@where(is_for)
@pytest.mark.usefixtures("clip_toml")
@pytest.mark.parametrize(("have", "call"), calls())
def test_a_call_of_the_table_clips_what_is_not_excluded(kit: Kit, have: str, call: str) -> None:
    from unified_clip import ClipConfig

    if "attach_to" in call and kit.name == "tensorflow" and not is_at_least("tensorflow", "2.16"):
        with pytest.raises(TypeError, match="needs Keras 3"):
            run(kit, call, ClipConfig.load("clip.toml"))
        return
    clipped = run(kit, call, ClipConfig.load("clip.toml"))
    np.testing.assert_allclose(clipped["weight"].ravel(), 0.5**0.5, rtol=1e-6)
    assert clipped["bias"].tolist() == [3.0]


@where(lambda kit: kit.name == "paddle" and kit.exact)
def test_a_class_of_paddle_is_called_by_the_function_of_the_page(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "own-functions.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from ourclip import OurClip.*?)```", page, re.DOTALL)
    module = SimpleNamespace(OurClip=importlib.import_module("paddle").nn.ClipGradByGlobalNorm)
    monkeypatch.setitem(sys.modules, "ourclip", module)
    scope: dict[str, Any] = {}
    exec(code, scope)
    gradient = kit.tensor([3.0, 4.0])
    (clipped,) = scope["clip_by_global_norm"]([gradient], 2.5)
    assert [each.tolist() for each in (gradient, clipped)] == [[3.0, 4.0], [1.5, 2.0]]
