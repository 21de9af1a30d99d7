"""The tests that run on a real CUDA device only."""

from __future__ import annotations

import pytest
import torch
from support.kits import Kit


@pytest.fixture(autouse=True)
def needs_cuda(kit: Kit) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    if not kit.exact:
        pytest.skip("compared with the host path")
