"""The optimizers of PyTorch, Keras, Paddle and optax clip each step as the host path does, also after a checkpoint."""

from __future__ import annotations

import gc
import json
import math
import os
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.clip_cases import (
    CONFIGS,
    LINEAR,
    NONFINITE,
    ONE_OVERFLOWS,
    STEPS,
    assert_equal,
    assert_reported,
    clip_by_numpy,
    gradients,
    overflowing,
)
from support.tiers import where
from support.trainers.optimizers import LIBRARIES, OF, Training

from unified_clip import ClipConfig, ClipWarning, NonFiniteNormError

IS_QUICK = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"  # of other backends, Keras is only for nightly
KERAS = pytest.param("Keras", marks=[] if IS_QUICK else pytest.mark.nightly)

pytestmark = [
    where(lambda kit, library: kit.exact and library in OF.get(kit.name, ())),
    pytest.mark.parametrize("library", ["PyTorch", KERAS, "Paddle", "optax"]),
    pytest.mark.filterwarnings("ignore:.*copy keyword:DeprecationWarning"),  # of Keras's own `numpy()`
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),  # of Keras
]

GRAPH_CASES = ("groups", "values by schedule", "cosine", "a norm for each", *NONFINITE)
"""The configurations for tests of graphs. Each takes a second to compile."""


def trained(library: str, config: ClipConfig, way: str = "eager", **options: Any) -> Training:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClipWarning)  # an optimizer without steps may get a state
        return LIBRARIES[library](config, way, **options)


def ways(library: str) -> tuple[str, ...]:
    return LIBRARIES[library].WAYS


def check_steps(training: Training, config: ClipConfig, all_grads: Any, ulp: int) -> None:
    for index, step in enumerate(clip_by_numpy(config, all_grads)):
        assert_equal(training.step(step.gradients), step.clipped, ulp)
        last = training.clip.last
        if config.nonfinite == "zero" and not math.isfinite(step.norm):
            assert last.coef in (0.0, step.coef)  # on the host path, a clip by value multiplies by nothing
            step = step._replace(coef=last.coef)
        if last.clipped is not None or step.is_clipped is not None:
            assert_reported(last, step, index, ulp)
    assert training.clip.step == len(all_grads)


@pytest.mark.parametrize("case", [*CONFIGS, *NONFINITE])
def test_every_step_matches_the_host_path(library: str, case: str) -> None:
    config = ClipConfig(**(CONFIGS | NONFINITE)[case])
    for way in ways(library) if case in GRAPH_CASES else ("eager",):
        bad = {"inf_at" if case == "values zero" else "nan_at": 2} if case in NONFINITE else {}
        check_steps(trained(library, config, way), config, gradients(**bad), ulp=way != "eager")


def test_one_nonfinite_norm_per_tensor_is_a_nonfinite_step(library: str) -> None:
    for way in ways(library):
        for nonfinite in ("zero", "skip"):
            training = trained(library, ClipConfig(**ONE_OVERFLOWS, nonfinite=nonfinite), way, stateful=True)
            assert not any(map(np.any, training.step(overflowing()).values()))
            last = training.clip.last
            assert math.isfinite(last.norm)
            assert last.skipped == (nonfinite == "skip")
            assert last.norm_clipped in (None if last.skipped else 0.0, 0.0)


def test_a_skipped_step_changes_no_weight_and_no_state_and_counts(library: str) -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR, nonfinite="skip")
    for way in ways(library):
        training = trained(library, config, way, stateful=True)
        for index, grads in enumerate(gradients(4, nan_at=2)):
            before = training.state() | {"weights": None}  # which are 0 before each step
            changes, last = training.step(grads), training.clip.last
            assert last.skipped == (index == 2)
            if index == 2:
                assert not any(map(np.any, changes.values()))
                assert (last.norm_clipped, last.coef, last.clipped) == (None, None, None)
                np.testing.assert_equal(training.state() | {"weights": None}, before)
        assert training.clip.step == 4
        assert last.norm_clipped == pytest.approx(1.65, rel=1e-5)  # of the threshold at step 3: the skipped one counts


def test_a_nonfinite_norm_raises_before_weights_change_and_is_rejected_in_graphs(library: str) -> None:
    config = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="raise")
    (grads,) = gradients(1, nan_at=0)
    for way in ways(library):
        training = trained(library, config, way)
        error, message = NonFiniteNormError, r"output.kernel.* has 1 NaN"
        if way != "eager":
            error, message = TypeError, r"nonfinite = 'raise' cannot raise from inside a graph\. Use 'zero'"
        before = training.state()
        with pytest.raises(error, match=message):
            training.step(grads)
        np.testing.assert_equal(training.state(), before)


# -- checkpoints

ZCLIP = ClipConfig(rule="global_norm", threshold=3.0, adaptive={"rule": "zclip", "warmup_steps": 2})


