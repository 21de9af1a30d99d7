"""`ClipConfig.as_paddle()` creates a clip for `grad_clip=` of Paddle's optimizers."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.clip_cases import CONFIGS, LINEAR, NONFINITE, SHAPES, STEPS, assert_equal, clip_by_numpy, gradients
from support.kits import Kit

from unified_clip import ClipConfig


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("compares with eager calls on the host path")


def parameters() -> dict[str, Any]:
    zero = paddle.nn.initializer.Constant(0.0)
    return {
        name: paddle.create_parameter(list(shape), "float32", default_initializer=zero)
        for name, shape in SHAPES.items()
    }


def changes_of_step(optimizer: Any, named: dict[str, Any], grads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    before = {name: parameter.numpy() for name, parameter in named.items()}
    for name, parameter in named.items():
        parameter.clear_grad()
        if name in grads:
            (parameter * paddle.to_tensor(grads[name])).sum().backward()
            parameter.grad.set_value(grads[name])
    optimizer.step()
    return {name: before[name] - parameter.numpy() for name, parameter in named.items()}


def optimizers() -> dict[str, Any]:
    names = set(dir(paddle.optimizer)) - {"Optimizer", "LBFGS"}
    classes = {name: class_ for name in sorted(names) if inspect.isclass(class_ := getattr(paddle.optimizer, name))}
    return {name: class_ for name, class_ in classes.items() if issubclass(class_, paddle.optimizer.Optimizer)}


def changes_with_clip(clip: Any, model: Any) -> dict[str, np.ndarray]:
    before = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters(), grad_clip=clip)
    sum((parameter * 3.0).sum() for parameter in model.parameters()).backward()
    try:
        optimizer.step()
    finally:
        optimizer.clear_grad()
    return {name: before[name] - parameter.numpy() for name, parameter in model.named_parameters()}


def pattern_warnings(steps: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        steps()
    return [str(warning.message) for warning in warned if "pattern" in str(warning.message)]


@pytest.mark.parametrize("with_model", [False, True])
@pytest.mark.parametrize("groups", ["one group", "two groups", "one group, first without the second layer"])
def test_a_pattern_may_match_a_parameter_of_a_later_call(with_model: bool, groups: str) -> None:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2))
    first, second = model[0].parameters(), model[1].parameters()
    settings = ClipConfig(rule="value", threshold=1.0, exclude=["1.bias" if with_model else model[1].bias.name])
    clip = settings.as_paddle(model if with_model else None)
    grouped = [{"params": first}, {"params": second}] if groups == "two groups" else model.parameters()
    optimizer = paddle.optimizer.SGD(1.0, parameters=grouped, grad_clip=clip)

    def steps() -> None:
        for index in range(3):
            is_part = index == 0 and "first" in groups
            sum((parameter * 3.0).sum() for parameter in (first if is_part else model.parameters())).backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)

    before = model[1].bias.numpy()
    assert pattern_warnings(steps) == []
    np.testing.assert_allclose(before - model[1].bias.numpy(), 6.0 if "first" in groups else 9.0, rtol=1e-6)


@pytest.mark.parametrize("names", ["a part of the model", "some parameters", "none"])
def test_a_parameter_without_a_name_is_rejected_before_clipping(names: str) -> None:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1))
    before = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    named = {"a part of the model": model[0], "some parameters": {"0.bias": model[0].bias}, "none": {}}[names]
    clip = ClipConfig(rule="value", threshold=1.0, exclude=["*.bias"]).as_paddle(named)
    own = model[0].weight.name if names != "a part of the model" else model[1].weight.name
    message = (
        rf"but the parameter '{own}' of the optimizer is not in .* Pass the whole model: clip\.as_paddle\(model\)\.$"
    )
    with pytest.raises(ValueError, match=message):
        changes_with_clip(clip, model)
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.numpy(), before[name])
    everything = ClipConfig(rule="value", threshold=1.0).as_paddle(named)  # without patterns
    np.testing.assert_allclose(changes_with_clip(everything, model)["1.bias"], 1.0, rtol=1e-6)


def test_patterns_match_names_of_the_model_or_of_paddle() -> None:
    model = paddle.nn.Linear(2, 1)
    config = ClipConfig(rule="value", threshold=1.0, exclude=["*.bias"])
    own = config.model_copy(update={"exclude": ["*.b_0"]})
    for clip in (config.as_paddle(model), config.as_paddle(model.named_parameters()), own.as_paddle()):
        results = changes_with_clip(clip, model)
        np.testing.assert_allclose(results["weight"], 1.0, rtol=1e-6)
        np.testing.assert_allclose(results["bias"], 3.0, rtol=1e-6)


def save_and_load(path: Path, clip: Any) -> Any:
    paddle.save(clip, str(path / "clip.pdparams"))
    return paddle.load(str(path / "clip.pdparams"))


@pytest.mark.parametrize("method", ["pickle", "copy", "paddle.save"])
@pytest.mark.parametrize(
    "rule", [{"rule": "global_norm", "adaptive": {"rule": "zclip"}}, {"rule": "value", "threshold": 1.0}]
)
def test_a_copy_has_the_names_and_the_state(rule: dict[str, Any], method: str, tmp_path: Path) -> None:
    model = paddle.nn.Linear(2, 1)
    clip = ClipConfig(**rule, exclude=["*.bias"]).as_paddle(model)
    changes_with_clip(clip, model)
    methods = {"pickle": lambda clip: pickle.loads(pickle.dumps(clip)), "copy": copy.deepcopy}
    copied = methods.get(method, lambda clip: save_and_load(tmp_path, clip))(clip)
    assert copied.state_dict() == clip.state_dict()
    results = [changes_with_clip(a_clip, model) for a_clip in (clip, copied)]
    assert clip.step == copied.step == 2
    np.testing.assert_allclose(results[1]["bias"], 3.0, rtol=1e-6)
    for name, change in results[0].items():
        np.testing.assert_allclose(results[1][name], change, rtol=1e-6)


@pytest.mark.parametrize("name", optimizers())
def test_every_optimizer_clips_and_skips_steps(name: str) -> None:
    named = parameters()
    clip = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="skip").as_paddle()
    optimizer = optimizers()[name](parameters=list(named.values()), grad_clip=clip, learning_rate=0.1)
    nonfinite_grads, grads = gradients(1, nan_at=0)[0], gradients(1)[0]
    assert not any(change.any() for change in changes_of_step(optimizer, named, nonfinite_grads).values())
    assert clip.last.skipped
    assert all(change.any() for change in changes_of_step(optimizer, named, grads).values())
    assert clip.last.clipped
    assert clip.step == 2


def test_each_parameter_group_has_its_own_norm_and_all_are_one_step() -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR)
    named = parameters()
    values = list(named.values())
    clip = config.as_paddle(named)
    groups = [{"params": values[:2]}, {"params": values[2:], "learning_rate": 0.5}]
    optimizer = paddle.optimizer.SGD(1.0, groups, grad_clip=clip)
    names = [list(named)[:2], list(named)[2:]]
    expected = [
        clip_by_numpy(config, [{name: grads[name] for name in group} for grads in gradients()]) for group in names
    ]
    for index, grads in enumerate(gradients()):
        for parameter in values:
            parameter.set_value(np.zeros(parameter.shape, "float32"))
        changes = changes_of_step(optimizer, named, grads)
        assert_equal({n: changes[n] for n in names[0]}, expected[0][index].clipped, 0)
        assert_equal({n: changes[n] * 2 for n in names[1]}, expected[1][index].clipped, 0)
        assert clip.last.norm == expected[1][index].norm
        assert clip.step == index + 1


def test_groups_without_gradients_do_not_count_as_steps() -> None:
    named = parameters()
    values = list(named.values())
    clip = ClipConfig(rule="global_norm", threshold=LINEAR).as_paddle(named)
    optimizer = paddle.optimizer.SGD(1.0, [{"params": values[:2]}, {"params": values[2:]}], grad_clip=clip)
    grads = {name: grad for name, grad in gradients(1)[0].items() if name.startswith("output")}
    for count in (1, 2):
        changes_of_step(optimizer, named, grads)
        assert clip.step == count


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_raise_and_skip_are_rejected_with_several_groups(nonfinite: str) -> None:
    named = parameters()
    values = list(named.values())
    clip = ClipConfig(rule="global_norm", threshold=1.0, nonfinite=nonfinite).as_paddle(named)
    optimizer = paddle.optimizer.SGD(1.0, [{"params": values[:2]}, {"params": values[2:]}], grad_clip=clip)
    grads = gradients(2, nan_at=1)
    for count, step_grads in enumerate(grads, 1):
        with pytest.raises(
            RuntimeError, match=rf"nonfinite = '{nonfinite}' needs an optimizer with a single group .* 'zero'"
        ):
            changes_of_step(optimizer, named, step_grads)
        assert not any(value.numpy().any() for value in values[2:])
        assert clip.step == count


def test_the_step_can_be_set_if_heads_take_turns() -> None:
    named = parameters()
    clip = ClipConfig(rule="global_norm", threshold=LINEAR, nonfinite="skip").as_paddle(named)
    optimizer = paddle.optimizer.SGD(1.0, list(named.values()), grad_clip=clip)
    all_grads = gradients()
    grads_of_turns = [
        {name: step_grads[name] for name in list(SHAPES)[index % 2 :: 2]} for index, step_grads in enumerate(all_grads)
    ]
    for index, expected in enumerate(clip_by_numpy(ClipConfig(rule="global_norm", threshold=LINEAR), grads_of_turns)):
        optimizer.clear_grad(set_to_zero=False)
        for name, grad in expected.gradients.items():
            (named[name] * paddle.to_tensor(grad)).sum().backward()
        clip.step = index
        optimizer.step()
        assert (clip.last.step, clip.last.norm, clip.last.coef) == (index, expected.norm, expected.coef)
    assert clip.step == STEPS


def test_lbfgs_clips_nothing() -> None:
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
    clip = ClipConfig(rule="global_norm", threshold=0.01).as_paddle()
    optimizer = paddle.optimizer.LBFGS(1.0, max_iter=1, parameters=[weight], grad_clip=clip)

    def closure() -> Any:
        optimizer.clear_grad()
        loss = ((weight - 3.0) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert abs(weight.item()) > 0.5
    assert clip.step == 0


@pytest.mark.parametrize("names", [{"weight": "linear_0.w_0"}, {"weight": paddle.ones([2])}, ["a"]])
def test_names_of_other_objects_are_rejected(names: Any) -> None:
    message = r"names is a list\. Pass a Layer|'weight' in `names` is a (str|paddle\.Tensor), not a parameter of Paddle"
    with pytest.raises(TypeError, match=message):
        ClipConfig(rule="global_norm", threshold=1.0).as_paddle(names)


def changes_of_static_program(
    config: ClipConfig, all_grads: list[dict[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    paddle.enable_static()
    try:
        program, startup = paddle.static.Program(), paddle.static.Program()
        with warnings.catch_warnings(), paddle.static.program_guard(program, startup):
            warnings.simplefilter("ignore")  # warnings of Paddle
            named = parameters()
            feeds = {name: paddle.static.data(name, list(shape)) for name, shape in SHAPES.items()}
            loss = sum((named[name] * feeds[name]).sum() for name in SHAPES)
            paddle.optimizer.SGD(1.0, grad_clip=config.as_paddle(named)).minimize(loss)
            executor = paddle.static.Executor()
            executor.run(startup)
            before, changes = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}, []
            for grads in all_grads:
                after = executor.run(program, feed=grads, fetch_list=[named[name] for name in SHAPES])
                after = dict(zip(SHAPES, map(np.array, after), strict=True))
                changes.append({name: before[name] - after[name] for name in SHAPES})
                before = after
            return changes
    finally:
        paddle.disable_static()


@pytest.mark.parametrize("case", ["global norm", "a norm for each", "values", "two bounds", "without biases", "groups"])
def test_a_static_program_matches_the_host_path(case: str) -> None:
    config = ClipConfig(**CONFIGS[case])
    (changes,) = changes_of_static_program(config, gradients(1))
    assert_equal(changes, clip_by_numpy(config, gradients(1))[0].clipped, 1)


def test_a_static_program_warns_about_a_pattern_that_matches_no_name() -> None:
    def build() -> None:
        paddle.enable_static()
        try:
            with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
                loss = paddle.nn.Linear(2, 1)(paddle.static.data("x", [1, 2])).sum()
                clip = ClipConfig(rule="value", threshold=1.0, exclude=["*.biass"]).as_paddle()
                paddle.optimizer.SGD(1.0, grad_clip=clip).minimize(loss)
        finally:
            paddle.disable_static()

    (message,) = pattern_warnings(build)
    assert message.startswith("So far, the pattern '*.biass' of the configuration matches none of the names 'linear_")


def test_a_static_program_zeroes_nonfinite_gradients() -> None:
    (changes,) = changes_of_static_program(ClipConfig(**NONFINITE["zero"]), gradients(1, nan_at=0))
    assert not any(change.any() for change in changes.values())


HEAD = {"name": "head", "include": ["output*"], "threshold": LINEAR}


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("nonfinite = 'raise' works", {"threshold": 1.0, "nonfinite": "raise"}),
        ("nonfinite = 'skip' works", {"threshold": 1.0, "nonfinite": "skip"}),
        ("a threshold with a schedule works", {"threshold": LINEAR}),
        ("a threshold with a schedule works", {"threshold": 1.0, "groups": [HEAD]}),
    ],
)
def test_options_that_static_programs_do_not_support_are_rejected(message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{message} in dynamic mode only"):
        changes_of_static_program(ClipConfig(rule="global_norm", **settings), gradients(1))


def test_a_static_program_supports_a_constant_schedule() -> None:
    (changes,) = changes_of_static_program(
        ClipConfig(rule="global_norm", threshold={"schedule": "constant", "value": 1.5}), gradients(1)
    )
    (expected,) = clip_by_numpy(ClipConfig(rule="global_norm", threshold=1.5), gradients(1))
    assert_equal(changes, expected.clipped, 1)


@pytest.mark.parametrize("schedule", [False, True])
def test_a_clip_inside_to_static(schedule: bool) -> None:
    config = ClipConfig(rule="global_norm", threshold=LINEAR if schedule else 1.5)
    named = parameters()
    clip = config.as_paddle(named)

    @paddle.jit.to_static(full_graph=True)
    def clipped(grads: Any) -> Any:
        return [grad for _, grad in clip([(named[name], grads[i]) for i, name in enumerate(SHAPES)])]

    (expected,) = clip_by_numpy(ClipConfig(rule="global_norm", threshold=1.5), gradients(1))
    grads = [paddle.to_tensor(expected.gradients[name]) for name in SHAPES]
    if schedule:
        with pytest.raises(TypeError, match="a threshold with a schedule works in dynamic mode only"):
            clipped(grads)
        return
    results = clipped(grads)
    assert_equal({name: grad.numpy() for name, grad in zip(SHAPES, results, strict=True)}, expected.clipped, 1)
    assert clip.step == 0
