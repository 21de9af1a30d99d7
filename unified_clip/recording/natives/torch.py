"""Record PyTorch's own clipping, also of the shards of FSDP2. Recordings must not change the number or the order of
collectives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch

from ...recorder import pytorch
from ...recorder.clips import PYTORCH_EPS
from ...recorder.guard import Call
from ...recorder.steps import plain
from ..dispatcher import FINDERS


def install() -> None:
    FINDERS.append(pytorch.MODELS.name_of)
    sharded = ShardedNorm()
    pytorch.install(sharded.around_clip, sharded.value_of)
    pytorch.observe([(torch.nn.utils.clip_grad, "_get_total_norm")], "a total norm", sharded.around_total_norm)


class ShardedNorm:
    def __init__(self) -> None:
        self._thread = threading.local()

    def around_clip(self, call: Call) -> Iterator[None]:
        """Clip by the total norm of all ranks, but return the norm of this rank's shards, as PyTorch does."""
        if getattr(self._thread, "is_clipping", False):
            yield
            return
        self._thread.is_clipping, self._thread.norms = True, None
        try:
            yield
        finally:
            self._thread.is_clipping = False
        if self._thread.norms is not None and call.result is not None:
            call.result = self._thread.norms[0]

    def around_total_norm(self, call: Call) -> Iterator[None]:
        yield
        norm = call.result
        if getattr(self._thread, "is_clipping", False) and hasattr(norm, "redistribute"):
            from ..._backends.torch import releases

            added = PYTORCH_EPS if releases.ADDS_EPS_TO_PARTS else 0.0
            mesh, everywhere = norm.device_mesh, [releases.dtensor().Replicate()] * norm.device_mesh.ndim
            whole = (norm + added if added else norm).redistribute(placements=everywhere)
            if added:  # PyTorch adds it again: in float32, (total - 1e-6) + 1e-6 is the total, because no tie can occur
                used = whole.to_local() - added
                whole = releases.dtensor().DTensor.from_local(used, mesh, everywhere, run_check=False)
            self._thread.norms, call.result = (norm, whole), whole

    def value_of(self, norm: Any) -> Any:
        norms = getattr(self._thread, "norms", None)
        if norms is None or norm is not norms[0]:
            return plain(norm) if hasattr(norm, "placements") else float(norm)
        local = norms[1].to_local()
        return float(local.wait() if hasattr(local, "wait") else local)  # the result of an asynchronous collective
