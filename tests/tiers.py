"""The nightly tier: tests that `make nightly` runs and `make test` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """Parameters of which only the nightly tier makes tests."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
