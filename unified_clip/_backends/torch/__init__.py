"""The backend of PyTorch."""

import torch

from .. import check_release

check_release("torch", torch.__version__)

from .backend import BACKEND as BACKEND  # noqa: E402  # an old release may fail here
