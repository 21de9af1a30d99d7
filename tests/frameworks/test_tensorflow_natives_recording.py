"""Recordings of TensorFlow's and Keras's own clipping."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.agreement import agreeing

import unified_clip
from unified_clip import ClipWarning
from unified_clip.recorder.samples import sample
from unified_clip.recording import runs

WEIGHTS = ([3.0, -4.0], [[12.0], [84.0]])


def lines(path: Path) -> list[dict[str, Any]]:
    result = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in result if "call" in line]


def gradients() -> tuple[list[tf.Variable], list[tf.Tensor]]:
    weights = [tf.Variable(values) for values in WEIGHTS]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(weight**2) / 2 for weight in weights])
    return weights, tape.gradient(loss, weights)


def test_a_value_clip_of_a_tensor_in_the_shape_of_a_bias_is_no_event(tmp_path: Path) -> None:
    """The ratio of PPO can have this shape: 64 in a batch of 64, beside a bias of 64."""
    bias, ratio = tf.Variable(tf.zeros(64)), tf.linspace(0.5, 1.5, 64)
    with unified_clip.record(tmp_path / "run.jsonl"), tf.GradientTape() as tape:
        loss = tf.reduce_sum(bias * tf.clip_by_value(ratio, 0.8, 1.2))
        tf.clip_by_value(tape.gradient(loss, bias), -1.0, 1.0)
    assert [line["threshold"] for line in lines(tmp_path / "run.jsonl")] == [[-1.0, 1.0]]


ROWS = [1, 3, 1]


@pytest.mark.parametrize("in_graph", [False, True])
def test_dense_gradients_of_rows_keep_their_names(tmp_path: Path, in_graph: bool) -> None:
    table, weight = tf.Variable(tf.ones((4, 2)), name="table"), tf.Variable(tf.ones((2, 1)), name="weight")
    divisor = 1.0 if in_graph else 2.0

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ROWS) @ weight)
        gradients = tape.gradient(loss, [table, weight])
        dense = [tf.convert_to_tensor(each) for each in reversed(gradients)]
        tf.clip_by_global_norm(dense if in_graph else [each / divisor for each in dense], 1.0)

    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        (tf.function(step) if in_graph else step)()
    (line,) = lines(tmp_path / "run.jsonl")
    assert {name: (each["norm"], each["weight"]) for name, each in line["parameters"].items()} == {
        "weight": (pytest.approx(math.sqrt(18) / divisor), pytest.approx(math.sqrt(2))),
        "table": (pytest.approx(math.sqrt(10) / divisor), pytest.approx(math.sqrt(8))),
    }


@pytest.mark.parametrize("use_resource", [False, True])
def test_an_optimizer_of_tensorflow_1_names_its_gradients(tmp_path: Path, use_resource: bool) -> None:
    v1, ones = tf.compat.v1, tf.compat.v1.ones_initializer()
    with tf.Graph().as_default(), unified_clip.record(tmp_path / "run.jsonl", norms=True):
        table = v1.get_variable("table", (4, 2), initializer=ones, use_resource=use_resource)
        weight = v1.get_variable("weight", (2, 1), initializer=ones, use_resource=use_resource)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.gather(table, ROWS) @ weight))
        clipped, _ = tf.clip_by_global_norm([tf.convert_to_tensor(gradient) for gradient, _ in pairs], 1.0)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(clipped)
    line = next(line for line in lines(tmp_path / "run.jsonl") if "parameters" in line)
    assert {name: each["weight"] for name, each in line["parameters"].items()} == {
        "table": pytest.approx(math.sqrt(8)),
        "weight": pytest.approx(math.sqrt(2)),
    }


def test_eager_operations_are_as_before_after_the_recording(tmp_path: Path) -> None:
    function = tf.clip_by_norm
    with pytest.warns(ClipWarning, match="No clip calls were recorded"), unified_clip.record(tmp_path / "run.jsonl"):
        assert tf.clip_by_norm is not function
    assert tf.clip_by_norm is function


@pytest.mark.filterwarnings("ignore:.*No clip calls")
@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_has_its_gradients_and_weights_and_those_before_the_scripts_own_code(
    tmp_path: Path, mode: str, is_by_hand: bool
) -> None:
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(2)
    layer.build([None, 3])
    optimizer = keras.optimizers.SGD(0.5)

    def step(factor: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 3])) ** 2) * factor
        raw = tape.gradient(loss, layer.trainable_variables)
        given = [gradient * 0.25 for gradient in raw] if is_by_hand else raw
        before = [tf.identity(each.value) for each in layer.trainable_variables]
        optimizer.apply_gradients(zip(given, layer.trainable_variables, strict=True))
        return [*raw, *given, *before]

    run = step if mode == "eager" else tf.function(step)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        expected = [[each.numpy() for each in run(tf.constant(factor))] for factor in (3.0, 5.0)]
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    for line, arrays in zip(steps, expected, strict=True):
        assert line.changed == 2 * is_by_hand
        for place, (name, tensor) in enumerate(line.tensors.items()):
            raw, given, before = arrays[place::2]
            assert tensor.sample == pytest.approx(sample(given), rel=1e-6), name
            assert tensor.weight_sample == pytest.approx(sample(before), rel=1e-6)
            assert tensor.norm == pytest.approx(math.sqrt(float((given**2).sum())), rel=1e-6)
            assert (tensor.raw_sample is not None) == is_by_hand
            assert not is_by_hand or tensor.raw_sample == pytest.approx(sample(raw), rel=1e-6)


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_losses_of_tapes_are_recorded_with_each_step(tmp_path: Path, in_graph: bool) -> None:
    weight = tf.Variable([1.0, 1.0])
    optimizer = keras.optimizers.SGD(0.5, global_clipnorm=1.0)

    def step(factor: tf.Tensor) -> None:
        with tf.GradientTape(persistent=True) as tape:
            loss, vector = tf.reduce_sum(weight) * factor, weight * factor
        tape.gradient(vector, [weight])  # two numbers, which are no loss
        tape.gradient(loss, [weight], output_gradients=tf.constant(2.0))
        optimizer.apply_gradients([(tape.gradient(target=loss, sources=[weight])[0], weight)])

    step = tf.function(step) if in_graph else step
    with unified_clip.record(tmp_path / "run.jsonl"):
        for factor in (3.0, 0.0):
            step(tf.constant(factor))
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [list(step.losses) for step in steps] == [[6.0], [0.0]]


@pytest.mark.filterwarnings("ignore:.*No clip calls")
def test_a_keras_optimizer_that_accumulates_steps_at_the_last_batch(tmp_path: Path) -> None:
    weights, grads = gradients()
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    with unified_clip.record(tmp_path / "run.jsonl"):
        for _ in range(3):
            optimizer.apply(grads, weights)
    assert len(runs.read(tmp_path / "run.jsonl").optimizer_steps) == 1


class DenseAdam(keras.optimizers.Adam):
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


class OwnAdam(keras.optimizers.Adam):
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "name", "counts"),
    [(keras.optimizers.Adam, "Adam", [1, 0]), (DenseAdam, "Adam", [0, 0]), (OwnAdam, "OwnAdam", [1, 0])],
)
def test_sparse_gradients_with_repeated_rows_are_counted_where_the_optimizer_gets_them(
    tmp_path: Path, optimizer: Any, name: str, counts: list[int], in_graph: bool
) -> None:
    table, chosen = tf.Variable(tf.ones((4, 2)), name="table"), optimizer(0.1)

    def step(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        grads, _ = tf.clip_by_global_norm([tape.gradient(loss, table)], 1.0)
        chosen.apply_gradients([(grads[0], table)])

    step = tf.function(step) if in_graph else step
    with unified_clip.record(tmp_path / "run.jsonl"):
        for rows in ([1, 2, 1], [0, 3, 2]):
            step(tf.constant(rows))
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [step.repeated_rows for step in steps] == counts
    assert {step.optimizer for step in steps} == {f"keras.optimizers.{name}"}


def rows(table: tf.Variable) -> Any:
    """The gradient of a table with row 1 twice: the stored rows have the norm 2, their sum has the norm 8**0.5."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1]))
    return tape.gradient(loss, table)


