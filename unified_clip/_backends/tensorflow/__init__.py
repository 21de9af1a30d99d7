"""The backend of TensorFlow."""

from .backend import BACKEND as BACKEND