@pytest.mark.parametrize("config", [ClipConfig(**CONFIGS["linear"]), ZCLIP], ids=["linear", "zclip"])
def test_training_resumes_from_a_checkpoint_and_from_the_state_of_another_framework(
    library: str, config: ClipConfig
) -> None:
    """Some gradients are missing in some steps."""
    all_grads: Any = [dict(sorted(grads.items())) for grads in gradients(2 * STEPS)]
    for index, name in ((1, "hidden.bias"), (4, "output.kernel"), (8, "hidden.bias")):
        all_grads[index][name] = None
    host = config.clipper()
    expected = [(dict(host(grads)), json.loads(json.dumps(host.state_dict()))) for grads in all_grads]
    training = trained(library, config)
    for index, (grads, (clipped, state)) in enumerate(zip(all_grads, expected, strict=True)):
        if index == 3 and not (library == "Keras" and config.is_adaptive):  # Keras's files have no adaptive state
            saved, training = training.save(), trained(library, config)
            training.load(saved)
        if index == 7:
            training = trained(library, config)
            training.load_state(expected[6][1])
        changes = training.step(grads)
        assert_equal(changes, {name: array for name, array in clipped.items() if array is not None}, 0)
        assert training.clip.state_dict() == state


def test_agc_clips_by_the_weights(library: str) -> None:
    """The weights are 0 before each step, so the thresholds are those of `eps`, the smallest norm of a weight."""
    config = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", "clip_factor": 0.05})
    (grads,) = gradients(1)
    host = config.clipper()(grads, parameters={name: np.zeros_like(array) for name, array in grads.items()})
    changes = trained(library, config).step(grads)
    assert_equal(changes, host, 0)
    assert all(np.any(changes[name] != array) for name, array in grads.items())


# -- names


class OfAnotherFramework:
    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield "weight", np.ones(2, np.float32)


@where(lambda kit, library: library != "optax")
@pytest.mark.parametrize("names", [OfAnotherFramework(), {"weight": np.ones(2, np.float32)}], ids=["model", "dict"])
def test_a_model_of_another_framework_is_rejected(library: str, names: Any) -> None:
    message = rf"'weight' in `names` is a numpy.ndarray, not a parameter of {LIBRARIES[library].PARAMETER}"
    with pytest.raises(TypeError, match=message):
        trained(library, ClipConfig(rule="global_norm", threshold=1.0, exclude=["weight"]), names=names)


def pattern_warnings(library: str, pattern: str) -> list[str]:
    training = trained(library, ClipConfig(rule="value", threshold=1.0, exclude=[pattern]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for grads in gradients(3):
            training.step({name: grad for name, grad in grads.items() if name.startswith("hidden")})
    return [str(each.message) for each in caught if "pattern" in str(each.message)]


def test_a_pattern_that_matches_no_name_warns_once(library: str) -> None:
    (message,) = pattern_warnings(library, "output.biass")
    assert "pattern 'output.biass' of the configuration matches none of the names " in message
    assert pattern_warnings(library, "hidden.*") == []
    if library != "optax":  # which knows no other names than those of the gradients
        assert pattern_warnings(library, "output.bias") == [], "another optimizer may have this parameter"


# -- handles of `attach_to`

with_handles = where(lambda kit, library: library in ("PyTorch", "Keras"))


@with_handles
def test_a_second_clip_is_rejected_until_the_first_is_detached(library: str) -> None:
    config, (grads,) = ClipConfig(rule="value", threshold=0.5), gradients(1)
    training = trained(library, config)
    with pytest.raises(RuntimeError, match="nothing has been clipped yet"):
        _ = training.clip.last
    with pytest.raises(ValueError, match=r"attached to this (SGD|optimizer) already\..* call detach"):
        config.attach_to(training.optimizer)
    assert repr(training.clip) == "<ClipConfig value, attached, step 0>"
    for _ in range(2):
        training.clip.detach()
    assert repr(training.clip) == "<ClipConfig value, detached, step 0>"
    assert_equal(training.step(grads), grads, 0)
    with config.attach_to(training.optimizer) as handle:
        assert_equal(training.step(grads), clip_by_numpy(config, [grads])[0].clipped, 0)
    assert not handle.is_attached
    seen = handle.last, handle.step, handle.rate
    assert_equal(training.step(grads), grads, 0)
    assert (handle.last, handle.step, handle.rate) == seen


@with_handles
def test_a_handle_does_not_keep_its_optimizer_alive(library: str) -> None:
    training = trained(library, ClipConfig(rule="global_norm", threshold=1.0))
    training.step(gradients(1)[0])
    handle, optimizer = training.clip, weakref.ref(training.optimizer)
    if library == "Keras":
        handle.detach()  # an attached clip is a part of Keras's optimizer
    del training
    gc.collect()
    assert optimizer() is None
    assert handle.last.norm > 1
