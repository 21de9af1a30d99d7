"""The public functions, written once over `Backend`; every namespace exports the bound methods of one `Functions`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

from .._core import containers, rule, validation
from .._core.backend import Backend
from .._core.collect import collect, collect_in_place, collect_one, from_tree
from .._core.distributed import declared
from .._core.entry import public
from .._core.rule import ClipRule
from .._core.types import Tensor

Resolver = Callable[[Any], tuple[Backend, Any]]
"""From an argument to the framework of its tensors, and the argument again (an iterator must be looked into)."""


def _known(backend: Backend, argument: Any) -> tuple[Backend, Any]:
    return backend, argument


class Functions:
    """PyTorch's and TensorFlow's names over one framework, or over whichever an argument belongs to."""

    def __init__(self, resolve: Resolver) -> None:
        self.resolve = resolve

    @classmethod
    def over(cls, backend: Backend) -> Self:
        """Return the functions of one framework."""
        return cls(functools.partial(_known, backend))

    # -- PyTorch's names

    @public
    def clip_grad_norm_(
        self,
        parameters: Any,
        max_norm: Any,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> Tensor:
        """Clip the gradients of `parameters` in place, by one norm over all of them.

        With n the norm, every gradient is multiplied by min(1, max_norm / (n + 1e-6)); where that is 1, nothing is
        written. Source: `torch.nn.utils.clip_grad_norm_`; Pascanu, Mikolov and Bengio, "On the difficulty of training
        recurrent neural networks", 2013.

        Args:
            parameters: PyTorch, Paddle: parameters, whose `.grad` is clipped. Elsewhere: the gradients; TensorFlow and
                JAX cannot write tensors, so the list or dict that holds them is updated. One tensor, or any iterable
                of tensors, None and (name, tensor) pairs, or a dict. A parameter whose attribute `need_clip` is false
                is left out.
            max_norm: The threshold, 0 or more, in the gradients' own unit. inf measures and writes nothing.
            norm_type: The order p of the norm: any p > 0, inf or 'inf'.
            error_if_nonfinite: Raise instead of clipping when the norm is NaN or infinite.
            foreach: Accepted for compatibility; it changes no result.
            process_group: The processes that hold the gradients together, all of which have to call: a process group of
                the framework, a device mesh, or None where all gradients are complete here. 'auto': as the tensors
                tell.
            ownership: Which process counts what the tensors do not tell about: 'replicated' (the others hold copies),
                'distinct' (they hold other parameters), or a function of a parameter: whether this process counts it.
            check_numel: Raise unless as many elements were counted as the gradients have (True), or as many as this.

        Returns:
            The norm before clipping, 0-d: float64 if any gradient is float64 or complex128, else float32. Correctly
            rounded for p of 1, 2 and inf.

        Raises:
            TypeError: A gradient is of integers or booleans, or something is no tensor.
            ValueError: max_norm is negative or NaN; norm_type is not above 0; memory overlaps or cannot be written.
            NonFiniteNormError: The norm is not finite, and error_if_nonfinite is set.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> grads = [np.array([3.0, 4.0], np.float32), np.array([1.0, 2.0], np.float32)]
            >>> uc.clip_grad_norm_(grads, max_norm=5.0)
            np.float32(5.477226)
            >>> grads[0]
            array([2.7386122, 3.6514828], dtype=float32)
        """
        backend, parameters = self.resolve(parameters)
        limit, p = (
            validation.threshold(backend, max_norm, "max_norm", differentiable=False),
            validation.norm_type(norm_type),
        )
        plain = isinstance(limit, float) and not error_if_nonfinite
        spec = declared(process_group, ownership, check_numel)
        gradients, writer = collect_in_place(
            backend, parameters, "clip_grad_norm_", "clip_by_global_norm", plain=plain, spec=spec, measures=True
        )
        norm = rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, limit, p=p), error_if_nonfinite)
        writer.finish()
        return norm

    @public
    def clip_grad_value_(self, parameters: Any, clip_value: Any, foreach: bool | None = None) -> None:
        """Clip every element of the gradients of `parameters` to [-clip_value, clip_value], in place.

        NaN stays NaN. Source: `torch.nn.utils.clip_grad_value_`.

        Args:
            parameters: As for `clip_grad_norm_`.
            clip_value: The greatest magnitude to keep, 0 or more; rounded to each gradient's dtype. inf: no change.
            foreach: Accepted for compatibility; it changes no result.

        Raises:
            TypeError: A gradient is complex, of integers or of booleans, or something is no tensor.
            ValueError: clip_value is negative or NaN; memory overlaps or cannot be written.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> grad = np.array([-3.0, 0.5, 2.0], np.float32)
            >>> uc.clip_grad_value_(grad, clip_value=1.1)
            >>> grad
            array([-1.1,  0.5,  1.1], dtype=float32)
        """
        backend, parameters = self.resolve(parameters)
        limit = validation.threshold(backend, clip_value, "clip_value", differentiable=False)
        plain = isinstance(limit, float)
        gradients, writer = collect_in_place(
            backend, parameters, "clip_grad_value_", "clip_by_value", plain=plain, reject_complex=True
        )
        rule.clip(gradients, ClipRule("value", bounds=(-limit, limit)))
        writer.finish()

    @public
    def get_total_norm(
        self,
        tensors: Any,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> Tensor:
        """Return the norm over all gradients in `tensors`; nothing is clipped. Source: `torch.nn.utils.get_total_norm`.

        Args:
            tensors: Gradients (not parameters): one tensor, or any container of tensors and None.
            norm_type: The order p of the norm: any p > 0, inf or 'inf'.
            error_if_nonfinite: Raise when the norm is NaN or infinite.
            foreach: Accepted for compatibility; it changes no result.
            process_group: As for `clip_grad_norm_`.
            ownership: As for `clip_grad_norm_`.
            check_numel: As for `clip_grad_norm_`.

        Returns:
            The norm, 0-d: float64 if any gradient is float64 or complex128, else float32.

        Raises:
            TypeError: A gradient is of integers or booleans, or something is no tensor.
            ValueError: norm_type is not above 0.
            NonFiniteNormError: The norm is not finite, and error_if_nonfinite is set.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.get_total_norm([np.array([3.0, 4.0]), None], norm_type=1)
            np.float64(7.0)
        """
        backend, tensors = self.resolve(tensors)
        p = validation.norm_type(norm_type)
        gradients, _ = collect(
            backend,
            tensors,
            "get_total_norm",
            plain=not error_if_nonfinite,
            spec=declared(process_group, ownership, check_numel),
        )
        return rule.total_norm(gradients, p, error_if_nonfinite)

    @public
    def clip_grads_with_norm_(
        self, parameters: Any, max_norm: Any, total_norm: Any, foreach: bool | None = None
    ) -> None:
        """Clip the gradients of `parameters` in place by a norm that was measured before.

        With the norm from `get_total_norm` of the same gradients, the result is that of `clip_grad_norm_`, bit for
        bit. Source: `torch.nn.utils.clip_grads_with_norm_`.

        Args:
            parameters: As for `clip_grad_norm_`.
            max_norm: The threshold, 0 or more. inf changes nothing.
            total_norm: The norm, a number or a one-element tensor.
            foreach: Accepted for compatibility; it changes no result.

        Raises:
            TypeError: A gradient is of integers or booleans, or something is no tensor.
            ValueError: max_norm or total_norm is negative, max_norm is NaN; memory overlaps or cannot be written.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> grad = np.array([3.0, 4.0])
            >>> uc.clip_grads_with_norm_(grad, max_norm=1.0, total_norm=10.0)
            >>> grad
            array([0.29999997, 0.39999996])
        """
        backend, parameters = self.resolve(parameters)
        limit = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
        given = validation.given_norm(backend, total_norm, "total_norm", differentiable=False)
        plain = isinstance(limit, float) and isinstance(given, float)
        gradients, writer = collect_in_place(
            backend, parameters, "clip_grads_with_norm_", "clip_by_global_norm", plain=plain
        )
        rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, limit, given_norm=given))
        writer.finish()

    # -- TensorFlow's names

    @public
    def clip_by_global_norm(
        self,
        t_list: Any,
        clip_norm: Any,
        use_norm: Any = None,
        name: str | None = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> tuple[Any, Tensor]:
        """Clip gradients by one norm over all of them; new tensors are returned.

        With n the norm, every gradient is multiplied by min(1, clip_norm / n). A norm that is NaN or infinite makes
        every element NaN. Source: `tf.clip_by_global_norm`; Pascanu, Mikolov and Bengio, 2013.

        Args:
            t_list: Gradients: one tensor, or any container of tensors and None.
            clip_norm: The threshold, 0 or more. inf measures and returns the values given.
            use_norm: A norm measured before, a number or a one-element tensor, to use in place of n.
            name: A name for the operations in a graph of TensorFlow; it changes no result.
            process_group: As for `clip_grad_norm_`.
            ownership: As for `clip_grad_norm_`.
            check_numel: As for `clip_grad_norm_`.

        Returns:
            The clipped gradients, and the norm (0-d). A flat list, tuple or iterator gives a list; a tensor gives a
            tensor; a dict, a named tuple or a nested container gives the same structure. None stays in its place.

        Raises:
            TypeError: A gradient is of integers or booleans, or something is no tensor.
            ValueError: clip_norm is negative or NaN, or use_norm is negative.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> clipped, norm = uc.clip_by_global_norm([np.array([3.0, 4.0]), None], clip_norm=1.0)
            >>> clipped
            [array([0.6, 0.8]), None]
            >>> norm
            np.float64(5.0)
        """
        backend, t_list = self.resolve(t_list)
        with backend.name_scope(name or "clip_by_global_norm"):
            limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
            given = (
                None if use_norm is None else validation.given_norm(backend, use_norm, "use_norm", differentiable=True)
            )
            plain = isinstance(limit, float) and isinstance(given, float | None)
            spec = declared(process_group, ownership, check_numel)
            gradients, writer = collect(
                backend, t_list, "clip_by_global_norm", plain=plain, spec=spec, measures=given is None
            )
            norm = rule.clip(gradients, ClipRule("global_norm", rule.TENSORFLOW_GLOBAL, limit, given_norm=given))
            return writer.result(), norm

    @public
    def clip_by_norm(
        self, t: Any, clip_norm: Any, axes: Any = None, name: str | None = None, *, process_group: Any = "auto"
    ) -> Tensor:
        """Clip one tensor by its own norm, or each of its slices by the slice's; a new tensor is returned.

        With n the 2-norm, the tensor is multiplied by min(1, clip_norm / n). Source: `tf.clip_by_norm`.

        Args:
            t: A tensor of any shape, dense or sparse.
            clip_norm: The threshold, 0 or more. inf returns the values given.
            axes: The axes that make up a slice: an int or a list of them, negative ones from the end. None: all.
                A sparse tensor is clipped as its dense form is, and stays sparse.
            name: A name for the operations in a graph of TensorFlow; it changes no result.
            process_group: As for `clip_grad_norm_`; the processes that hold parts of this tensor.

        Returns:
            A tensor of the shape and dtype of `t`.

        Raises:
            TypeError: t is of integers or booleans, or is no tensor.
            ValueError: clip_norm is negative or NaN; an axis is out of range or named twice.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.clip_by_norm(np.array([[3.0, 4.0], [0.3, 0.4]]), clip_norm=1.0, axes=1)
            array([[0.6, 0.8],
                   [0.3, 0.4]])
        """
        backend, t = self.resolve(t)
        with backend.name_scope(name or "clip_by_norm"):
            limit = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
            validation.one_tensor(backend, t, "clip_by_norm")
            plain = isinstance(limit, float) and axes is None
            gradients, writer = collect_one(backend, t, plain=plain, spec=declared(process_group))
            along = None
            if axes is not None and gradients.values:
                along = validation.axes(axes, gradients.shape(0))
            rule.clip(gradients, ClipRule("norm", rule.TENSORFLOW, limit, axes=along))
            return writer.result()

    @public
    def clip_by_value(self, t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Tensor:
        """Clip every element of one tensor to [clip_value_min, clip_value_max]; a new tensor is returned.

        NaN stays NaN, and an element equal to a bound is kept. Source: `tf.clip_by_value`.

        Args:
            t: A tensor of any shape, real or of integers.
            clip_value_min: The lower bound: a number, or a tensor that broadcasts to `t`; rounded to its dtype.
            clip_value_max: The upper bound, likewise.
            name: A name for the operations in a graph of TensorFlow; it changes no result.

        Returns:
            A tensor of the shape and dtype of `t`.

        Raises:
            TypeError: t is complex or of booleans, or is no tensor; a bound is no number, or not a whole one for
                integers.
            ValueError: A lower bound is above the upper one, or NaN, or has a shape that does not broadcast to t's.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.clip_by_value(np.array([-3.0, 0.5, 2.0]), -1.0, 1.0)
            array([-1. ,  0.5,  1. ])
        """
        backend, t = self.resolve(t)
        with backend.name_scope(name or "clip_by_value"):
            low = validation.bound(backend, clip_value_min, "clip_value_min")
            high = validation.bound(backend, clip_value_max, "clip_value_max")
            validation.one_tensor(backend, t, "clip_by_value")
            tree, integers = containers.flatten(backend, t), validation.INTEGER_RANGES
            gradients, writer = from_tree(
                backend, tree, differentiable=True, extra_dtypes=integers, reject_complex=True
            )
            if gradients.values:
                if gradients.is_sparse(0):
                    validation.sparse_bounds(low, high, gradients.leaves[0])
                low, high = validation.value_bounds(backend, low, high, gradients.values[0])
                rule.clip(gradients, ClipRule("value", bounds=(low, high)))
            return writer.result()

    @public
    def global_norm(
        self,
        t_list: Any,
        name: str | None = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> Tensor:
        """Return the 2-norm over all gradients in `t_list`. Source: `tf.linalg.global_norm`.

        Args:
            t_list: Gradients: one tensor, or any container of tensors and None.
            name: A name for the operations in a graph of TensorFlow; it changes no result.
            process_group: As for `clip_grad_norm_`.
            ownership: As for `clip_grad_norm_`.
            check_numel: As for `clip_grad_norm_`.

        Returns:
            The norm, 0-d: float64 if any gradient is float64 or complex128, else float32.

        Raises:
            TypeError: A gradient is of integers or booleans, or something is no tensor.

        Example:
            >>> import numpy as np
            >>> import unified_clip.numpy as uc
            >>> uc.global_norm([np.array([3.0]), np.array([[4.0]])])
            np.float64(5.0)
        """
        backend, t_list = self.resolve(t_list)
        with backend.name_scope(name or "global_norm"):
            spec = declared(process_group, ownership, check_numel)
            return rule.total_norm(collect(backend, t_list, "global_norm", spec=spec)[0], 2.0)
