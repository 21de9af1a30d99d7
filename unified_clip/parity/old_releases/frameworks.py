"""The clip functions of old releases of PyTorch, TensorFlow and Paddle."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Result = tuple[Any, Sequence[Any] | None]
    """(norm, clipped tensors). None stands for a part that a function does not return."""

CONTAINERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda items: (item for item in items),
    "dict": lambda items: {f"gradient {index}": item for index, item in enumerate(items)},
    "dict values": lambda items: dict(enumerate(items)).values(),
    "named": lambda items: [(f"gradient {index}", item) for index, item in enumerate(items)],
    "nested": lambda items: {"first": [items[0]], "rest": [list(items[1:])]},
    "tensor": lambda items: items[0],
}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        value = [value[1]]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


class NotAvailableError(Exception):
    """An old release cannot do what a case needs."""


class Stored(NamedTuple):
    """A tensor as in the files that `parity` exchanges with its workers. A bfloat16 array has uint16 elements."""

    dtype: str
    array: Any
    rows: Any = None
    """For a sparse tensor: the row of each item of `array`."""

    shape: Sequence[int] = ()
    """For a sparse tensor: the shape of the dense tensor."""


def stored(array: Any) -> Stored:
    name = array.dtype.name
    return Stored(name, array.view(np.uint16) if name == "bfloat16" else array)


class Call:
    """The call of one case, with the tensors and parameters of a framework."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.rule: Mapping[str, Any] = case["rule"]
        self.form: Mapping[str, Any] = case["call_form"]
        self.arguments: Mapping[str, Any] = case["arguments"]
        self.is_strict = bool(self.arguments.get("error_if_nonfinite"))
        self.p = self.arguments.get("norm_type", 2)
        self.tensors: list[Any] = []
        self.parameters: list[Any] = []
        self.name = ""
        """The function that was called. If the framework has no such function, the text is empty."""

    def in_order(self, items: Sequence[Any]) -> list[Any]:
        listed = self.form["listed"]
        return [items[index] for index in listed] if listed else list(items)

    def contain(self, items: Sequence[Any]) -> Any:
        return CONTAINERS[self.form["container"]](self.in_order(items))


class Release(ABC):
    package = family = ""
    lacks: Sequence[str] = ()
    """The dtypes of which no tensors exist."""

    def __init__(self, module: Any, *, graph: bool) -> None:
        self.module, self.graph = module, graph
        self.feed: dict[Any, Any] = {}
        """The values of the inputs of a graph."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Return a context manager for one case."""
        if self.graph:
            raise NotAvailableError("graphs")
        yield

    @abstractmethod
    def make(self, tensor: Stored) -> Any: ...

    @abstractmethod
    def read(self, tensor: Any) -> Stored: ...

    def evaluated(self, tensors: list[Any]) -> list[Any]:
        return tensors

    def parameters(self, call: Call) -> list[Any]:
        return list(call.tensors)

    def in_place(self, call: Call, function: Callable[..., Any], *arguments: Any, **named: Any) -> Result:
        container = call.contain(call.tensors)
        return function(container, *arguments, **named), list(leaves(container))

    @abstractmethod
    def measure(self, call: Call) -> Result | None: ...

    @abstractmethod
    def clip(self, call: Call) -> Result | None: ...

    def native(self, call: Call) -> Result | None:
        """Call the framework's own function. Return None if the framework has no such function."""
        style = call.rule["style"]
        if style == "measure":
            return self.measure(call)
        is_other = call.rule["family"] != self.family or style in ("hook", "class in place", "units")
        return None if is_other else self.clip(call)

    def own(self, call: Call, function: Callable[..., Any], returns: str) -> Result:
        """Call a function of the user. `docs/own-functions.md` explains what it returns."""
        style, named = call.rule["style"], dict(call.arguments)
        required = [named.pop(name) for name in call.rule["required"]]
        if style == "in place" and returns != "gradients":
            return self.in_place(call, function, *required, **named)
        if style == "each":
            return None, [each if each is None else function(each, *required, **named) for each in call.tensors]
        returned = function(call.contain(call.tensors), *required, **named)
        if style == "measure":
            return returned, None
        clipped, norm = (returned, None) if returns == "gradients" else returned
        return norm, list(leaves(clipped))


