"""Functions that processes of a `World` run on replicas. TensorFlow's devices are fixed when a process starts."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from support.processes.worlds import World, error_message, worlds_when_needed

from unified_clip._kit import workers

Arrays = list[np.ndarray]
state: dict[str, Any] = {}

LAYOUTS = {"1 replica": (1, 1), "2 replicas": (2, 1), "4 replicas": (4, 1), "2 processes": (0, 2)}
"""Replicas per process, and processes. 0: `MultiWorkerMirroredStrategy`, with one replica per process."""

Worlds = Callable[[str], World]


def worlds() -> AbstractContextManager[Worlds]:
    return worlds_when_needed(_world)


def _world(layout: str) -> World:
    replicas_per_process, processes = LAYOUTS[layout]
    return World(functools.partial(start, replicas_per_process), processes)


def start(replicas: int, rank: int, size: int, meeting: str) -> None:
    """Start `replicas` replicas in one process. 0 stands for one replica in each of several processes."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["KERAS_BACKEND"] = "3", "tensorflow"
    if replicas == 0:
        os.environ["TF_CONFIG"] = json.dumps(meet_cluster(rank, size, meeting))
    workers.import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    if replicas == 0:
        state["strategy"] = tf.distribute.MultiWorkerMirroredStrategy()
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    state["strategy"] = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def meet_cluster(rank: int, size: int, meeting: str) -> dict[str, Any]:
    """Return TF_CONFIG. Every process takes a free port, and writes it to a file for the other processes."""
    with socket.socket() as own:
        own.bind(("localhost", 0))
        Path(f"{meeting}.{rank}.new").write_text(f"localhost:{own.getsockname()[1]}")
    Path(f"{meeting}.{rank}.new").replace(f"{meeting}.{rank}")
    files = [Path(f"{meeting}.{number}") for number in range(size)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return {
        "cluster": {"worker": [file.read_text() for file in files]},
        "task": {"type": "worker", "index": rank},
    }


def on_replicas(step: Callable[[Any], Any], inputs: Sequence[Any], graph: bool) -> list[Any]:
    """Run a step with one input for each replica. Return the results of this process' replicas."""
    import tensorflow as tf

    strategy = state["strategy"]
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.nest.map_structure(tf.constant, inputs[context.replica_id_in_sync_group])
    )
    run = functools.partial(strategy.run, step)
    results = (tf.function(run, autograph=False) if graph else run)((values,))
    flat = [strategy.experimental_local_results(value) for value in tf.nest.flatten(results)]
    return [
        tf.nest.pack_sequence_as(results, [replica_values[number].numpy() for replica_values in flat])
        for number in range(len(flat[0]))
    ]


def sum_over_replicas(gradients: Any) -> Any:
    """Sum gradients over the replicas. The all-reduce needs a device: a graph's argument has none, but its copy has."""
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("sum", [tf.identity(gradient) for gradient in gradients])


def clip_summed(shares: list[Arrays], threshold: float, p: float, graph: bool) -> list[tuple[np.float32, Arrays]]:
    """Sum the replicas' gradients and clip the sum. Return the norm and the clipped gradients of each replica."""
    import unified_clip.tensorflow as uc

    def step(replica_gradients: Any) -> Any:
        gradients = [*sum_over_replicas(replica_gradients), None]
        norm = uc.clip_grad_norm_(gradients, threshold, p)
        assert gradients.pop() is None
        return norm, gradients

    return on_replicas(step, [tuple(arrays) for arrays in shares], graph)


def count_collectives() -> tuple[int, int]:
    """Return the number of collectives in a graph that sums gradients, and in one that then clips them."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    def count(clip: bool) -> int:
        def step() -> Any:
            gradients = sum_over_replicas([tf.ones([3]), tf.ones([2, 2])])
            return uc.clip_by_global_norm(gradients, 1.0) if clip else gradients

        concrete = tf.function(lambda: state["strategy"].run(step), autograph=False).get_concrete_function()
        graph = concrete.graph.as_graph_def()
        node_lists = [graph.node, *(function.node_def for function in graph.library.function)]
        return sum("Collective" in node.op for nodes in node_lists for node in nodes)

    return count(False), count(True)


def clip_outside_of_replicas() -> str:
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    values = state["strategy"].run(lambda: tf.ones([3]))
    return error_message(lambda: uc.clip_by_global_norm([values], 1.0))


def model(seed: int = 1) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Embedding(5, 3), keras.layers.Flatten(), keras.layers.Dense(4, "tanh")]
    return keras.Sequential([keras.Input((2,), dtype="int32"), *layers, keras.layers.Dense(1)])


INPUTS = np.random.default_rng(5).integers(0, 5, (16, 2)).astype("int32")
TARGETS = np.random.default_rng(6).standard_normal((16, 1)).astype("float32") * 30


def fit_one_step(
    clip: str, threshold: float, options: dict[str, Any], last_target: float | None = None
) -> dict[str, Any]:
    import keras

    from unified_clip import ClipConfig

    options = dict(options)
    scale, settings = options.pop("scale", None), options.pop("settings", {})
    targets = TARGETS.copy()
    if last_target is not None:
        targets[-1] = last_target  # the last replica has this row
    with state["strategy"].scope():
        net = model()
        optimizer = keras.optimizers.SGD(1.0, **({"global_clipnorm": threshold} if clip == "Keras" else {}))
        handle = None
        if clip != "Keras":
            handle = ClipConfig(rule="global_norm", threshold=threshold, eps=0.0, **settings).attach_to(optimizer)
        compiled = optimizer if scale is None else keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
        net.compile(compiled, "mse", **options)
    before = net.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(INPUTS, TARGETS if last_target is None else targets, batch_size=len(INPUTS), shuffle=False, verbose=0)
    update = [a - b for a, b in zip(before, net.get_weights(), strict=True)]
    copies = [
        [copy.numpy() for copy in state["strategy"].experimental_local_results(weight.value)]
        for weight in net.trainable_variables
    ]
    return {"update": update, "copies": copies, "last": handle and handle.last, "step": handle and handle.step}
