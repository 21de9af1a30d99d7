"""Record the calls of the frameworks' clip functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._core.backend import Backend
from ..._core.gradients import GradientList
from ..._core.observer import Clip
from ..._core.path import Path
from ..._core.types import Deferred, Leaf
from ...recorder.clips import NativeCall
from ..clip_event import ClipEvent
from .native_call import USED_NORMS, coefficient_by_formula


class CallTensors(NamedTuple):
    backend: Backend
    gradients: Sequence[Any]
    weights: Sequence[Any]
    names: Sequence[str]


class NativeEvent:
    in_graph = False
    path: Path | None = None
    scalars: Sequence[Any] = ()

    def __init__(self, call: NativeCall, tensors: CallTensors, recorder: Any, returns_norm: bool) -> None:
        self._call, self._backend = call, tensors.backend
        self._measured: Sequence[float | Deferred] = ()
        self._returned: float | Deferred | None = None
        self._clip: ClipEvent | None = None
        self.fields = call.fields([tensors.backend.dtype(each) for each in tensors.gradients])
        weights = [id(weight) for weight in tensors.weights if weight is not None]
        if len(weights) > len(set(weights)):
            self.fields["repeated"] = len(weights) - len(set(weights))
        if (
            returns_norm
            and call.framework == "torch"
            and any(hasattr(each, "placements") for each in tensors.gradients)
        ):
            return  # other ranks own shards of the gradients, so only the total norm is known
        if recorder.recording.needs_leaves or (call.rule != "value" and not returns_norm and call.passed_norm is None):
            self._measure(tensors, recorder)

    @property
    def deferred(self) -> Deferred | None:
        later = [each for each in (*self._measured, self._returned) if isinstance(each, Deferred)]
        return Deferred(list, lambda: all(each.ready() for each in later)) if later else None

    def end(self, returned_norm: Any) -> None:
        if returned_norm is None or isinstance(returned_norm, float):
            self._returned = returned_norm
        else:
            (self._returned,) = _read([returned_norm], [self._backend.path([returned_norm], differentiable=False)])

    def complete_fields(self, values: Sequence[Any]) -> dict[str, Any]:
        fields, call, clip = self.fields, self._call, self._clip
        if clip is not None:
            measured = clip.complete_fields(clip.deferred.values() if clip.deferred else [])
            fields |= {key: measured[key] for key in ("parameters", "clipped", "nan", "inf") if key in measured}
        own = list(map(_number, self._measured))
        if self._returned is not None:
            fields["returned_norm"] = _number(self._returned)
            own = own or [fields["returned_norm"]]
        norms = own or ([] if call.passed_norm is None else [call.passed_norm])
        if call.rule != "value" and norms:
            used: Any = next((fields[key] for key in USED_NORMS if key in fields), norms)
            coefs = [coefficient_by_formula(call, norm) for norm in (used if isinstance(used, list) else [used])]
            is_global = call.rule == "global"
            fields |= {"norm": norms[0], "coef": coefs[0]} if is_global else {"norm": norms, "coef": coefs}
            known = [coef for coef in coefs if coef is not None and not math.isnan(coef)]
            fields["clipped"] = any(coef != 1 for coef in known) if len(known) == len(coefs) else None
            if own and all(map(math.isfinite, own)):
                fields["nan"] = fields["inf"] = 0
        return fields

    def _measure(self, tensors: CallTensors, recorder: Any) -> None:
        call, backend = self._call, tensors.backend
        names: Sequence[str | None] = tensors.names or [None] * len(tensors.gradients)
        weights = tensors.weights or [None] * len(tensors.gradients)
        leaves = [
            Leaf(gradient, position, name, weight)
            for position, (gradient, name, weight) in enumerate(zip(tensors.gradients, names, weights, strict=True))
        ]
        gradients = GradientList.of_leaves(backend, leaves, writer=None)  # type: ignore[arg-type]  # nothing is written
        if gradients.shards is not None:
            raise ValueError("the gradients are sharded over ranks. To record the call, clip with unified_clip")
        group = range(len(leaves))
        path, p = gradients.path(group), call.norm_type or 2.0
        threshold = call.threshold if call.threshold is not None else math.nan
        if recorder.recording.needs_leaves:
            recorder.on_clip(Clip(call.rule, gradients, group, path, threshold, None, None, p, call.eps, False))
            self._clip = recorder.events.pop()
        if call.rule == "value" or not p > 0:
            return
        paths = [path]
        if call.rule != "global":
            paths = [backend.path([value], differentiable=False) for value in gradients.values]
        norms = []
        for each in paths:
            with each.scope():
                norms.append(each.norm(p))
        self._measured = _read(norms, paths)


def _read(scalars: Sequence[Any], paths: Sequence[Path]) -> list[float | Deferred]:
    return [
        scalar if type(scalar) is float else float(scalar) if path.on_host else path.read_later([scalar])
        for scalar, path in zip(scalars, paths, strict=True)
    ]


def _number(value: Any) -> float:
    value = value.values() if isinstance(value, Deferred) else value
    while isinstance(value, list):
        (value,) = value
    return float(value)
