"""Training engines, such as DeepSpeed, under which some clips in training code do not work."""

from __future__ import annotations

from typing import Any

from ...facts.trainer_rows import trainers

DEEPSPEED, MEGATRON, XLA, COLOSSAL, FSDP1 = "DeepSpeed", "Megatron-LM", "XLA", "Colossal-AI", "FSDP 1"

UNREACHABLE = (DEEPSPEED, MEGATRON, XLA, COLOSSAL)
"""These engines do not expose the gradients of a step, so training code cannot clip."""

SHARDED = "ClipCallback(clip, process_group=torch.distributed.group.WORLD, ownership='distinct')"


def except_under(format_: str) -> str:
    row = trainers().get(format_)
    return f", except under {row.instead_fails_under}" if row and row.instead_fails_under else ""


CLASS_KEYS = ("class_path", "_target_", "type")

STRATEGIES = {
    "deepspeed": DEEPSPEED, "colossal": COLOSSAL, "xla": XLA, "tpu": XLA,
    "fsdp": FSDP1, "fullysharded": FSDP1, "fully_sharded": FSDP1,
}  # fmt: skip
"""Maps a part of a strategy's name, in lower case, to the engine. The first matching part applies."""


def strategy_name(strategy: Any) -> str:
    """Return the name of a strategy. The strategy is a name, or a table such as {"class_path": "DeepSpeedStrategy"}."""
    if isinstance(strategy, dict):
        strategy = next((strategy[key] for key in CLASS_KEYS if key in strategy), "")
    return str(strategy)


def of_strategy(strategy: Any) -> str:
    name = strategy_name(strategy).rpartition(".")[2].lower()
    return next((engine for part, engine in STRATEGIES.items() if part in name), "")


def adapted(instead: str, engine: str) -> str:
    if engine in UNREACHABLE:
        return ""
    return instead.replace("ClipCallback(clip)", SHARDED) if engine == FSDP1 else instead
