"""`unified_clip.ClipConfig`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError

from .._core import classes
from .._core.ops import Tensor
from .._core.shards import Across
from . import documents, loading
from .clipper import Clipper, Reporting
from .documents import Document
from .schema import Settings
from .validation import first_error


class ClipConfig(Reporting, Settings):
    """How gradients are clipped: read from a file, or built here; it works on every framework.

    Args:
        rule: "none" (only measure), "value" (each element), "norm" (each tensor by its own norm) or "global_norm" (all
            by one norm).
        threshold: The largest norm, or, for "value", the largest magnitude: 0 or more, in the gradients' own unit; inf
            only measures. Or a table with a schedule.
        min, max: Bounds for "value", in the place of a threshold.
        norm_type: The order p of the norm: any p > 0, or inf. Default: 2.
        family: Whose rule it is where they differ: "pytorch" (the default; eps is 1e-6), "tensorflow" (a global norm
            that is not finite makes everything NaN) or "paddle".
        eps: Added to the norm. Default: the family's.
        nonfinite: When the total norm is NaN or infinite: "family" (as the family has it), "raise", "skip" (the
            gradients are taken away, so that the optimizer makes no step) or "zero".
        include, exclude: Patterns of names of parameters ("*.bias"): what is not included, or excluded, is neither
            counted nor clipped.
        groups: Tables of parameters with a rule of their own: a name, patterns, and what differs.

    Raises:
        ConfigError: Something in it is wrong; the message says what, where, and what to do.

    Source: none, it is our own; docs/config.md has the whole of it.

    Example:
        >>> import numpy as np
        >>> from unified_clip import ClipConfig
        >>> clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"])
        >>> grads = {"dense.weight": np.array([3.0, 4.0], np.float32), "dense.bias": np.array([7.0], np.float32)}
        >>> clip(grads)["dense.weight"]
        array([0.5999999 , 0.79999983], dtype=float32)
        >>> clip.last.norm, clip.last.clipped
        (5.0, True)
    """

    _clipper: Clipper = PrivateAttr()

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise first_error(error, Document("ClipConfig", "", "", data), Settings) from None
        self._clipper = Clipper(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClipConfig) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # as pydantic's models that hold lists

    def __reduce__(self) -> Any:
        return type(self)._of, (self.data(),)

    def __copy__(self) -> Self:
        return type(self)(**self.data())

    def __deepcopy__(self, memo: Any = None) -> Self:
        return type(self)(**self.data())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Another, changed, checked as any other: what a configuration does is found when it is made."""
        return type(self)(**{**self.data(), **(update or {})})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML, YAML or JSON file.

        Raises:
            ConfigError: It cannot be read, or something in it is wrong: file, line, key and what to do. For a trainer's
                own file the error names the command that imports it.
        """
        from .formats import convert

        return cls._of(convert.read_own(path))

    @classmethod
    def loads(cls, text: str, kind: str = "toml") -> Self:
        """The same of a text. `kind`: toml, yaml or json."""
        return cls._of(loading.validated(documents.parse(text, kind, "the text")))

    @classmethod
    def of(cls, optimizer: Any) -> Self:
        """What an optimizer clips by itself: Keras' `clipnorm`, `global_clipnorm` or `clipvalue`, Paddle's `grad_clip`.

        What has to be said of it is in `provenance.notes`.

        Args:
            optimizer: A `keras.optimizers.Optimizer` or a `paddle.optimizer.Optimizer`.

        Raises:
            TypeError: It is neither; PyTorch's and optax's do not tell what they clip.
            ConfigError: It clips as cannot be said here: by a class of its own, or groups of parameters differently.

        Source: none, it is our own; docs/formats.md has an example.
        """
        from .formats import from_optimizer

        return cls._of(from_optimizer.data(optimizer))

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        return cls(**data)

    def dumps(self, kind: str = "toml") -> str:
        """As text that `loads` reads. `kind`: toml, yaml or json."""
        return documents.dump({"version": self.version, **self.data()}, kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TOML, YAML or JSON file."""
        path = Path(path)
        path.write_text(self.dumps(documents.kind_of(path)), encoding="utf-8")

    # -- trainers' own formats

    @classmethod
    def import_from(cls, path: str | os.PathLike[str], from_: str | None = None) -> Self:
        """Read a trainer's own configuration. What has to be said aloud of it is in `provenance.notes`.

        Args:
            path: Such as DeepSpeed's JSON.
            from_: "name" or "name@version" of the format. None: told by what is in the file.

        Raises:
            ConfigError: It cannot be read, its format is not known, or it says what cannot be imported.
        """
        from .formats import convert

        return cls._of(convert.read(path, from_))

    def export_to(self, name: str, version: str | None = None) -> str:
        """The text that says the same in a trainer's own format, to be put into its configuration.

        Args:
            name: Of the format, "name" or "name@version".
            version: Of the trainer. Default: the newest that is known.

        Raises:
            NotRepresentableError: The format does not support it; the message names what, and the remedy.
            ConfigError: There is no such format.
        """
        from .formats import convert

        return convert.write(self, name, version)

    # -- on any framework

    def clipper(
        self,
        names: Any = None,
        *,
        details: bool = False,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> Clipper:
        """The same at work on a model of its own: it counts its own steps, and knows what its parameters are called.

        Args:
            names: A list of names by position, a dict of name to parameter, or a model with `named_parameters()`.
            details: Measure the norm of every gradient too, for `last.parameters`; it reads all gradients once more.
            process_group: Where several processes hold the gradients: as for `clip_grad_norm_`.
            ownership: The same.
            check_numel: The same.
        """
        return Clipper(self, names, details=details, across=Across(process_group, ownership, check_numel))

    def __call__(self, grads: Any, *, step: Any = None) -> Any:
        """Clip gradients: any container of tensors and None; new ones are returned in such another.

        A gradient that is left alone is the object that was given. Where the step is skipped, each is None.

        Args:
            grads: Gradients of any framework.
            step: For a threshold with a schedule: a whole number, or a tensor of one. None: calls are counted.
        """
        return self._clipper(grads, step=step)

    def clip_(self, parameters: Any, *, step: Any = None) -> Tensor:
        """Clip in place, as `clip_grad_norm_` does; the total norm before clipping is returned."""
        return self._clipper.clip_(parameters, step=step)

    def pairs(self, params_grads: Iterable[Any], *, step: Any = None) -> classes.Pairs:
        """Clip the gradients of (parameter, gradient) pairs; a list of pairs is returned."""
        return self._clipper.pairs(params_grads, step=step)

    @property
    def step(self) -> int:
        """The step of the next clip, counted from 0."""
        return self._clipper.step

    # -- where optimizers clip

    def attach_to(
        self,
        optimizer: Any,
        names: Any = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> Any:
        """Have an optimizer of PyTorch or Keras clip before every step it makes.

        Args:
            optimizer: A `torch.optim.Optimizer` or a `keras.optimizers.Optimizer`.
            names: The model, or a dict of name to parameter. On PyTorch, patterns need it unless the optimizer was
                built from `named_parameters()`. On Keras a variable's name is its path, with dots.
            process_group: For PyTorch, where several processes hold the gradients: as for `clip_grad_norm_`.
            ownership: The same.
            check_numel: The same.

        Returns:
            A handle, and a context manager: `detach()` ends it, `is_attached` says whether it has not ended, `last` and
            `rate` what happened, and `step` the step of the next clip.

        Raises:
            TypeError: It is no such optimizer.
            ValueError: A configuration is attached to it already, or it clips by itself; or the configuration chooses
                parameters by name, and they have none.
        """
        across = Across(process_group, ownership, check_numel)
        packages = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
        if "torch" in packages:
            return _integration("torch_optimizers").attach(self, optimizer, names, across)
        if across.is_stated:
            raise TypeError("process_group, ownership and check_numel are for optimizers of PyTorch; leave them out")
        if "keras" in packages:
            return _integration("keras_optimizers").attach(self, optimizer, names)
        raise TypeError(
            f"a {type(optimizer).__module__}.{type(optimizer).__qualname__} is no optimizer of PyTorch or Keras. For "
            "Paddle, pass grad_clip=clip.as_paddle(model) to the optimizer. For optax, chain clip.as_optax()."
        )

    def as_paddle(self, names: Any = None) -> Any:
        """Return a `grad_clip=` for Paddle's optimizers, dygraph and static.

        Args:
            names: The model, or a dict of name to parameter. `include`, `exclude` and `groups` need it, unless their
                patterns match Paddle's own names, such as "linear_0.b_0".
        """
        return _integration("paddle_optimizers").grad_clip(self, names)

    def as_optax(self, optimizer: Any = None, *, process_group: Any = "auto") -> Any:
        """An `optax.GradientTransformation` that clips, whose state holds the step and what happened at the last one.

        Args:
            optimizer: The transformation that is to follow. With nonfinite = "skip" it is needed: where a step is
                skipped, its state stays as it was. None: put the result into `optax.chain` before the optimizer.
            process_group: Inside `pmap` and the like, where arrays do not tell who has what: None where each device has
                whole updates (as after `pmean`), or names of axes along which devices have parts; see docs/jax.md.
        """
        return _integration("optax_transforms").transformation(self, optimizer, process_group)


def _integration(module: str) -> Any:
    """A layer above, which imports a framework."""
    return importlib.import_module(f"unified_clip.integrations.{module}")
