"""The backend of JAX."""

from .backend import BACKEND as BACKEND
