"""The modes in which a suite runs a case: both paths, graphs, several processes, and the framework's own function."""

from __future__ import annotations

from collections.abc import Sequence

HOST, DEVICE, NATIVE = "host", "device", "native"
"""What a worker runs: ours on either path, eagerly, or the framework's own functions."""

GRAPH, COMPILED, STATIC = "graph", "compiled", "static"
"""Ours inside a graph that the framework traces and runs, compiles, or is handed as a static program."""

IN_GRAPHS = (GRAPH, COMPILED, STATIC)

GRAPHS = {"torch": (GRAPH, COMPILED), "tensorflow": (GRAPH, COMPILED), "paddle": (STATIC,), "jax": (COMPILED,)}
"""Those that a framework has, which its adapter's `staged` knows. It stands here since no adapter is imported to read a
suite: that would import frameworks."""

PROCESSES = {"processes_2": 2, "processes_4": 4}
"""Ours on tensors that several processes hold together: how many those are, by mode. One process is the host path."""

DISTRIBUTED = {"torch": "torch_dtensor"}
"""By framework that has these modes, the module of `adapters` with its `process_group`."""

EXACT = (HOST, *PROCESSES)
"""Where ours has the same bits on every framework."""

ON_REQUEST = (*IN_GRAPHS, *PROCESSES)
"""Modes that a suite has to name."""

OURS = {
    HOST: "host path",
    **{mode: f"{size} processes" for mode, size in PROCESSES.items()},
    DEVICE: "device path",
    GRAPH: "inside graphs",
    COMPILED: "compiled",
    STATIC: "static programs",
}
"""What is run of ours, and what reports call it."""


def modes_of(framework: str) -> Sequence[str]:
    """All modes that a framework has, graphs last. Other frameworks than NumPy may have functions of their own."""
    if framework == "numpy":
        return (HOST,)
    shared = PROCESSES if framework in DISTRIBUTED else ()
    return (HOST, DEVICE, NATIVE, *shared, *GRAPHS.get(framework, ()))
