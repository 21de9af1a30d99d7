"""The formats of trainers. To add one, add a module to `trainers` and an entry to `FORMATS`."""

from .base import Format, FormatKey, Imported
from .trainers.huggingface.accelerate import Accelerate
from .trainers.huggingface.training_arguments import HuggingFace
from .trainers.jax.maxtext import MaxText
from .trainers.jax.optax import Optax
from .trainers.paddle.paddle import Paddle
from .trainers.paddle.paddleclas import PaddleClas
from .trainers.paddle.paddledetection import PaddleDetection
from .trainers.paddle.paddlenlp import PaddleNLP
from .trainers.paddle.paddleocr import PaddleOCR
from .trainers.tensorflow.keras import Keras
from .trainers.torch.deepspeed import DeepSpeed
from .trainers.torch.detectron2 import Detectron2
from .trainers.torch.lightning import Lightning
from .trainers.torch.megatron import Megatron
from .trainers.torch.mmengine import MMEngine
from .trainers.torch.timm import Timm
from .trainers.torch.torchtitan import TorchTitan

__all__ = ["FORMATS", "Format", "FormatKey", "Imported"]

FORMATS: dict[str, Format] = {trainer.name: trainer for trainer in (
    DeepSpeed(), HuggingFace(), Accelerate(), Lightning(), Megatron(), TorchTitan(), Detectron2(), MMEngine(), Timm(),
    Keras(), Optax(), MaxText(), Paddle(), PaddleNLP(), PaddleDetection(), PaddleClas(), PaddleOCR(),
)}  # fmt: skip