def keras_clip(**options: float) -> Callable[[tf.Variable], Any]:
    def step(table: tf.Variable) -> Any:
        keras.optimizers.SGD(1.0, **options).apply_gradients([(rows(table), table)])
        return -table[1]

    return step


def by_norm(table: tf.Variable) -> Any:
    return tf.convert_to_tensor(tf.clip_by_norm(rows(table), 1.0))[1]


def by_passed_norm(table: tf.Variable) -> Any:
    return tf.convert_to_tensor(tf.clip_by_global_norm([rows(table)], 1.0, use_norm=tf.constant(4.0))[0][0])[1]


CLIPS_OF_ROWS: dict[str, tuple[Callable[[tf.Variable], Any], dict[str, Any], float]] = {
    "tf.clip_by_norm": (by_norm, {"stored_norm": [2.0]}, 0.5),
    "clipnorm": (keras_clip(clipnorm=1.0), {"stored_norm": [2.0]}, 0.5),
    "global_clipnorm": (keras_clip(global_clipnorm=1.0), {"stored_norm": 2.0}, 0.5),
    "use_norm": (by_passed_norm, {"stored_norm": 2.0, "passed_norm": 4.0}, 0.25),
}


@pytest.mark.parametrize("name", CLIPS_OF_ROWS)
def test_the_recorded_coefficient_of_repeated_rows_is_that_of_the_clip(tmp_path: Path, name: str) -> None:
    clip, norms, coef = CLIPS_OF_ROWS[name]
    for number, run in enumerate([clip, *([] if "clipnorm" in name else [tf.function(clip)])]):
        path, table = tmp_path / f"{number}.jsonl", tf.Variable(tf.zeros((3, 2)))
        with unified_clip.record(path, norms=True):
            row = run(table)
        (line,) = lines(path)
        assert row.numpy() == pytest.approx([2 * coef] * 2)  # both gradients of row 1 are 1
        assert {key: line[key] for key in norms} == norms
        assert unlisted(line["norm"]) == pytest.approx(8**0.5)
        assert unlisted(line["coef"]) == coef
    with agreeing(tmp_path, calls=1):
        clip(tf.Variable(tf.zeros((3, 2))))


