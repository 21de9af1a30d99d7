"""The public class `unified_clip.ClipConfig`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError
from typing_extensions import Self

from .._core.collect import ParamGrads
from .._core.distributed import DistributedSpec
from .._core.types import Tensor
from .._core.validation import warn
from .._kit import atomic_files
from . import documents
from .clipper import Clipper
from .documents import Document, model_errors
from .formats import convert
from .optimizer_integrations import integration, with_names, without_hash
from .outcome import OutcomeProperties
from .schema import Settings


class ClipConfig(OutcomeProperties, Settings):
    """A clip configuration for all frameworks. Create the configuration from arguments, or load it from a file.

    Args:
        rule: "none" only measures the norm, "value" clips each element, "norm" clips each tensor by its own norm, and
            "global_norm" clips all tensors by their total norm.
        threshold: The largest allowed norm. For the rule "value", the largest allowed magnitude of an element. Pass a
            table with a schedule, or a number that is not negative. A threshold of inf clips nothing.
        adaptive: A table with a rule that computes the threshold, such as {"rule": "zclip"} for "global_norm" and
            {"rule": "agc"} for "norm" (docs/adaptive.md). `threshold` is then its maximum, and can be omitted.
        min, max: The bounds for the rule "value", instead of a threshold.
        norm_type: The order p of the norm: any p > 0, or inf. Default: 2.
        family: The framework whose formula is used: "pytorch" (default), "tensorflow" or "paddle". The formulas differ
            in eps, and in the result for an infinite norm.
        eps: The number that is added to the norm. The default is the eps of the family.
        nonfinite: The action when the total norm is not finite: "family" (apply the formula of `family`), "raise",
            "skip" (make no step) or "zero" (set gradients to 0).
        include, exclude: Patterns of parameter names, such as "*.bias". A gradient is clipped if its name matches
            `include` and does not match `exclude`. All other gradients stay unchanged, and are not part of the norm.
        groups: A table for each group of parameters, with a name, patterns of parameter names, and clip settings.

    Raises:
        ConfigError: A key or value is wrong. The message names the key, and describes the remedy.

    Source: unified_clip. docs/config.md describes every key.

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
            raise model_errors.first_error(error, Document("ClipConfig", "", "", data), Settings) from None
        self._clipper = Clipper(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClipConfig) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.data().items())})"

    __str__ = __repr__

    __hash__ = without_hash  # like pydantic's models with lists

    def __reduce__(self) -> Any:
        return partial(type(self), **self.data()), ()

    def __deepcopy__(self, memo: Any = None) -> Self:
        return self.model_copy()

    __copy__ = __deepcopy__

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changed values. The copy is validated.

        Args:
            update: The new values, by key.
            deep: Ignored, because every copy is deep.

        Raises:
            ConfigError: A key or a value is wrong.
        """
        return type(self)(**{**self.data(), **(update or {})})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the configuration in a TOML, YAML or JSON file.

        Args:
            path: The file.

        Raises:
            ConfigError: The file cannot be read, has a wrong key, or is a trainer's configuration.
        """
        return cls(**convert.read_own(path))

    @classmethod
    def loads(cls, text: str, kind: str = "toml") -> Self:
        """Parse a configuration.

        Args:
            text: The configuration as text.
            kind: "toml", "yaml" or "json".

        Raises:
            ConfigError: The kind is unknown, the text is invalid, or a key is wrong. The message gives the line.

        Example:
            >>> from unified_clip import ClipConfig
            >>> ClipConfig.loads('rule = "global_norm"\\nthreshold = 1.0')
            ClipConfig(rule='global_norm', threshold=1.0)
        """
        return cls(**convert.settings_data(documents.parse(text, kind, "the text")))

    def dumps(self, kind: str = "toml") -> str:
        """Return the configuration as text that `loads` reads.

        Args:
            kind: "toml", "yaml" or "json".

        Raises:
            ConfigError: The kind is unknown.

        Example:
            >>> from unified_clip import ClipConfig
            >>> print(ClipConfig(rule="norm", threshold=0.5).dumps("yaml"), end="")
            version: 1
            rule: norm
            threshold: 0.5
        """
        return documents.dump({"version": self.version, **self.data()}, kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the configuration to a file.

        Args:
            path: The file. The suffix of the file, such as .toml, .yaml or .json, sets the format.

        Raises:
            ConfigError: The suffix is unknown.
            OSError: The file cannot be written.

        Example:
            >>> import tempfile
            >>> from unified_clip import ClipConfig
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     path = f"{directory}/clip.toml"
            ...     ClipConfig(rule="global_norm", threshold=1.0).save(path)
            ...     ClipConfig.load(path).threshold
            1.0
        """
        atomic_files.write(Path(path), self.dumps(documents.kind_of(Path(path))))

    @classmethod
    def import_from(cls, path: str | os.PathLike[str], from_: str | None = None) -> Self:
        """Import a trainer's configuration. `provenance.notes` of the result explains the imported settings.

        Args:
            path: The file of the trainer, such as the JSON file of DeepSpeed.
            from_: "name" or "name@version" of the format. If None, the format is inferred from the file.

        Raises:
            ConfigError: The file cannot be read, the format is not supported, or a setting is not supported.
        """
        return cls(**convert.read(path, from_))

    def export_to(self, name: str, version: str | None = None, *, nearest: bool = False) -> str:
        """Return this configuration as text in the format of a trainer.

        Args:
            name: "name" or "name@version" of the format.
            version: The version of the trainer. Default: the version in `name`, or the newest supported version.
            nearest: If the format does not support the family or the eps, export a supported family and eps, and
                report in a ClipWarning how much the clip coefficients change.

        Raises:
            NotRepresentableError: The format does not support a setting. The message names the setting and a remedy.
            ConfigError: The format is unknown, or the version is invalid.

        Example:
            >>> from unified_clip import ClipConfig
            >>> print(ClipConfig(rule="global_norm", threshold=1.0, family="pytorch").export_to("deepspeed"), end="")
            {
              "gradient_clipping": 1.0
            }
        """
        text, notes = convert.write(self, name, version, nearest=nearest)
        for note in notes:
            warn(note)
        return text

    def clipper(
        self,
        names: Any = None,
        *,
        details: bool = False,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
        check_replicas: bool = False,
    ) -> Clipper:
        """Return a clipper for one model. The clipper has its own step counter and parameter names.

        Args:
            names: A model, its `named_parameters()`, a dict from names to parameters, or an ordered list of names.
            details: Also measure the norm of each gradient, for `last.parameters`. Every gradient is then read twice.
            process_group, ownership, check_numel, check_replicas: Arguments for gradients on several ranks (see
                docs/distributed.md). Every rank of the process group must call the clipper.

        Raises:
            TypeError: `names` has an unsupported type.

        Example:
            >>> import numpy as np
            >>> from unified_clip import ClipConfig
            >>> clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"])
            >>> clipper = clip.clipper(["a.weight", "a.bias"])
            >>> clipper([np.array([3.0, 4.0], np.float32), np.array([7.0], np.float32)])[1]
            array([7.], dtype=float32)
        """
        return Clipper(
            self, names, details=details, spec=DistributedSpec(process_group, ownership, check_numel, check_replicas)
        )

    def __call__(self, grads: Any, *, step: Any = None, parameters: Any = None) -> Any:
        """Clip gradients in any container of tensors and None, and return a container of the same type.

        Gradients that are not scaled are returned without a copy. If the step is skipped, all results are None. If
        the gradients are distributed over several ranks, every rank must make this call.

        Args:
            grads: The gradients. All frameworks are supported.
            step: The step number, as an int or a tensor with one element. By default, calls are counted from 0.
            parameters: The parameters, in the order of `grads` or with the same keys. Only the rule agc needs them.

        Raises:
            TypeError: An entry of `grads` is not a gradient. The configuration selects parameters by name, but a
                gradient has no name. The adaptive rule is agc, but `parameters` is missing.
            ValueError: The step is below 0 or has several elements. Ranks make different calls.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper(grads, step=step, parameters=parameters)

    def clip_(self, parameters: Any, *, step: Any = None) -> Tensor:
        """Clip gradients in place, and return the total norm before the clip.

        If the gradients are distributed over several ranks, every rank must make this call. If a step is skipped, its
        gradients are set to None.

        Args:
            parameters: On PyTorch and Paddle, pass the parameters. On every other framework, pass the gradients.
            step: The step number, as an int or a tensor with one element. By default, calls are counted from 0.

        Raises:
            TypeError: An entry of `parameters` is neither None nor a floating-point tensor. The configuration selects
                parameters by name, but a parameter has no name. The adaptive rule is agc, but `parameters` contains
                only gradients.
            ValueError: The step is below 0 or has several elements. Gradients share memory or are read-only. Ranks make
                different calls.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper.clip_(parameters, step=step)

    def pairs(self, params_grads: Iterable[Any], *, step: Any = None) -> ParamGrads:
        """Clip (parameter, gradient) tuples. The result is a list of (parameter, clipped gradient) tuples.

        If the gradients are distributed over several ranks, every rank must make this call.

        Args:
            params_grads: The tuples. A gradient can be None.
            step: The step number, as an int or a tensor with one element. By default, calls are counted from 0.

        Raises:
            TypeError: An entry of `params_grads` is not a (parameter, gradient) tuple. The configuration selects
                parameters by name, but a parameter has no name.
            ValueError: The step is below 0 or has several elements. Ranks make different calls.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper.pairs(params_grads, step=step)

    @property
    def step(self) -> int:
        """The step number of the next clip, counted from 0."""
        return self._clipper.step

    def attach_to(
        self,
        optimizer: Any,
        names: Any = None,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
        check_replicas: bool = False,
    ) -> Any:
        """Attach the configuration to an optimizer of PyTorch or Keras, which then clips before each step.

        Args:
            optimizer: A `torch.optim.Optimizer` or a `keras.optimizers.Optimizer`.
            names: The model, its `named_parameters()`, or a dict from names to parameters. On PyTorch, a
                configuration with patterns or groups needs `names`, or an optimizer built from `named_parameters()`. On
                Keras, the name of a variable is its path, with dots instead of slashes.
            process_group, ownership, check_numel, check_replicas: Arguments for PyTorch gradients on several ranks (see
                docs/distributed.md). Every rank of the process group must make every step.

        Returns:
            A handle with `detach()`, `is_attached`, `last`, `rate`, `step`, `state_dict()` and `load_state_dict()`. The
            handle is also a context manager.

        Raises:
            TypeError: The optimizer is not from PyTorch or Keras, has no hooks, or wraps other optimizers. The version
                of Keras is not supported. The optimizer is from Keras, but an argument for PyTorch is set.
            ValueError: A configuration is already attached, or the optimizer clips by itself. The configuration selects
                parameters by name, but a parameter has no name.
            RuntimeError: FSDP1 shards the parameters, but `ownership` is missing.
        """
        spec = DistributedSpec(process_group, ownership, check_numel, check_replicas)
        packages = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
        if "torch" in packages:
            attach = integration("torch_optimizers").attach
            return with_names(lambda names: attach(self, optimizer, names, spec), names)
        if spec.is_given:
            raise TypeError(
                "process_group, ownership, check_numel and check_replicas are for PyTorch only. Remove them."
            )
        if "keras" in packages:
            return with_names(partial(integration("keras_optimizers").attach, self, optimizer), names)
        raise TypeError(
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__} is not an optimizer of PyTorch or Keras. For "
            "Paddle, pass grad_clip=clip.as_paddle(model) to the optimizer. For optax, use clip.as_optax(optimizer). "
            "For any other optimizer, clip the gradients: clip(grads)."
        )

    def as_paddle(self, names: Any = None) -> Any:
        """Return a `grad_clip` for an optimizer of Paddle. The optimizer `LBFGS` ignores every `grad_clip`.

        Args:
            names: The model, its `named_parameters()`, or a dict from names to parameters. Without `names`,
                patterns are compared with Paddle's names, such as "linear_0.b_0".

        Raises:
            TypeError: `names` has an unsupported type, or has parameters of another framework. The program is
                static, but the threshold is not constant, or nonfinite is "raise" or "skip".
            ValueError: During a clip, a parameter is not in `names`, but a pattern needs its name.
            RuntimeError: The optimizer has parameter groups, but `adaptive` is set, or nonfinite is "raise" or "skip".
        """
        return with_names(partial(integration("paddle_optimizers").GradClip, self), names)

    def as_optax(self, optimizer: Any = None, *, process_group: Any = "auto") -> Any:
        """Return an `optax.GradientTransformation` that clips. Its state contains the step and the last outcome.

        Args:
            optimizer: The optimizer to apply after the clip. Required if nonfinite is "skip". Without this
                argument, put the returned transformation into `optax.chain` before the optimizer.
            process_group: Set this argument only inside `pmap` (see docs/jax.md). Pass the axes along which updates are
                sharded, or None if each device has complete updates, as after `pmean`.

        Raises:
            TypeError: The optimizer is not an optax.GradientTransformation. In a compiled clip, nonfinite is "raise".
            ValueError: The setting nonfinite is "skip", and `optimizer` is None.
        """
        return integration("optax_transforms").transformation(self, optimizer, process_group)
