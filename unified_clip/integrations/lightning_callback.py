"""Lightning: a callback that clips in the place of `Trainer(gradient_clip_val=...)`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

try:
    from lightning.pytorch import Callback
except ImportError:  # the same under its older name
    from pytorch_lightning import Callback

from .. import monitor
from .._core.shards import Across
from ..config.clip_config import ClipConfig
from ..config.clipper import Clipper, OutcomeProperties
from . import torch_scaling
from .torch_engines import check_within_reach
from .torch_optimizers import check_not_attached


class ClipCallback(OutcomeProperties, Callback):  # type: ignore[misc]  # mypy skips Lightning
    """Clips before every step that a Lightning `Trainer` makes, each optimizer's gradients on their own.

    The step of a schedule is the trainer's `global_step`, so that training goes on from a checkpoint as it would have;
    in manual optimization it counts the steps of all optimizers. Logged are `grad_norm` (before clipping),
    `grad_norm_clipped`, `clip_coef` and `clip_rate`, with several optimizers as `optimizer0/grad_norm` and so on.

    Args:
        config: What to do.
        names: What to call the parameters, for patterns: a dict of name to parameter, or a model. None: as the
            LightningModule does.
        log_every: Log at every so many steps; reading the numbers waits for the GPU. None: as often as the trainer
            logs, which repeats the last numbers where it logs more often; 0: never.
        process_group: Where several processes hold the gradients: as for `clip_grad_norm_`. FSDP2's tell by themselves.
        ownership: The same.
        check_numel: The same.

    Raises:
        ValueError: When training begins: the trainer, the module, or another such callback clips too; at an optimizer's
            first step: a configuration is attached to it.
        RuntimeError: When training begins: the gradients are out of reach (DeepSpeed, XLA); at the first step: they are
            FSDP1's, and nothing is stated of them.

    Source: none, it is our own; the place is `Callback.on_before_optimizer_step`.

    Example: docs/integrations/lightning.md.
    """

    def __init__(
        self,
        config: ClipConfig,
        names: Any = None,
        *,
        log_every: int | None = None,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> None:
        self._config, self._names, self._log_every = config, names, log_every
        self._across = Across(process_group, ownership, check_numel)
        self._begin()

    def _begin(self) -> None:
        self._clippers: WeakKeyDictionary[Any, Clipper] = WeakKeyDictionary()
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._clipper = self._config.clipper(self._names, **vars(self._across))

    def __getstate__(self) -> dict[str, Any]:
        """Without what has happened: a copy begins anew."""
        return {key: value for key, value in vars(self).items() if key not in ("_clippers", "_steps", "_clipper")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if (trainer.gradient_clip_val or 0) > 0:
            raise ValueError(
                f"the Trainer has gradient_clip_val={trainer.gradient_clip_val:g}, and gradients would be clipped "
                "twice; leave it out where ClipCallback is used"
            )
        if pl_module.configure_gradient_clipping.__qualname__.partition(".")[0] != "LightningModule":
            raise ValueError(
                f"{type(pl_module).__name__} has a configure_gradient_clipping of its own, and gradients would be "
                "clipped twice; leave it out where ClipCallback is used"
            )
        if sum(isinstance(each, ClipCallback) for each in trainer.callbacks) > 1:
            raise ValueError(
                "the Trainer has two ClipCallbacks, and gradients would be clipped twice; leave one out, and give "
                "parameters limits of their own by groups of one configuration"
            )
        check_within_reach(base.__name__ for base in type(trainer.strategy).__mro__)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if optimizer not in self._clippers:
            check_not_attached(optimizer)
            names = pl_module if self._names is None else self._names
            self._clippers[optimizer] = self._config.clipper(names, **vars(self._across))
        made = self._count(trainer, optimizer)
        if self._is_left_out(trainer, optimizer):
            return
        self._clipper = clipper = self._clippers[optimizer]
        step = trainer.global_step
        clipper.clip_([each for group in optimizer.param_groups for each in group["params"]], step=step)
        every = trainer.log_every_n_steps if self._log_every is None else self._log_every
        optimizers = [id(each) for each in trainer.optimizers]
        if every and made % every == 0:
            prefix = f"optimizer{optimizers.index(id(optimizer))}/" if len(optimizers) > 1 else ""
            pl_module.log_dict(monitor.metrics(clipper, prefix))

    def _count(self, trainer: Any, optimizer: Any) -> int:
        """How many steps the optimizer has made with this one; Lightning counts those of all together."""
        if len(trainer.optimizers) == 1:
            return int(trainer.global_step) + 1
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        return self._steps[optimizer]

    def _is_left_out(self, trainer: Any, optimizer: Any) -> bool:
        """Whether the trainer's scaler, if it has one, will not make the step.

        Lightning has unscaled the gradients, but those that a fused optimizer unscales by itself.
        """
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            return False
        if all(each.grad is None for group in optimizer.param_groups for each in group["params"]):
            return True  # no loss was returned: nothing to unscale
        return torch_scaling.leaves_out(scaler, optimizer, self._config)
