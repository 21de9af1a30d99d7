"""The backend of Paddle."""

import paddle

from .. import check_release

check_release("paddle", paddle.__version__)

from .backend import BACKEND as BACKEND  # noqa: E402  # an old release may fail here
