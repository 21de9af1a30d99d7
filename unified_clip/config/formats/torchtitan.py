"""torchtitan's TOML: `max_norm` in `[training]`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ...errors import ConfigError, NotRepresentableError
from ..documents import Document
from ..schema import Settings
from .base import Format, Imported, Key, global_norm, holds, plain_threshold, threshold

KEYS = ("training", "max_norm")
NO_FILES = Version("0.3.0")
NO_TOML = "torchtitan reads no TOML since 0.3.0, but Python's configurations"


class TorchTitan(Format):
    name = "torchtitan"
    title = "torchtitan"
    kinds = ("toml",)
    source = "torchtitan/config/job_config.py, torchtitan/distributed/utils.py"
    newest = "0.2.0"  # of those that read files
    clip_keys = (KEYS,)
    vocabulary = frozenset(
        {
            "job",
            "profiling",
            "metrics",
            "model",
            "optimizer",
            "lr_scheduler",
            "training",
            "parallelism",
            "checkpoint",
            "activation_checkpoint",
            "float8",
            "experimental",
            "comm",
            "compile",
        }
    )
    keys = (
        Key("training.max_norm", "below 0.3.0", "1.0", "the global norm, PyTorch's rule; inf: off; 0: zeros"),
        Key("training.max_norm", "0.3.0 and later", "1.0", "the same, but set in Python or as an argument", "refused"),
    )

    def recognises(self, document: Document) -> bool:
        own = [
            KEYS,
            ("training", "local_batch_size"),
            ("parallelism", "data_parallel_shard_degree"),
            ("job", "dump_folder"),
        ]
        return any(holds(document, *keys) for keys in own)

    def read(self, document: Document, version: Version | None) -> Imported:
        if version is not None and version >= NO_FILES:
            raise ConfigError(f"{document.name}: {NO_TOML}; give --from torchtitan@{self.newest} if this file is older")
        notes = []
        if not holds(document, *KEYS):
            notes.append("The file does not set max_norm. By default, torchtitan clips at 1.0.")
        limit = threshold(document, KEYS, 1.0, zero="zeros")
        if limit == 0:
            notes.append("max_norm is 0, which makes all gradients 0; inf switches clipping off")
        return Imported(global_norm(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        if version >= NO_FILES:
            raise NotRepresentableError(f"Cannot export to {self.title}: {NO_TOML}. Pass --training.max_norm.")
        limit = plain_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="zeros")
        return {"training": {"max_norm": math.inf if limit is None else limit}}
