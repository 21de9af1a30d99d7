"""The pytest plugin. pytest imports this module in every run, so only the fixtures import frameworks and NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from .recorder.guard import Hook

FRAMEWORKS = "the frameworks that the fixture clip_parity compares (default: all installed frameworks)"
INTERPRETERS = "a Python interpreter to use for a framework instead of pytest's. Example: paddle=PATH"
MISSING = "whether tests that use clip_parity fail (default) or are skipped if a framework is not installed"


HOOK = Hook("options of pytest", "The fixtures clip_parity and clip_suite are not available")


def pytest_addoption(parser: pytest.Parser) -> None:
    HOOK.run(_add_options, parser)


def _add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("unified_clip", "gradient clipping (unified_clip)")
    group.addoption("--clip-frameworks", metavar="NAMES", help=f"{FRAMEWORKS}, comma-separated")
    group.addoption("--clip-interpreter", metavar="FRAMEWORK=PATH", action="append", help=f"{INTERPRETERS}; repeatable")
    group.addoption("--clip-missing", choices=("fail", "skip"), help=MISSING)
    parser.addini("clip_frameworks", FRAMEWORKS, type="args", default=None)
    parser.addini(
        "clip_interpreters",
        f"{INTERPRETERS}. Write one entry per line. Paths are relative to pytest's root directory",
        type="linelist",
    )
    parser.addini("clip_missing", MISSING, default="fail")


@pytest.fixture(scope="session")
def clip_parity(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Return `unified_clip.testing.assert_clip_parity`, with pytest's options as arguments."""
    from unified_clip._command.parser import comma_separated
    from unified_clip.testing import assert_clip_parity

    named = pytestconfig.getoption("--clip-frameworks")
    names = [named] if named else pytestconfig.getini("clip_frameworks")
    return functools.partial(
        assert_clip_parity,
        frameworks=None if names is None else [name for text in names for name in comma_separated(text) if name],
        interpreters=_interpreters(pytestconfig),
        missing=pytestconfig.getoption("--clip-missing") or pytestconfig.getini("clip_missing"),
    )


@pytest.fixture(scope="session")
def clip_suite(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Return `assert_suite_passes` of `unified_clip.testing`. Relative paths start at pytest's root directory.

    The options of `clip_parity` do not apply, because the suite names its frameworks and interpreters.
    """
    from unified_clip.testing import assert_suite_passes

    def check(suite: str | Path, frameworks: Sequence[str] | None = None) -> None:
        __tracebackhide__ = True
        assert_suite_passes(pytestconfig.rootpath / suite, frameworks)

    return check


@pytest.fixture
def check_run(pytestconfig: pytest.Config) -> Callable[..., AbstractContextManager[None]]:
    """Return `unified_clip.testing.check_run`. Relative paths start at pytest's root directory."""
    from unified_clip.testing import check_run

    return lambda clip, **options: check_run(pytestconfig.rootpath / clip, **options)


def _interpreters(config: pytest.Config) -> dict[str, Path]:
    places = [
        (config.rootpath, config.getini("clip_interpreters")),
        (config.invocation_params.dir, config.getoption("--clip-interpreter") or []),
    ]
    paths = {}
    for start, entries in places:
        for entry in entries:
            framework, equals, path = (part.strip() for part in entry.partition("="))
            if not (framework and equals and path):
                raise pytest.UsageError(
                    f"{entry!r} is not FRAMEWORK=PATH. Write, for example, paddle=../paddle/bin/python"
                )
            paths[framework] = start / Path(path).expanduser()
    return paths
