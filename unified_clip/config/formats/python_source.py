"""Formats of Python source, which are only written. `unified-clip port` and `config check` read clips in source."""

from __future__ import annotations

from typing import ClassVar

from packaging.version import Version

from ...errors import ConfigError
from ..documents import Document
from .base import Imported, OwnFormat

NOT_READ = (
    "{name}: clips by {title} are code, which the import does not read. To list the clips: unified-clip port {name}. "
    "Write a clip configuration with the clip's threshold: see docs/config.md. Remove an entry of check.formats for "
    "this file, because the check reads code without a format."
)


class PythonFormat(OwnFormat):
    kinds = ("python",)
    package: ClassVar[str]

    def parse(self, text: str, name: str) -> Document:
        raise ConfigError(NOT_READ.format(name=name, title=self.title), "UC103")

    def read(self, document: Document, version: Version | None) -> Imported:
        raise NotImplementedError(f"{self.name} is only written")
