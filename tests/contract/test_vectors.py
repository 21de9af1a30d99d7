"""The conformance vectors, with this framework's tensors: the same bits as in the files."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.kits import Kit
from support.tiers import where
from support.vectors import FILES, failures


@where(lambda kit: kit.exact)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_vectors_pass(kit: Kit, path: Path) -> None:
    adapter = importlib.import_module(f"unified_clip.parity.adapters.{kit.name}").FrameworkAdapter()
    without = ["complex128"] if kit.name == "mlx" else []
    found = failures(path, adapter, kit.namespace, without)
    if not kit.keeps_empty_gradients:  # these lists hold a gradient that is None there
        found = [
            failure for failure in found if not failure.startswith(("zero-size alone", "sparse, rows that cancel"))
        ]
    assert found == []
