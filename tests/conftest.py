"""Options and fixtures of all tests. `pytest --framework NAME` runs the contract tests on one framework, because a
process never imports two."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from support.kits import KITS, Kit
from support.processes.warm import Start, origin_of_copies, started_by
from support.processes.worlds import World
from support.ranks import adapter_of
from support.tiers import CHANGE_TIER, copies_workers, is_collected, leave_variants_to_nightly, skip_for_release

settings.register_profile(
    "contract", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
settings.register_profile("compiled", settings.get_profile("contract"), max_examples=25)
# What a change has to pass does not depend on chance. The nightly tier looks for new examples, and makes them small.
settings.register_profile(
    "change",
    settings.get_profile("contract"),
    max_examples=25,
    derandomize=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
settings.load_profile("contract")
pytest.register_assert_rewrite("support.clip_cases", "support.page_examples", "support.port.verify_pairs")

NEED_CLI = (
    "contract/test_config.py", "contract/test_parity_adapter.py", "contract/test_testing.py",
    "frameworks/test_each_graph.py",
    "frameworks/test_each_adaptive_in_graphs.py", "frameworks/test_each_config_in_graphs.py",
    "frameworks/test_each_native_recording.py", "frameworks/test_each_recorder_alone.py",
    "frameworks/test_each_verify.py", "frameworks/test_each_adaptive_optimizers.py",
    "frameworks/test_each_config_formats.py",
)  # fmt: skip
collect_ignore = [] if find_spec("pydantic") else list(NEED_CLI)

OF_ONE_FRAMEWORK = ("frameworks", "distributed", "integrations")
"""Directories whose files are each for one framework, which their names begin with. Files `test_each_*.py` are for all.

Only these directories may have tests that a supported release of the framework cannot pass.
"""

KIT = pytest.StashKey[Kit]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--framework", default="numpy", choices=sorted(KITS), help="run the contract on this framework")


def pytest_configure(config: pytest.Config) -> None:
    """Import the kit before any test module, because the kit sets variables that the framework reads at its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a clone without compiled kernels warns
        from unified_clip._native import KERNELS
    if KERNELS is None:
        os.environ.setdefault("UNIFIED_CLIP_NATIVE", "0")  # also in the processes that tests start
    if config.getoption("markexpr") == CHANGE_TIER:
        settings.load_profile("change")
    config.stash[KIT] = kit = KITS[config.getoption("--framework")]()
    if os.environ.get("UNIFIED_CLIP_EMULATED_GPU"):
        from support import emulated_gpu

        emulated_gpu.install_for_torch(pytest.MonkeyPatch())
    if kit.name == "jax" and not kit.exact:  # JAX compiles for every shape
        settings.load_profile("compiled")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect `test_torch_*.py` only for `--framework torch`, because no other process may import PyTorch."""
    name = collection_path.name
    of_one = collection_path.parent.name in OF_ONE_FRAMEWORK and re.match(r"test_(?!each_)", name)
    framework = config.getoption("--framework").partition("-")[0]
    return True if of_one and not name.startswith(f"test_{framework}_") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that is named, as in `pytest FILE::TEST`, runs in all of its variants."""
    collected = {item: is_collected(item, config.stash[KIT]) for item in items}
    items[:] = [item for item in items if collected[item]]
    config.hook.pytest_deselected(items=[item for item in collected if not collected[item]])
    skip_for_release((item for item in items if item.path.parent.name in OF_ONE_FRAMEWORK), config.stash[KIT].name)
    named = any("::" in argument for argument in config.args)
    if config.getoption("markexpr") == CHANGE_TIER and not named:
        suite = config.getoption("--framework") + os.environ.get("UNIFIED_CLIP_PATH", "")
        leave_variants_to_nightly(items, suite)


def pytest_collection_finish() -> None:
    """Exclude the frameworks' modules and the tests from garbage collection, because they are many objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kit(request: pytest.FixtureRequest) -> Kit:
    return request.config.stash[KIT]


@pytest.fixture(scope="session")
def torch_worlds() -> Iterator[Callable[[int], World]]:
    """Worlds of any number of PyTorch processes, which all tests share. No test may end a process."""
    from support.processes import torch_sharded

    with torch_sharded.worlds() as of:
        yield of


@pytest.fixture(scope="session")
def rank_worlds(kit: Kit, request: pytest.FixtureRequest) -> Any:
    """Worlds of any number of processes, for tests of all frameworks with gradients on several ranks."""
    if kit.name == "torch":
        yield request.getfixturevalue("torch_worlds")
        return
    with adapter_of(kit.name).worlds() as of:
        yield of


@pytest.fixture(scope="session")
def tensorflow_worlds() -> Iterator[Callable[[str], World]]:
    from support.processes import tensorflow_replicas

    with tensorflow_replicas.worlds() as of:
        yield of


@pytest.fixture(scope="session")
def _origin_with_pytorch() -> Iterator[Start]:
    with origin_of_copies("torch", "torch._dynamo") as start:
        yield start


@pytest.fixture
def quick_pytorch_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    if not copies_workers(request.config):
        yield
        return
    with started_by(request.getfixturevalue("_origin_with_pytorch")):
        yield


@pytest.fixture(autouse=True)
def _no_warning_is_only_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test, a warning of a recording is an error. In a program, it is printed if warnings are errors."""
    from unified_clip.recorder import guard

    def fail(message: str, error: Exception) -> None:
        raise error

    monkeypatch.setattr(guard, "print_instead", fail)


@pytest.fixture(autouse=True)
def _no_settings_left() -> Iterator[None]:
    """No test may leave a clip of `set_gradient_clip`, which is a setting of the whole process."""
    yield
    from unified_clip._api.settings import SETTINGS

    assert SETTINGS.default is None
