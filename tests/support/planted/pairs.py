"""Pairs of training scripts, an original and its port, with the mistakes planted in the port: `tests/data/ports`.

`tests/data/ports/README.md` describes the files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PORTS = Path(__file__).parents[2] / "data/ports"
FIELDS = PORTS / "fields.toml"
VERDICTS = PORTS / "verdicts.toml"

TORCH = "torch,torch._dynamo"
MODULES = {"paddle": "paddle", "tensorflow": "tensorflow,keras", "keras": "tensorflow,keras", "optax": "jax,optax"}
"""By the last word of a script's name, the modules that its process imports; otherwise PyTorch."""


class Script(NamedTuple):
    """A script of `tests/support/training`, with replaced passages."""

    name: str
    replaced: tuple[tuple[str, str], ...] = ()

    @property
    def modules(self) -> str:
        return MODULES.get(self.name.rpartition("_")[2], TORCH)

    def code(self, folder: Path) -> str:
        code = (folder / f"{self.name}.py").read_text(encoding="utf-8")
        for old, new in self.replaced:
            assert code.count(old) == 1, (self.name, old)
            code = code.replace(old, new)
        return code


class Mistake(NamedTuple):
    fields: tuple[str, ...]
    """The fields of a training in which the port differs. Each of them is a right name for the mistake."""

    old: Any
    new: Any


class Named(NamedTuple):
    """What `unified-clip compare` reports: the cause, and the first step that differs."""

    cause: str
    step: int


class Pair(NamedTuple):
    title: str
    old: Script
    new: Script
    mistakes: tuple[Mistake, ...]
    named: Named | None


def fields() -> Mapping[str, str]:
    """Return the meaning of each field that a mistake can have."""
    return tomllib.loads(FIELDS.read_text(encoding="utf-8"))


def read() -> dict[str, Pair]:
    """Return all pairs by their titles."""
    files = [path for path in sorted(PORTS.glob("*.toml")) if path not in (FIELDS, VERDICTS)]
    read_files = [tomllib.loads(path.read_text(encoding="utf-8")) for path in files]
    variants = {name: _script(entry, {}) for file in read_files for name, entry in file.get("script", {}).items()}
    pairs: dict[str, Pair] = {}
    for entry in (entry for file in read_files for entry in file["pair"]):
        assert entry["title"] not in pairs, entry["title"]
        pairs[entry["title"]] = _pair(entry, variants)
    return pairs


def verdicts() -> Mapping[str, str]:
    """Return the known verdicts on `compare` that are not right, by the titles of pairs."""
    return tomllib.loads(VERDICTS.read_text(encoding="utf-8"))


def _pair(entry: Mapping[str, Any], variants: Mapping[str, Script]) -> Pair:
    named = Named(**entry["named"]) if "named" in entry else None
    old, new = (_script(entry[side], variants) for side in ("old", "new"))
    return Pair(entry["title"], old, new, tuple(map(_mistake, entry["mistakes"])), named)


def _script(entry: Mapping[str, Any], variants: Mapping[str, Script]) -> Script:
    """Read a script. The name of a variant stands for its script, with the replacements of the variant first."""
    base = variants.get(entry["script"], Script(entry["script"]))
    return Script(base.name, base.replaced + tuple((old, new) for old, new in entry.get("replace", [])))


def _mistake(entry: Mapping[str, Any]) -> Mistake:
    named: str | Sequence[str] = entry["field"]
    return Mistake((named,) if isinstance(named, str) else tuple(named), entry.get("old"), entry.get("new"))
