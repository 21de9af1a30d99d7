"""The nightly tier: tests that `make nightly` runs and `make test` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """Mark parameters whose tests run in the nightly tier only."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
