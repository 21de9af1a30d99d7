"""Clip in Lightning by a callback, in place of `Trainer(gradient_clip_val=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

try:
    from lightning.pytorch import Callback
except ImportError:  # the older name of the package
    from pytorch_lightning import Callback

from .. import monitor
from .._core import validation
from .._core.distributed import DistributedSpec
from ..config.clip_config import ClipConfig
from ..config.clipper import Clipper
from ..config.outcome import OutcomeProperties
from .torch_optimizers import TWO_CALLBACKS, check_engine, check_not_attached, parameters_of, skips_step

OF_A_RUN = ("_clippers", "_steps", "_clipper", "_loaded", "_by_index", "_is_restored")
"""Copies of the callback do not contain these attributes."""


class ClipCallback(OutcomeProperties, Callback):  # type: ignore[misc]  # mypy skips Lightning
    """Clip before every step of a Lightning `Trainer`. The gradients of each optimizer are clipped separately.

    Patterns in the configuration match the names of parameters in the LightningModule. A threshold with a schedule
    depends on the trainer's `global_step`, which a checkpoint restores. In manual
    optimization, `global_step` counts the steps of all optimizers.

    The callback logs `grad_norm` (before clipping), `grad_norm_clipped`, `clip_coef` and `clip_rate`. With several
    optimizers, these names start with `optimizer0/`, `optimizer1/` and so on.

    Args:
        config: The configuration.
        log_every: The number of steps between logs, or 0 for no logs. The default is the trainer's
            `log_every_n_steps`. Each log waits for the GPU.
        process_group: As in `unified_clip.clip_grad_norm_`.
        ownership: As in `unified_clip.clip_grad_norm_`.
        check_numel: As in `unified_clip.clip_grad_norm_`.
        check_replicas: As in `unified_clip.clip_grad_norm_`.

    Raises:
        ValueError: The trainer, the module, another `ClipCallback` or an attached configuration clips too. check_numel
            or check_replicas fails.
        RuntimeError: The trainer uses DeepSpeed or XLA, which do not expose the gradients. FSDP1 shards the
            gradients, but `ownership` is missing.
        NonFiniteNormError: The norm of a step is not finite, and the configuration has nonfinite="raise".

    Source: unified_clip, at `Callback.on_before_optimizer_step`.

    Example:
        A trainer with this callback::

            Trainer(callbacks=[ClipCallback(ClipConfig(rule="global_norm", threshold=1.0))])

        docs/integrations/lightning.md has a complete example.
    """

    def __init__(
        self,
        config: ClipConfig,
        *,
        log_every: int | None = None,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
        check_replicas: bool = False,
    ) -> None:
        self._config, self._log_every = config, log_every
        self._spec = DistributedSpec(process_group, ownership, check_numel, check_replicas)
        self._begin()

    def _begin(self) -> None:
        self._clippers: WeakKeyDictionary[Any, Clipper] = WeakKeyDictionary()
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._clipper = self._config.clipper(**vars(self._spec))
        self._by_index: dict[int, Clipper] = {}
        self._loaded: dict[int, Any] = {}  # the loaded states of optimizers that have made no step yet
        self._is_restored = False  # whether this training continues from a checkpoint

    @property
    def state_key(self) -> str:
        """The key of this callback's state in checkpoints.

        Lightning rejects two callbacks with the same key. Without an adaptive threshold, each callback has its own
        key, and `setup` raises a clearer error for two callbacks.
        """
        key: str = type(self).__qualname__
        return key if self._config.is_adaptive else f"{key}@{id(self)}"

    def state_dict(self) -> dict[str, Any]:
        """Return the clip state of each optimizer, for Lightning's checkpoint.

        Without an adaptive threshold, the result is empty.
        """
        if not self._config.is_adaptive:
            return {}
        clips = self._loaded | {index: clipper.state_dict() for index, clipper in self._by_index.items()}
        return {"clips": dict(sorted(clips.items()))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state in a checkpoint.

        Args:
            state_dict: The result of `state_dict`.

        Raises:
            ValueError: The adaptive rules of the state and the configuration differ. The first step of the optimizer
                raises this error.
        """
        self._loaded = dict(state_dict.get("clips", {}))
        self._by_index = {}
        self._clippers = WeakKeyDictionary()  # a running training may be restored, too

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._is_restored = checkpoint.get("global_step", 1) > 0  # Lightning's tuner restores step 0

    def _new_clipper(self, trainer: Any, pl_module: Any, optimizer: Any) -> Clipper:
        clipper = self._config.clipper(pl_module, **vars(self._spec))
        index = [id(candidate) for candidate in trainer.optimizers].index(id(optimizer))
        self._by_index[index] = clipper
        if index in self._loaded:
            clipper.load_state_dict(self._loaded.pop(index))
        elif self._config.is_adaptive and self._is_restored:
            validation.warn(
                f"The checkpoint has no state of the adaptive threshold for optimizer {index}. The warm-up of "
                "the threshold starts again."
            )
        return clipper

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in OF_A_RUN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if self._by_index:  # the callback is from another training
            self._begin()
        self._is_restored = False  # Lightning restores a checkpoint after `setup`
        if (trainer.gradient_clip_val or 0) > 0:
            limit = f"gradient_clip_val={trainer.gradient_clip_val:g}"
            raise ValueError(
                f"The Trainer has {limit}. Gradients would be clipped twice. Remove gradient_clip_val or ClipCallback."
            )
        if pl_module.configure_gradient_clipping.__qualname__.partition(".")[0] != "LightningModule":
            raise ValueError(
                f"{type(pl_module).__name__} defines configure_gradient_clipping. Gradients would be clipped twice. "
                "Remove this method or ClipCallback."
            )
        if sum(isinstance(callback, ClipCallback) for callback in trainer.callbacks) > 1:
            raise ValueError(TWO_CALLBACKS)
        check_engine(base.__name__ for base in type(trainer.strategy).__mro__)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if optimizer not in self._clippers:
            check_not_attached(optimizer)
            self._clippers[optimizer] = self._new_clipper(trainer, pl_module, optimizer)
        steps = self._count_step(trainer, optimizer)
        if self._skips_step(trainer, optimizer):
            return
        self._clipper = clipper = self._clippers[optimizer]
        clipper.clip_(parameters_of(optimizer), step=trainer.global_step)
        every = trainer.log_every_n_steps if self._log_every is None else self._log_every
        optimizers = list(map(id, trainer.optimizers))
        if every and steps % every == 0:
            prefix = f"optimizer{optimizers.index(id(optimizer))}/" if len(optimizers) > 1 else ""
            monitor.HOOK.run(lambda: pl_module.log_dict(monitor.metrics(clipper, prefix)))

    def _count_step(self, trainer: Any, optimizer: Any) -> int:
        """Return the number of this optimizer's steps. Lightning's `global_step` counts the steps of all optimizers."""
        if len(trainer.optimizers) == 1:
            return int(trainer.global_step) + 1
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        return self._steps[optimizer]

    def _skips_step(self, trainer: Any, optimizer: Any) -> bool:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            return False
        if all(parameter.grad is None for parameter in parameters_of(optimizer)):
            return True  # the training step returned no loss, so there is nothing to unscale
        return skips_step(scaler, optimizer, self._config)
