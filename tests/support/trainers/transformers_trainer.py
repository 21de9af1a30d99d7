"""A trainer that reads the rows in their order. Transformers 5 has `train_sampling_strategy`, and Transformers 4 has no
argument for it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import SequentialSampler
from transformers import Trainer


class InOrder(Trainer):  # type: ignore[misc]  # of type Any
    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)
