"""The optimizers of PyTorch, Keras, Paddle and optax, each with a clip, by the same few functions."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from support import clip_cases

from unified_clip import ClipConfig

SHAPES = dict(sorted(clip_cases.SHAPES.items()))
"""In the order of JAX."""

Arrays = dict[str, np.ndarray]
Gradients = Mapping[str, Any]


class Training(ABC):
    """Weights of 0, an optimizer that subtracts the gradients, or a `stateful` one, and its clip.

    clip: The handle. It has `last`, `step`, `rate`, `state_dict` and `load_state_dict`.
    """

    WAYS: tuple[str, ...] = ("eager",)
    PARAMETER: str
    """What the errors call a parameter of another framework."""

    clip: Any
    optimizer: Any
    named: dict[str, Any]

    @abstractmethod
    def __init__(
        self, config: ClipConfig, way: str = "eager", *, names: Any = "own", stateful: bool = False
    ) -> None: ...

    @abstractmethod
    def step(self, grads: Gradients) -> Arrays:
        """Set all weights to 0, make a step, and return what it subtracted. A gradient may be None, or missing."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state of the optimizer, without that of the clip, and {"weights": the weights}."""

    @abstractmethod
    def save(self) -> Any:
        """Return a checkpoint of the optimizer, for `load`."""

    @abstractmethod
    def load(self, saved: Any) -> None: ...

    def load_state(self, state: Any) -> None:
        """Continue from the state of a clip in another framework."""
        self.clip.load_state_dict(state)


class PyTorch(Training):
    PARAMETER = "PyTorch"

    def __init__(self, config: ClipConfig, way: str = "eager", *, names: Any = "own", stateful: bool = False) -> None:
        import torch

        self.torch = torch
        self.named = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
        self.optimizer = torch.optim.SGD(self.named.values(), lr=1.0, momentum=0.9 * stateful)
        self.clip = config.attach_to(self.optimizer, self.named if names == "own" else names)

    def step(self, grads: Gradients) -> Arrays:
        for name, parameter in self.named.items():
            parameter.data.zero_()
            parameter.grad = None if grads.get(name) is None else self.torch.tensor(grads[name])
        self.optimizer.step()
        return {name: -parameter.detach().numpy().copy() for name, parameter in self.named.items()}

    def state(self) -> dict[str, Any]:
        buffers = {id(key): value for key, value in self.optimizer.state.items()}
        state = {name: buffers.get(id(parameter), {}) for name, parameter in self.named.items()}
        numbers = {name: each["momentum_buffer"].numpy().copy() for name, each in state.items() if each}
        return {"weights": {name: each.detach().numpy().copy() for name, each in self.named.items()}, **numbers}

    def save(self) -> Any:
        return self.optimizer.state_dict()

    def load(self, saved: Any) -> None:
        self.optimizer.load_state_dict(saved)


class Keras(Training):
    BACKEND = os.environ.get("KERAS_BACKEND", "")
    WAYS = {"torch": ("eager",), "jax": ("eager", "compiled")}.get(BACKEND, ("eager", "graph", "compiled"))
    PARAMETER = "Keras"

    def __init__(self, config: ClipConfig, way: str = "eager", *, names: Any = "own", stateful: bool = False) -> None:
        import keras

        self.keras = keras
        self.named = {name: keras.Variable(np.zeros(shape, "float32"), name=name) for name, shape in SHAPES.items()}
        adam = {"learning_rate": 0.1, "weight_decay": 0.1, "use_ema": True}
        self.optimizer = keras.optimizers.AdamW(**adam) if stateful else keras.optimizers.SGD(1.0)
        self.optimizer.build(list(self.named.values()))
        self.clip = config.attach_to(self.optimizer, self.named if names == "own" else names)
        self.apply = keras_apply(self.optimizer, self.named, way)

    def step(self, grads: Gradients) -> Arrays:
        for variable in self.named.values():
            variable.assign(np.zeros(variable.shape, "float32"))
        self.apply(grads)
        return {name: -np.array(variable) for name, variable in self.named.items()}

    def state(self) -> dict[str, Any]:
        own = ("iteration", "clip_")  # counts, and what the clip reports
        variables = [each for each in self.optimizer.variables if not each.name.startswith(own)]
        weights = {name: np.array(variable) for name, variable in self.named.items()}
        return {"weights": weights, **{each.path: np.array(each) for each in variables}}

    def save(self) -> Any:
        saved: dict[str, Any] = {}
        self.optimizer.save_own_variables(saved)
        return saved

    def load(self, saved: Any) -> None:
        self.optimizer.load_own_variables(saved)

    def load_state(self, state: Any) -> None:
        self.clip.load_state_dict(state)
        self.optimizer.iterations.assign(state["step"])  # Keras itself counts the steps


