"""The modes in which a suite runs a case, such as `host`, `device` and `graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

OnRequest = Literal["graph", "compiled", "static", "processes_2", "processes_4"]
"""A mode in this list runs only if the suite lists the mode."""

Mode = Literal["host", "device", "native", OnRequest]

HOST, DEVICE, NATIVE = "host", "device", "native"
"""In the mode HOST, unified_clip runs on the host path, and in DEVICE on the device path. In the mode NATIVE, the
framework's functions run. None of these modes uses graphs."""

GRAPH, COMPILED, STATIC = "graph", "compiled", "static"

GRAPHS = {
    "torch": (GRAPH, COMPILED),
    "tensorflow": (GRAPH, COMPILED),
    "paddle": (STATIC,),
    "jax": (COMPILED,),
    "mlx": (COMPILED,),
}
"""The modes that `Adapter.run_in_graph` supports, by framework. The adapters do not contain this table, because
importing an adapter imports its framework."""

KERNELS_IN_GRAPHS: Mapping[str, tuple[str, ...]] = {
    "torch": (GRAPH, COMPILED),
    "tensorflow": (GRAPH,),  # not in programs of XLA
    "jax": (COMPILED,),
}

IN_GRAPHS = tuple(dict.fromkeys(mode for modes in GRAPHS.values() for mode in modes))

PROCESSES = {"processes_2": 2, "processes_4": 4}

DISTRIBUTED = {"torch": "torch_dtensor"}
EXACT = (HOST, *PROCESSES)
"""In these modes, unified_clip returns the same bits on every framework."""

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
