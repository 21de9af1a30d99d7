"""Python source that clips with optax, such as `optax.clip_by_global_norm(1.0)`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ...schema import Settings
from ..python_source import PythonFormat
from ..rows import exported_agc

EPS = 1e-3  # the default of adaptive_grad_clip


class Optax(PythonFormat):
    package = "optax"

    def write(self, settings: Settings, version: Version) -> Any:
        agc = exported_agc(self, settings, "optax", has_eps=True)
        if agc is not None:
            eps, _ = agc.floors
            return f"optax.adaptive_grad_clip({agc.clip_factor!r}{'' if eps == EPS else f', eps={eps!r}'})"
        threshold = self.export_threshold(settings)
        function = "clip_by_global_norm" if settings.rule == "global_norm" else "clip"
        return "optax.identity()" if threshold is None else f"optax.{function}({threshold!r})"

    def dump(self, data: Any, kind: str | None = None) -> str:
        return f"import optax\n\nclip = {data}  # first in optax.chain\n"
