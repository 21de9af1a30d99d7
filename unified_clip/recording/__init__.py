"""Record clip calls to a file, and compare two recordings."""

from .dispatcher import log

__all__ = ["log"]
