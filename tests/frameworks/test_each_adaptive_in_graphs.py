"""Adaptive thresholds in compiled graphs: the bits of the recursion, and states without derivatives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import nightly, quick, where
from support.trainers.adaptive_cases import AGC, FITTING, Doubling, check_graph, check_unit_graph, rule_of

from unified_clip import adaptive

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in MODES)]

MODES = {
    "jax": ["jit"], "tensorflow": ["xla", "graph"], "torch": ["eager", "inductor"], "paddle": ["static program"],
}  # fmt: skip
every_mode = [
    where(lambda kit, mode: mode in MODES.get(kit.name, ())),
    pytest.mark.parametrize("mode", ["jit", "xla", "eager", "static program", *nightly("graph", "inductor")]),
]


def compiled(kit: Kit, mode: str, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a compiled form of a function of tensors. A static program is built for those of the first call."""
    framework: Any = importlib.import_module(kit.name)
    if mode == "jit":
        return framework.jit(function)
    if mode in ("graph", "xla"):
        return framework.function(function, autograph=False, jit_compile=mode == "xla")
    if mode != "static program":
        framework._dynamo.reset()
        return framework.compile(function, fullgraph=True, backend=mode)
    built: list[Any] = []

    def run(*values: Any) -> Any:
        arrays = {f"input_{index}": np.asarray(value) for index, value in enumerate(values)}
        framework.enable_static()
        try:
            if not built:
                main = framework.static.Program()
                with framework.static.program_guard(main):
                    data = [framework.static.data(name, a.shape, str(a.dtype)) for name, a in arrays.items()]
                    built.extend([framework.static.Executor(), main, function(*data)])
            executor, main, fetched = built
            return executor.run(main, feed=arrays, fetch_list=fetched)
        finally:
            framework.disable_static()

    return run


def make(kit: Kit, array: Any) -> Any:
    return np.asarray(array) if kit.name == "paddle" else kit.from_array(np.asarray(array))


def graph_of(kit: Kit, mode: str, rule: Any) -> Any:
    def clip(grad: Any, state: Any) -> Any:
        (result,), norm, state = adaptive.clip_by_global_norm([grad], rule, state)
        return [result, norm, state]

    return compiled(kit, mode, clip)


@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2]))
@every_mode[0]
@every_mode[1]
def test_a_graph_has_the_bits_of_the_recursion(kit: Kit, settings: dict[str, Any], mode: str) -> None:
    rule = rule_of(settings)
    check_graph(graph_of(kit, mode, rule), lambda array: make(kit, array), rule, settings)


@pytest.mark.nightly
@every_mode[0]
@every_mode[1]
def test_a_users_own_rule_has_the_bits_of_numpy(kit: Kit, mode: str) -> None:
    check_graph(graph_of(kit, mode, Doubling()), lambda array: make(kit, array), Doubling())


@every_mode[0]
@every_mode[1]
def test_thresholds_of_units_have_the_same_bits_in_a_graph(kit: Kit, mode: str) -> None:
    def clip(*inputs: Any) -> Any:
        return adaptive.clip_by_unit_norm(list(inputs[:2]), list(inputs[2:]), AGC)

    clip_units = compiled(kit, mode, clip)
    check_unit_graph(lambda grads, parameters: clip_units(*grads, *parameters), lambda array: make(kit, array))


@where(lambda kit: kit.name in ("jax", "tensorflow"))
def test_a_state_inside_a_graph_cannot_be_read(kit: Kit) -> None:
    rule = adaptive.ZClip()
    read = compiled(kit, "jit" if kit.name == "jax" else "graph", lambda state: adaptive.read_state(rule, state))
    with pytest.raises(TypeError, match=r"the state is inside a compiled graph, .* call read_state outside\."):
        read(adaptive.initial_state(rule, kit.tensor([0.0, 0.0])))


@where(lambda kit: kit.on_parameters)
@pytest.mark.parametrize("settings", FITTING[:3], ids=str)
def test_the_state_has_no_derivative_so_that_each_step_can_be_differentiated(kit: Kit, settings: Any) -> None:
    framework: Any = importlib.import_module(kit.name)
    weight = kit.tensor([3.0, 4.0])
    weight.stop_gradient, weight.requires_grad = False, True  # Paddle's and PyTorch's attribute
    rule = rule_of(settings)
    state = adaptive.initial_state(rule, [weight])
    for _ in range(3):
        derivative = framework.autograd.grad if kit.name == "torch" else framework.grad
        (grad,) = derivative((weight**3).sum(), weight, create_graph=True)
        (clipped,), _, state = adaptive.clip_by_global_norm([grad], rule, state)
        assert not state.requires_grad if kit.name == "torch" else state.stop_gradient
        clipped.sum().backward()  # through this step only


@where(lambda kit: kit.name == "torch")
def test_the_example_clips_bad_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import train_adaptive

    config = train_adaptive.CLIPS["zclip"]
    table = {**config.adaptive.data(), "warmup_steps": 4}
    steps = train_adaptive.train(config.model_copy(update={"adaptive": table}), 7, {5: 1000.0})
    assert steps[5].norm > 100
    assert 0 < steps[5].clipped < 1.5 * max(step.norm for step in steps[:5])
