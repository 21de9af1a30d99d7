"""The configuration formats of trainers: one for each row of `facts/trainers`."""

from ...facts import trainer_rows
from .base import Format, Imported
from .rows import RowFormat, ScriptFormat
from .trainers.keras import KERAS
from .trainers.mmengine import MMCV1, MMEngine
from .trainers.optax import Optax
from .trainers.paddle import PADDLE
from .trainers.rllib import RLlib
from .trainers.timm import Timm

__all__ = ["FORMATS", "Format", "Imported"]

OWN: dict[str, type[Format]] = {
    "keras": type(KERAS), "mmcv": MMCV1, "mmengine": MMEngine, "optax": Optax, "paddle": type(PADDLE), "rllib": RLlib,
    "timm": Timm,
}  # fmt: skip
"""The formats whose files a row cannot describe."""

FORMATS: dict[str, Format] = {
    name: OWN.get(name, ScriptFormat if "args" in row.kinds else RowFormat)(row)
    for name, row in trainer_rows.trainers().items()
}
