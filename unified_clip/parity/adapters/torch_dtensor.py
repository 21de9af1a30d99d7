"""The parity worker's adapter for PyTorch on several ranks. Gradients are DTensors, sharded over a process group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ...tensors.types import Dense, Gradient
from .torch import FrameworkAdapter

PATIENCE = timedelta(minutes=1)
WAIT = PATIENCE * 1.5
PLAIN_EVERY = 4
"""Every fourth gradient of a list stays a plain tensor."""


class ShardedAdapter(FrameworkAdapter):
    def __init__(self, size: int) -> None:
        row = init_device_mesh("cpu", (size,))
        rows = init_device_mesh("cpu", (size // 2, 2))
        self._layouts = [
            (row, [Shard(0)]),
            (rows, [Shard(0), Shard(-1)]),
            (rows, [Replicate(), Shard(0)]),
            (row, [Shard(-1)]),
            (rows, [Shard(0), Shard(0)]),
            (row, [Replicate()]),
        ]
        self._size = size
        self._own = torch.distributed.new_group(timeout=WAIT)  # only for all_gather_text: the cases use another group

    def make_all(self, gradients: Sequence[Gradient]) -> list[Any]:
        """Return the gradients as DTensors with alternating layouts. Sparse and 0-d gradients are not sharded."""
        first = sum(gradient.array.size for gradient in gradients if isinstance(gradient, Dense))
        tensors = super().make_all(gradients)
        for number, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True)):
            if isinstance(gradient, Dense) and number % PLAIN_EVERY != PLAIN_EVERY - 1:
                mesh, placements = self._layouts[(first + number) % len(self._layouts)]
                if not tensor.ndim:
                    placements = [Replicate() for _ in placements]
                tensors[number] = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
        return tensors

    def read(self, tensor: Any) -> Gradient:
        return super().read(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)

    def shares_memory(self, a: Any, b: Any) -> bool:
        return super().shares_memory(*(each.to_local() if isinstance(each, DTensor) else each for each in (a, b)))

    def all_gather_text(self, text: str) -> Sequence[str]:
        texts = [""] * self._size
        try:
            torch.distributed.all_gather_object(texts, text, self._own)
        except RuntimeError as error:
            raise SystemExit(
                f"another rank ended, or gave no answer for {WAIT.seconds} seconds ({error}). Correct the error that "
                "the rank printed above. If no rank printed an error, run the suite again"
            ) from None
        return texts

    def _filled(self, like: Any, value: float) -> Any:
        return torch.full_like(like, value) if isinstance(like, DTensor) else super()._filled(like, value)


@contextmanager
def process_group(rank: int, size: int, meeting: Path) -> Iterator[ShardedAdapter]:
    """Join a process group, and yield an adapter that makes DTensors. Inside the `with` block, PyTorch uses one thread.

    meeting: A path for `torch.distributed.FileStore`, the same on all ranks.
    """
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(meeting), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    yield ShardedAdapter(size)
    torch.distributed.destroy_process_group()
