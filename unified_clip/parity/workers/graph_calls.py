"""Cases inside graphs: many calls are traced into one graph, which is compiled or built once and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ..adapters.base import Invocation
from .invoke import STYLES, CallResult

Function = Callable[..., Any]


def call_all(mode: str, calls: Sequence[tuple[Invocation, Function]], namespace: Any) -> list[CallResult]:
    """What our function gives for each invocation, all of them in one graph."""
    for run, _ in calls:
        _ = run.parameters, run.in_place_arguments  # not all frameworks can make them in there
    ends = list(accumulate((len(run.made) for run, _ in calls), initial=0))

    def traced(tensors: Sequence[Any]) -> list[Any]:
        found = []
        for (run, function), (start, end) in zip(calls, pairwise(ends), strict=True):
            result = STYLES[run.call.style](inside(run, tensors[start:end]), function, namespace)
            found.append([result.norm, result.gradients])
        return found

    adapter = calls[0][0].adapter
    returned = adapter.run_in_graph(mode, traced, [tensor for run, _ in calls for tensor in run.made])
    return [_result(run, *found) for (run, _), found in zip(calls, returned, strict=True)]


def inside(run: Invocation, tensors: Sequence[Any]) -> Invocation:
    """The invocation on the tensors that stand for its gradients in a graph."""
    kept = dict(run.kept) if run.adapter.writes else {"parameters": run.parameters}
    return Invocation(run.adapter, run.call, run.call_form, run.arguments, tensors, kept=kept)


def _result(run: Invocation, norm: Any, gradients: Sequence[Any] | None) -> CallResult:
    written = run.call.in_place and run.adapter.writes
    return CallResult(norm, run.now() if written else gradients)
