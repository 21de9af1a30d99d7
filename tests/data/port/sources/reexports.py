"""Utilities of training, gathered so that scripts import one module."""

from torch.nn.utils import (  # noqa: F401
    clip_grad_norm_,
    clip_grad_value_,
)

from .checkpoint import load_checkpoint, save_checkpoint
from .distributed import all_reduce_mean, get_rank, is_main_process
from .lr import warmup_cosine

__all__ = [
    'all_reduce_mean',
    'clip_grad_norm_',
    'clip_grad_value_',
    'get_rank',
    'is_main_process',
    'load_checkpoint',
    'save_checkpoint',
    'warmup_cosine',
]


def describe():
    """One line for the log: what may be called with `clip_grad_norm_(params, 1.0)`."""
    return ', '.join(name for name in __all__ if not name.startswith('_'))
