"""The configuration formats of trainers. To add one, write a subclass of `Format` in a new module below `trainers`."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from . import trainers
from .base import Format, Imported

__all__ = ["FORMATS", "Format", "Imported"]


def _formats() -> Iterator[Format]:
    for info in pkgutil.walk_packages(trainers.__path__, f"{trainers.__name__}."):
        for member in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(member) and issubclass(member, Format) and member.__module__ == info.name:
                yield member()


FORMATS: dict[str, Format] = {trainer.name: trainer for trainer in sorted(_formats(), key=lambda trainer: trainer.name)}
