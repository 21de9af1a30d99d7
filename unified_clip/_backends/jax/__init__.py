"""The backend of JAX."""

import jax

from .. import check_release

check_release("jax", jax.__version__)

from .backend import BACKEND as BACKEND  # noqa: E402  # an old release may fail here
