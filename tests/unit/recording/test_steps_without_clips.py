"""`unified-clip compare` of runs whose optimizers make steps that the other run does not make, or makes with a clip."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from unified_clip.recording.compare import RecordingComparison, compare
from unified_clip.recording.report import model, page, sentences
from unified_clip.recording.runs import RunError

HEADER = {"unified_clip": "0.1.0", "schema": 2, "started": "2026-01-01T00:00:00Z", "norms": True}


def clip(step: int, norm: float = 5.0, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "count": 1, "norm": norm, "coef": 1 / norm if math.isfinite(norm) else 0.0,
        "clipped": True, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": {"weight": {"norm": norm, "shape": [8], "weight": 2.0}}, **changes,
    }  # fmt: skip


def optimizer(step: int, rate: float = 0.125, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "optimizer": "torch.optim.SGD", "settings": {"lr": rate}, "backward_calls": 1,
        "cleared": None if step == 1 else True, "changed": None if step == 1 else 0, **changes,
    }  # fmt: skip


def compared(tmp_path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> RecordingComparison:
    paths = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for path, lines in zip(paths, (old, new), strict=True):
        path.write_text("".join(json.dumps(each).replace("Infinity", '"inf"') + "\n" for each in (HEADER, *lines)))
    return compare(*paths)


def text_of(comparison: RecordingComparison) -> str:
    return "\n".join(sentences.lines(comparison))


# -- a run without any clip

CLIPPED = [each for step in (1, 2, 3) for each in (clip(step), optimizer(step))]
UNCLIPPED = [optimizer(step) for step in (1, 2, 3)]
OWN_CODE = "clips by its own code"


@pytest.mark.parametrize("is_old", [True, False])
def test_a_run_that_never_clips_is_named(tmp_path: Path, is_old: bool) -> None:
    found = compared(tmp_path, *((UNCLIPPED, CLIPPED) if is_old else (CLIPPED, UNCLIPPED)))
    run, other = ("old.jsonl", "new.jsonl") if is_old else ("new.jsonl", "old.jsonl")
    (cause,) = found.findings
    assert cause.kind == "left-out clip"
    assert cause.sentence == (
        f"{run} never clips: its 3 steps of optimizers have no clip call. {other} clips by clip, by the total norm "
        "with the threshold 1"
    )
    assert found.exit_code == 1
    assert "never clips" in page.render(model.build(found))


@pytest.mark.parametrize(
    "changes", [{"changed": None}, {"optimizer": "apex.FusedLAMB"}], ids=["other framework", "the user's optimizer"]
)
def test_a_run_that_may_clip_by_its_own_code_is_not_accused_for_certain(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = compared(tmp_path, CLIPPED, [{**each, **changes} for each in UNCLIPPED])
    assert f"If new.jsonl {OWN_CODE}, which is not recorded, use `unified-clip verify`" in text_of(found)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([{**each, "changed": 1} for each in UNCLIPPED], "Other code changed 1 gradients before step 1"),
        ([], "No clip calls were recorded"),
    ],
    ids=["clips by hand", "recorded nothing"],
)
def test_a_run_that_clips_by_hand_or_recorded_nothing_is_rejected(
    tmp_path: Path, lines: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(RunError, match=reason):
        compared(tmp_path, CLIPPED, lines)


def test_two_runs_that_never_clip_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No clip calls were recorded"):
        compared(tmp_path, UNCLIPPED, UNCLIPPED)
