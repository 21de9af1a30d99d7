"""The configuration formats of trainers: one for each row of `facts/trainers`."""

from ...facts import trainer_rows
from .base import Format, Imported
from .rows import RowFormat, ScriptFormat, SourceFormat
from .trainers.keras import KERAS
from .trainers.optax import Optax
from .trainers.paddle import Paddle

__all__ = ["FORMATS", "Format", "Imported"]

OWN: dict[str, type[Format]] = {"keras": type(KERAS), "optax": Optax, "paddle": Paddle}
"""The formats whose files a row cannot describe."""

OF_KIND: dict[str, type[Format]] = {"args": ScriptFormat, "python": SourceFormat}

FORMATS: dict[str, Format] = {
    name: OWN.get(name, next((OF_KIND[kind] for kind in row.kinds if kind in OF_KIND), RowFormat))(row)
    for name, row in trainer_rows.trainers().items()
}
