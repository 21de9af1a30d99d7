"""Record the clipping and the steps of Paddle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ...recorder import paddle2
from ...recorder.clips import NativeCall, ProgramClip
from ...recorder.guard import Call
from ...recorder.hooks import HOOKS
from ...tensors.types import from_numpy
from .native_call import ObservedTensors
from .observer import OBSERVER, RunningNativeCall, clip_parameters


def install() -> None:
    parameters = partial(clip_parameters, on_empty=paddle2.WATCHER.on_empty_clip)
    paddle2.install(paddle2.RecordClip(OBSERVER.around, _record_pairs, parameters, _record_run))


def install_unified_clip() -> None:
    from ... import paddle

    for kind in (paddle.GradientClipByGlobalNorm, paddle.GradientClipByNorm, paddle.GradientClipByValue):
        observe = OBSERVER.around(paddle2.clip_by_unified_clip)
        HOOKS.wrap([(kind, "__call__")], f"a call of {kind.__name__}", observe)


def _record_pairs(called: Call, call: NativeCall, pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    running = RunningNativeCall(call, [g for _, g in pairs], [p for p, _ in pairs], [p.name for p, _ in pairs])
    yield
    running.end(paddle2.results(called.result, pairs))


def _record_run(clip: ProgramClip, before: Sequence[Any], after: Sequence[Any], weights: Sequence[Any]) -> None:
    arrays = [from_numpy(each) for each in before], [from_numpy(each) for each in after]
    known = [None if each is None else from_numpy(each) for each in weights]
    OBSERVER.record(clip.call, ObservedTensors(*arrays, known, clip.names, place=clip.place))
