"""torchtitan's TOML: `max_norm` in `[training]`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ...errors import ConfigError, NotRepresentableError
from ..documents import Document
from ..schema import Settings
from .base import Format, FormatKey, Imported, exported_threshold, global_norm_settings, has_key, read_threshold

KEYS = ("training", "max_norm")
NO_FILES = Version("0.3.0")
NO_TOML = "since 0.3.0, torchtitan reads configurations in Python, not TOML"


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
        FormatKey("training.max_norm", "below 0.3.0", "1.0", "the global norm, PyTorch's rule; inf: off; 0: zeros"),
        FormatKey(
            "training.max_norm", "0.3.0 and later", "1.0", "the same, but set in Python or as an argument", "rejected"
        ),
    )

    def recognises(self, document: Document) -> bool:
        own = [
            KEYS,
            ("training", "local_batch_size"),
            ("parallelism", "data_parallel_shard_degree"),
            ("job", "dump_folder"),
        ]
        return any(has_key(document, *keys) for keys in own)

    def read(self, document: Document, version: Version | None) -> Imported:
        if version is not None and version >= NO_FILES:
            raise ConfigError(f"{document.name}: {NO_TOML}. For an older file, pass --from torchtitan@{self.newest}.")
        notes = []
        if not has_key(document, *KEYS):
            notes.append("The file does not set max_norm. By default, torchtitan clips at 1.0.")
        limit = read_threshold(document, KEYS, 1.0, zero="zeros")
        if limit == 0:
            notes.append("max_norm = 0 makes all gradients 0. inf switches clipping off.")
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        if version >= NO_FILES:
            raise NotRepresentableError(f"Cannot export to {self.title}: {NO_TOML}. Pass --training.max_norm.")
        limit = exported_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="zeros")
        return {"training": {"max_norm": math.inf if limit is None else limit}}
