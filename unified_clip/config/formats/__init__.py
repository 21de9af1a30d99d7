"""The formats of trainers. To add one, add a module to `trainers` and an entry to `FORMATS`."""

from .base import Format, FormatKey, Imported
from .trainers.deepspeed import DeepSpeed
from .trainers.detectron2 import Detectron2
from .trainers.huggingface import Accelerate, HuggingFace
from .trainers.keras import Keras
from .trainers.lightning import Lightning
from .trainers.maxtext import MaxText
from .trainers.megatron import Megatron
from .trainers.mmengine import MMEngine
from .trainers.optax import Optax
from .trainers.paddle import Paddle
from .trainers.paddle_trainers import PaddleClas, PaddleDetection, PaddleNLP, PaddleOCR
from .trainers.timm import Timm
from .trainers.torchtitan import TorchTitan

__all__ = ["FORMATS", "Format", "FormatKey", "Imported"]

FORMATS: dict[str, Format] = {trainer.name: trainer for trainer in (
    DeepSpeed(), HuggingFace(), Accelerate(), Lightning(), Megatron(), TorchTitan(), Detectron2(), MMEngine(), Timm(),
    Keras(), Optax(), MaxText(), Paddle(), PaddleNLP(), PaddleDetection(), PaddleClas(), PaddleOCR(),
)}  # fmt: skip
