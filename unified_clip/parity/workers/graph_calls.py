"""Run cases in graphs. Many calls are traced into one graph, which is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ..adapters.base import Invocation
from .invoke import STYLES, CallResult

Function = Callable[..., Any]


def call_all(mode: str, calls: Sequence[tuple[Invocation, Function]], namespace: Any) -> list[CallResult]:
    """Call a public name for each invocation, all in one graph, and return the results."""
    for invocation, _ in calls:
        _ = invocation.parameters, invocation.in_place_arguments  # some frameworks cannot create them in a graph
    ends = list(accumulate((len(invocation.gradients) for invocation, _ in calls), initial=0))

    def traced(tensors: Sequence[Any]) -> list[Any]:
        results = []
        for (invocation, function), (start, end) in zip(calls, pairwise(ends), strict=True):
            symbolic = with_gradients(invocation, tensors[start:end])
            result = STYLES[invocation.call.style](symbolic, function, namespace)
            results.append([result.norm, result.gradients])
        return results

    adapter = calls[0][0].adapter
    tensors = [gradient for invocation, _ in calls for gradient in invocation.gradients]
    returned = adapter.run_in_graph(mode, traced, tensors)
    return [_result(invocation, *result) for (invocation, _), result in zip(calls, returned, strict=True)]


def with_gradients(invocation: Invocation, tensors: Sequence[Any]) -> Invocation:
    """Return the invocation with the tensors of a graph in place of its gradients."""
    cache = dict(invocation.cache) if invocation.adapter.writes else {"parameters": invocation.parameters}
    return Invocation(
        invocation.adapter, invocation.call, invocation.call_form, invocation.arguments, tensors, cache=cache
    )


def _result(invocation: Invocation, norm: Any, gradients: Sequence[Any] | None) -> CallResult:
    written = invocation.call.in_place and invocation.adapter.writes
    return CallResult(norm, invocation.read_gradients() if written else gradients)
