"""Keras: what `test_each_optimizer.py` has no word for, such as `fit`, loss scales and files, on each backend."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support import adaptive
from support.clip_cases import (
    LINEAR,
    SHAPES,
    assert_equal,
    assert_reported,
    clip_by_numpy,
    gradients,
)
from support.kits import Kit
from support.trainers.adaptive_cases import CONFIG, UNITS, gradient
from support.trainers.optimizers import Keras, keras_apply

import unified_clip
from unified_clip import ClipConfig, ClipWarning, NonFiniteNormError
from unified_clip.integrations import keras_optimizers
from unified_clip.recorder.steps import LOSSES
from unified_clip.recording import runs

BACKEND = keras.backend.backend()
ON_JAX = pytest.mark.skipif(BACKEND != "jax", reason="of Keras on JAX")
ON_TENSORFLOW = pytest.mark.skipif(BACKEND != "tensorflow", reason="of Keras on TensorFlow")

pytestmark = {
    "tensorflow": [],
    "torch": [pytest.mark.nightly],
    "jax": [pytest.mark.nightly, pytest.mark.graphs],  # on JAX, Keras compiles its steps
}[BACKEND]


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("eager calls on the host path are what is compared with")


@pytest.fixture(autouse=True)
def _of_keras_itself() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copy keyword", category=DeprecationWarning)  # its own `numpy()`
        yield


def variables() -> dict[str, Any]:
    return {name: keras.Variable(np.zeros(shape, "float32"), name=name) for name, shape in SHAPES.items()}


def tensor(array: np.ndarray) -> Any:
    return keras.ops.convert_to_tensor(array)


def in_graph(optimizer: Any, named: dict[str, Any]) -> Any:
    return keras_apply(optimizer, named, "compiled")


WAYS = Keras.WAYS


def values(named: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(variable) for name, variable in named.items()}


def adam(**options: Any) -> Any:
    return keras.optimizers.AdamW(0.1, weight_decay=0.1, use_ema=True, **options)


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_of_accumulated_gradients_is_clipped_once(way: str) -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR, nonfinite="skip")
    named, optimizer = variables(), keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    handle = config.attach_to(optimizer)
    apply = keras_apply(optimizer, named, way)
    micro_gradients = gradients(6, nan_at=2)
    means = [
        {name: (a[name] + b[name]) / 2 for name in a}
        for a, b in zip(micro_gradients[::2], micro_gradients[1::2], strict=True)
    ]
    expected = clip_by_numpy(ClipConfig(rule="global_norm", threshold=LINEAR), means)
    for index, grads in enumerate(micro_gradients):
        before = values(named)
        apply(grads)
        assert handle.step == (index + 1) // 2
        if index % 2 and index != 3:
            assert_reported(handle.last, expected[index // 2], index // 2, ulp=1)
        else:
            assert_equal(values(named), before, 0)
    assert_equal(
        values(named), {n: -(expected[0].clipped[n] + expected[2].clipped[n]) for n in named}, ulp=4
    )  # NaN left nothing behind


def test_no_clip_event_and_no_error_while_gradients_accumulate(tmp_path: Path) -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise")
    named, optimizer = variables(), keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
    handle = config.attach_to(optimizer)
    apply = keras_apply(optimizer, named)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        for grads in gradients(5, nan_at=3):  # which the last update would get
            apply(grads)
        assert handle.last.step == 0
        with pytest.raises(NonFiniteNormError, match=r"output.kernel"):
            apply(gradients(1)[0])
    lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    assert [line["norm"] for line in lines if "norm" in line] == [handle.last.norm]


def test_every_optimizer_clips() -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0)
    grads = gradients(1)[0]
    kinds = [keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.Adagrad, keras.optimizers.Adadelta]
    kinds += [keras.optimizers.RMSprop, keras.optimizers.Nadam, keras.optimizers.Adamax, keras.optimizers.Adafactor]
    kinds += [keras.optimizers.Ftrl, keras.optimizers.Lion, keras.optimizers.Lamb, keras.optimizers.AdamW]
    for kind in kinds:
        optimizer = kind(0.1)
        handle = config.attach_to(optimizer)
        keras_apply(optimizer, variables())(grads)
        assert handle.last.clipped, kind


def network() -> Any:
    layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh", name="hidden"), keras.layers.Dense(1, name="output")]
    model = keras.Sequential(layers, name="net")
    for index, weight in enumerate(model.trainable_variables):
        weight.assign(np.random.default_rng(index).standard_normal(weight.shape).astype("float32"))
    return model


INPUTS = np.random.default_rng(5).standard_normal((32, 3)).astype("float32")
TARGETS = 30 * INPUTS.sum(1, keepdims=True)
FITS = [{"run_eagerly": True}, {"jit_compile": False}, *([{"jit_compile": True}] if BACKEND != "torch" else [])]


@pytest.mark.parametrize("options", FITS)
def test_fit(options: dict[str, Any]) -> None:
    for gives_names in (False, True):
        model, optimizer = network(), keras.optimizers.SGD(0.01)
        config = ClipConfig(rule="global_norm", threshold=LINEAR, exclude=["*.bias"])
        handle = config.attach_to(optimizer, model if gives_names else None)
        model.compile(optimizer, "mse", **options)
        model.fit(INPUTS, TARGETS, batch_size=8, epochs=2, shuffle=False, verbose=0)
        assert handle.last.step == 7
        assert handle.last.norm_clipped == pytest.approx(0.3, rel=1e-5)
        assert (handle.last.clipped, handle.rate) == (True, 1.0)


def test_patterns_match_paths_or_passed_names() -> None:
    grads = {"net.hidden.kernel": np.full((3, 4), 5.0, "float32")}
    for names, exclude in ((None, "net.hidden.kernel"), ({}, "mine")):
        model, optimizer = network(), keras.optimizers.SGD(1.0)
        kernel = model.trainable_variables[0]
        assert kernel.path == "net/hidden/kernel"
        if names is not None:
            names = {"mine": kernel}
        handle = ClipConfig(rule="global_norm", threshold=1.0, exclude=[exclude]).attach_to(optimizer, names)
        optimizer.build(model.trainable_variables)
        rest = [tensor(np.full(weight.shape, 2.0, "float32")) for weight in model.trainable_variables[1:]]
        optimizer.apply([tensor(grads["net.hidden.kernel"]), *rest])
        assert handle.last.norm == 6.0  # of 9 elements of 2


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    config = ClipConfig(rule="global_norm", threshold=1.5)
    (step,) = clip_by_numpy(config, gradients(1))
    scaled = {name: grad * 1024 for name, grad in step.gradients.items()}
    inner, fixed = keras.optimizers.SGD(1.0), keras.optimizers.SGD(1.0, loss_scale_factor=1024.0)
    with pytest.raises(TypeError, match=r"a LossScaleOptimizer, which gets scaled .* Attach to its inner_optimizer"):
        config.attach_to(keras.optimizers.LossScaleOptimizer(inner))
    outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    for optimizer, handle in ((outer, config.attach_to(inner)), (fixed, config.attach_to(fixed))):
        in_graph(optimizer, variables())(scaled)  # JAX does not support an eager LossScaleOptimizer
        assert_reported(handle.last, step, 0, ulp=1)


@pytest.mark.skipif(BACKEND == "jax", reason="a recording has no losses of JAX")
@pytest.mark.parametrize("scale", ["loss_scale_factor", "LossScaleOptimizer", "none"])
def test_the_losses_of_fit_are_recorded_without_loss_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    """A loss can arrive late. The step of the optimizer waits for the loss."""
    add = LOSSES.add

    def add_late(read: Callable[[], Any]) -> None:
        time.sleep(0.1)
        add(read)

    monkeypatch.setattr(LOSSES, "add", add_late)
    factor = 1024.0 if scale == "loss_scale_factor" else None
    optimizer = keras.optimizers.SGD(0.1, clipnorm=1.0, loss_scale_factor=factor)
    if scale == "LossScaleOptimizer":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    losses = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    with unified_clip.record(tmp_path / "run.jsonl"):
        for _ in range(3):
            model.fit(np.ones([4, 2]), np.ones([4, 1]), batch_size=4, verbose=0, callbacks=[callback])
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert len(losses) == 3
    assert [loss for step in steps for loss in step.losses] == pytest.approx(losses)


@pytest.mark.skipif(BACKEND != "jax", reason="the test above is for the other backends")
def test_a_loss_scale_is_no_error_where_losses_are_not_recorded(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, loss_scale_factor=1024.0), "mse")
    with pytest.warns(ClipWarning, match="No clip calls were recorded"), unified_clip.record(tmp_path / "run.jsonl"):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), batch_size=4, verbose=0)
    assert "without scale" not in (tmp_path / "run.jsonl").read_text()


def test_steps_that_a_loss_scale_optimizer_skips_are_no_error() -> None:
    inner, weight = keras.optimizers.SGD(1.0), keras.Variable([0.0, 0.0])
    handle = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise").attach_to(inner)
    outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    outer.build([weight])
    if BACKEND == "jax":
        with pytest.raises(TypeError, match="nonfinite = 'raise' cannot raise from inside a graph"):
            outer.apply([tensor(np.array([np.inf, 8.0], "float32"))])
        return
    outer.apply([tensor(np.array([np.inf, 8.0], "float32"))])
    assert not np.array(weight).any()
    assert handle.step == 0


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="older releases of Keras have none")
def test_a_multi_optimizer_is_rejected_and_its_optimizers_clip() -> None:
    config, weight = ClipConfig(rule="global_norm", threshold=1.0, eps=0.0), keras.Variable([0.0, 0.0])
    outer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0)))
    with pytest.raises(
        TypeError, match=r"a MultiOptimizer, which passes .* Attach to each optimizer in its list `optimizers`"
    ):
        config.attach_to(outer)
    for optimizer in outer.optimizers:
        handle = config.attach_to(optimizer)
    outer.apply([tensor(np.array([30.0, 40.0], "float32"))], [weight])
    np.testing.assert_allclose(np.array(weight), [-0.6, -0.8], rtol=1e-6)
    assert handle.last.norm == 50.0


class Descent(keras.optimizers.SGD):  # type: ignore[misc]  # mypy skips Keras
    """SGD whose `apply` may not call the one of Keras."""

    calls_keras = True

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if self.calls_keras:
            super().apply(grads, trainable_variables)
        else:
            for grad, variable in zip(grads, trainable_variables, strict=True):
                variable.assign_sub(grad)


def test_an_apply_that_bypasses_the_clip_is_an_error() -> None:
    optimizer, weight, grad = Descent(1.0), keras.Variable([0.0, 0.0]), tensor(np.array([30.0, 40.0], "float32"))
    handle = ClipConfig(rule="global_norm", threshold=1.0, eps=0.0).attach_to(optimizer)
    optimizer.apply([], [])
    optimizer.apply([grad], [weight])
    np.testing.assert_allclose(np.array(weight), [-0.6, -0.8], rtol=1e-6)
    optimizer.calls_keras = False
    with pytest.raises(RuntimeError, match=r"Descent.apply did not call .* nothing was clipped\. Call super"):
        optimizer.apply([grad], [weight])
    handle.detach()
    optimizer.apply([grad], [weight])


@pytest.mark.parametrize("own", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_an_optimizer_that_clips_by_itself_is_rejected(own: str) -> None:
    optimizer = keras.optimizers.SGD(1.0, **{own: 1.0})
    with pytest.raises(ValueError, match=rf"The optimizer clips by itself: {own} is 1.0\. Remove {own}\."):
        ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer)


def test_a_step_that_was_compiled_before_attaching_warns(tmp_path: Path) -> None:
    recording = tmp_path / "clips.jsonl"
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(INPUTS[:8], TARGETS[:8], verbose=0)
    handle = ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer)
    if BACKEND == "tensorflow":
        message = "from step 1 to 2 and nothing was clipped, because .* Compile the model again"
        nothing_recorded = pytest.warns(ClipWarning, match="No clip calls were recorded")
        with nothing_recorded, pytest.warns(ClipWarning, match=message), unified_clip.record(recording):
            model.fit(INPUTS[:8], TARGETS[:8], verbose=0)
        lines = map(json.loads, recording.read_text().splitlines())
        assert [line["warning"] for line in lines if "warning" in line]
        model.compile(optimizer, "mse", jit_compile=False)
    model.fit(INPUTS[:8], TARGETS[:8], verbose=0)
    assert handle.last.step == handle.step - 1


def test_names_of_other_objects_are_rejected() -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0)
    with pytest.raises(TypeError, match=r"names is a Mean\. Pass the model, a dict of name to variable"):
        config.attach_to(keras.optimizers.SGD(1.0), keras.metrics.Mean())
    with pytest.raises(TypeError, match="'a' in `names` is a float, not a parameter of Keras"):
        config.attach_to(keras.optimizers.SGD(1.0), {"a": 1.0})


def test_unknown_optimizers_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"optimizer is a Mean"):
        keras_optimizers.attach(ClipConfig(rule="none"), keras.metrics.Mean())
    monkeypatch.delattr(keras.src.optimizers.base_optimizer.BaseOptimizer, "_clip_gradients")
    message = rf"Keras {keras.__version__} is not supported: .* have no _clip_gradients\. Install Keras 3\.5 to 3\.15"
    with pytest.raises(TypeError, match=message):
        ClipConfig(rule="none").attach_to(keras.optimizers.SGD(1.0))


def test_saved_variables_are_those_of_keras() -> None:
    optimizer, named = adam(), variables()
    handle = ClipConfig(rule="global_norm", threshold=LINEAR).attach_to(optimizer)
    apply = keras_apply(optimizer, named)
    for grads in gradients(3):
        apply(grads)
    outcome, saved = (handle.last, handle.rate), {}
    optimizer.save_own_variables(saved)
    plain = adam()
    plain.build(list(variables().values()))
    plain.load_own_variables(saved)  # Keras warns if the number of variables differs
    assert [np.array(each).tolist() for each in plain.variables] == [each.tolist() for each in saved.values()]
    optimizer.load_own_variables(saved)
    assert (handle.last, handle.rate, handle.step) == (*outcome, 3)
    handle.detach()
    optimizer.load_own_variables(saved)  # its variables include none of unified_clip
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        optimizer.load_own_variables({"0": 1})


# -- on one backend only


@ON_JAX
def test_a_graph_clips_in_vain_while_gradients_accumulate(tmp_path: Path) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    handle = ClipConfig(rule="global_norm", threshold=0.01).attach_to(optimizer)
    apply = in_graph(optimizer, named)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        for grads in gradients(3):
            apply(grads)
    lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    norms = [line["norm"] for line in lines if "norm" in line]
    assert len(norms) == 3
    assert handle.last.norm == np.float32(norms[1])  # of the update
    assert (handle.last.step, handle.step) == (0, 1)


@ON_JAX
def test_a_handle_has_the_values_of_the_epoch_before_while_fit_runs() -> None:
    """During an epoch, Keras on JAX removes the values of an optimizer's variables."""
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    handle = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}, threshold=1.0).attach_to(optimizer)

    def load(batch: int, logs: Any) -> None:
        state = handle.state_dict()
        with pytest.raises(RuntimeError, match=r"Before load_state_dict\(\), call model\.jax_state_sync"):
            handle.load_state_dict(state)

    def values() -> Any:
        last = handle.last if handle.step else None
        return last, handle.rate, handle.step, handle.state_dict()

    seen, ends = [], [values()]
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(values())),
        keras.callbacks.LambdaCallback(on_train_batch_end=load),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(values())),
    ]
    model.compile(optimizer, "mse")
    model.fit(INPUTS, TARGETS, batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
    assert seen == [ends[0], ends[0], ends[1], ends[1], ends[2], ends[2]]
    assert [step for _, _, step, _ in ends] == [0, 2, 4, 6]
    handle.detach()
    assert type(optimizer.iterations) is keras.Variable


@ON_JAX
def test_the_error_of_a_failed_fit_is_that_of_its_step() -> None:
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    handle = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise").attach_to(optimizer)
    model.compile(optimizer, "mse")
    with pytest.raises(TypeError, match="nonfinite = 'raise' cannot raise from inside a graph"):
        model.fit(INPUTS, TARGETS, verbose=0)
    assert (handle.step, handle.rate, repr(handle)) == (0, None, "<ClipConfig global_norm, attached, step 0>")


@ON_JAX
def test_the_optimizers_own_clip_and_steps_are_recorded(tmp_path: Path) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, global_clipnorm=0.5)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        keras_apply(optimizer, named)(gradients(1)[0])
    _, *lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    assert [line.get("call", line.get("optimizer")) for line in lines] == [
        "keras.optimizers.SGD(global_clipnorm=)",
        "keras.optimizers.SGD",
    ]
    assert lines[0]["threshold"] == 0.5


