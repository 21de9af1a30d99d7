"""The toy framework for the contract's tests."""

from typing import Any

import numpy as np
from support.kits import KITS, Kit


class ToyKit(Kit):
    name = "toy"

    def from_array(self, array: np.ndarray) -> Any:
        import toyframe

        return toyframe.Tensor(array)

    def array(self, tensor: Any) -> np.ndarray:
        return tensor.numpy().copy()

    def parameter(self, name: str = "weight") -> Any:
        return self.tensor([0.0, 0.0])


KITS["toy"] = ToyKit
