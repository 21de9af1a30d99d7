"""Record PyTorch's own clipping, also of the shards of FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..._core.names import FINDERS
from ...recorder import pytorch
from ...recorder.guard import Call
from ..dispatcher import DISPATCHER
from .observer import OBSERVER, clip_parameters
from .torch_sharded import ShardedNorm

SHARDED = ShardedNorm()


def install() -> None:
    FINDERS.append(pytorch.MODELS.name_of)
    pytorch.install(_clip)
    pytorch.observe([(torch.nn.utils.clip_grad, "_get_total_norm")], "a total norm", SHARDED.around_total_norm)


def _clip(call: Call) -> Iterator[None]:
    if pytorch.is_capturing():
        DISPATCHER.on_unrecordable_graph("CUDA")
        return
    yield from _recorded_clip(call)


_recorded_clip = OBSERVER.around(
    partial(
        clip_parameters,
        value_of=SHARDED.value_of,
        on_empty=pytorch.WATCHER.on_empty_clip,
        inner=SHARDED.around_clip,
    )
)