@pytest.mark.parametrize("is_eager", [False, True])
@ON_JAX
def test_calls_that_only_accumulate_gradients_are_no_clips_and_no_steps(tmp_path: Path, is_eager: bool) -> None:
    named, optimizer = variables(), keras.optimizers.SGD(1.0, global_clipnorm=0.5, gradient_accumulation_steps=2)
    apply = (keras_apply if is_eager else in_graph)(optimizer, named)
    with unified_clip.record(tmp_path / "clips.jsonl"):
        for grads in gradients(5):
            apply(grads)
    _, *lines = map(json.loads, (tmp_path / "clips.jsonl").read_text().splitlines())
    assert sum("optimizer" in line for line in lines) == sum("call" in line for line in lines) == 2
    assert [line["clips"] for line in lines if "optimizer" in line] == [1, 1]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("rule", ["global_norm", "value"])
@ON_TENSORFLOW
def test_rows_of_an_embedding_that_repeat_are_summed_first(rule: str, graph: bool) -> None:
    import tensorflow as tf

    optimizer, table = keras.optimizers.SGD(1.0), keras.Variable(np.zeros((4, 1), "float32"))
    handle = ClipConfig(rule=rule, threshold=1.0, **({} if rule == "value" else {"eps": 0.0})).attach_to(optimizer)
    optimizer.build([table])
    rows = tf.IndexedSlices(tf.constant([[1.0], [1.0], [2.0], [0.0]]), tf.constant([1, 1, 1, 3]), tf.constant([4, 1]))
    (tf.function(optimizer.apply) if graph else optimizer.apply)([rows])
    assert np.array(table).tolist() == [[0.0], [-1.0], [0.0], [0.0]]
    assert handle.last.clipped


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@ON_TENSORFLOW
def test_a_model_is_saved_and_trained_on(tmp_path: Path) -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR)

    def trained(resume: bool) -> tuple[Any, Any]:
        model, optimizer = network(), keras.optimizers.Adam(0.01)
        handle = config.attach_to(optimizer)
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(INPUTS[:16], TARGETS[:16], batch_size=8, shuffle=False, verbose=0)
        if resume:
            model.save(tmp_path / "model.keras")
            model = keras.models.load_model(tmp_path / "model.keras")
            handle = config.attach_to(model.optimizer)
        model.fit(INPUTS[16:], TARGETS[16:], batch_size=8, shuffle=False, verbose=0)
        return model, handle.last

    one, other = trained(resume=False), trained(resume=True)
    assert one[1][1:] == other[1][1:]  # the threshold is that of step 3 in both
    for a, b in zip(one[0].trainable_variables, other[0].trainable_variables, strict=True):
        np.testing.assert_array_equal(np.array(a), np.array(b))