class Torch(Release):
    package = family = "torch"

    def make(self, tensor: Stored) -> Any:
        torch = self.module
        if tensor.rows is not None:
            rows = torch.from_numpy(tensor.rows.reshape(1, -1))
            return torch.sparse_coo_tensor(rows, self.make(Stored(*tensor[:2])), tuple(tensor.shape))
        if tensor.dtype == "bfloat16":
            return torch.from_numpy(tensor.array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(tensor.array)

    def read(self, tensor: Any) -> Stored:
        torch = self.module
        tensor = torch.as_tensor(tensor).detach()
        if tensor.is_sparse:
            rows, values = tensor._indices()[0], self.read(tensor._values())
            return Stored(*values[:2], rows.numpy(), tensor.shape)
        if tensor.dtype == torch.bfloat16:
            return Stored("bfloat16", tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
        return stored(tensor.numpy())

    def parameters(self, call: Call) -> list[Any]:
        torch, parameters = self.module, []
        for tensor in call.tensors:
            zeros = torch.zeros(1) if tensor is None else torch.zeros(tensor.shape, dtype=tensor.dtype)
            parameters.append(torch.nn.Parameter(zeros, zeros.is_floating_point() or zeros.is_complex()))
            parameters[-1].grad = tensor
        return parameters

    def in_place(self, call: Call, function: Callable[..., Any], *arguments: Any, **named: Any) -> Result:
        items = call.tensors if call.form["gradients_for_parameters"] else call.parameters
        norm = function(call.contain(items), *arguments, **named)
        return norm, [parameter.grad for parameter in call.parameters]

    def measure(self, call: Call) -> Result:
        tensors = call.contain(call.tensors)
        if isinstance(tensors, (list, tuple)):
            tensors = [tensor for tensor in tensors if tensor is not None]
        return self._function(call, "get_total_norm")(tensors, call.p, call.is_strict), None

    def clip(self, call: Call) -> Result:
        if call.rule["by_value"]:
            return self.in_place(call, self._function(call, "clip_grad_value_"), call.rule["bounds"][1])
        threshold, norm = call.rule["threshold"], call.rule["norm"]
        if norm is not None:
            return self.in_place(
                call, self._function(call, "clip_grads_with_norm_"), threshold, self.module.tensor(norm)
            )
        function = self._function(call, "clip_grad_norm_")
        if call.is_strict and "error_if_nonfinite" not in inspect.signature(function).parameters:
            raise NotAvailableError("error_if_nonfinite")
        return self.in_place(call, function, threshold, call.p, *([True] if call.is_strict else []))

    def _function(self, call: Call, name: str) -> Any:
        call.name = f"torch.nn.utils.{name}"
        if not hasattr(self.module.nn.utils, name):
            raise NotAvailableError(call.name)
        return getattr(self.module.nn.utils, name)


class TensorFlow(Release):
    package = family = "tensorflow"

    def __init__(self, module: Any, *, graph: bool) -> None:
        super().__init__(module, graph=graph)
        self._session: Any = None
        if not graph:
            module.compat.v1.enable_eager_execution()

    @contextmanager
    def scope(self) -> Iterator[None]:
        if not self.graph:
            yield
            return
        with self.module.Graph().as_default(), self.module.compat.v1.Session() as self._session:
            yield

    def make(self, tensor: Stored) -> Any:
        tf = self.module
        array = tensor.array.view(tf.bfloat16.as_numpy_dtype) if tensor.dtype == "bfloat16" else tensor.array
        made = tf.compat.v1.placeholder(array.dtype, array.shape) if self.graph else tf.constant(array)
        if self.graph:
            self.feed[made] = array
        if tensor.rows is None:
            return made
        return tf.IndexedSlices(made, tf.constant(tensor.rows), tf.constant(tensor.shape, tf.int64))

    def evaluated(self, tensors: list[Any]) -> list[Any]:
        return list(self._session.run(tensors, self.feed)) if self.graph else tensors

    def read(self, tensor: Any) -> Stored:
        if hasattr(tensor, "indices"):
            values = self.read(tensor.values)
            return Stored(*values[:2], np.asarray(tensor.indices), [*np.asarray(tensor.dense_shape)])
        return stored(tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor))

    def measure(self, call: Call) -> Result | None:
        if call.p != 2 or call.is_strict:
            return None
        call.name = "tf.linalg.global_norm"
        return self.module.linalg.global_norm(call.contain(call.tensors)), None

    def clip(self, call: Call) -> Result:
        tf = self.module
        if call.rule["by_value"]:
            call.name, (low, high) = "tf.clip_by_value", call.rule["bounds"]
            return None, [t if t is None else tf.clip_by_value(t, low, high) for t in call.tensors]
        threshold, norm = call.rule["threshold"], call.rule["norm"]
        if not call.rule["by_total_norm"]:
            call.name, axes = "tf.clip_by_norm", call.arguments.get("axes")
            return None, [t if t is None else tf.clip_by_norm(t, threshold, axes) for t in call.tensors]
        call.name = "tf.clip_by_global_norm"
        passed = None if norm is None else tf.constant(norm)
        clipped, measured = tf.clip_by_global_norm(call.contain(call.tensors), threshold, passed)
        return (measured if norm is None else None), list(leaves(clipped))


class Fluid(Release):
    """Paddle 1."""

    package = family = "paddle"
    lacks = ("bfloat16", "complex64", "complex128")

    def __init__(self, module: Any, *, graph: bool) -> None:
        super().__init__(module, graph=graph)
        if not module.__version__.startswith("1."):
            raise ImportError(f"Paddle {module.__version__} is not supported. Install Paddle 1.8, or 2.6 or newer")
        self.fluid = importlib.import_module("paddle.fluid")
        self._program: Any = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        fluid = self.fluid
        self._program, place = fluid.Program(), fluid.CPUPlace()
        with fluid.program_guard(self._program) if self.graph else fluid.dygraph.guard(place):
            yield

    def make(self, tensor: Stored) -> Any:
        fluid, array = self.fluid, tensor.array
        if self.graph and tensor.rows is not None:
            raise NotAvailableError("sparse gradients in static programs")
        if self.graph:
            name = f"gradient_{len(self.feed)}"
            self.feed[name] = array
            return fluid.data(name, array.shape, tensor.dtype)
        if tensor.rows is None:
            return fluid.dygraph.to_variable(array)
        # only a backward pass makes sparse gradients
        embedding = fluid.dygraph.Embedding(list(tensor.shape), is_sparse=True, dtype=tensor.dtype)
        found = embedding(fluid.dygraph.to_variable(tensor.rows.reshape(-1, 1)))
        factors = fluid.dygraph.to_variable(array.reshape(found.shape))
        fluid.layers.reduce_sum(found * factors).backward()
        return embedding.weight._grad_ivar()

    def evaluated(self, tensors: list[Any]) -> list[Any]:
        if not self.graph:
            return tensors
        return list(self.fluid.Executor(self.fluid.CPUPlace()).run(self._program, self.feed, tensors))

    def read(self, tensor: Any) -> Stored:
        if self.graph:
            return stored(np.asarray(tensor))
        if tensor.type != self.fluid.core.VarDesc.VarType.SELECTED_ROWS:
            return stored(tensor.numpy())
        rows = tensor.value().get_selected_rows()
        values = np.array(rows.get_tensor())
        return Stored(*stored(values)[:2], np.array(rows.rows(), np.int64), (rows.height(), *values.shape[1:]))

    def parameters(self, call: Call) -> list[Any]:
        return [self.fluid.layers.create_parameter([1], "float32") for _ in call.tensors]

    def measure(self, call: Call) -> Result:
        raise NotAvailableError("a function that returns the norm")

    def clip(self, call: Call) -> Result:
        clips, pairs = self.fluid.clip, call.in_order(list(zip(call.parameters, call.tensors)))
        if call.rule["style"] == "settings":
            return None, self._by_settings(call, pairs)
        kind, arguments = clips.GradientClipByNorm, [call.rule.get("threshold")]
        if call.rule["by_value"]:
            kind, arguments = clips.GradientClipByValue, call.rule["bounds"][::-1]
        elif call.rule["by_total_norm"]:
            kind = clips.GradientClipByGlobalNorm
        call.name = f"{kind.__module__}.{kind.__name__}"
        needed = {parameter.name: flag for parameter, flag in zip(call.parameters, call.form["need_clip"])}
        named = {"need_clip": lambda parameter: needed[parameter.name]} if needed else {}
        return None, [gradient for _, gradient in kind(*arguments, **named)(pairs)]

    def _by_settings(self, call: Call, pairs: Sequence[Any]) -> list[Any]:
        if not self.graph:
            raise NotAvailableError("set_gradient_clip outside static programs")
        clips, groups = self.fluid.clip, call.form["groups"]
        call.name = f"{clips.__name__}.append_gradient_clip_ops"
        for group in sorted(set(groups)) or ["default_group"]:
            clip = clips.GradientClipByGlobalNorm(call.rule["threshold"], group_name=group)
            members = [parameter for parameter, name in zip(call.parameters, groups) if name == group]
            clips.set_gradient_clip(clip, param_list=members or None)
        return [gradient for _, gradient in clips.append_gradient_clip_ops(pairs)]


RELEASES = {"torch": Torch, "tensorflow": TensorFlow, "paddle": Fluid}
