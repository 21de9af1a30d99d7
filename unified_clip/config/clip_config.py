"""The public class `unified_clip.ClipConfig`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError

from .._api import param_grads
from .._core.distributed import DistributedSpec
from .._core.types import Tensor
from .._core.validation import warn
from . import documents
from .clipper import Clipper
from .documents import Document, model_errors
from .formats import convert, from_optimizer
from .handles import integration, with_names, without_hash
from .outcome import OutcomeProperties
from .schema import Settings
from .validation import settings_data


class ClipConfig(OutcomeProperties, Settings):
    """A clip configuration, from a file or from arguments, for every framework.

    Args:
        rule: "none" (only measure), "value" (clip each element), "norm" (per tensor) or "global_norm" (by the total
            norm).
        threshold: The largest norm, or, for "value", the largest magnitude. A number of 0 or more, or a table with a
            schedule. inf clips nothing.
        adaptive: A table with a rule that computes the threshold, such as {"rule": "zclip"} for "global_norm" and
            {"rule": "agc"} for "norm". The key `threshold` is then optional, and is the largest threshold.
            docs/adaptive.md has the rules.
        min, max: Bounds for "value", instead of a threshold.
        norm_type: The order p of the norm: any p > 0, or inf. Default: 2.
        family: The framework whose rule applies: "pytorch" (the default; eps is 1e-6), "tensorflow" (a global norm
            that is not finite makes all gradients NaN) or "paddle". Keep the default if anyone exports the
            configuration to a PyTorch trainer.
        eps: The number that is added to the norm. Default: the eps of the family.
        nonfinite: The action when the total norm is NaN or infinite: "family" (the family's rule), "raise", "skip"
            (remove the gradients, so that the optimizer makes no step) or "zero".
        include, exclude: Patterns of parameter names ("*.bias"). Parameters that are excluded, or not included, are not
            clipped and are not part of the norm.
        groups: A table for each group of parameters: its name, its patterns, and the keys with a different value.

    Raises:
        ConfigError: A key or value is wrong. The message has the place and the remedy.

    Source: unified_clip; docs/config.md describes every key.

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

    __hash__ = without_hash  # as pydantic's models that hold lists

    def __reduce__(self) -> Any:
        return partial(type(self), **self.data()), ()

    def __deepcopy__(self, memo: Any = None) -> Self:
        return self.model_copy()

    __copy__ = __deepcopy__

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with these changes.

        Args:
            update: The new values by key.
            deep: Has no effect, because a copy shares nothing with the original.

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
            ConfigError: The file cannot be read, or a key is wrong. The message has the file, the line and the key. For
                a trainer's file, the message has the command that imports the file.
        """
        return cls(**convert.read_own(path))

    @classmethod
    def loads(cls, text: str, kind: str = "toml") -> Self:
        """Return the configuration in a text.

        Args:
            text: The text of a configuration.
            kind: "toml", "yaml" or "json".

        Raises:
            ConfigError: The kind is unknown, the text is not of this kind, or a key is wrong. The message has the line.

        Example:
            >>> from unified_clip import ClipConfig
            >>> ClipConfig.loads('rule = "global_norm"\\nthreshold = 1.0')
            ClipConfig(rule='global_norm', threshold=1.0)
        """
        return cls(**settings_data(documents.parse(text, kind, "the text")))

    @classmethod
    def of(cls, optimizer: Any) -> Self:
        """Import an optimizer's clipping: Keras' `clipnorm`, `global_clipnorm` or `clipvalue`, or Paddle's `grad_clip`.

        Args:
            optimizer: A `keras.optimizers.Optimizer` or a `paddle.optimizer.Optimizer`.

        Raises:
            TypeError: The optimizer is not of Keras or Paddle. PyTorch and optax expose no clip settings.
            ConfigError: The optimizer's clipping is not supported. Examples are a custom clip class, and different
                clips for groups of parameters.

        Source: unified_clip; docs/formats.md has an example. `provenance.notes` of the result has notes for the user.
        """
        return cls(**from_optimizer.data(optimizer))

    def dumps(self, kind: str = "toml") -> str:
        """Return the configuration as text that `loads` reads.

        Args:
            kind: "toml", "yaml" or "json".

        Raises:
            ConfigError: There is no such kind.

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
            path: The file. Its suffix, such as .toml, .yaml or .json, sets the format.

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
        path = Path(path)
        path.write_text(self.dumps(documents.kind_of(path)), encoding="utf-8")

    @classmethod
    def import_from(cls, path: str | os.PathLike[str], from_: str | None = None) -> Self:
        """Import a trainer's configuration. `provenance.notes` of the result has notes for the user.

        Args:
            path: The file, such as DeepSpeed's JSON.
            from_: "name" or "name@version" of the format. None: infer it from the file.

        Raises:
            ConfigError: The file cannot be read, or its format or one of its settings is not supported.
        """
        return cls(**convert.read(path, from_))

    def export_to(self, name: str, version: str | None = None, *, nearest: bool = False) -> str:
        """Return this configuration as text in a trainer's format, for the trainer's configuration.

        Args:
            name: "name" or "name@version" of the format.
            version: The version of the trainer. Default: the version in `name`, or else the newest supported version.
            nearest: If the format does not support `family` or `eps`, export the rule with the family and eps that the
                format supports. A ClipWarning states how much the coefficients differ.

        Raises:
            NotRepresentableError: The format does not support a setting. The message has the setting and the remedy.
            ConfigError: There is no such format, or the version is invalid.

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
        """Return a clipper for one model, with its own step counter and parameter names.

        Args:
            names: A model, its `named_parameters()`, a dict of name to parameter, or a list of names by position.
            details: Measure the norm of every gradient too, for `last.parameters`. This reads all gradients again.
            process_group, ownership, check_numel, check_replicas: The ranks that share the gradients, and checks of
                the shards (see docs/distributed.md). All ranks that share the gradients have to clip.

        Raises:
            TypeError: `names` has another type. Or, in a clip, patterns need names, and a gradient has no name.

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
        """Clip gradients in any container of tensors and None. Return the same kind of container.

        Gradients that are not scaled are returned as the same objects. If the step is skipped, all results are None. If
        ranks share the gradients, each of these ranks has to make this call.

        Args:
            grads: Gradients of any framework.
            step: The step for a schedule: a whole number, or a tensor with one element. None: count the calls.
            parameters: The parameters, in a container like the gradients. Only the adaptive rule agc needs it.

        Raises:
            TypeError: An entry is not a gradient. Or the configuration selects parameters by name, and an entry has no
                name. Or the adaptive rule agc gets no `parameters`.
            ValueError: step is below 0, or is a tensor with several elements. Or ranks make different calls, or the
                rule adagc gets a different number of gradients than before.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper(grads, step=step, parameters=parameters)

    def clip_(self, parameters: Any, *, step: Any = None) -> Tensor:
        """Clip gradients in place, or remove them if `nonfinite` skips the step. Return the total norm before clipping.

        If ranks share the gradients, each of these ranks has to make this call.

        Args:
            parameters: On PyTorch and Paddle, the parameters. On other frameworks, the gradients.
            step: The step for a schedule: a whole number, or a tensor with one element. None: count the calls.

        Raises:
            TypeError: An entry is neither None nor a floating-point tensor. Or the configuration selects parameters by
                name, and a parameter has no name. Or the adaptive rule agc gets no parameters.
            ValueError: step is below 0, or is a tensor with several elements. Gradients overlap, or cannot be written.
                Or ranks make different calls, or the rule adagc gets a different number of gradients than before.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper.clip_(parameters, step=step)

    def pairs(self, params_grads: Iterable[Any], *, step: Any = None) -> param_grads.ParamGrads:
        """Clip the gradients of (parameter, gradient) tuples. Return the tuples with clipped gradients as a list.

        If ranks share the gradients, each of these ranks has to make this call.

        Args:
            params_grads: The tuples. A gradient may be None.
            step: The step for a schedule: a whole number, or a tensor with one element. None: count the calls.

        Raises:
            TypeError: An entry is no (parameter, gradient) tuple. Or the configuration selects parameters by name, and
                a parameter has no name.
            ValueError: step is below 0, or is a tensor with several elements. Or ranks make different calls, or the
                rule adagc gets a different number of gradients than before.
            NonFiniteNormError: The norm is not finite, and nonfinite is "raise".
        """
        return self._clipper.pairs(params_grads, step=step)

    @property
    def step(self) -> int:
        """Return the step of the next clip, counted from 0."""
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
        """Make an optimizer of PyTorch or Keras clip before each of its steps.

        Args:
            optimizer: A `torch.optim.Optimizer` or a `keras.optimizers.Optimizer`.
            names: The model, its `named_parameters()`, or a dict of name to parameter. On PyTorch, patterns need
                `names`, except if the optimizer was built from `named_parameters()`. On Keras, a variable's name is its
                path, with dots instead of slashes.
            process_group, ownership, check_numel, check_replicas: For PyTorch: the ranks that share the gradients, and
                checks of the shards (see docs/distributed.md). All ranks that share the gradients have to step.

        Returns:
            A handle and context manager with `detach()`, `is_attached`, `last`, `rate`, `step`, `state_dict()` and
            `load_state_dict()`.

        Raises:
            TypeError: The optimizer is not from PyTorch or Keras, has no hooks, or only calls other optimizers. Or the
                version of Keras is not supported. Or a Keras optimizer gets an argument for PyTorch.
            ValueError: A configuration is already attached, or the optimizer clips by itself. Or the configuration
                selects parameters by name, and a parameter has no name.
            RuntimeError: FSDP1 shards the parameters, and no ownership is declared.
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
            "Elsewhere, clip the gradients: clip(grads)."
        )

    def as_paddle(self, names: Any = None) -> Any:
        """Return an object to pass as `grad_clip=` to Paddle's optimizers. `LBFGS` ignores every `grad_clip`.

        Args:
            names: The model, its `named_parameters()`, or a dict of name to parameter. The rule adagc needs `names`.
                Patterns need `names`, too, except if they match Paddle's own names, such as "linear_0.b_0".

        Raises:
            TypeError: `names` has another type, or has parameters of another framework. Or, in a static program, the
                threshold has a schedule or is adaptive, or nonfinite is "raise" or "skip".
            ValueError: In a clip, `names` lacks a parameter that patterns or the rule adagc need.
            RuntimeError: The optimizer has parameter groups, and `adaptive` is set, or nonfinite is "raise" or "skip".
        """
        return with_names(partial(integration("paddle_optimizers").GradClip, self), names)

    def as_optax(self, optimizer: Any = None, *, process_group: Any = "auto") -> Any:
        """Return an `optax.GradientTransformation` that clips. Its state has the step and the last outcome.

        Args:
            optimizer: The next transformation. Required with nonfinite = "skip", which leaves the optimizer's state
                unchanged when a step is skipped. None: put the result into `optax.chain` before the optimizer.
            process_group: For `pmap` and similar functions (see docs/jax.md). Pass the names of the axes along which
                updates are sharded. Pass None if each device has complete updates, as after `pmean`.

        Raises:
            TypeError: optimizer is not an optax.GradientTransformation. Or, in a compiled graph, nonfinite is "raise".
            ValueError: nonfinite is "skip", and `optimizer` is None.
        """
        return integration("optax_transforms").transformation(self, optimizer, process_group)
