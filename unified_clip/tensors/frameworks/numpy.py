from __future__ import annotations

from typing import Any

import numpy as np

from ..types import Dense, Gradient, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        return to_numpy(tensor)

    def read(self, tensor: Any) -> Gradient:
        return from_numpy(np.asarray(tensor))
