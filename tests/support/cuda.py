"""The tests that run on a real CUDA device only."""

from __future__ import annotations

import pytest
import torch
from support.kits import Kit


@pytest.fixture(autouse=True)
def needs_cuda(kit: Kit) -> None:
    """Skip the tests of a module that imports this fixture where there is no CUDA device, and on the device path."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    if not kit.exact:
        pytest.skip("compared with the host path")
