"""Clip in the `Trainer` of Transformers by a callback, in place of `max_grad_norm`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from accelerate.state import AcceleratorState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from .. import monitor
from .._core import validation
from .._core.distributed import DistributedSpec
from ..config.clip_config import ClipConfig
from ..config.outcome import OutcomeProperties
from .steps import NO_STATE
from .torch_optimizers import TWO_CALLBACKS, check_engine, check_not_attached, skips_step

SAVED = "clip_state"

OTHER_CONFIG = (
    "The ClipCallback in the checkpoint has another configuration than your ClipCallback. The trainer uses your "
    "configuration."
)


class ClipCallback(OutcomeProperties, TrainerCallback, ExportableState):  # type: ignore[misc]  # mypy skips transformers
    """Clip before every step of a `transformers.Trainer`. Set `max_grad_norm=0` in the `TrainingArguments`.

    Patterns in the configuration match the parameter names of the model. A threshold with a schedule depends on the
    trainer's `global_step`, which a checkpoint restores. The callback adds `grad_norm_clipped`, `clip_coef` and
    `clip_rate` to the logs. From Transformers 5.3 on, the trainer itself logs `grad_norm`, the norm before clipping.

    Args:
        config: The configuration, or a dict of its settings.
        process_group: As in `unified_clip.clip_grad_norm_`.
        ownership: As in `unified_clip.clip_grad_norm_`.
        check_numel: As in `unified_clip.clip_grad_norm_`.
        check_replicas: As in `unified_clip.clip_grad_norm_`.

    Raises:
        ConfigError: A setting in a dict is not valid.
        ValueError: The trainer, another `ClipCallback` or an attached configuration clips too. A checkpoint has other
            adaptive rules than the configuration. check_numel or check_replicas fails.
        RuntimeError: The trainer uses DeepSpeed, Megatron-LM or XLA, which do not expose the gradients. FSDP1 shards
            the gradients, but `ownership` is missing.
        NonFiniteNormError: The norm of a step is not finite, and the configuration has nonfinite="raise".

    Source: unified_clip, at `transformers.TrainerCallback.on_pre_optimizer_step`.

    Example:
        A trainer with this callback::

            clip = ClipCallback(ClipConfig(rule="global_norm", threshold=1.0))
            Trainer(model, TrainingArguments("out", max_grad_norm=0), train_dataset=data, callbacks=[clip])

        docs/integrations/transformers.md has a complete example.
    """

    def __init__(
        self,
        config: ClipConfig | Mapping[str, Any],
        *,
        process_group: Any = "auto",
        ownership: Any = None,
        check_numel: bool | int | None = None,
        check_replicas: bool = False,
    ) -> None:
        self._config = config if isinstance(config, ClipConfig) else ClipConfig(**config)
        self._spec = DistributedSpec(process_group, ownership, check_numel, check_replicas)
        self._begin()

    def _begin(self) -> None:
        self._clipper = self._config.clipper(**vars(self._spec))
        self._has_clipped = False

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_clipper", "_has_clipped")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def state(self) -> dict[str, Any]:
        """Return the configuration and the clip's state, which the trainer saves in `trainer_state.json`."""
        arguments = {"config": json.loads(self._config.dumps("json"))}
        return {"args": arguments, "attributes": {SAVED: self.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._has_clipped = False  # the next training begins with this state

    @property
    def clip_state(self) -> dict[str, Any]:
        """The state of the clip. The trainer sets this attribute when it restores callbacks from a checkpoint.

        The trainer then replaces your callback by a new one. You can still read `last` from your callback.
        """
        return self.state_dict()

    @clip_state.setter
    def clip_state(self, state: dict[str, Any]) -> None:
        original = sys._getframe(1).f_locals.get("callback")  # the callback that the trainer replaces
        if type(original) is not type(self) or original is self:
            self.load_state_dict(state)
            return
        if original._config.dumps("json") != self._config.dumps("json"):
            validation.warn(OTHER_CONFIG)
        self.__dict__ = original.__dict__  # `on_train_begin` loads the state

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, optimizer: Any, **kwargs: Any
    ) -> None:
        if (args.max_grad_norm or 0) > 0:
            limit = f"max_grad_norm={args.max_grad_norm:g}"
            raise ValueError(f"TrainingArguments has {limit}. Gradients would be clipped twice. Pass max_grad_norm=0.")
        check_engine([AcceleratorState().distributed_type.value])
        check_not_attached(optimizer)
        # All callbacks of one training share its state. They have no other way to find each other.
        if vars(state).setdefault("_clip_callback", self) is not self:
            raise ValueError(TWO_CALLBACKS)
        if self._has_clipped:
            self._begin()  # the callback is from another training
        if self._config.is_adaptive and state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__, {})
            if SAVED in saved.get("attributes", {}):
                self.load_state_dict(saved["attributes"][SAVED])
            else:
                validation.warn(NO_STATE)

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
        if scaler is not None and skips_step(scaler, optimizer.optimizer, self._config):
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
        """Add `grad_norm_clipped`, `clip_coef` and `clip_rate` to the logs, and to the trainer's `log_history`."""
        if "loss" not in logs or not self._has_clipped:
            return
        logs.update((monitor.HOOK.run(lambda: monitor.metrics(self)) or {}) | logs)
        state.log_history[-1].update(logs)
