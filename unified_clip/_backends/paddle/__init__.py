"""The backend of Paddle."""

from .backend import BACKEND as BACKEND
