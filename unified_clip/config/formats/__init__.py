"""The formats of trainers. A new one is a module and a line in `FORMATS`."""

from .accelerate import Accelerate
from .base import Format, FormatKey, Imported
from .deepspeed import DeepSpeed
from .detectron2 import Detectron2
from .hf import HuggingFace
from .keras import Keras
from .lightning import Lightning
from .maxtext import MaxText
from .megatron import Megatron
from .mmengine import MMEngine
from .optax import Optax
from .paddle import Paddle
from .paddleclas import PaddleClas
from .paddledetection import PaddleDetection
from .paddlenlp import PaddleNLP
from .paddleocr import PaddleOCR
from .timm import Timm
from .torchtitan import TorchTitan

__all__ = ["FORMATS", "Format", "FormatKey", "Imported"]

FORMATS: dict[str, Format] = {
    trainer.name: trainer
    for trainer in (
        DeepSpeed(),
        HuggingFace(),
        Accelerate(),
        Lightning(),
        Megatron(),
        TorchTitan(),
        Detectron2(),
        MMEngine(),
        Timm(),
        Keras(),
        Optax(),
        MaxText(),
        Paddle(),
        PaddleNLP(),
        PaddleDetection(),
        PaddleClas(),
        PaddleOCR(),
    )
}
