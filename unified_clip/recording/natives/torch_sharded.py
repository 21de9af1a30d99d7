"""Read the norm that `clip_grad_norm_` computes for sharded gradients, as in FSDP2. Recordings must not change the
number or the order of collectives."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


class ShardedNorm:
    def __init__(self) -> None:
        self._thread = threading.local()

    def around_clip(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that clips by the total norm of all ranks. The function returns the norm of this rank's
        shards, as PyTorch does."""

        @functools.wraps(function)
        def clip(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._thread, "is_clipping", False):
                return function(*args, **kwargs)
            self._thread.is_clipping, self._thread.norms = True, None
            try:
                result = function(*args, **kwargs)
            finally:
                self._thread.is_clipping = False
            return result if self._thread.norms is None or result is None else self._thread.norms[0]

        return clip

    def around_total_norm(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def total_norm(*args: Any, **kwargs: Any) -> Any:
            norm = function(*args, **kwargs)
            if not getattr(self._thread, "is_clipping", False) or not hasattr(norm, "redistribute"):
                return norm
            from torch.distributed.tensor import Replicate

            whole = norm.redistribute(placements=[Replicate()] * norm.device_mesh.ndim)
            self._thread.norms = norm, whole
            return whole

        return total_norm

    def value_of(self, norm: Any) -> Any:
        norms = getattr(self._thread, "norms", None)
        if norms is None or norm is not norms[0]:
            return norm
        local = norms[1].to_local()
        return local.wait() if hasattr(local, "wait") else local  # the result of an asynchronous collective
