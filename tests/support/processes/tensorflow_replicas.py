"""What the tests of several replicas run in processes of their own: TensorFlow has one set of devices in each."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Arrays = list[np.ndarray]
state: dict[str, Any] = {}


def start(replicas: int, rank: int, size: int, meeting: str) -> None:
    """`replicas` in one process; 0: one in each of several."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["KERAS_BACKEND"] = "3", "tensorflow"
    if replicas == 0:
        os.environ["TF_CONFIG"] = json.dumps(cluster(rank, size, meeting))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    if replicas == 0:
        state["strategy"] = tf.distribute.MultiWorkerMirroredStrategy()
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    state["strategy"] = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def cluster(rank: int, size: int, meeting: str) -> dict[str, Any]:
    """Every process takes a free port, and tells the others by a file."""
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


def on_replicas(step: Callable[[Any], Any], given: Sequence[Any], graph: bool) -> list[Any]:
    """What each replica of this process returned; `given`: what each of all replicas is given."""
    import tensorflow as tf

    strategy = state["strategy"]
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.nest.map_structure(tf.constant, given[context.replica_id_in_sync_group])
    )
    run = functools.partial(strategy.run, step)
    found = (tf.function(run, autograph=False) if graph else run)((values,))
    flat = [strategy.experimental_local_results(each) for each in tf.nest.flatten(found)]
    return [tf.nest.pack_sequence_as(found, [part[number].numpy() for part in flat]) for number in range(len(flat[0]))]


def summed(gradients: Any) -> Any:
    """An argument of a graph has no device, which TensorFlow asks for; its copy has that of the replica."""
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("sum", [tf.identity(each) for each in gradients])


def clipped(given: list[Arrays], limit: float, p: float, graph: bool) -> list[tuple[np.float32, Arrays]]:
    """The norm and the clipped gradients of each replica, of gradients that add up over all."""
    import unified_clip.tensorflow as uc

    def step(parts: Any) -> Any:
        gradients = [*summed(parts), None]
        norm = uc.clip_grad_norm_(gradients, limit, p)
        assert gradients.pop() is None
        return norm, gradients

    return on_replicas(step, [tuple(arrays) for arrays in given], graph)


def collectives() -> tuple[int, int]:
    """How many there are in a graph that adds gradients up, and in one that clips them then."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    def count(clip: bool) -> int:
        def step() -> Any:
            gradients = summed([tf.ones([3]), tf.ones([2, 2])])
            return uc.clip_by_global_norm(gradients, 1.0) if clip else gradients

        concrete = tf.function(lambda: state["strategy"].run(step), autograph=False).get_concrete_function()
        graph = concrete.graph.as_graph_def()
        parts = [graph.node, *(each.node_def for each in graph.library.function)]
        return sum("Collective" in node.op for nodes in parts for node in nodes)

    return count(False), count(True)


def refused() -> str:
    """What is said where gradients of several replicas are clipped outside of them."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    values = state["strategy"].run(lambda: tf.ones([3]))
    try:
        uc.clip_by_global_norm([values], 1.0)
    except TypeError as error:
        return str(error)
    return ""


def model(seed: int = 1) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Embedding(5, 3), keras.layers.Flatten(), keras.layers.Dense(4, "tanh")]
    return keras.Sequential([keras.Input((2,), dtype="int32"), *layers, keras.layers.Dense(1)])


INPUTS = np.random.default_rng(5).integers(0, 5, (16, 2)).astype("int32")
TARGETS = np.random.default_rng(6).standard_normal((16, 1)).astype("float32") * 30


def backward(limit: float, graph: bool) -> list[tuple[Arrays, np.float32, Arrays]]:
    """The gradients of a model summed over the replicas, their norm, and what they are clipped to."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    with state["strategy"].scope():
        net = model()
    count = state["strategy"].num_replicas_in_sync

    def step(batch: Any) -> Any:
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((net(inputs) - targets) ** 2) / len(INPUTS)
        gradients = summed([tf.convert_to_tensor(each) for each in tape.gradient(loss, net.trainable_variables)])
        clipped, norm = uc.clip_by_global_norm(gradients, limit)
        return gradients, norm, clipped

    batches = list(zip(np.split(INPUTS, count), np.split(TARGETS, count), strict=True))
    return on_replicas(step, batches, graph)


def fitted(how: str, limit: float, options: dict[str, Any], wrong: float | None = None) -> dict[str, Any]:
    """A step of `fit` with a limit: by Keras itself, or by a configuration."""
    import keras

    from unified_clip import ClipConfig

    options = dict(options)
    scale, settings = options.pop("scale", None), options.pop("settings", {})
    targets = TARGETS.copy()
    if wrong is not None:
        targets[-1] = wrong  # which is the last replica's
    with state["strategy"].scope():
        net = model()
        optimizer = keras.optimizers.SGD(1.0, **({"global_clipnorm": limit} if how == "Keras" else {}))
        handle = None
        if how != "Keras":
            handle = ClipConfig(rule="global_norm", threshold=limit, eps=0.0, **settings).attach_to(optimizer)
        outer = optimizer if scale is None else keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
        net.compile(outer, "mse", **options)
    before = net.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(INPUTS, TARGETS if wrong is None else targets, batch_size=len(INPUTS), shuffle=False, verbose=0)
    update = [a - b for a, b in zip(before, net.get_weights(), strict=True)]
    copies = [
        [each.numpy() for each in state["strategy"].experimental_local_results(weight.value)]
        for weight in net.trainable_variables
    ]
    return {"update": update, "copies": copies, "last": handle and handle.last, "step": handle and handle.step}
