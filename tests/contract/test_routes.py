"""The route that each kind of input takes: the truth table of `Backend.routes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.kits import Kit
from support.tiers import where

from unified_clip._core.backend import Inputs, first_route
from unified_clip._dispatch import backend_named


class Check:
    def __init__(self, kit: Kit) -> None:
        self.backend, self.seen = backend_named(kit.name), list[str]()

    def __call__(self, name: str, *tensors: Any, extra: Any = (), differentiable: bool = False) -> Any:
        """Compare the name of the route, and return the first tensor."""
        given = Inputs(tensors, extra, differentiable)
        assert first_route(self.backend, given, self.backend.routes).name == name
        self.seen.append(name)
        return tensors[0]


def on_torch(check: Check) -> None:
    import torch

    plain, recorded = torch.ones(2), torch.ones(2, requires_grad=True)
    check("host", plain, torch.ones(2, dtype=torch.complex64), torch.ones(0), differentiable=True)
    check("host", recorded, extra=[recorded])
    check("recorded", plain, recorded, differentiable=True)
    check("recorded", plain, extra=[recorded], differentiable=True)
    check("lists", torch.ones(2, device="meta"), plain, differentiable=True)
    check("single tensors", torch.ones(2, device="meta"), torch.ones(0, device="meta"))
    check("single tensors", torch.ones(2, dtype=torch.complex64, device="meta"))
    check("single tensors", (1j * torch.ones(2)).conj().imag)  # PyTorch negates it lazily
    check("single tensors", torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})))
    check("lists", torch._efficientzerotensor((2,)))
    torch.func.vmap(lambda row: check("recorded", row))(torch.ones(2, 2))
    with torch.no_grad():
        check("host", recorded, differentiable=True)


def on_jax(check: Check) -> None:
    import jax
    import jax.numpy as jnp

    check("host", jnp.ones(2), differentiable=True)
    jax.eval_shape(lambda array: check("device", array), jnp.ones(2))
    jax.eval_shape(lambda array: check("device", jnp.ones(2), extra=[array]), jnp.ones(2))
    jax.grad(lambda array: check("device", array, differentiable=True).sum())(jnp.ones(2))


def on_tensorflow(check: Check) -> None:
    import tensorflow as tf

    plain = tf.ones(2)
    check("host", plain, differentiable=True)
    check("host", tf.ones([0, 3]), tf.ones((), tf.bfloat16), differentiable=True)
    with tf.GradientTape() as tape:
        tape.watch(plain)
        check("host", plain)
        check("host", tf.zeros(2), differentiable=True)
        check("device", plain, differentiable=True)
        check("device", tf.zeros(2), extra=[plain])
        with tape.stop_recording():
            check("host", plain, differentiable=True)
    check("host", plain, differentiable=True)
    tf.function(lambda tensor: [check("device", tensor), check("device", plain)], autograph=False)(plain)
    with tf.Graph().as_default():
        check("device", tf.compat.v1.placeholder(tf.float32, [None]))


def on_paddle(check: Check) -> None:
    import paddle

    plain, recorded, cleared = paddle.ones([2]), paddle.ones([2]), paddle.ones([2])
    recorded.stop_gradient = False
    cleared._clear_data()
    check("device", type("Own", (paddle.Tensor,), {})(plain.numpy()))
    check("device", cleared)
    check("host", plain, differentiable=True)
    check("host", recorded)
    check("device", recorded, differentiable=True)
    check("device", plain, extra=[recorded], differentiable=True)


def on_mlx(check: Check) -> None:
    import mlx.core as mx

    check("host", mx.ones(2), differentiable=True)
    mx.compile(lambda array: check("device", array))(mx.ones(2))


def on_numpy(check: Check) -> None:
    import numpy as np

    check("host", np.ones(2), differentiable=True)


TABLE: dict[str, Callable[[Check], None]] = {
    "torch": on_torch, "jax": on_jax, "tensorflow": on_tensorflow, "paddle": on_paddle, "mlx": on_mlx,
    "numpy": on_numpy,
}  # fmt: skip


@where(lambda kit: kit.exact and kit.name != "numpy")
def test_the_setting_forces_another_route(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    backend = backend_named(kit.name)
    assert first_route(backend, Inputs([kit.tensor([1.0])], (), False), backend.routes).name != "host"


@where(lambda kit: kit.exact)
def test_each_kind_of_input_takes_its_route(kit: Kit) -> None:
    check = Check(kit)
    TABLE[kit.name](check)
    unseen = {route.name for route in check.backend.routes} - set(check.seen)
    assert unseen <= {"copies on the CPU", "host, on several devices"}  # of other devices: they have tests of their own
