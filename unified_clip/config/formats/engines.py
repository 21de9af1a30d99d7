"""Training engines, such as DeepSpeed, under which some clips in training code do not work."""

from __future__ import annotations

from typing import Any

from ..documents import Document

DEEPSPEED, MEGATRON, XLA, COLOSSAL, FSDP1 = "DeepSpeed", "Megatron-LM", "XLA", "Colossal-AI", "FSDP 1"

UNREACHABLE = (DEEPSPEED, MEGATRON, XLA, COLOSSAL)
"""These engines do not expose the gradients of a step, so training code cannot clip."""

INSTEAD_FAILS_UNDER = {
    "hf": f"{DEEPSPEED}, {FSDP1}, {MEGATRON} or {XLA}",
    "accelerate": f"{DEEPSPEED}, {FSDP1}, {MEGATRON} or {XLA}",
    "lightning": f"{DEEPSPEED}, {FSDP1} or {XLA}",
    "mmengine": f"{DEEPSPEED} or {COLOSSAL}",
    "torchtitan": "pipeline parallelism",
}
"""For each format, the engines under which the advice in `Format.instead` does not work."""

ENGINE_OF = {"deepspeed": DEEPSPEED, "gpt_neox": DEEPSPEED, "megatron": MEGATRON}
"""For each format, the engine that clips."""

REJECTED = {("lightning", DEEPSPEED): "value", ("pytorch_lightning", DEEPSPEED): "value"} | dict.fromkeys(
    [("lightning", FSDP1), ("pytorch_lightning", FSDP1)], "global_norm"
)
"""For each package and engine, the clip rule that the package rejects."""

SHARDED = "ClipCallback(clip, process_group=torch.distributed.group.WORLD, ownership='distinct')"


def except_under(format_: str) -> str:
    return f", except under {INSTEAD_FAILS_UNDER[format_]}" if format_ in INSTEAD_FAILS_UNDER else ""


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


def of_file(format_: str, document: Document) -> str:
    data = document.data if isinstance(document.data, dict) else {}
    if format_ in ENGINE_OF:
        return ENGINE_OF[format_]
    if format_ == "accelerate":
        is_megatron = data.get("distributed_type") == "MEGATRON_LM"
        return MEGATRON if is_megatron else DEEPSPEED
    if document.shows("deepspeed") and data["deepspeed"] and format_ in ("hf", "axolotl", "llama_factory"):
        return DEEPSPEED
    if format_ in ("lightning", "nemo", "mmengine"):
        places = ((), ("trainer",), ("fit", "trainer"), ("lightning", "trainer"))
        strategies = [document.get(*place, "strategy") for place in places if document.shows(*place, "strategy")]
        return next(filter(None, map(of_strategy, strategies)), "")
    version = data.get("fsdp_config")
    is_first = isinstance(version, dict) and str(version.get("version", version.get("fsdp_version"))) == "1"
    return FSDP1 if format_ == "hf" and data.get("fsdp") and is_first else ""


def adapted(instead: str, engine: str) -> str:
    if engine in UNREACHABLE:
        return ""
    return instead.replace("ClipCallback(clip)", SHARDED) if engine == FSDP1 else instead
