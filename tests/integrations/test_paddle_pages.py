"""Every example on the page of Paddle's integration runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.page_examples import examples, printed

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(("code", "text"), examples("paddle"))
def test_an_example_prints_what_the_page_says(code: str, text: str, tmp_path: Path) -> None:
    assert printed(code, tmp_path, here="enable_static" not in code) == text
