"""The formats of fairseq, with `optimization.clip_norm` in YAML or `--clip-norm` in a shell script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from packaging.version import Version

from ....documents import Document, Key, script_options
from ....documents.inheritance.hydra import Hydra
from ...base import Imported, OwnFormat, SetElsewhereError, paths, words

SCRIPT, TABLE = ("clip-norm",), ("optimization", "clip_norm")
NESTED = ("fairseq", *TABLE)
OVERRIDE = re.compile(r"(?<![\w.])optimization\.clip_norm=(\S+)")
HYDRA = re.compile(r"fairseq-hydra-train|hydra_train\.py")
TRAINING = ("arch", "optimizer", "lr", "clip-norm")

OFF_BY_DEFAULT = Version("0.12.0")
"""From this version on, fairseq clips nothing by default. Earlier versions clip at 25."""

NOT_FINITE = "If a norm is not finite, fairseq stops with an error. With fp16, fairseq skips the step instead."


class Fairseq(OwnFormat):
    name, title = "fairseq", "fairseq"
    kinds = ("yaml", "args")
    source = "fairseq/dataclass/configs.py, fairseq/trainer.py, fairseq/utils.py; 0.10.0: fairseq/options.py"
    newest = "0.12.2"
    not_finite = NOT_FINITE
    own_keys = paths("""
        optimization.clip_norm optimization.max_update optimization.update_freq dataset.max_tokens
        distributed_training.ddp_backend distributed_training.distributed_world_size fairseq.optimization
    """)
    inheritance = Hydra()
    clip_keys = (TABLE, NESTED, SCRIPT)
    vocabulary = words("""
        common checkpoint task dataset criterion optimization optimizer lr_scheduler model distributed_training
        arch lr max-tokens update-freq max-update save-dir adam-betas
    """)
    needs_version = (
        "if a file does not set clip_norm, fairseq up to 0.10 clips at 25, and fairseq from 0.12 on clips nothing"
    )

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        if document.kind == "args":
            return (TABLE,) if document.shows(*TABLE) else (SCRIPT,)
        return (NESTED,) if document.shows("fairseq", "optimization") else (TABLE,)

    def recognises(self, document: Document) -> bool:
        if document.kind != "args":
            return super().recognises(document)
        if "fairseq" not in document.text:
            return False
        return HYDRA.search(document.text) is not None or any(document.shows(option) for option in TRAINING)

    def parse(self, text: str, name: str) -> Document:
        """Hydra's override `optimization.clip_norm=1.0` sets a key of a table."""
        document, code = script_options.parse(text, name), script_options.without_comments(text)
        overrides = list(OVERRIDE.finditer(code))
        if not overrides or document.has(*SCRIPT):
            return document
        table, key = TABLE
        values = script_options.parse(" ".join(f"--{key} {each[1]}" for each in overrides), name).data
        places = {**document.places, TABLE: code.count("\n", 0, overrides[-1].start()) + 1}
        return replace(document, data={**document.data, table: values}, places=places)

    def read(self, document: Document, version: Version | None) -> Imported:
        place = self.places(document)[0]
        notes, default = [], 0.0
        if not document.has(*place):
            if document.kind == "args" and HYDRA.search(document.text):
                problem = document.wrong([], "fairseq-hydra-train takes clip_norm from a YAML file.")
                raise SetElsewhereError(str(problem), "Import that file.")
            default = 0.0 if self.require_version(version, document, str(place[-1])) >= OFF_BY_DEFAULT else 25.0
            effect = "clips nothing" if default == 0 else "clips at 25"
            notes.append(f"The file does not set {place[-1]}. By default, fairseq {version} {effect}.")
        threshold = self.read_threshold(document, place, default, null="error")
        not_finite = "" if threshold is None else NOT_FINITE
        return Imported(self.settings("global_norm", threshold), notes, not_finite)
