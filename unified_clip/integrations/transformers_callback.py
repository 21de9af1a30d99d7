"""Transformers: a callback of the `Trainer` that clips in the place of `max_grad_norm`."""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .. import monitor
from .._core.shards import Across
from ..config.clip_config import ClipConfig
from ..config.clipper import OutcomeProperties
from . import torch_scaling
from .torch_engines import check_within_reach
from .torch_optimizers import check_not_attached


class ClipCallback(OutcomeProperties, TrainerCallback):  # type: ignore[misc]  # mypy skips transformers
    """Clips before every step of a `transformers.Trainer` whose arguments have `max_grad_norm=0`.

    The names of parameters are the model's, and the step of a schedule is the trainer's `global_step`, so that training
    goes on from a checkpoint as it would have. What happened is added to the trainer's logs: `grad_norm_clipped`,
    `clip_coef`, `clip_rate`; `grad_norm` is the trainer's own, over all parameters, before clipping.

    Args:
        config: What to do.
        process_group: Where several processes hold the gradients: as for `clip_grad_norm_`. FSDP2's tell by themselves.
        ownership: The same.
        check_numel: The same.

    Raises:
        ValueError: When training begins: the trainer or another such callback clips too, or a configuration is attached
            to the optimizer.
        RuntimeError: When training begins: the gradients are out of reach (DeepSpeed, Megatron-LM, XLA); at the first
            step: they are FSDP1's, and nothing is stated of them.

    Source: none, it is our own; the place is `transformers.TrainerCallback.on_pre_optimizer_step`.

    Example: docs/integrations/transformers.md.
    """

    def __init__(
        self,
        config: ClipConfig,
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
    ) -> None:
        self._config, self._across = config, Across(process_group, ownership, check_numel)
        self._begin()

    def _begin(self) -> None:
        self._clipper = self._config.clipper(**vars(self._across))
        self._has_clipped = False

    def __getstate__(self) -> dict[str, Any]:
        """Without what has happened: a copy begins anew."""
        return {key: value for key, value in vars(self).items() if key not in ("_clipper", "_has_clipped")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, optimizer: Any, **kwargs: Any
    ) -> None:
        if (args.max_grad_norm or 0) > 0:
            raise ValueError(
                f"TrainingArguments has max_grad_norm={args.max_grad_norm:g}, and gradients would be clipped twice; "
                "pass max_grad_norm=0 where ClipCallback is used"
            )
        check_within_reach([AcceleratorState().distributed_type.value])
        check_not_attached(optimizer)
        # the trainer makes a state for each training, which all callbacks are given, and none is told of the others
        if vars(state).setdefault("_clip_callback", self) is not self:
            raise ValueError(
                "the Trainer has two ClipCallbacks, and gradients would be clipped twice; leave one out, and give "
                "parameters limits of their own by groups of one configuration"
            )

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        optimizer: Any,
        **kwargs: Any,
    ) -> None:
        scaler = optimizer.scaler
        if scaler is not None and torch_scaling.leaves_out(scaler, optimizer.optimizer, self._config):
            return
        self._clipper.clip_(model.named_parameters(), step=state.global_step)
        self._has_clipped = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """The history has a copy of the logs, made before."""
        if "loss" not in logs or not self._has_clipped:
            return
        found = monitor.metrics(self) | logs
        logs.update(found)
        state.log_history[-1].update(found)
