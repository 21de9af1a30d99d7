"""The backend of PyTorch."""

from .backend import BACKEND as BACKEND