def unlisted(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize("in_graph", [False, True])
def test_steps_have_the_learning_rate_of_a_schedule(tmp_path: Path, in_graph: bool) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5, staircase=True)
    weights, grads = gradients()
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
    optimizer.build(weights)

    def step() -> None:
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    with unified_clip.record(tmp_path / "run.jsonl"):
        run = tf.function(step) if in_graph else step
        for _ in range(3):
            run()
        tf.clip_by_global_norm(grads, 1.0)  # a recording without a clip call is reported
    result = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:-1]]
    assert [line["settings"]["lr"] for line in result] == [pytest.approx(rate) for rate in (0.1, 0.05, 0.025)]
    assert {(line["optimizer"], line["settings"]["momentum"]) for line in result} == {("keras.optimizers.SGD", 0.9)}


@pytest.mark.parametrize("use_minimize", [False, True])
def test_steps_in_a_session_are_recorded(tmp_path: Path, use_minimize: bool) -> None:
    v1 = tf.compat.v1

    def trained() -> tuple[bytes, int]:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("weight", initializer=tf.constant([3.0, 4.0]))
            count = v1.train.get_or_create_global_step()
            rate = v1.train.exponential_decay(0.5, count, 1, 0.5, staircase=True)
            optimizer, loss = v1.train.RMSPropOptimizer(rate, decay=0.75, epsilon=0.125), tf.reduce_sum(weight**2)
            if use_minimize:
                train = optimizer.minimize(loss, global_step=count)
            else:
                clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, [weight]), 0.5)
                train = optimizer.apply_gradients(zip(clipped, [weight], strict=True), global_step=count)
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                assert session.run(train) is None
            return session.run(weight).tobytes(), session.run(count)

    alone = trained()
    with unified_clip.record(tmp_path / "run.jsonl"):
        assert trained() == alone
        tf.clip_by_global_norm([tf.ones(2)], 1.0)  # a recording without a clip call is reported
    result = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:-1]]
    calls = ["optimizer"] * 3 if use_minimize else ["call", "optimizer"] * 3
    assert [next(name for name in ("call", "optimizer") if name in line) for line in result] == calls
    steps = [line for line in result if "optimizer" in line]
    assert {line["optimizer"] for line in steps} == {"tf.compat.v1.train.RMSProp"}
    settings = {"momentum": 0.0, "centered": False, "eps": 0.125, "alpha": 0.75, "initial_accumulator_value": 1.0}
    assert [line["settings"] for line in steps] == [settings | {"lr": rate} for rate in (0.5, 0.25, 0.125)]


class OwnAdam(tf.compat.v1.train.Optimizer):
    """Like BERT's optimizer, the class has its own `apply_gradients`."""

    def __init__(self, learning_rate: Any, variant: str) -> None:
        super().__init__(False, "OwnAdam")
        self.learning_rate = {"weight": learning_rate} if variant == "rates of layers" else learning_rate
        self.beta_1, self.beta_2, self.epsilon = 0.5, 0.75, 0.125
        self.inner = tf.compat.v1.train.GradientDescentOptimizer(0.25) if variant == "wrapper" else None

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        pairs = list(pairs)
        if self.inner:
            return self.inner.apply_gradients(pairs, global_step, name)
        updates = [variable.assign_sub(0.25 * gradient) for gradient, variable in pairs]
        return tf.group(*updates, global_step.assign_add(1), name=name)


