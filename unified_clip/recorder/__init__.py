"""Record the training of other people's programs: facts only, which `unified_clip.recipes` understands.

This folder also runs alone, in an old environment: it needs Python 3.7 and NumPy, and imports no other part of
unified_clip.
"""

from __future__ import annotations

import re
import sys

PYTHON = (3, 10)
"""The oldest Python in which unified_clip itself runs. `pyproject.toml` has the same."""

OLDEST = {"torch": "2.4", "tensorflow": "2.15", "paddle": "2.6", "jax": "0.5.3", "mlx": "0.32.4", "numpy": "1.26"}
"""The oldest release of each framework that the tests have run with. `pyproject.toml` has the same releases."""

HOOKS_OF = {"torch": "pytorch", "tensorflow": "tensorflow1", "paddle": "paddle2"}
"""{framework: module with its hooks}."""

ALONE = {"torch": (2, 4), "tensorflow": (2,), "paddle": (2,)}
"""Older releases than these are recorded by this folder alone, whatever the release of Python."""


def is_too_old(framework: str, version: str) -> bool:
    """Return False for a version such as 0.0.0, which some builds from source have."""
    installed = _numbers(version)
    return any(installed) and installed < _numbers(OLDEST[framework])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _installed(framework: str) -> tuple[int, ...]:
    return _numbers(getattr(sys.modules.get(framework), "__version__", ""))


def hooks_of(framework: str) -> str:
    is_fluid = framework == "paddle" and _installed(framework)[:1] == (1,)
    return "fluid" if is_fluid else HOOKS_OF[framework]


def is_old_environment(framework: str) -> bool:
    """Return whether unified_clip itself cannot run in this process, which has imported a framework."""
    installed = _installed(framework)
    return sys.version_info < PYTHON or (any(installed) and installed < ALONE.get(framework, ()))
