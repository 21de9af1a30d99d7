"""The kit of each framework, for the contract's tests: create a tensor, read it, and put gradients into parameters."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support import reference
from support.tiers import is_at_least, why_no_graphs

FLOATING = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def in_a_new_process(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


class Surroundings:
    """Memory with a view of each second number, in another order of axes."""

    def __init__(self, array: np.ndarray) -> None:
        self.memory = np.full((*reversed(array.shape), 2), 7, array.dtype)
        self.memory[..., 0] = array.T

    def view(self) -> np.ndarray:
        return self.memory[..., 0].T

    def is_unchanged(self) -> bool:
        return bool((self.memory[..., 1] == 7).all())


class Kit:
    name = "numpy"
    writable = True
    writes_memory = True
    """Whether in-place names write into memory. If not, they give the tensor new memory. Only read where `writable`."""

    on_parameters = False
    floating: tuple[str, ...] = FLOATING
    complex: tuple[str, ...] = COMPLEX
    integers: tuple[str, ...] = INTEGERS
    keeps_subnormals_on_device = True
    reads_tensors = True
    """Whether the value of a tensor that is an argument can be checked, because no GPU has it."""

    has_sparse = False
    has_coo = False
    differentiates = False

    @property
    def no_second_derivative(self) -> str:
        """The framework's error if this release has no second derivative of an operation that each clip calls."""
        return ""

    keeps_empty_gradients = True
    """Whether a parameter can hold a gradient without elements."""

    @property
    def is_collected(self) -> bool:
        """Whether the compiled kernels can read lists of tensors of this release of the framework."""
        return not self.on_parameters or hasattr(type(self.tensor([1.0])), "__dlpack_c_exchange_api__")

    def lacks(self, native: str) -> bool:
        """Return whether this release of the framework lacks a function of its newest releases."""
        return False

    @property
    def namespace(self) -> ModuleType:
        return importlib.import_module(f"unified_clip.{self.name}")

    @property
    def exact(self) -> bool:
        return not os.environ.get("UNIFIED_CLIP_PATH") or self.name == "numpy"

    # -- tensors

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return self.from_array(reference.array(values, dtype).copy())

    def from_array(self, array: np.ndarray) -> Any:
        """A tensor with the values, shape and dtype (bfloat16 of ml_dtypes) of an array, which may be kept."""
        return array

    views = True
    """Whether `from_array` returns a tensor in the memory of the array, also if the array has gaps."""

    def placed(self, array: np.ndarray, has_gaps: bool) -> tuple[Any, Surroundings | None]:
        """Return a tensor with the values of an array, and the memory around it."""
        if not has_gaps or not self.views:
            return self.from_array(array.copy()), None
        around = Surroundings(array)
        return self.from_array(around.view()), around

    def array(self, tensor: Any) -> np.ndarray:
        return np.array(tensor)

    def bits(self, tensor: Any) -> bytes:
        return self.array(tensor).tobytes()

    def dtype(self, tensor: Any) -> str:
        return self.array(tensor).dtype.name

    # -- where gradients are kept for in-place names

    def in_place(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the argument of an in-place function: gradients or None, or parameters with these gradients."""
        return [None if gradient is None else self.holder(gradient) for gradient in gradients]

    def holder(self, gradient: Any) -> Any:
        return gradient

    def kept(self, holders: Sequence[Any]) -> list[Any]:
        """Return the current gradients in an argument of an in-place function."""
        return [None if holder is None else self.gradient(holder) for holder in holders]

    def gradient(self, holder: Any) -> Any:
        return holder

    def parameter(self, name: str = "weight") -> Any:
        """Return a parameter for (parameter, gradient) tuples. It supports weak references."""
        return np.zeros(2)

    # -- sparse gradients and derivatives, where the framework has them

    def sparse(self, rows: Sequence[int], values: Any, height: int, dtype: str = "float32") -> Any:
        """A sparse gradient of `height` rows, with `values[i]` added to row `rows[i]`."""
        raise AssertionError(f"{self.name} has no sparse gradients")

    def dense(self, sparse: Any) -> np.ndarray:
        raise AssertionError(f"{self.name} has no sparse gradients")

    def stored_rows(self, sparse: Any) -> list[int]:
        raise AssertionError(f"{self.name} has no sparse gradients")

    def coo(self, indices: np.ndarray, values: Any, shape: Sequence[int], dtype: str = "float32") -> Any:
        """A sparse gradient with `values[i]` added at `indices[:, i]` of the first axes. Only where `has_coo`."""
        raise AssertionError(f"{self.name} has no sparse gradients with several sparse axes")

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        """The derivative of the sum of function(tensor) at a tensor."""
        raise AssertionError(f"{self.name} does not differentiate")

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        """The derivative of that derivative's inner product with `along`."""
        raise AssertionError(f"{self.name} does not differentiate")


class TorchKit(Kit):
    name = "torch"
    on_parameters = True
    has_sparse = True
    has_coo = True
    differentiates = True

    def lacks(self, native: str) -> bool:
        import torch

        return native.startswith("torch.nn.utils.") and not hasattr(torch.nn.utils, native.rpartition(".")[2])

    def from_array(self, array: np.ndarray) -> Any:
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def array(self, tensor: Any) -> np.ndarray:
        import torch

        tensor = tensor.detach()
        if tensor.dtype == torch.bfloat16:
            return tensor.contiguous().view(torch.uint16).numpy().view(reference.NUMPY["bfloat16"]).copy()
        return tensor.numpy().copy()

    def holder(self, gradient: Any) -> Any:
        import torch

        parameter = torch.nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device))
        parameter.grad = gradient
        return parameter

    def gradient(self, holder: Any) -> Any:
        return holder.grad

    def parameter(self, name: str = "weight") -> Any:
        import torch

        return torch.nn.Parameter(self.tensor([0.0, 0.0]))

    def sparse(self, rows: Sequence[int], values: Any, height: int, dtype: str = "float32") -> Any:
        import torch

        stored = self.tensor(values, dtype)
        shape = (height, *stored.shape[1:])
        with torch.sparse.check_sparse_tensor_invariants():
            return torch.sparse_coo_tensor(self.tensor([list(rows)], "int64"), stored, shape)

    def dense(self, sparse: Any) -> np.ndarray:
        assert sparse.is_sparse
        return self.array(sparse.to_dense())

    def stored_rows(self, sparse: Any) -> list[int]:
        return sparse._indices()[0].tolist()

    def coo(self, indices: np.ndarray, values: Any, shape: Sequence[int], dtype: str = "float32") -> Any:
        import torch

        stored = self.tensor(values, dtype)
        return torch.sparse_coo_tensor(self.from_array(indices), stored, tuple(shape), check_invariants=True)

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        point = at.clone().requires_grad_(True)
        function(point).sum().backward()
        return self.array(point.grad)

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        import torch

        point = at.clone().requires_grad_(True)
        (first,) = torch.autograd.grad(function(point).sum(), point, create_graph=True)
        if not first.requires_grad:
            return np.zeros(tuple(at.shape))
        return self.array(torch.autograd.grad((first * along).sum(), point)[0])