class SuperAdam(tf.compat.v1.train.AdamOptimizer):
    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_gradients(*args, **kwargs)


class NamedAdam(tf.compat.v1.train.AdamOptimizer):
    pass


OWN_SETTINGS = {"betas": [0.5, 0.75], "eps": 0.125}


@pytest.mark.parametrize("is_built_before", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "expected", "settings"),
    [
        (partial(OwnAdam, variant=""), f"{__name__}.OwnAdam", {**OWN_SETTINGS, "lr": 0.5}),
        (partial(OwnAdam, variant="rates of layers"), f"{__name__}.OwnAdam", OWN_SETTINGS),
        (partial(OwnAdam, variant="wrapper"), "tf.compat.v1.train.GradientDescent", {"lr": 0.25}),
        (SuperAdam, f"{__name__}.SuperAdam", {"lr": 0.5, "betas": [0.9, 0.999], "eps": 1e-8}),
        (NamedAdam, "tf.compat.v1.train.Adam", {"lr": 0.5, "betas": [0.9, 0.999], "eps": 1e-8}),
    ],
)
def test_steps_of_a_class_with_its_own_update_are_recorded(
    tmp_path: Path, optimizer: Any, expected: str, settings: dict[str, Any], is_built_before: bool
) -> None:
    v1 = tf.compat.v1

    def trained() -> bytes:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("weight", initializer=tf.constant([3.0, 4.0]))
            built = before or optimizer(0.5)
            clipped, _ = tf.clip_by_global_norm(tf.gradients(weight**2, [weight]), 0.5)
            count = v1.train.get_or_create_global_step()
            train = built.apply_gradients([(clipped[0], weight)], global_step=count)
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(train)
            return session.run(weight).tobytes()  # type: ignore[no-any-return]

    before = optimizer(0.5) if is_built_before else None
    alone = trained()
    before = optimizer(0.5) if is_built_before else None
    with unified_clip.record(tmp_path / "run.jsonl"):
        assert trained() == alone
    assert OwnAdam.apply_gradients.__name__ == "apply_gradients"
    assert not hasattr(OwnAdam.apply_gradients, "__wrapped__")
    result = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    assert [line.get("optimizer") for line in result] == [None, expected] * 2
    assert [line["settings"] for line in result if "optimizer" in line] == [settings] * 2


def test_a_recording_adds_no_operation_to_the_graph_of_a_session(tmp_path: Path) -> None:
    """More operations would change the seeds of the script's random operations."""
    v1 = tf.compat.v1

    def built() -> list[str]:
        with tf.Graph().as_default() as graph:
            weight = v1.get_variable("weight", initializer=[1.0, 1.0])
            clipped, _ = tf.clip_by_global_norm(tf.gradients(tf.reduce_sum(weight**2), [weight]), 1.0)
            train = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(clipped[0], weight)])
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(train)
            return [f"{operation.name} {operation.type}" for operation in graph.get_operations()]

    alone = built()
    with unified_clip.record(tmp_path / "run.jsonl"):
        assert built() == alone
    run = runs.read(tmp_path / "run.jsonl")
    assert (len(run.lines), len(run.optimizer_steps)) == (1, 1)


@pytest.mark.parametrize("in_graph", [True, False])
def test_variables_that_keras_excludes_have_no_recorded_weight_decay(tmp_path: Path, in_graph: bool) -> None:
    result = []
    for number, decay in enumerate((0.5, 0.5, None)):
        kernel, bias = (keras.Variable(tf.ones(size), name=name) for size, name in (((3, 2), "kernel"), (2, "bias")))
        optimizer = keras.optimizers.Adam(0.1, weight_decay=decay, clipnorm=1.0)
        if number == 1:
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        apply = lambda: optimizer.apply([tf.ones((3, 2)), tf.ones(2)], [kernel, bias])  # noqa: B023, E731
        path = tmp_path / f"{number}.jsonl"
        with unified_clip.record(path):
            (tf.function(apply) if in_graph else apply)()
        (step,) = runs.read(path).optimizer_steps
        result.append(step.settings["weight_decay"])
    assert result == [0.5, (0.0, 0.5), 0.0]


def test_a_clip_in_code_that_autograph_copies_is_at_its_line(tmp_path: Path) -> None:
    weights, _ = gradients()

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weight**2) / 2 for weight in weights])
        tf.clip_by_global_norm(tape.gradient(loss, weights), 1.0)

    with unified_clip.record(tmp_path / "run.jsonl"):
        tf.function(step)()
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["place"].endswith(f"{Path(__file__).name}:{step.__code__.co_firstlineno + 3}")