# -- adaptive thresholds


def test_agc_clips_by_the_weights_of_gradients_that_are_not_missing() -> None:
    weights, optimizer = [keras.Variable(np.ones(3, np.float32)) for _ in range(2)], keras.optimizers.SGD(1.0)
    UNITS.attach_to(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gradients do not exist
        optimizer.apply([None, tensor(gradient(100.0))], weights)
    (expected,) = UNITS([gradient(100.0)], parameters=[np.ones(3, np.float32)])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(weights[1]), 1 - expected)


@pytest.mark.nightly
def test_a_compiled_fit_has_the_state_of_the_recursion() -> None:
    norms = [norm for norm in adaptive.NORMS if norm < 1e20][:40]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    handle = CONFIG.attach_to(optimizer)
    model.compile(optimizer, loss=lambda targets, outputs: keras.ops.sum(outputs), jit_compile=BACKEND == "jax")
    rows = np.stack([gradient(norm) for norm in norms])
    model.fit(rows, np.zeros(len(rows)), batch_size=1, shuffle=False, verbose=0)
    expected = adaptive.steps({"rule": "zclip"}, norms)[-1][1]
    assert handle.state_dict()["adaptive"][""]["state"] == expected


def test_loading_a_file_of_keras_gives_a_warning() -> None:
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([keras.Variable(np.zeros(3, np.float32))])
    CONFIG.attach_to(optimizer)
    saved: dict[str, Any] = {}
    optimizer.save_own_variables(saved)
    with pytest.warns(ClipWarning, match="Keras files do not contain the state of the adaptive threshold"):
        optimizer.load_own_variables(saved)