def keras_apply(optimizer: Any, named: dict[str, Any], way: str = "eager") -> Any:
    """Return a function that applies gradients eagerly, in a graph, or in a graph that XLA compiles."""
    import keras

    variables = list(named.values())

    def tensors(grads: Gradients) -> list[Any]:
        arrays = [grads.get(name) for name in named]
        return [None if array is None else keras.ops.convert_to_tensor(array) for array in arrays]

    if way == "eager" or keras.backend.backend() == "torch":
        return lambda grads: optimizer.apply(tensors(grads), variables)
    optimizer.build(variables)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        function = tf.function(lambda *grads: optimizer.apply(list(grads), variables), jit_compile=way == "compiled")
        return lambda grads: function(*tensors(grads))
    import jax

    compiled = jax.jit(optimizer.stateless_apply)

    def apply(grads: Gradients) -> None:
        before = [[each.value for each in every] for every in (optimizer.variables, variables)]
        weights, state = compiled(before[0], tensors(grads), before[1])
        for variable, value in zip([*variables, *optimizer.variables], [*weights, *state], strict=True):
            variable.assign(value)

    return apply


class Paddle(Training):
    PARAMETER = "Paddle"

    def __init__(self, config: ClipConfig, way: str = "eager", *, names: Any = "own", stateful: bool = False) -> None:
        import paddle

        self.paddle, zero = paddle, paddle.nn.initializer.Constant(0.0)
        self.named = {
            name: paddle.create_parameter(list(shape), "float32", default_initializer=zero)
            for name, shape in SHAPES.items()
        }
        self.clip = config.as_paddle(self.named if names == "own" else names)
        options = {"parameters": list(self.named.values()), "grad_clip": self.clip}
        kind = paddle.optimizer.Momentum if stateful else paddle.optimizer.SGD
        self.optimizer = kind(1.0, **options)

    def step(self, grads: Gradients) -> Arrays:
        for name, parameter in self.named.items():
            parameter.set_value(np.zeros(parameter.shape, "float32"))
            parameter.clear_gradient(False)
            if grads.get(name) is not None:
                (parameter * self.paddle.to_tensor(grads[name])).sum().backward()
                parameter.grad.set_value(grads[name])
        self.optimizer.step()
        return {name: -parameter.numpy() for name, parameter in self.named.items()}

    def state(self) -> dict[str, Any]:
        own = {name: value.numpy() for name, value in self.optimizer.state_dict().items() if hasattr(value, "numpy")}
        return {"weights": {name: parameter.numpy() for name, parameter in self.named.items()}, **own}

    def save(self) -> Any:
        return pickle.dumps(self.clip.state_dict())  # an optimizer of Paddle does not save its clip

    def load(self, saved: Any) -> None:
        self.clip.load_state_dict(pickle.loads(saved))


class Optax(Training):
    WAYS = ("eager", "compiled")
    PARAMETER = ""

    def __init__(self, config: ClipConfig, way: str = "eager", *, names: Any = "own", stateful: bool = False) -> None:
        import jax
        import optax

        self.jax, self.config = jax, config
        self.params = self.tree({name: np.zeros(shape, "float32") for name, shape in SHAPES.items()})
        self.optimizer = config.as_optax(optax.adamw(0.1) if stateful else optax.sgd(1.0))
        self.kept = self.optimizer.init(self.params)
        self.update = jax.jit(self.optimizer.update) if way == "compiled" else self.optimizer.update
        self.clip = OptaxHandle(self)

    def tree(self, grads: Gradients) -> dict[str, Any]:
        """Return gradients as Flax has them: by layers."""
        tree: dict[str, Any] = {}
        for name in SHAPES:
            layer, leaf = name.split(".")
            array = grads.get(name)
            tree.setdefault(layer, {})[leaf] = None if array is None else self.jax.numpy.asarray(array)
        return tree

    def step(self, grads: Gradients) -> Arrays:
        updates, self.kept = self.update(self.tree(grads), self.kept, self.params)
        leaves = [(name, updates[name.split(".")[0]][name.split(".")[1]]) for name in SHAPES]
        return {name: np.zeros(SHAPES[name]) if each is None else -np.asarray(each) for name, each in leaves}

    def state(self) -> dict[str, Any]:
        return {str(index): np.array(each) for index, each in enumerate(self.jax.tree.leaves(self.kept.inner))}

    def save(self) -> Any:
        return pickle.dumps([np.asarray(leaf) for leaf in self.jax.tree.leaves(self.kept)])

    def load(self, saved: Any) -> None:
        leaves = map(self.jax.numpy.asarray, pickle.loads(saved))
        self.kept = self.jax.tree.unflatten(self.jax.tree.structure(self.kept), leaves)


class OptaxHandle:
    """The functions of `optax_transforms`, as a handle of other libraries has them."""

    def __init__(self, training: Optax) -> None:
        from unified_clip.integrations import optax_transforms

        self._training, self._functions = training, optax_transforms

    @property
    def last(self) -> Any:
        return self._functions.last(self._training.kept)

    @property
    def rate(self) -> float | None:
        return self._functions.rate(self._training.kept)

    @property
    def step(self) -> int:
        return int(self._training.kept.step)

    def state_dict(self) -> dict[str, Any]:
        return self._functions.state_dict(self._training.config, self._training.kept)

    def load_state_dict(self, state: Any) -> None:
        self._training.kept = self._functions.load_state_dict(self._training.config, self._training.kept, state)


LIBRARIES: dict[str, type[Training]] = {"PyTorch": PyTorch, "Keras": Keras, "Paddle": Paddle, "optax": Optax}
OF = {"torch": ("PyTorch", "Keras"), "tensorflow": ("Keras",), "jax": ("optax", "Keras"), "paddle": ("Paddle",)}
"""The libraries of each framework, or backend of Keras."""
