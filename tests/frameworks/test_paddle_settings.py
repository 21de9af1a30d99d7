"""Paddle 1.x's functions in static programs: the example, the rules of `set_gradient_clip`, `minimize`, and rejected
calls."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import paddle
import pytest
from sklearn.datasets import load_digits
from support import reference
from support.kits import Kit, in_a_new_process
from support.paddle_programs import BACKWARD_WARNS, tensor

import unified_clip.paddle as uc
from unified_clip._backends.paddle import classes
from unified_clip._backends.paddle.classes import PROGRAMS

PAGE = Path(__file__).parent.parent.parent / "docs" / "paddle_static.md"

pytestmark = BACKWARD_WARNS


@pytest.fixture(autouse=True)
def _eager(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("about static programs, which take the device path anyway")


# -- Paddle 1.x's example


class Digits:
    def __init__(self) -> None:
        self.plain, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.plain, self.startup):
            image = paddle.static.data("image", [-1, 784], "float32")
            label = paddle.static.data("label", [-1, 1], "int64")
            hidden = paddle.static.nn.fc(image, 128, activation="relu")
            hidden = paddle.static.nn.fc(hidden, 64, activation="relu")
            predicted = paddle.static.nn.fc(hidden, 10, activation="softmax")
            cost = paddle.nn.functional.cross_entropy(predicted, label, reduction="none", use_softmax=False)
            loss = paddle.mean(cost)
        mapping = paddle.pir.IrMapping()
        self.clone = self.plain.clone(mapping)
        with paddle.static.program_guard(self.plain, self.startup):
            self.params_grads = paddle.static.append_backward(loss)
        with paddle.static.program_guard(self.clone, self.startup):
            self.clone_params_grads = paddle.static.append_backward(mapping.look_up(loss))
        pixels, numbers = load_digits(return_X_y=True)
        nearest = np.arange(28) * 8 // 28
        large = pixels.reshape(-1, 8, 8)[:, nearest][:, :, nearest].reshape(-1, 784).astype(np.float32) / 16
        self.batches = [
            {"image": large[i : i + 128], "label": numbers[i : i + 128, None].astype(np.int64)}
            for i in range(0, 5 * 128, 128)
        ]
        self.executor = paddle.static.Executor()
        self.executor.run(self.startup)

    def append(self, clip: object) -> list[tuple[object, object]]:
        with paddle.static.program_guard(self.clone, self.startup):
            uc.set_gradient_clip(clip)
            return uc.append_gradient_clip_ops(self.clone_params_grads)

    def run(self, program: object, pairs: list[tuple[object, object]]) -> list[list[np.ndarray]]:
        fetched = [gradient for _, gradient in pairs]
        return [self.executor.run(program, feed=batch, fetch_list=fetched) for batch in self.batches]


def norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def follows(clipped: list[np.ndarray], plain: list[np.ndarray], limit: float) -> bool:
    """Return whether `clipped` has the bits that follow from the norm of `plain`, or from a norm that is 1 ULP off, as
    the device path allows."""
    exact = np.float32(reference.norm(plain))
    near = (exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf)))
    expected = [[reference.scaled(array, reference.coefficient(float(n), limit)) for array in plain] for n in near]
    return [array.tobytes() for array in clipped] in [[array.tobytes() for array in arrays] for arrays in expected]


@pytest.mark.nightly
@pytest.mark.usefixtures("static")
def test_each_gradient_of_the_clone_is_the_plain_one_scaled_to_the_limit() -> None:
    digits = Digits()
    plain = digits.run(digits.plain, digits.params_grads)
    assert [parameter.name for parameter, _ in digits.clone_params_grads] == [p.name for p, _ in digits.params_grads]
    assert sorted(array.shape for array in plain[0]) == [(10,), (64,), (64, 10), (128,), (128, 64), (784, 128)]
    shortest = min(norm(array) for batch in plain for array in batch)
    changed = []
    for limit in (2.0, shortest / 2):
        clipped = digits.run(digits.clone, digits.append(uc.GradientClipByNorm(clip_norm=limit)))
        for before, after in zip(plain, clipped, strict=True):
            assert all(norm(array) <= limit * (1 + 1e-6) for array in after)
            assert all(follows([a], [b], limit) for a, b in zip(after, before, strict=True))
            changed += [a.tobytes() != b.tobytes() for a, b in zip(after, before, strict=True)]
    assert all(changed[len(changed) // 2 :])
    assert not all(changed)


@pytest.mark.nightly
@pytest.mark.usefixtures("static")
def test_the_examples_gradients_by_one_norm_and_by_value() -> None:
    digits = Digits()
    plain = digits.run(digits.plain, digits.params_grads)
    limit = min(norm(np.concatenate([array.ravel() for array in batch])) for batch in plain) / 2
    clipped = digits.run(digits.clone, digits.append(uc.GradientClipByGlobalNorm(clip_norm=limit)))
    assert all(follows(after, before, limit) for before, after in zip(plain, clipped, strict=True))
    clipped = digits.run(digits.clone, digits.append(uc.GradientClipByValue(max=1e-3)))
    for before, after in zip(plain, clipped, strict=True):
        for a, b in zip(after, before, strict=True):
            assert a.tobytes() == reference.clamped(b, -1e-3, 1e-3).tobytes()


def test_the_pages_example_runs() -> None:
    ((code, output),) = re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert in_a_new_process(code) == output


# -- what is set, and for what


class Network:
    def __init__(self, left_out: str = "", **gradients: list[float]) -> None:
        self.program, self.startup = paddle.static.Program(), paddle.static.Program()
        with self.guard():
            zeros = paddle.nn.initializer.Constant(0.0)
            self.loss = sum(
                (
                    paddle.static.create_parameter(
                        [len(values)],
                        "float32",
                        attr=paddle.ParamAttr(name=name, initializer=zeros, need_clip=name != left_out),
                    )
                    * paddle.assign(np.float32(values))
                ).sum()
                for name, values in gradients.items()
            )

    def guard(self) -> AbstractContextManager[None]:
        return paddle.static.program_guard(self.program, self.startup)

    def parameter(self, name: str) -> object:
        return self.program.get_parameter_value_by_name(name)

    def set(self, clip: object, **options: object) -> None:
        with self.guard():
            uc.set_gradient_clip(clip, **options)

    def params_grads(self) -> list[tuple[object, object]]:
        with self.guard():
            return paddle.static.append_backward(self.loss)

    def clipped(self) -> dict[str, list[float]]:
        with self.guard():
            pairs = uc.append_gradient_clip_ops(self.params_grads())
        arrays = self.run([gradient for _, gradient in pairs])
        return {p.name: round6(a) for (p, _), a in sorted(zip(pairs, arrays, strict=True), key=by_name)}

    def run(self, fetch_list: list[object]) -> list[np.ndarray]:
        executor = paddle.static.Executor()
        executor.run(self.startup)
        return executor.run(self.program, fetch_list=fetch_list)

    def updates(self, make: Callable[..., object] = paddle.optimizer.SGD, **options: object) -> dict[str, list[float]]:
        with self.guard():
            make(1.0, **options).minimize(self.loss)
        return self.taken()

    def taken(self) -> dict[str, list[float]]:
        names = sorted(parameter.name for parameter in self.program.global_block().all_parameters())
        with paddle.static.scope_guard(paddle.static.Scope()):
            self.run([])
            scope = paddle.static.global_scope()
            arrays = [np.array(scope.find_var(name).get_tensor()) for name in names]
        return {name: round6(-a) for name, a in zip(names, arrays, strict=True)}


def by_name(item: tuple[tuple[object, object], np.ndarray]) -> str:
    return item[0][0].name


def round6(array: np.ndarray) -> list[float]:
    return array.astype(np.float64).round(6).tolist()


def name_of(network: Network, name: str) -> str:
    return name


APPLIED = pytest.mark.parametrize("apply", [Network.clipped, Network.updates])


@APPLIED
@pytest.mark.usefixtures("static")
def test_nothing_set_changes_nothing(apply: Callable[[Network], object]) -> None:
    Network(a=[1.0]).set(uc.GradientClipByNorm(1.0))  # another program
    assert apply(Network(a=[3.0], b=[4.0])) == {"a": [3.0], "b": [4.0]}


@APPLIED
@pytest.mark.usefixtures("static")
def test_the_default_is_for_all_parameters_of_its_program(apply: Callable[[Network], object]) -> None:
    first, second, third = Network(a=[3.0], b=[4.0]), Network(a=[3.0], b=[4.0]), Network(a=[3.0], b=[4.0])
    first.set(uc.GradientClipByNorm(2.0))
    uc.set_gradient_clip(uc.GradientClipByValue(0.5), program=second.program)
    third.set(uc.GradientClipByGlobalNorm(1.0))
    assert apply(first) == {"a": [2.0], "b": [2.0]}
    assert apply(second) == {"a": [0.5], "b": [0.5]}
    assert apply(third) == {"a": [0.6], "b": [0.8]}


@APPLIED
@pytest.mark.usefixtures("static")
def test_none_removes_what_was_set(apply: Callable[[Network], object]) -> None:
    network, other = Network(a=[3.0], b=[4.0]), Network(a=[3.0], b=[4.0])
    for each in (network, other):
        each.set(uc.GradientClipByNorm(1.0), param_list=["a"])
        each.set(uc.GradientClipByNorm(2.0))
        each.set(None, param_list=["a"])
    other.set(None)
    assert apply(network) == {"a": [2.0], "b": [2.0]}
    assert apply(other) == {"a": [3.0], "b": [4.0]}


@APPLIED
@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("given", [Network.parameter, name_of], ids=["parameters", "names"])
@pytest.mark.usefixtures("static")
def test_a_parameters_own_clip_wins_whatever_the_order(
    apply: Callable[[Network], object], own_first: bool, given: Callable[[Network, str], object]
) -> None:
    network = Network(a=[3.0], b=[4.0], c=[5.0])
    calls = [
        lambda: network.set(uc.GradientClipByValue(0.5), param_list=[given(network, "b")]),
        lambda: network.set(uc.GradientClipByNorm(2.0)),
    ]
    for call in calls if own_first else reversed(calls):
        call()
    assert apply(network) == {"a": [2.0], "b": [0.5], "c": [2.0]}


@APPLIED
@pytest.mark.usefixtures("static")
def test_groups_are_by_name_and_threshold(apply: Callable[[Network], object]) -> None:
    network = Network(a=[3.0], b=[4.0], c=[5.0], d=[12.0], e=[8.0])
    network.set(uc.GradientClipByGlobalNorm(1.0, group_name="one"), param_list=["a"])
    network.set(uc.GradientClipByGlobalNorm(1.0, group_name="one"), param_list=("b",))
    network.set(uc.GradientClipByGlobalNorm(1.0, group_name="two"), param_list=["c", network.parameter("d")])
    network.set(uc.GradientClipByGlobalNorm(2.0, group_name="one"), param_list=["e"])
    expected = {"a": [0.6], "b": [0.8], "c": [round(5 / 13, 6)], "d": [round(12 / 13, 6)], "e": [2.0]}
    assert apply(network) == expected


@APPLIED
@pytest.mark.usefixtures("static")
def test_a_parameter_that_needs_no_clip_is_left_out(apply: Callable[[Network], object]) -> None:
    network = Network(left_out="a", a=[12.0], b=[3.0], c=[4.0])
    network.set(uc.GradientClipByGlobalNorm(1.0))
    assert apply(network) == {"a": [12.0], "b": [0.6], "c": [0.8]}


@pytest.mark.usefixtures("static")
def test_a_clone_starts_without_settings() -> None:
    network = Network(a=[3.0])
    network.set(uc.GradientClipByNorm(1.0))
    mapping = paddle.pir.IrMapping()
    program = network.program.clone(mapping)
    with paddle.static.program_guard(program, network.startup):
        pairs = paddle.static.append_backward(mapping.look_up(network.loss))
        assert uc.append_gradient_clip_ops(pairs)[0][1].is_same(pairs[0][1])


@pytest.mark.usefixtures("static")
def test_pairs_may_have_names_in_the_place_of_parameters() -> None:
    network = Network(a=[3.0], b=[4.0])
    network.set(uc.GradientClipByNorm(2.0))
    network.set(uc.GradientClipByNorm(1.0), param_list=["b"])
    with network.guard():
        pairs = [(p.name, gradient) for p, gradient in network.params_grads()]
        clipped = uc.append_gradient_clip_ops([*pairs, ("c", None)])
    assert clipped[2] == ("c", None)
    fetched = network.run([gradient for _, gradient in clipped[:2]])
    assert {name: array.item() for (name, _), array in zip(pairs, fetched, strict=True)} == {"a": 2.0, "b": 1.0}


@pytest.mark.usefixtures("static")
def test_settings_end_with_their_program() -> None:
    gc.collect()
    before = len(PROGRAMS)
    network = Network(a=[3.0])
    network.set(uc.GradientClipByNorm(1.0), param_list=[network.parameter("a")])
    network.set(uc.GradientClipByGlobalNorm(1.0))
    assert network.updates() == {"a": [1.0]}
    assert len(PROGRAMS) == before + 1
    del network
    gc.collect()
    assert len(PROGRAMS) == before


def test_static_and_dynamic_settings_are_apart() -> None:
    parameter = paddle.create_parameter([1], "float32")
    gradient = tensor([3.0])
    uc.set_gradient_clip(uc.GradientClipByValue(2.0))
    try:
        paddle.enable_static()
        network = Network(a=[3.0], b=[4.0])
        assert network.clipped() == {"a": [3.0], "b": [4.0]}
        network.set(uc.GradientClipByNorm(1.0))
    finally:
        paddle.disable_static()
        clipped = uc.append_gradient_clip_ops([(parameter, gradient)])
        uc.set_gradient_clip(None)
    assert clipped[0][1].tolist() == [2.0]
    uc.set_gradient_clip(uc.GradientClipByNorm(2.0), program=network.program)  # dynamic mode, and its program named
    uc.set_gradient_clip(uc.GradientClipByNorm(3.0), [network.parameter("b")], network.program)
    assert uc.append_gradient_clip_ops([(parameter, gradient)])[0][1] is gradient
    paddle.enable_static()
    try:
        assert network.clipped() == {"a": [2.0], "b": [3.0]}
    finally:
        paddle.disable_static()


# -- minimize


@pytest.mark.usefixtures("static")
def test_an_optimizers_own_clip_wins() -> None:
    network = Network(a=[3.0], b=[4.0])
    network.set(uc.GradientClipByNorm(1.0))
    network.set(uc.GradientClipByValue(0.5), param_list=["a"])
    assert network.updates(grad_clip=uc.GradientClipByNorm(2.0)) == {"a": [2.0], "b": [2.0]}


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Adam", "AdamW", "Lamb"])
@pytest.mark.usefixtures("static")
def test_every_static_optimizer_reads_what_is_set(name: str) -> None:
    def updates(network: Network, **options: object) -> object:
        if name not in ("SGD", "Momentum"):
            options["epsilon"] = 1.0
        return network.updates(getattr(paddle.optimizer, name), **options)

    network = Network(a=[3.0, 4.0], b=[12.0])
    network.set(uc.GradientClipByGlobalNorm(1.0))
    unclipped = updates(Network(a=[3.0, 4.0], b=[12.0]))
    expected = updates(Network(a=[3.0, 4.0], b=[12.0]), grad_clip=uc.GradientClipByGlobalNorm(1.0))
    assert updates(network) == expected != unclipped


@pytest.mark.usefixtures("static")
def test_weight_decay_is_added_after_the_clip() -> None:
    # As with grad_clip=. The parameters are 0, so only a regularizer that ignores them has an effect.
    class Ten(paddle.regularizer.L2Decay):
        def __call__(self, param: object, grad: object, block: object) -> object:
            return paddle.full_like(grad, 10.0)

    network = Network(a=[3.0])
    network.set(uc.GradientClipByNorm(1.0))
    assert network.updates(weight_decay=Ten()) == {"a": [11.0]}


@pytest.mark.usefixtures("static")
def test_apply_gradients_reads_what_is_set() -> None:
    network = Network(a=[3.0], b=[4.0])
    network.set(uc.GradientClipByGlobalNorm(1.0))
    with network.guard():
        optimizer = paddle.optimizer.SGD(1.0)
        optimizer.apply_gradients(optimizer.backward(network.loss))
    assert network.taken() == {"a": [0.6], "b": [0.8]}


@pytest.mark.usefixtures("static")
def test_minimize_returns_the_gradients_before_clipping_as_paddle_does() -> None:
    network = Network(a=[3.0])
    network.set(uc.GradientClipByNorm(1.0))
    with network.guard():
        _, ((parameter, gradient),) = paddle.optimizer.SGD(1.0).minimize(network.loss)
    assert parameter.name == "a"
    assert network.run([gradient])[0].tolist() == [3.0]


def test_optimizers_are_wrapped_once_and_by_static_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(classes, "_have_optimizers_apply_it", lambda: asked.append(1))
    uc.set_gradient_clip(uc.GradientClipByNorm(1.0))
    uc.set_gradient_clip(None)
    assert not asked
    program = paddle.static.Program()
    uc.set_gradient_clip(None, program=program)
    assert asked
    monkeypatch.undo()
    for _ in range(2):
        uc.set_gradient_clip(None, program=program)
    wrapped = paddle.optimizer.Optimizer.append_regularization_ops
    assert not hasattr(wrapped.__wrapped__, "__wrapped__")


def test_dynamic_optimizers_read_nothing_that_is_set() -> None:
    uc.set_gradient_clip(None, program=paddle.static.Program())  # makes optimizers apply clips
    uc.set_gradient_clip(uc.GradientClipByNorm(1.0), program=paddle.static.default_main_program())
    uc.set_gradient_clip(uc.GradientClipByNorm(1.0))
    try:
        parameter = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
        (parameter * tensor([3.0])).sum().backward()
        paddle.optimizer.SGD(1.0, parameters=[parameter]).step()
    finally:
        uc.set_gradient_clip(None)
        uc.set_gradient_clip(None, program=paddle.static.default_main_program())
    assert parameter.tolist() == [-3.0]


@pytest.mark.usefixtures("static")
def test_programs_of_the_old_ir_are_left_alone() -> None:
    uc.set_gradient_clip(None, program=paddle.static.Program())  # makes optimizers apply clips
    with paddle.pir_utils.OldIrGuard():
        program, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, startup):
            attr = paddle.ParamAttr(name="in_old_ir", initializer=paddle.nn.initializer.Constant(0.0))
            loss = paddle.scale(paddle.static.create_parameter([1], "float32", attr=attr), 3.0)
            paddle.optimizer.SGD(1.0).minimize(loss)
            with pytest.raises(TypeError, match="program is a Program of Paddle's old IR"):
                uc.set_gradient_clip(uc.GradientClipByNorm(1.0))
        executor = paddle.static.Executor()
        executor.run(startup)
        assert [executor.run(program, fetch_list=[loss])[0].item() for _ in range(2)] == [0.0, -9.0]


OLD_IR = """
import os
os.environ["FLAGS_enable_pir_api"] = "0"
import paddle
import unified_clip
import unified_clip.paddle as uc

