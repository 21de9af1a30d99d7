"""Every example on the pages of the integrations runs, and prints what the page says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.kits import Kit
from support.page_examples import examples, printed
from support.tiers import where

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:.*copy keyword:DeprecationWarning"),  # of Keras's own `numpy()`
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),  # of Lightning
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
]

PAGES = {
    "pytorch": "torch", "accelerate": "torch", "lightning": "torch", "transformers": "torch",
    "optax": "jax", "keras": "tensorflow", "paddle": "paddle",
}  # fmt: skip
EXAMPLES = [(page, *example) for page in PAGES for example in examples(page)]
OF_TRAINERS = re.compile(r"^(\{'loss'.*|.*train_runtime.*)\n", re.MULTILINE)
PROCESS_WIDE = ("enable_static", "KERAS_BACKEND")
"""Settings of a whole process. Examples without them run in this process, because libraries take long to import."""


@where(lambda kit, page: kit.name == PAGES[page])
@pytest.mark.parametrize(("page", "code", "text"), EXAMPLES)
def test_an_example_prints_what_the_page_says(
    kit: Kit, page: str, code: str, text: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if kit.name == "torch":
        request.getfixturevalue("accelerate_state")
    is_here = not any(setting in code for setting in PROCESS_WIDE)
    assert OF_TRAINERS.sub("", printed(code, tmp_path, here=is_here)) == text
