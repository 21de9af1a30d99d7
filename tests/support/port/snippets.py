"""Short sources to port, and functions that port them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from unified_clip.port.port_files import port
from unified_clip.port.ported_clip import PortedClip, Target

PADDLE = """\
import paddle

def train(model, loader):
    clip = paddle.nn.ClipGradByNorm(1.0)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    for batch in loader:
        model(batch).backward()
        optimizer.step()
"""


def ported(source: str, target: Target = "torch") -> tuple[str, list[PortedClip]]:
    result = port(Path("a.py"), dedent(source).encode(), target)
    return result.after.decode(), list(result.sites)


def verdicts(source: str, target: Target = "torch") -> list[str]:
    return [site.verdict for site in ported(source, target)[1]]


def with_lines(source: str, *replaced: tuple[str, str]) -> str:
    for old, new in replaced:
        assert old in source
        source = source.replace(old, new)
    return source