paddle.enable_static()
weight = paddle.static.create_parameter([2], "float32", name="weight")
loss = paddle.mean(weight * weight)
sgd = paddle.optimizer.SGD(1.0, grad_clip=uc.GradientClipByGlobalNorm(1.0))
(parameter, gradient), = paddle.static.append_backward(loss)
for call in (
    lambda: uc.clip_by_norm(gradient, 1.0),
    lambda: uc.clip_by_value(gradient, -1.0, 1.0),
    lambda: uc.clip_by_global_norm([gradient], 1.0),
    lambda: unified_clip.global_norm({"weight": gradient}),
    lambda: uc.clip_grad_norm_([parameter], 1.0),
    lambda: uc.clip_by_norm(gradient, loss),
    lambda: uc.GradientClipByNorm(1.0)([(parameter, gradient)]),
    lambda: uc.ErrorClipByValue(1.0)(gradient),
    lambda: uc.append_gradient_clip_ops([(parameter, gradient)]),
    lambda: uc.set_gradient_clip(uc.GradientClipByNorm(1.0)),
    lambda: sgd.minimize(loss),
):
    try:
        call()
    except TypeError as error:
        print(error)
"""


def test_every_name_rejects_the_old_ir_and_says_which_flag_to_unset() -> None:
    errors = in_a_new_process(OLD_IR).splitlines()
    assert len(errors) == 11
    for error in errors:
        assert "of Paddle's old IR, which unified_clip does not support. Unset FLAGS_enable_pir_api" in error


# -- refusals


@pytest.mark.usefixtures("static")
def test_what_is_no_parameter_of_the_program_is_refused() -> None:
    network, other = Network(a=[3.0], b=[4.0]), Network(a=[3.0])
    clip = uc.GradientClipByNorm(1.0)
    refused = [
        (
            ValueError,
            "position 1 of param_list is 'nope', which is not a parameter .* Pass one of .'a', 'b'",
            ["a", "nope"],
        ),
        (ValueError, r"position 1 of param_list \(parameter 'a'\) belongs to another", ["b", other.parameter("a")]),
        (ValueError, "position 0 of param_list is a value that is not a parameter", [network.loss]),
        (TypeError, "position 1 of param_list is a Program", ["a", other.program]),
        (TypeError, "param_list is a Program of Paddle's old IR", ["a", paddle.base.framework.Program()]),
        (TypeError, "position 0 of param_list has the type float. Pass", [1.0]),
        (TypeError, "position 0 of param_list has the type str", iter(["a"])),
        (TypeError, "param_list is 'a'. Pass a list", "a"),
        (TypeError, "param_list is .*. Pass a list", network.parameter("a")),
        (TypeError, "param_list is .*. Pass a list", {"a": network.parameter("a")}),
    ]
    for error, message, param_list in refused:
        with pytest.raises(error, match=message):
            network.set(clip, param_list=param_list)
    with pytest.raises(TypeError, match="Pass GradientClipByValue"):
        network.set(1.0)
    assert network.clipped() == {"a": [3.0], "b": [4.0]}  # the rejected call set nothing


def test_eager_parameters_are_refused_in_static_mode() -> None:
    parameter = paddle.create_parameter([1], "float32")
    paddle.enable_static()
    try:
        with pytest.raises(TypeError, match=r"position 0 of param_list is an EagerParamBase\. Pass parameters of the"):
            uc.set_gradient_clip(uc.GradientClipByNorm(1.0), param_list=[parameter])
    finally:
        paddle.disable_static()


@pytest.mark.parametrize("static_mode", [True, False])
def test_what_is_no_program_is_refused(static_mode: bool) -> None:
    if static_mode:
        paddle.enable_static()
    try:
        for wrong in ("main", 3):
            with pytest.raises(TypeError, match=f"program= is an? {type(wrong).__name__}. Pass a paddle.static"):
                uc.set_gradient_clip(uc.GradientClipByNorm(1.0), program=wrong)
    finally:
        paddle.disable_static()


def test_static_parameters_in_dynamic_mode_need_their_program() -> None:
    paddle.enable_static()
    try:
        network = Network(a=[3.0])
        pairs = network.params_grads()
    finally:
        paddle.disable_static()
    with pytest.raises(ValueError, match="pass the static program as program="):
        uc.set_gradient_clip(uc.GradientClipByNorm(1.0), param_list=[network.parameter("a")])
    uc.set_gradient_clip(uc.GradientClipByNorm(1.0), program=network.program)
    with pytest.raises(ValueError, match="parameter 'a' does not belong to the program that is built"):
        uc.append_gradient_clip_ops(pairs)
    with pytest.raises(ValueError, match="only while that program is built"):
        uc.global_norm([pairs[0][1]])


@pytest.mark.usefixtures("static")
def test_values_of_a_program_that_is_not_being_built_are_refused() -> None:
    network, other = Network(a=[3.0]), Network(a=[3.0])
    pairs, others = network.params_grads(), other.params_grads()
    network.set(uc.GradientClipByNorm(1.0))
    assert uc.append_gradient_clip_ops(others)[0][1] is others[0][1]  # no clip is set for this parameter
    for given in (pairs, [(pairs[0][0], others[0][1])]):
        with (
            other.guard(),
            pytest.raises(ValueError, match="parameter 'a' does not belong to the program that is built"),
        ):
            uc.append_gradient_clip_ops(given)
    with network.guard(), pytest.raises(ValueError, match="only while that program is built"):
        uc.append_gradient_clip_ops([(pairs[0][0], others[0][1])])
    with pytest.raises(ValueError, match="only while that program is built"):
        uc.clip_by_norm(pairs[0][1], 1.0)
    assert network.clipped() == {"a": [1.0]}
