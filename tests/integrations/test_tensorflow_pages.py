"""Every example on the page of Keras's integration runs, and prints what the page says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.page_examples import examples, printed

pytestmark = pytest.mark.nightly

os.environ["KERAS_BACKEND"] = "tensorflow"


@pytest.mark.filterwarnings("ignore:.*copy keyword:DeprecationWarning")  # of Keras's own `numpy()`
@pytest.mark.parametrize(("code", "text"), examples("keras"))
def test_an_example_prints_what_the_page_says(code: str, text: str, tmp_path: Path) -> None:
    assert printed(code, tmp_path, here="KERAS_BACKEND" not in code) == text
