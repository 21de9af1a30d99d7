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
from support.kits import in_a_new_process
from support.paddle_programs import BACKWARD_WARNS, tensor
from support.settings_cases import CASES, clip_of

import unified_clip.paddle as uc
from unified_clip._backends.paddle.classes import PROGRAMS

PAGE = Path(__file__).parent.parent.parent / "docs" / "paddle_static.md"

pytestmark = BACKWARD_WARNS


# -- Paddle 1.x's example


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


@pytest.mark.parametrize("given", [Network.parameter, lambda network, name: name], ids=["parameters", "names"])
@pytest.mark.parametrize("apply", [Network.clipped, Network.updates])
@pytest.mark.usefixtures("static")
def test_what_is_set_for_a_program_and_its_parameters(
    apply: Callable[..., object], given: Callable[..., object]
) -> None:
    for title, (gradients, settings, expected) in CASES.items():
        Network(a=[1.0]).set(uc.GradientClipByNorm(1.0))  # another program
        left_out = "c" if title == "one needs no clip" else ""
        network = Network(left_out=left_out, **{name: [value] for name, value in gradients.items()})
        for setting, names in settings:
            network.set(clip_of(uc, setting), param_list=names and [given(network, name) for name in names])
        assert apply(network) == {name: [number] for name, number in zip(gradients, expected, strict=True)}, title


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
    lambda: unified_clip.global_norm({"weight": gradient}),
    lambda: uc.clip_grad_norm_([parameter], 1.0),
    lambda: uc.GradientClipByNorm(1.0)([(parameter, gradient)]),
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
    assert len(errors) == 7
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
