"""Clips in source, for the tests of the report of `port`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unified_clip import ClipConfig
from unified_clip.port.ported_clip import Meaning, PortedClip, PortedFile, Target, UnreadableFile, Verdict
from unified_clip.port.report import build
from unified_clip.port.report.model import Report

TORCH, MINE = "torch.nn.utils.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"

CLIP = Meaning(ClipConfig(rule="global_norm", threshold=1.0))
PADDLE = Meaning(ClipConfig(rule="global_norm", threshold=1.0, family="paddle"))
VALUE = Meaning(ClipConfig(rule="value", min=-1.0, max=1.0))


def at_run_time(threshold: str) -> Meaning:
    return Meaning(CLIP.config, threshold)


def site(
    name: str,
    meaning: Meaning | None,
    *,
    verdict: Verdict = "rewritten",
    line: int = 12,
    text: str = "",
    becomes: str = "",
    **fields: Any,
) -> PortedClip:
    return PortedClip(line, 4, name, text, verdict, meaning, becomes, **fields)


def report_of(
    ported: Sequence[PortedFile],
    unread: Sequence[UnreadableFile] = (),
    target: Target = "torch",
    **options: Any,
) -> Report:
    return build.build_report(ported, unread, target, **options)


def report_with_everything(evil: str = "") -> Report:
    """Return a report with a clip of each kind. `evil`: a text to be in every text from source."""
    train = [
        site(TORCH, CLIP, becomes=MINE, text=f"{TORCH}(model.parameters(), 1.0){evil}"),
        site(TORCH, at_run_time(f"args.clip{evil}"), line=20, becomes=MINE),
        site(TORCH, CLIP, line=30, becomes=MINE),
    ]
    old = [
        site(
            f"paddle.fluid.clip.GradientClipByGlobalNorm{evil}",
            PADDLE,
            verdict="flagged",
            line=3,
            reason=f"a step of Paddle{evil}",
        ),
        site(
            f"tensorflow.keras.optimizers.Adam{evil}(clipnorm=)",
            Meaning(ClipConfig(rule="norm", threshold=1.0, family="tensorflow")),
            verdict="flagged",
            line=9,
            reason=f"an optimizer's own clip{evil}",
            suggestion=["for each in optimizers:", f"    clip.attach_to(each)  # {'a long line ' * 12}{evil}"],
        ),
        site("tensorflow.clip_by_value", VALUE, verdict="left", line=10, reason="no gradient"),
    ]
    files = [
        PortedFile(Path(f"src/train.py{evil}"), b"before", b"after", train),
        PortedFile(Path("src/old.py"), b"before", b"after", old),
    ]
    return report_of(files, [UnreadableFile(Path(f"src/broken.py{evil}"), f"line 3: invalid syntax{evil}")])
