"""The backend of TensorFlow."""

import tensorflow

from .. import check_release

check_release("tensorflow", tensorflow.__version__)

from .backend import BACKEND as BACKEND  # noqa: E402  # an old release may fail here
