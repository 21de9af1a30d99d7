"""The options of `unified-clip bench`."""

from __future__ import annotations

import pytest

from unified_clip.bench.options import DTYPES_OF, Options, OptionsError
from unified_clip.bench.pairs import FRAMEWORKS

pytestmark = pytest.mark.nightly


def test_what_would_measure_nothing_is_refused() -> None:
    with pytest.raises(OptionsError, match="numpy cannot be measured with bfloat16"):
        Options(frameworks=["numpy"], dtypes=["bfloat16"], growth=False)


def test_each_framework_has_dtypes() -> None:
    assert list(DTYPES_OF) == list(FRAMEWORKS)
