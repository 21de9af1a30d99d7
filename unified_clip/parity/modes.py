"""The modes in which a suite runs a case, such as the host path, the device path and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

OnRequest = Literal["graph", "compiled", "static", "processes_2", "processes_4"]
"""Modes that run only if a suite lists them."""

Mode = Literal["host", "device", "native", OnRequest]

HOST, DEVICE, NATIVE = "host", "device", "native"
"""The modes without a graph: unified_clip on the host path, unified_clip on the device path, and the framework's
functions.
"""

GRAPH, COMPILED, STATIC = "graph", "compiled", "static"

GRAPHS = {
    "torch": (GRAPH, COMPILED),
    "tensorflow": (GRAPH, COMPILED),
    "paddle": (STATIC,),
    "jax": (COMPILED,),
    "mlx": (COMPILED,),
}
"""The modes that `run_in_graph` supports on each framework. This table is not in the adapters, because importing an
adapter imports its framework."""

IN_GRAPHS = tuple(dict.fromkeys(mode for modes in GRAPHS.values() for mode in modes))

KERNELS_IN_GRAPHS = {framework: modes for framework, modes in GRAPHS.items() if framework != "mlx"}
"""The modes in which the graphs of a framework call the compiled kernels for norm_type 1 and 2."""

PROCESSES = {"processes_2": 2, "processes_4": 4}

DISTRIBUTED = {"torch": "torch_dtensor"}
"""The module of `adapters` for the distributed tensors of a framework."""

EXACT = (HOST, *PROCESSES)
"""The modes in which unified_clip returns the same bits on every framework."""

TITLES: Mapping[str, str] = {
    HOST: "host path",
    **{mode: f"{size} processes" for mode, size in PROCESSES.items()},
    DEVICE: "device path",
    GRAPH: "inside graphs",
    COMPILED: "compiled",
    STATIC: "static programs",
    NATIVE: "framework's function",
}

YOURS = "your function"

UNIFIED_CLIP_MODES = tuple(mode for mode in TITLES if mode != NATIVE)


def modes_of(framework: str, *, own_functions: bool = False) -> Sequence[str]:
    if framework == "numpy":
        return (HOST, NATIVE) if own_functions else (HOST,)
    shared = PROCESSES if framework in DISTRIBUTED else ()
    return (HOST, DEVICE, NATIVE, *shared, *GRAPHS.get(framework, ()))