class TorchCudaKit(TorchKit):
    views = False
    reads_tensors = False

    @property
    def exact(self) -> bool:
        return False

    def from_array(self, array: np.ndarray) -> Any:
        return super().from_array(array).cuda()

    def array(self, tensor: Any) -> np.ndarray:
        return super().array(tensor.cpu())


class TensorflowKit(Kit):
    views = False
    name = "tensorflow"
    writable = False
    keeps_subnormals_on_device = False
    has_sparse = True
    differentiates = True

    def __init__(self) -> None:
        from unified_clip._kit import workers

        workers.import_tensorflow()

    def from_array(self, array: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.constant(array)

    def array(self, tensor: Any) -> np.ndarray:
        return np.array(tensor.numpy())

    def parameter(self, name: str = "weight") -> Any:
        import tensorflow as tf

        return tf.Variable([0.0, 0.0], name=name)

    def sparse(self, rows: Sequence[int], values: Any, height: int, dtype: str = "float32") -> Any:
        import tensorflow as tf

        stored = self.tensor(values, dtype)
        return tf.IndexedSlices(stored, tf.constant(rows, tf.int64), tf.constant([height, *stored.shape[1:]]))

    def dense(self, sparse: Any) -> np.ndarray:
        import tensorflow as tf

        assert isinstance(sparse, tf.IndexedSlices)
        array = np.zeros(sparse.dense_shape.numpy(), self.dtype(sparse.values))
        np.add.at(array, sparse.indices.numpy(), self.array(sparse.values))
        return array

    def stored_rows(self, sparse: Any) -> list[int]:
        return sparse.indices.numpy().tolist()

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(at)
            total = tf.reduce_sum(function(at))
        return self.array(tape.gradient(total, at))

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        import tensorflow as tf

        with tf.GradientTape() as outer:
            outer.watch(at)
            with tf.GradientTape() as inner:
                inner.watch(at)
                total = tf.reduce_sum(function(at))
            inner_product = tf.reduce_sum(inner.gradient(total, at) * along)
        return self.array(outer.gradient(inner_product, at, unconnected_gradients="zero"))


class PaddleKit(Kit):
    views = False
    name = "paddle"
    on_parameters = True
    has_sparse = True
    has_coo = True
    differentiates = True

    @property
    def no_second_derivative(self) -> str:
        return "" if is_at_least("paddle", "3.0") else "The Op where_grad doesn't have any gradop"

    @property
    def keeps_empty_gradients(self) -> bool:
        return is_at_least("paddle", "3.0")  # Paddle 2 reads a gradient without elements as None

    def from_array(self, array: np.ndarray) -> Any:
        import paddle

        return paddle.to_tensor(array.view(np.uint16) if array.dtype.name == "bfloat16" else array)

    def array(self, tensor: Any) -> np.ndarray:
        array = np.array(tensor)  # a DenseTensor too, which a static program's scope holds
        return array.view(reference.NUMPY["bfloat16"]) if array.dtype == np.uint16 else array

    def holder(self, gradient: Any) -> Any:
        parameter = self.parameter()
        parameter.grad_ = gradient  # `grad =` copies
        if not self.keeps_empty_gradients and 0 in gradient.shape:
            parameter.empty_gradient = gradient
        return parameter

    def gradient(self, holder: Any) -> Any:
        return getattr(holder, "empty_gradient", holder.grad)

    def parameter(self, name: str = "weight") -> Any:
        import paddle

        return paddle.create_parameter([2], "float32")

    def sparse(self, rows: Sequence[int], values: Any, height: int, dtype: str = "float32") -> Any:
        """Return SelectedRows. Backward passes create them, too, but not of every dtype."""
        import paddle

        kinds = paddle.base.core.VarDesc.VarType
        stored = self.tensor(values, dtype)
        sparse = paddle.Tensor(kinds.FP32, [height, *stored.shape[1:]], "", kinds.SELECTED_ROWS, False)
        selected = sparse.get_selected_rows()
        selected.set_rows(list(rows))
        selected.set_height(height)
        selected.get_tensor()._share_data_with(stored.value().get_tensor())
        return sparse

    def dense(self, sparse: Any) -> np.ndarray:
        if not sparse.is_selected_rows():
            assert sparse.is_sparse_coo()
            array = np.zeros(sparse.shape, self.dtype(sparse.values()))
            np.add.at(array, tuple(sparse.indices().numpy()), self.array(sparse.values()))
            return array
        values = self.array(sparse.get_selected_rows().get_tensor())
        array = np.zeros((sparse.get_selected_rows().height(), *values.shape[1:]), values.dtype)
        np.add.at(array, sparse.rows(), values)
        return array

    def stored_rows(self, sparse: Any) -> list[int]:
        return sparse.rows()

    def coo(self, indices: np.ndarray, values: Any, shape: Sequence[int], dtype: str = "float32") -> Any:
        import paddle

        # sparse_coo_tensor rejects a tensor without elements
        return paddle._C_ops.sparse_sparse_coo_tensor(
            self.tensor(values, dtype), paddle.to_tensor(indices), list(shape)
        )

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        point = at.detach().clone()
        point.stop_gradient = False
        function(point).astype("float32").sum().backward()
        return self.array(point.grad)

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        import paddle

        point = at.detach().clone()
        point.stop_gradient = False
        (first,) = paddle.grad(function(point).sum(), point, create_graph=True)
        second = None if first.stop_gradient else paddle.grad((first * along).sum(), point, allow_unused=True)[0]
        return np.zeros(tuple(at.shape)) if second is None else self.array(second)


class JaxKit(Kit):
    views = False
    name = "jax"
    writable = False
    floating = ("float16", "bfloat16", "float32")
    complex = ("complex64",)
    integers = ("int8", "uint8", "int16", "int32")
    keeps_subnormals_on_device = False
    has_sparse = True
    has_coo = True
    differentiates = True

    def __init__(self) -> None:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"  # before JAX is imported
        sys.modules.update(dict.fromkeys(["matplotlib", "sklearn"]))  # Keras imports them, which takes long

    def from_array(self, array: np.ndarray) -> Any:
        import jax

        return jax.device_put(np.array(array))  # jnp.array compiles for each shape

    def sparse(self, rows: Sequence[int], values: Any, height: int, dtype: str = "float32") -> Any:
        from jax.experimental.sparse import BCOO

        stored = self.tensor(values, dtype)
        indices = np.array(rows, np.int32).reshape(-1, 1)
        return BCOO((stored, self.tensor(indices, "int32")), shape=(height, *stored.shape[1:]))

    def dense(self, sparse: Any) -> np.ndarray:
        array, rows = np.zeros(sparse.shape, sparse.dtype), np.asarray(sparse.indices)  # XLA flushes subnormals
        inside = (rows < sparse.shape[: rows.shape[1]]).all(axis=1)
        np.add.at(array, tuple(rows[inside].T), self.array(sparse.data)[inside])
        return array

    def stored_rows(self, sparse: Any) -> list[int]:
        return [row for row in np.asarray(sparse.indices)[:, 0].tolist() if row < sparse.shape[0]]

    def coo(self, indices: np.ndarray, values: Any, shape: Sequence[int], dtype: str = "float32") -> Any:
        from jax.experimental.sparse import BCOO

        columns = self.tensor(indices.T.astype(np.int32), "int32")
        return BCOO((self.tensor(values, dtype), columns), shape=tuple(shape))

    def parameter(self, name: str = "weight") -> Any:
        return self.tensor([0.0, 0.0])

    def _in_graph(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        """Where graphs are not supported, a clip in a graph raises an error that names x64. With x64, it works."""
        import jax

        from unified_clip._backends.jax.releases import enable_x64

        call = partial(jax.jit(function), at)
        if jax.config.jax_enable_x64 or not why_no_graphs("jax"):
            return self.array(call())
        with pytest.raises(RuntimeError, match=r"needs JAX 0\.7.*jax_enable_x64"):
            call()
        with enable_x64(True):
            return self.array(call())

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        import jax

        return self._in_graph(jax.grad(lambda x: function(x).sum()), at)

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        import jax

        first = jax.grad(lambda x: function(x).sum())
        return self._in_graph(jax.grad(lambda x: (first(x) * along).sum()), at)


class JaxX64Kit(JaxKit):
    floating = FLOATING
    complex = COMPLEX
    integers = INTEGERS

    def __init__(self) -> None:
        super().__init__()
        import jax

        jax.config.update("jax_enable_x64", True)


class JaxCudaKit(JaxKit):
    reads_tensors = False

    def __init__(self) -> None:
        super().__init__()
        import jax

        assert jax.default_backend() == "gpu", "JAX finds no GPU"

    @property
    def exact(self) -> bool:
        return False


class MlxKit(Kit):
    views = False
    name = "mlx"
    writes_memory = False
    complex = ("complex64",)
    differentiates = True

    def from_array(self, array: np.ndarray) -> Any:
        import mlx.core as mx

        return mx.array(array, getattr(mx, array.dtype.name, mx.bool_))

    def array(self, tensor: Any) -> np.ndarray:
        import mlx.core as mx

        if tensor.dtype == mx.bfloat16:
            return np.array(tensor.view(mx.uint16)).view(reference.NUMPY["bfloat16"])
        return np.array(tensor)

    def parameter(self, name: str = "weight") -> Any:
        return self.tensor([0.0, 0.0])

    def derivative(self, function: Callable[[Any], Any], at: Any) -> np.ndarray:
        import mlx.core as mx

        return self.array(mx.grad(lambda x: function(x).sum())(at))

    def second_derivative(self, function: Callable[[Any], Any], at: Any, along: Any) -> np.ndarray:
        import mlx.core as mx

        first = mx.grad(lambda x: function(x).sum())
        return self.array(mx.grad(lambda x: (first(x) * along).sum())(at))


KITS: dict[str, type[Kit]] = {
    "numpy": Kit,
    "tensorflow": TensorflowKit,
    "torch": TorchKit,
    "torch-cuda": TorchCudaKit,
    "paddle": PaddleKit,
    "jax": JaxKit,
    "jax-x64": JaxX64Kit,
    "jax-cuda": JaxCudaKit,
    "mlx": MlxKit,
}


def rejects_adaptive(kit: Kit) -> bool:
    """Return whether the tests run on MLX's device path, which rejects most adaptive thresholds."""
    return kit.name == "mlx" and not kit.exact
