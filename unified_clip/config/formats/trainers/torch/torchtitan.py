"""The TOML format of torchtitan, with the key `max_norm` in `[training]`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from .....errors import ConfigError
from ....documents import Document
from ....schema import Settings
from ...base import ATTACH, Format, Imported, default_note, paths, words
from ...naming import name_format

KEYS = ("training", "max_norm")
NO_FILES = Version("0.3.0")
NO_TOML = "since 0.3.0, torchtitan reads configurations in Python, not TOML"


class TorchTitan(Format):
    name, title = "torchtitan", "torchtitan"
    kinds = ("toml",)
    source = "torchtitan/config/job_config.py, torchtitan/distributed/utils.py"
    newest = "0.2.0"  # the newest version that reads configuration files
    instead = ATTACH
    own_keys = paths(
        "training.max_norm training.local_batch_size parallelism.data_parallel_shard_degree job.dump_folder"
    )
    clip_keys = option_keys = (KEYS,)
    vocabulary = words("""
        job profiling metrics model optimizer lr_scheduler training parallelism checkpoint activation_checkpoint float8
        experimental comm compile
    """)
    zero = "zeros"
    off = math.inf

    def read(self, document: Document, version: Version | None) -> Imported:
        if version is not None and version >= NO_FILES:
            advice = (
                f"If an older version reads this file, {name_format(f'{self.name}@{self.newest}')}. Otherwise, write a "
                "clip configuration with the max_norm of your Python configuration. By default, max_norm is 1.0."
            )
            raise ConfigError(f"{document.name}: {NO_TOML}. {advice}")
        threshold = self.read_threshold(document, KEYS, 1.0)
        notes = default_note(document, KEYS, "torchtitan clips at 1.0")
        if threshold == 0:
            notes.append("max_norm = 0 makes all gradients 0. max_norm = inf switches clipping off.")
        return Imported(self.settings("global_norm", threshold), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        if version >= NO_FILES:
            raise self.not_exported(f"{NO_TOML}. Pass --training.max_norm to torchtitan.")
        return super().write(settings, version)
